"""Recorded runs with known odds, for what learns from them."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from pydantic import JsonValue

from nearfar.orchestrator.lab.study import run_key
from nearfar.orchestrator.lab.worlds.apps import AppsWorld
from nearfar.orchestrator.lab.worlds.loading import SearchWorld
from nearfar.orchestrator.routing.outcome_records import Outcome, RunRecord
from nearfar.orchestrator.task.decisions import Arm
from nearfar.orchestrator.task.modes import Strategy, TaskProfile
from nearfar.orchestrator.task.policy import Policy
from nearfar.protocols import Sensitivity

SEARCH_TOOLS = ("search", "open")
APPS_TOOLS = ("find_contact", "send_mail", "pay")
PUBLIC = Policy(sensitivity=Sensitivity.PUBLIC)
WORLDS = ((SearchWorld(), SEARCH_TOOLS), (AppsWorld(), APPS_TOOLS))

DOLLARS = {"device": 0.0, "cloud": 0.01, "pevr": 0.003, "eva": 0.002}
ODDS = {
    "search": {"device": 0.3, "cloud": 0.7, "pevr": 0.4, "eva": 0.75},
    "apps": {"device": 0.2, "cloud": 0.7, "pevr": 0.75, "eva": 0.35},
}
"""As the literature has it: plans for tasks with a state, advice for searches."""


def run(
    *,
    prompt: str = "What is the mayor of Port Selby?",
    tools: Sequence[str] = SEARCH_TOOLS,
    strategy: str = "eva",
    knobs: Mapping[str, JsonValue] | None = None,
    label: str = "",
    world: str = "search",
    kind: str = "1 hop",
    task: str = "search-1",
    seed: int = 1,
    score: float = 1.0,
    dollars: float | None = 0.002,
    oracle: bool = False,
) -> RunRecord:
    """A record; what does not matter here is made up."""
    return RunRecord(
        key=run_key(world=world, task=task, seed=seed, strategy=strategy, knobs=knobs or {}, oracle=oracle),
        world=world,
        task=task,
        prompt=prompt,
        tools=tuple(tools),
        kind=kind,
        difficulty=1,
        seed=seed,
        configuration=label or strategy,
        strategy=strategy,
        knobs=knobs or {},
        oracle=oracle,
        near_model="near",
        far_model="far",
        answer="",
        success=score == 1,
        score=score,
        turns=1,
        near_calls=1,
        far_calls=1,
        dollars=dollars,
        dollars_source="a test",
        seconds=1,
        joules=None,
        joules_source="unavailable",
        peak_kv_bytes=None,
    )


def runs(
    count: int, *, seeds: Sequence[int] = (1, 2), odds: Mapping[str, Mapping[str, float]] = ODDS, arms: Sequence[str] = tuple(DOLLARS)
) -> Iterator[RunRecord]:
    """`count` tasks of each world and seed under each configuration, successful with the given odds."""
    for world, tools in WORLDS:
        for seed in seeds:
            for task in world.tasks(count, seed):
                for arm in arms:
                    wins = random.Random(f"{task.identifier}/{arm}").random() < odds[world.name][arm]
                    yield run(
                        prompt=task.prompt,
                        tools=tools,
                        strategy=arm,
                        world=world.name,
                        kind=task.kind,
                        task=task.identifier,
                        seed=seed,
                        score=float(wins),
                        dollars=DOLLARS[arm],
                    )


def outcome(
    strategy: Strategy,
    score: float,
    *,
    profile: TaskProfile,
    task_class: str = "",
    knobs: Mapping[str, JsonValue] | None = None,
    dollars: float | None = 0.0,
) -> Outcome:
    return Outcome(task_class=task_class, profile=profile, arm=Arm(strategy=strategy, knobs=knobs or {}), score=score, dollars=dollars)


def outcomes(count: int, odds: Mapping[Strategy, float], *, profile: TaskProfile, draw: Callable[[], float]) -> Iterator[Outcome]:
    """`count` outcomes of each strategy, successful with the given odds."""
    for strategy, chance in odds.items():
        for _ in range(count):
            yield outcome(strategy, float(draw() < chance), profile=profile)
