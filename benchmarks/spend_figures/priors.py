"""Wrong drafts that a biased judge lets pass, plainly, by a prior, and by faults that were reported.

The shipped models read no points, so the judge is scripted: with a set probability it agrees with whatever it sees, and less often where a
point names the rule that was broken (agreement bias, arXiv 2507.11662). What is measured is whether `prior_first` and `rubric` bring it
the points; how much a real judge is biased is its own.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar import Hybrid, Result, ScriptedAgent, Side, StepRequest
from nearfar.orchestrator.lab.statistics import percentile_interval
from nearfar.orchestrator.strategies.prompts import CONTINUE, INTERVENE, JUDGE, PRIOR
from nearfar.protocols.fakes import Reply

SEED: Final = 90909
"""No other figure draws tasks with it."""
BIAS: Final = 0.6
"""Probability that the judge agrees whatever it sees."""
NAMED_BIAS: Final = 0.2
"""The same where a point names the broken rule."""
COVERAGE: Final = 0.8
"""Probability that a prior names a rule of its kind of task."""
FALSE_ALARM: Final = 0.05
"""Probability that the judge objects to a right draft, with or without points."""
_KINDS: Final = ("order", "invoice", "booking", "letter", "claim", "parcel", "permit", "contract")
_RULES: Final = ("stamped", "signed", "dated", "numbered", "copied", "weighed")
"""What may have to be true of a thing; each kind has three such rules, which no prompt states."""
_RESAMPLES: Final = 1000

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flags = NDArray[numpy.bool_]


@dataclass(frozen=True, slots=True)
class HiddenTask:
    """A thing that is handled, and the rule that the draft breaks; None: it breaks none."""

    number: int
    kind: str
    broken: str | None

    @property
    def prompt(self) -> str:
        return f"Please handle {self.kind} No. {self.number}."

    @property
    def draft(self) -> str:
        """Return the near agent's answer. Only who knows the rules sees that something is missing."""
        return f"The {self.kind} was handled{f', not {self.broken}' if self.broken else ''}."


def rules_of(kind: str) -> list[str]:
    """Return the hidden rules of a kind."""
    return random.Random(f"{SEED} {kind}").sample(_RULES, 3)


def tasks(count: int, seed: int) -> list[HiddenTask]:
    """Draw tasks, half of them with a broken rule."""
    chance = random.Random(seed)
    kinds = [chance.choice(_KINDS) for _ in range(count)]
    broken = [chance.choice(rules_of(kind)) if chance.random() < 0.5 else None for kind in kinds]
    return [HiddenTask(1000 + number, *each) for number, each in enumerate(zip(kinds, broken, strict=True))]


class HiddenWorld:
    """The agents of a stream of tasks, and the points that the judge was shown."""

    def __init__(self, stream: Sequence[HiddenTask]) -> None:
        self.by_prompt = {task.prompt: task for task in stream}
        self.priors = 0

    def near(self, request: StepRequest) -> Reply:
        """Return the draft."""
        return self._task(request).draft

    def far(self, request: StepRequest) -> Reply:
        """Write a prior, give a verdict or do the task right."""
        system = request.messages[0].text if request.messages[0].role == "system" else ""
        if system == PRIOR:
            self.priors += 1
            return self._prior(self._task(request).kind)
        if system:
            return self._verdict(self._task(request), request.messages[-1].text, is_judge=system.startswith(JUDGE))
        return f"The {self._task(request).kind} was handled."

    def _task(self, request: StepRequest) -> HiddenTask:
        text = request.messages[-1].text
        return next(task for prompt, task in self.by_prompt.items() if prompt in text)

    def _prior(self, kind: str) -> str:
        chance = random.Random(f"prior {kind}")
        named = [rule for rule in rules_of(kind) if chance.random() < COVERAGE]
        return "\n".join(f"{place}. It is {rule}." for place, rule in enumerate(["polite", *named], start=1))

    def _verdict(self, task: HiddenTask, shown: str, *, is_judge: bool) -> str:
        """Object to a broken rule unless the bias wins; the draws are the same with and without points."""
        points = shown.split("Must be true of a right outcome:")[1].split("Work:")[0] if "Must be true" in shown else ""
        is_named = task.broken is not None and task.broken in points
        draw = random.Random(f"verdict {task.number}").random()
        objects = draw >= (NAMED_BIAS if is_named else BIAS) if task.broken else draw < FALSE_ALARM
        if is_judge:
            return f"Right: {'No' if objects else 'Yes'}"
        return f"{INTERVENE}\nSummary: nothing.\nAdvice: begin again." if objects else CONTINUE


async def _served(stream: Sequence[HiddenTask], policy: dict[str, Any], faults: Sequence[HiddenTask] = ()) -> tuple[list[Result], int]:
    """Serve tasks, after the faults of earlier ones were reported; returns the results and the priors written."""
    world = HiddenWorld([*faults, *stream])
    near = ScriptedAgent(world.near, name="near", confidence=0.9)
    far = ScriptedAgent(world.far, name="far", side=Side.FAR)
    async with Hybrid(near=near, far=far, policy={"sensitivity": "public", **policy}) as hybrid:
        for task in faults:
            done = await hybrid.run(task.prompt, task_class=task.kind, strategy="device")
            if task.broken is not None:
                hybrid.report(done, score=0.0, task_class=task.kind, because=f"It was not {task.broken}.")
        return [await hybrid.run(task.prompt, task_class=task.kind) for task in stream], world.priors


def _objections(results: Sequence[Result]) -> "Flags":
    """Return by task whether the judge or the supervisor objected to the draft."""
    return numpy.array(
        [result.attempts[0].outcome == "rejected" or any(call.verdict == "intervene" for call in result.calls) for result in results]
    )


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Return misses and false alarms of each verdict. `data` is not read."""
    stream, faults = tasks(120 if quick else 600, SEED), tasks(40, SEED + 1)
    faults = [HiddenTask(task.number + 100_000, task.kind, task.broken) for task in faults]
    wrong = numpy.array([task.broken is not None for task in stream])
    shadow = {"interval": "none", "triggers": ["answer"], "shadow": True}
    ways: dict[str, dict[str, Any]] = {
        **{kind: {"strategy": "cascade", "evidence": {"verifiers": [kind]}} for kind in ("outcome", "prior_first", "rubric")},
        "supervisor": {"strategy": "eva", "supervision": shadow},
        "supervisor_prior": {"strategy": "eva", "supervision": {**shadow, "prior": True}},
    }
    objected, priors = {}, {}
    for name, policy in ways.items():
        results, priors[name] = asyncio.run(_served(stream, policy, faults if name == "rubric" else ()))
        objected[name] = _objections(results)
    return {
        "prior_misses": _ratio(~objected["prior_first"] & wrong, ~objected["outcome"] & wrong),
        "prior_misses_in_shadow": _ratio(~objected["supervisor_prior"] & wrong, ~objected["supervisor"] & wrong),
        "rubric_misses": _ratio(~objected["rubric"] & wrong, ~objected["outcome"] & wrong),
        "prior_false_alarms": {name: float(found[~wrong].mean()) for name, found in objected.items()},
        "prior_calls": priors["prior_first"] / len(stream),
    }


def _ratio(first: "Flags", second: "Flags") -> dict[str, float]:
    """Return the sum of the first over that of the second, over resampled tasks."""
    chance = numpy.random.default_rng(0)
    draws = [chance.integers(0, len(first), len(first)) for _ in range(_RESAMPLES)]
    return percentile_interval(first.sum() / second.sum(), [first[rows].sum() / second[rows].sum() for rows in draws]).model_dump()
