"""Traces: what recording takes, and whether blame names the step that was made to fail."""

import asyncio
import itertools
import math
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from nearfar import Hybrid, Records
from nearfar.orchestrator.agents import AgentHandle
from nearfar.orchestrator.hybrid.arguments import TaskOptions
from nearfar.orchestrator.lab.blame import Corrector, Reference, StrongerAgent, blame, same
from nearfar.orchestrator.lab.blame_replay import RecordedRun
from nearfar.orchestrator.lab.worlds import WorldTask, names
from nearfar.orchestrator.lab.worlds.loading import SearchWorld, exact_match
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.events import AttemptStarted
from nearfar.orchestrator.task.policy import Policy
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.orchestrator.tracing import TraceStore, open_traces
from nearfar.orchestrator.tracing.recorder import RunTrace
from nearfar.protocols import Message, Side, ToolCall

from .blamed_runs import CASES, Case, Mistake, Table
from .faulty_runs import ProgramExecutor, draw_fault, wrong_value

_SEED: Final = 7


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """`blame_accuracy`: share of mistakes whose step is named, of all runs; `_low`: the lower end of its 95 % interval (Wilson).

    Next to it that of each strategy, and of the search world's runs, with that of naming the first step unlike the reference;
    `_by_agent`: without a reference, where an agent that knows better says what each step should have been. What came of calls that the
    failed run never made is then unknown, and `_named` is the share of runs in which any step is named at all.
    """
    searched = asyncio.run(_searched(8 if quick else 100))
    others, outcomes = asyncio.run(_others(2 if quick else 40))
    named = searched["blame_accuracy_search"] * searched["blame_faults_search"] + sum(outcomes)
    count = searched["blame_faults_search"] + len(outcomes)
    known = {"blame_accuracy": named / count, "blame_accuracy_low": _low(named, count), "blame_faults": count}
    return {**known, **searched, **others, **_recorded(5_000)}


def _low(successes: float, count: int, z: float = 1.96) -> float:
    """Lower end of the Wilson interval of a share."""
    share = successes / count
    middle = share + z * z / (2 * count)
    return (middle - z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)) / (1 + z * z / count)


async def _others(faults: int) -> tuple[dict[str, Any], list[bool]]:
    """Runs of all strategies, with a mistake in any role; also whether each was named."""
    random_ = random.Random(_SEED)
    found: dict[str, Any] = {}
    named: list[bool] = []
    by_agent: list[bool | None] = []
    with tempfile.TemporaryDirectory() as folder, closing(open_traces(RunsConfig(folder=Path(folder)))) as store:
        for kind in CASES:
            outcomes: list[bool] = []
            for number in itertools.count():
                if len(outcomes) == faults:
                    break
                failed = await _failed(kind, store, random_, f"{kind}-{number}")
                if failed is not None:
                    outcomes.append(await failed.is_named(Reference.of(failed.good), also=[failed.good]) is True)
                    by_agent.append(await failed.is_named(failed.knows_better))
            found[f"blame_accuracy_{kind}"] = sum(outcomes) / faults
            named += outcomes
    sure = [outcome for outcome in by_agent if outcome is not None]
    agent = {"blame_accuracy_by_agent": sum(sure) / max(len(sure), 1), "blame_accuracy_by_agent_named": len(sure) / len(by_agent)}
    return {**found, **agent}, named


class _Failed(NamedTuple):
    """A run with a mistake that did harm, and one without."""

    bad: RecordedRun
    good: RecordedRun
    case: Case
    mistake: Mistake

    @property
    def knows_better(self) -> StrongerAgent:
        return StrongerAgent(AgentHandle("far", Side.FAR, self.case.agents(None)[Side.FAR]), self.bad)

    async def is_named(self, corrector: Corrector, *, also: Sequence[RecordedRun] = ()) -> bool | None:
        """Whether the step with the mistake is named; None: no step is."""
        live = {side.value: AgentHandle(side.value, side, agent) for side, agent in self.case.agents(self.mistake).items()}
        found = await blame(self.bad, corrector, self.is_right, live=live, also=also)
        if found.decisive is None:
            return None
        step = self.bad.steps[found.decisive.step - 1]
        return (step.side, step.messages) == self.mistake.at

    def is_right(self, answer: str, calls: Sequence[ToolCall]) -> bool:
        return same(answer, self.good.answer or "") and self.bad.changes_of(calls) == self.good.changes_of(self.good.calls)


async def _failed(kind: str, store: TraceStore, random_: random.Random, name: str) -> _Failed | None:
    """None where the mistake did no harm."""
    table = Table(random_)
    good = await _recorded_run(CASES[kind](table), None, store, f"{name}-good")
    mistake = Mistake(random_.randrange(len(good.steps)), table.wrong)
    case = CASES[kind](table)
    failed = _Failed(await _recorded_run(case, mistake, store, f"{name}-bad"), good, case, mistake)
    return None if failed.bad.answer is not None and failed.is_right(failed.bad.answer, failed.bad.calls) else failed


async def _recorded_run(case: Case, mistake: Mistake | None, store: TraceStore, name: str) -> RecordedRun:
    agents = case.agents(mistake)
    async with Hybrid(near=agents[Side.NEAR], far=agents[Side.FAR], tools=case.tools, records=Records(traces=store)) as hybrid:
        options: TaskOptions = {**case.options, "idempotency_key": name}
        await hybrid.run(case.prompt, **options)
    store.flush()
    return RecordedRun(name, store.entries(name))


async def _searched(faults: int) -> dict[str, Any]:
    random_ = random.Random(_SEED)
    world = SearchWorld()
    named = first = certain = tried = replays = 0
    with tempfile.TemporaryDirectory() as folder, closing(open_traces(RunsConfig(folder=Path(folder)))) as store:
        for number, task in enumerate(world.tasks(faults * 3, _SEED)):
            if tried == faults:
                break
            found = await _blame_one(world, task, store, random_, number)
            if found is None:
                continue
            tried += 1
            named, first, certain, replays = (a + b for a, b in zip((named, first, certain, replays), found, strict=True))
    return {
        "blame_accuracy_search": named / tried,
        "blame_accuracy_search_first_difference": first / tried,
        "blame_certain": certain / tried,
        "blame_replays": replays / tried,
        "blame_faults_search": tried,
    }


async def _blame_one(
    world: SearchWorld, task: WorldTask, store: TraceStore, random_: random.Random, number: int
) -> tuple[bool, bool, bool, int] | None:
    """Whether blame names the injected step, whether its first difference from the reference is it; None where the fault did no harm."""
    question = world.question(task)
    program = question.program
    right = [str(argument.value) for step in program.steps for _, argument in step.arguments] + [question.answer]
    wrong = wrong_value(right, names("person", "test"), random_)
    fault = draw_fault(program, random_)
    good = await _run(world, task, store, ProgramExecutor(program, None, wrong), f"good-{number}")
    bad = await _run(world, task, store, ProgramExecutor(program, fault, wrong), f"bad-{number}")
    if bad.answer is None or exact_match(bad.answer, question.answer):
        return None
    reference = Reference.of(good)
    live = {"near": AgentHandle("near", Side.NEAR, ProgramExecutor(program, fault, wrong))}

    def judge(answer: str, calls: Sequence[ToolCall]) -> bool:
        return bool(exact_match(answer, question.answer))

    found = await blame(bad, reference, judge, live=live, also=[good])
    injected = fault.place + 1 + (fault.detour is not None)
    challenged = [step.number for step in bad.steps if await reference.correct(step) is not None]
    is_named = found.decisive is not None and found.decisive.step == injected
    return is_named, challenged[0] == injected, found.is_certain, found.replays


async def _run(world: SearchWorld, task: WorldTask, store: TraceStore, agent: ProgramExecutor, name: str) -> RecordedRun:
    episode = world.reset(task)
    async with Hybrid(near=agent, tools=episode.tools, records=Records(traces=store), policy=Policy()) as hybrid:
        await hybrid.run(task.prompt, strategy="device", idempotency_key=name)
    episode.close()
    store.flush()
    return RecordedRun(name, store.entries(name))


def _recorded(entries: int) -> dict[str, Any]:
    """What an entry takes of the run's own time, and of the processor with all that the writing thread does."""
    with tempfile.TemporaryDirectory() as folder, closing(open_traces(RunsConfig(folder=Path(folder)))) as store:
        trace = RunTrace.of(Task(messages=(Message.user("a task"),)), {}, store=store, observers=None)
        event = AttemptStarted(agent="near", side=Side.NEAR, model="a model")
        used, started = time.process_time(), time.perf_counter()
        for _ in range(entries):
            trace.record_event(event)
        heard = time.perf_counter() - started
        store.flush()
        used = time.process_time() - used
    return {"trace_hear_us": 1e6 * heard / entries, "trace_cpu_us": 1e6 * used / entries}
