"""How well `far_share` holds over streams of tasks that a `Hybrid` serves by `pevr`, by `eva`, and by these and `cascade` in turn.

The near agent acts out the class of each task: it looks things up for some turns, is more or less sure, meets errors, changes something
without being sure, or fails. In the middle of a stream other classes take over, in which it is worse. A task is far if any of its
calls went to the far agent; it counts unless its near agent has failed, whose work no budget could have kept.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

import numpy

from nearfar.orchestrator.hybrid import Hybrid
from nearfar.orchestrator.task.modes import Strategy
from nearfar.orchestrator.task.policy import Policy, SupervisionConfig
from nearfar.orchestrator.task.results import Result
from nearfar.orchestrator.task.routing_policy import RouterConfig
from nearfar.orchestrator.task.tools import tool
from nearfar.protocols import Finished, FinishReason, Prices, ScriptedAgent, Sensitivity, Side, StepRequest, ToolCall, Unavailable, Usage
from nearfar.protocols.fakes import Reply

from .budget import WINDOW

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flags = NDArray[numpy.bool_]

SHARES: Final = (0.1, 0.2, 0.3)
"""The middle one in a quick run."""
MIXES: Final = {"pevr": (Strategy.PEVR,), "eva": (Strategy.EVA,), "mixed": (Strategy.CASCADE, Strategy.PEVR, Strategy.EVA)}
"""Strategies of the tasks of a stream, in turn, by its name."""
_PRICES: Final = Prices.model_validate({"input": 3, "output": 15, "source": "made up", "as_of": "2026-11-01"})
_PLANS: Final[Sequence[Mapping[str, Any]]] = ({}, {"plan_below": 0.7}, {"plan_below": 0.7, "interval": 2})
_CHECKS: Final[Sequence[Mapping[str, Any]]] = (
    {"interval": 2},
    {"interval": "none", "triggers": ["tool_error", "low_confidence"]},
    {"interval": 3, "triggers": ["tool_error", "loop", "answer"]},
)


@dataclass(frozen=True, slots=True)
class Stream:
    """Tasks that come one after another, and how they are served."""

    seed: int
    strategies: Sequence[Strategy]
    tasks: int
    share: float


@dataclass(frozen=True, slots=True)
class _Kind:
    """A class of tasks, as the near agent meets them."""

    name: str
    turns: int
    """Most turns of a task that look something up."""
    words: int
    sureness: float
    """Mean confidence of a step."""
    errors: float
    """Share of its looks that return an error."""
    acts: float
    """Share of its tasks that end with a change of which it is not sure."""
    fails: float
    """Share of its tasks in which it fails."""

    @classmethod
    def drawn(cls, random: Random, name: str, *, is_worse: bool) -> "_Kind":
        return cls(
            name,
            turns=random.choice((0, 1, 3)),
            words=random.choice((5, 40, 200)),
            sureness=random.uniform(0.3, 0.6) if is_worse else random.uniform(0.6, 0.95),
            errors=random.uniform(0, 0.3 if is_worse else 0.1),
            acts=random.choice((0.0, 0.05)),
            fails=random.choice((0.0, 0.03)),
        )


@dataclass(slots=True)
class _Script:
    """All that the near agent will do in one task; a supervisor that intervenes does not make it begin again."""

    kind: _Kind
    looks: int
    """How many are left."""
    acts: bool
    """It will still change something."""
    fails: bool
    random: Random
    steps: int = 0

    @classmethod
    def drawn(cls, kind: _Kind, seed: str) -> "_Script":
        random = Random(seed)
        return cls(kind, random.randint(0, kind.turns), random.random() < kind.acts, random.random() < kind.fails, random)

    def step(self) -> Reply:
        """Take the next step."""
        self.steps += 1
        usage = Usage(input_tokens=self.kind.words + 50 * self.steps, output_tokens=20)
        sureness = min(max(self.random.gauss(self.kind.sureness, 0.2), 0.01), 0.99)
        said: str | ToolCall = "A bridge."
        if self.fails:
            return Unavailable("the model is gone")
        if self.looks:
            self.looks -= 1
            page = 0 if self.random.random() < self.kind.errors else self.steps
            said = ToolCall(id=f"look-{self.steps}", name="look", arguments={"page": page})
        elif self.acts:
            self.acts, sureness = False, 0.2
            said = ToolCall(id=f"act-{self.steps}", name="change", arguments={"what": "word"})
        reason = FinishReason.STOP if isinstance(said, str) else FinishReason.TOOL_CALLS
        return [said, Finished(reason=reason, confidence=sureness, usage=usage, model="near")]


@tool(effect="read")
def look(page: int) -> str:
    """Read a page."""
    if not page:
        raise ValueError("there is no such page")
    return f"Page {page} says word{page}."


@tool
def change(what: str) -> str:
    """Change something."""
    return f"{what} is changed"


def _far(request: StepRequest) -> Reply:
    """Plan, check or answer. One check in five intervenes."""
    asked = request.idempotency_key.split("/")
    if "plan" in asked:
        said = "1. look(page=1)\n2. answer"
    elif "verify" in asked or "act" in asked:
        said = "INTERVENE\n1. answer" if Random(request.idempotency_key).random() < 0.2 else "CONTINUE"
    else:
        said = "A bridge."
    return [said, Finished(reason=FinishReason.STOP, usage=Usage(input_tokens=400, output_tokens=40), model="far")]


async def served(stream: Stream) -> list[Result]:
    """Serve a stream by a `Hybrid`; in the middle, other classes take over."""
    random = Random(stream.seed)
    supervision = {Strategy.PEVR: random.choice(_PLANS), Strategy.EVA: random.choice(_CHECKS)}
    kinds = [[_Kind.drawn(random, f"class/{place}", is_worse=place >= 2) for place in half] for half in ((0, 1), (2, 3))]
    scripts: dict[str, _Script] = {}

    def near(request: StepRequest) -> Reply:
        return scripts[request.idempotency_key.split("/")[0]].step()

    agents = ScriptedAgent(near, name="near"), ScriptedAgent(_far, name="far", side=Side.FAR, prices=_PRICES)
    results = []
    async with Hybrid(near=agents[0], far=agents[1], tools=[look, change]) as hybrid:
        for number in range(stream.tasks):
            kind = random.choice(kinds[2 * number // stream.tasks])
            strategy = stream.strategies[number % len(stream.strategies)]
            scripts = {str(number): _Script.drawn(kind, f"{stream.seed}/{number}")}
            router = RouterConfig(far_share=stream.share)
            watched = SupervisionConfig.model_validate(supervision.get(strategy, {}))
            policy = Policy(strategy=strategy, sensitivity=Sensitivity.PUBLIC, router=router, supervision=watched)
            results.append(await hybrid.run("word " * kind.words, policy=policy, task_class=kind.name, idempotency_key=str(number)))
    return results


def counts(result: Result) -> bool:
    """Return whether the budget could choose: the near agent has not failed, and no fixed check spoke against an act of its draft."""
    first = result.attempts[0]
    return first.outcome == "accepted" or first.p_right is not None


def went_far(result: Result) -> bool:
    return any(call.side is Side.FAR for call in result.calls)


def worst_error(far: "Sequence[bool] | Flags", share: float) -> float:
    """Return the largest distance of the share from its target over all windows, in points. `far`: for each task, in order."""
    sums = numpy.concatenate([[0], numpy.cumsum(far)])
    return float(100 * numpy.abs((sums[WINDOW:] - sums[:-WINDOW]) / WINDOW - share).max())


def share_errors(*, quick: bool) -> dict[str, float]:
    """Return the worst error of the streams by their name. A quick run serves one mixed stream."""
    found: dict[str, float] = {}
    for name, strategies in ({"mixed": MIXES["mixed"]} if quick else MIXES).items():
        for share in SHARES[1:2] if quick else SHARES:
            for seed in range(1 if quick else 2):
                results = asyncio.run(served(Stream(seed, strategies, WINDOW + 100 if quick else 2 * WINDOW + 100, share)))
                far = [went_far(result) for result in results if counts(result)]
                found[name] = max(found.get(name, 0.0), worst_error(far, share))
    return found
