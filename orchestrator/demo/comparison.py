"""Running the same tasks through several strategies and adding up what comes out."""

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from decimal import Decimal

from ...protocols import NearfarError, Prices, Sensitivity, Side
from ...protocols.messages import Value
from ..compose import LocalFarConfig, NearConfig
from ..events import AttemptEnded, CallEnded, TaskFinished
from ..gateway_process import GatewayProcess
from ..hybrid import Hybrid
from ..policy import Strategy
from ..results import Call, spent
from ..task import Policy
from ..tools import Tool
from ..worlds.lookup import MOST_HOPS, SearchTask, SearchWorld, score

STRATEGIES = (Strategy.DEVICE, Strategy.CLOUD, Strategy.CASCADE)

MINIMUM_CONFIDENCE = 0.91
"""Calibrated for the shipped near model, on tasks that the demo does not use: docs/models.md."""

_Z95 = 1.96
_DRAWN_PER_TASK = 8
"""Tasks drawn for each one used: enough that each number of hops occurs often enough."""


class Outcome(Value):
    """One task under one strategy."""

    task: str
    hops: int
    question: str
    expected: str
    answer: str
    """The error, in brackets, where the task failed."""
    correct: bool
    side: Side | None
    """Which side's answer stood; None where the task failed."""
    far_calls: int
    far_tokens: int
    near_tokens: int
    far_dollars: Decimal
    """At the stated reference price."""
    seconds: float


class Row(Value):
    """One strategy over all tasks."""

    strategy: Strategy
    outcomes: tuple[Outcome, ...]

    @property
    def score(self) -> float:
        """Share of right answers."""
        return sum(outcome.correct for outcome in self.outcomes) / len(self.outcomes)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson score interval of `score` (Wilson 1927)."""
        count = len(self.outcomes)
        middle = (self.score + _Z95**2 / (2 * count)) / (1 + _Z95**2 / count)
        spread = self.score * (1 - self.score) / count + _Z95**2 / (4 * count**2)
        half = _Z95 / (1 + _Z95**2 / count) * math.sqrt(spread)
        return max(0.0, middle - half), min(1.0, middle + half)

    @property
    def far_calls(self) -> int:
        return sum(outcome.far_calls for outcome in self.outcomes)

    @property
    def far_tokens(self) -> int:
        return sum(outcome.far_tokens for outcome in self.outcomes)

    @property
    def near_tokens(self) -> int:
        return sum(outcome.near_tokens for outcome in self.outcomes)

    @property
    def dollars(self) -> Decimal:
        return sum((outcome.far_dollars for outcome in self.outcomes), Decimal(0))

    @property
    def seconds(self) -> float:
        return sum(outcome.seconds for outcome in self.outcomes)

    @property
    def answered(self) -> int:
        """Tasks that ended with an answer, right or wrong."""
        return sum(outcome.side is not None for outcome in self.outcomes)

    @property
    def on_device(self) -> float:
        """Share of tasks whose answer came from the device."""
        return sum(outcome.side is Side.NEAR for outcome in self.outcomes) / len(self.outcomes)

    def summary(self) -> dict[str, object]:
        """The row as a script reads it."""
        return {
            "strategy": self.strategy.value,
            "tasks": len(self.outcomes),
            "score": round(self.score, 4),
            "score_interval_95": [round(bound, 4) for bound in self.interval],
            "served_on_device": round(self.on_device, 4),
            "far_calls": self.far_calls,
            "far_tokens": self.far_tokens,
            "near_tokens": self.near_tokens,
            "reference_dollars": float(self.dollars),
            "seconds": round(self.seconds, 3),
        }


@asynccontextmanager
async def demo_hybrid(tool: Tool) -> AsyncIterator[Hybrid]:
    """The shipped pair: the near model in this process's worker, the far one behind a gateway process on loopback gRPC."""
    gateway = await GatewayProcess.start(LocalFarConfig(threads=1), address="127.0.0.1:0")
    try:
        policy = Policy(sensitivity=Sensitivity.PUBLIC, minimum_confidence=MINIMUM_CONFIDENCE)
        async with Hybrid(near=NearConfig(threads=1), far=gateway, tools=[tool], policy=policy) as hybrid:
            yield hybrid
    finally:
        await gateway.aclose()


def demo_tasks(world: SearchWorld, count: int) -> list[SearchTask]:
    """Tasks of a world with equal shares of one to four hops, so that a small sample does not lean to either side by chance."""
    drawn = world.tasks(_DRAWN_PER_TASK * count)
    by_hops = [[task for task in drawn if task.hops == hops] for hops in range(1, MOST_HOPS + 1)]
    return [task for tasks in zip(*by_hops, strict=False) for task in tasks][:count]


async def solve(hybrid: Hybrid, task: SearchTask, strategy: Strategy, reference: Prices) -> Outcome:
    """Run one task; a failure is an outcome too, and what its calls spent still counts."""
    # The demo compares the sides, so neither may stand in for the other unless the strategy says so.
    mode = {Strategy.DEVICE: "only_on_device", Strategy.CLOUD: "only_in_cloud"}.get(strategy, "auto")
    calls: list[Call] = []
    seconds = 0.0
    answer: str = ""
    side: Side | None = None
    try:
        async with aclosing(hybrid.stream(task.question, strategy=strategy, mode=mode)) as events:
            async for event in events:
                if isinstance(event, CallEnded):
                    calls.append(event.call)
                elif isinstance(event, AttemptEnded):
                    seconds += event.attempt.seconds
                elif isinstance(event, TaskFinished):
                    answer, side = event.result.text, event.result.side
    except NearfarError as error:
        answer, side = f"[{type(error).__name__}: {error.message}]", None
    near, far = (spent(calls, which) for which in (Side.NEAR, Side.FAR))
    return Outcome(
        task=task.identifier,
        hops=task.hops,
        question=task.question,
        expected=task.answer,
        answer=answer,
        correct=bool(score(answer, task)),
        side=side,
        far_calls=far.steps,
        far_tokens=far.usage.total_tokens,
        near_tokens=near.usage.total_tokens,
        far_dollars=reference.dollars(far.usage),
        seconds=seconds,
    )


def findings(rows: Sequence[Row]) -> dict[str, float]:
    """What the rows show, as figures: the gap between the sides, and what the cascade keeps and spends of far's score and tokens."""
    by_strategy = {row.strategy: row for row in rows}
    device, cloud, cascade = (by_strategy[strategy] for strategy in STRATEGIES)
    return {
        "far_minus_near_points": round(100 * (cloud.score - device.score), 2),
        "cascade_score_share": round(cascade.score / cloud.score, 4) if cloud.score else 0.0,
        "cascade_far_token_share": round(cascade.far_tokens / cloud.far_tokens, 4) if cloud.far_tokens else 0.0,
    }
