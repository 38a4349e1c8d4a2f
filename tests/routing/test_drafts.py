"""Under `cascade`, a budget settles which drafts go to the far side: one multiplier over the gain that the evidence promises."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from random import Random
from typing import Any

import anyio
import pytest

pytest.importorskip("numpy", reason="looks are weighed with numpy")

from hypothesis import given, settings
from hypothesis import strategies as st
from situations import FAR, NEAR, priced, task

from nearfar import Hybrid, Policy, Result
from nearfar.orchestrator.budgets.book import Commitment
from nearfar.orchestrator.routing.drafts import DraftChoice, Drafts, DraftVerdict, expected_quality, unlearned_chances
from nearfar.orchestrator.routing.router import Router
from nearfar.orchestrator.routing.steering import Steering
from nearfar.orchestrator.task.results import RouteDecision
from nearfar.orchestrator.task.task import Task
from nearfar.protocols import ScriptedAgent, Side, StepRequest, Unavailable
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

PAIR = (NEAR, FAR)


def cascade(policy: Mapping[str, Any], prompt: str = "What is the capital of Peru?", **changes: Any) -> Task:  # noqa: ANN401 - any field
    return task(prompt, policy={"strategy": "cascade", **policy}, **changes)


def choose(router: Router, asked: Task, *, doubted: bool, commitments: list[Commitment] | None = None) -> bool:
    """Serve one draft as a `Hybrid` does; return whether it went far."""
    decision = router.decide(asked, PAIR, commitments=commitments)
    if decision.candidates[0] == "far":
        return True
    choice = DraftChoice(router.drafts, asked, decision, "far", commitments=commitments)
    return choice.weigh_checks("second answers otherwise" if doubted else None, agrees=not doubted, confidence=None).escalates


def worst_error(far: Sequence[bool], target: float, window: int = 500) -> float:
    sums = list(accumulate(far, initial=0))
    return max(abs((end - start) / window - target) for start, end in zip(sums, sums[window:], strict=False))


class Answering(ScriptedAgent):
    """A near agent whose answer to every other question is doubtful."""


async def serve(policy: dict[str, Any], count: int, *, near: Sequence[Reply] | None = None) -> list[Result]:
    """Let a `Hybrid` of two scripted agents answer questions of different lengths, one after the other."""
    drafts = ScriptedAgent(["Lima."] * count if near is None else near, name="near", prices=priced(0))
    far = ScriptedAgent(["It is Lima."] * count, name="far", side=Side.FAR, prices=priced(10))
    given = Policy.model_validate({"strategy": "cascade", "sensitivity": "public", **policy})
    async with Hybrid(near=drafts, far=far, policy=given) as hybrid:
        return [await hybrid.run(f"Question {number}: " + "word " * (number * 7 % 40)) for number in range(count)]


def far_count(results: Sequence[Result]) -> int:
    return sum(result.side is Side.FAR for result in results)


async def test_a_cascade_sends_the_share_far_that_it_is_told_to() -> None:
    """Every draft of 40 goes far without a budget, since its confidence is too low."""
    assert far_count(await serve({"minimum_confidence": 0.5, "router": {"far_share": 0.1}}, 40)) == pytest.approx(4, abs=2)
