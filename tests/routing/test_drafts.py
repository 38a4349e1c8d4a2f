"""Under `cascade`, a budget settles which drafts go to the far side: one multiplier over the gain that the evidence promises."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("numpy", reason="looks are weighed with numpy")

from hypothesis import given, settings
from hypothesis import strategies as st
from situations import FAR, NEAR, priced, task

from nearfar import Hybrid, Policy, Result
from nearfar.orchestrator.budgets import Commitment
from nearfar.orchestrator.routing import Router
from nearfar.orchestrator.routing.budget import TOLERANCE
from nearfar.orchestrator.routing.drafts import DraftChoice, expected_quality, unlearned_chances
from nearfar.orchestrator.routing.escalation import Escalation
from nearfar.orchestrator.routing.looks import Cost
from nearfar.orchestrator.routing.traces import AgentOutcome, Trace
from nearfar.orchestrator.routing.training import draft_examples_of, train_escalation
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.routing_policy import DAY, HOUR
from nearfar.protocols import ConfigError, ScriptedAgent, Side, Unavailable
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

PAIR = (NEAR, FAR)
WINDOW = 500
PROMPT = "What is the capital of Peru?"


def cascade(policy: Mapping[str, Any], prompt: str = PROMPT, **changes: Any) -> Task:  # noqa: ANN401 - any field
    return task(prompt, policy={"strategy": "cascade", **policy}, **changes)


def escalates(router: Router, asked: Task, *, agrees: bool | None = None, commitments: list[Commitment] | None = None) -> bool:
    """Serve one task up to the choice about its draft, as a `Hybrid` does; return whether it goes far."""
    decision = router.decide(asked, PAIR, commitments=commitments)
    if decision.candidates[0] == "far":
        return True
    choice = DraftChoice(router.drafts, asked, decision, "far", commitments=commitments)
    return choice.weigh_checks("second answers otherwise" if agrees is False else None, agrees=agrees, confidence=None).escalates


def worst_error(far: Sequence[bool], target: float) -> float:
    sums = list(accumulate(far, initial=0))
    return max(abs((end - start) / WINDOW - target) for start, end in zip(sums, sums[WINDOW:], strict=False))


async def serve(policy: dict[str, Any], count: int, *, near: Sequence[Reply] | None = None, **options: Any) -> list[Result]:  # noqa: ANN401 - of any task
    """Let a `Hybrid` of two scripted agents answer questions of different lengths, one after the other."""
    confidence = 0.4 if "minimum_confidence" in policy else None
    drafts = ScriptedAgent(["Lima."] * count if near is None else near, name="near", prices=priced(0), confidence=confidence)
    far = ScriptedAgent(["Quito."] * count, name="far", side=Side.FAR, prices=priced(10))
    written = Policy.model_validate({"strategy": "cascade", "sensitivity": "public", **policy})
    async with Hybrid(near=drafts, far=far, policy=written) as hybrid:
        return [await hybrid.run(f"Question {number}: " + "word " * (number * 7 % 40), **options) for number in range(count)]


def far_count(results: Sequence[Result]) -> int:
    return sum(result.side is Side.FAR for result in results)


DOUBTED = {"minimum_confidence": 0.5}
"""No draft of the scripted agent is confident enough, so that all go far without a budget."""


async def test_a_cascade_sends_the_share_far_that_it_is_told_to() -> None:
    assert far_count(await serve(DOUBTED, 40)) == 40
    results = await serve({**DOUBTED, "router": {"far_share": 0.1}}, 40)
    assert far_count(results) == pytest.approx(4, abs=4)
    kept = next(result for result in results if result.side is Side.NEAR)
    assert "but the budget has better uses" in kept.attempts[0].reason
    assert kept.attempts[0].p_right is not None


async def test_a_share_is_used_up_where_no_draft_is_doubted() -> None:
    results = await serve({"router": {"far_share": 0.5}}, 40)
    assert far_count(results) == pytest.approx(20, abs=5)
    assert all(result.attempts[0].p_right is not None for result in results if len(result.attempts) > 1)


async def test_an_empty_draft_goes_far_whatever_the_share() -> None:
    assert far_count(await serve({"router": {"far_share": 0.1}}, 20, near=[""] * 20)) == 20


async def test_an_escalation_under_a_budget_does_not_take_the_whole_session_far() -> None:
    results = await serve({"router": {"far_share": 0.2}}, 60, session="one conversation")
    assert far_count(results) == pytest.approx(12, abs=6)


async def test_drafts_that_fail_do_not_use_up_the_share() -> None:
    failing: list[Reply] = [Unavailable("gone"), *["Lima."] * 3] * 10
    results = await serve({"router": {"far_share": 0.2}, "breakers": {"failures_in_a_row": 99, "failure_share": 1.0}}, 40, near=failing)
    assert far_count(results) == pytest.approx(10 + 0.2 * 30, abs=5)


async def test_private_tasks_stay_near_and_do_not_count() -> None:
    assert far_count(await serve({**DOUBTED, "router": {"far_share": 0.5}}, 20, sensitivity="private")) == 0


async def test_in_shadow_the_evidence_decides_and_the_budget_only_counts() -> None:
    assert far_count(await serve({**DOUBTED, "router": {"far_share": 0.1, "shadow": True}}, 20)) == 20
    assert far_count(await serve({"router": {"far_share": 0.9, "shadow": True}}, 20)) == 0


async def test_a_mode_that_prefers_a_side_is_left_to_the_evidence() -> None:
    assert far_count(await serve({**DOUBTED, "mode": "prefer_on_device", "router": {"far_share": 0.1}}, 20)) == 20


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([True, False, None]), min_size=8, max_size=40), st.floats(0.02, 0.98), st.randoms(use_true_random=False))
def test_the_share_holds_over_any_stream_of_drafts(kinds: list[bool | None], target: float, random: Random) -> None:
    """Each kind lasts for a while, so that traffic shifts; some prompts are as long as others."""
    router = Router(seed=0)
    streams = [(kind, "word " * random.choice((1, 1, 50))) for kind in kinds for _ in range(40)]
    far = [escalates(router, cascade({"router": {"far_share": target}}, prompt), agrees=kind) for kind, prompt in streams]
    assert len(far) < WINDOW or worst_error(far, target) <= TOLERANCE + 1e-9


def test_the_share_goes_to_the_drafts_that_are_doubted() -> None:
    router, random = Router(seed=0), Random(3)
    kinds = [random.random() > 0.3 for _ in range(1500)]
    far = [escalates(router, cascade({"router": {"far_share": 0.2}}), agrees=kind) for kind in kinds]
    assert sum(far) / len(far) == pytest.approx(0.2, abs=0.02)
    assert sum(goes for goes, agrees in zip(far, kinds, strict=True) if agrees) < 0.1 * sum(far)


def test_threads_lose_no_draft() -> None:
    router, random = Router(seed=0), Random(4)
    kinds = [random.random() > 0.5 for _ in range(2000)]
    with ThreadPoolExecutor(8) as pool:
        far = list(pool.map(lambda agrees: escalates(router, cascade({"router": {"far_share": 0.3}}), agrees=agrees), kinds))
    assert sum(far) / len(far) == pytest.approx(0.3, abs=0.02)


def test_routed_tasks_and_drafts_share_one_budget() -> None:
    router = Router(seed=0)
    settings = {"router": {"far_share": 0.3}}
    far = []
    for number in range(600):
        prompt = "word " * (number % 40)
        if number % 2:
            far.append(escalates(router, cascade(settings, prompt), agrees=number % 3 > 0))
        else:
            far.append(router.decide(task(prompt, policy=settings), PAIR).candidates[0] == "far")
    assert worst_error(far, 0.3) <= TOLERANCE + 1e-9


def test_the_chances_without_a_card_follow_agreement_then_length_and_confidence() -> None:
    def gain(agrees: bool | None, prompt: str = "short", confidence: float | None = None) -> float:
        draft, far = unlearned_chances(agrees, confidence=confidence, prompt=prompt)
        return far - draft

    assert gain(True) < gain(None) < gain(False)
    assert gain(True, "word " * 200) > gain(True)
    assert gain(True, "word " * 2000, confidence=0.0) < gain(None, "x", confidence=1.0)
    assert gain(None, confidence=0.1) > gain(None, confidence=0.9)


HOURLY = {"objective": {"dollars": 0.01}, "router": {"dollars_per_hour": 1.0}}


def test_the_dollars_of_an_escalation_are_set_aside_until_its_bill() -> None:
    now = [0.0]
    router = Router(seed=0, monotonic=lambda: now[0])
    asked = cascade(HOURLY)
    commitments: list[Commitment] = []
    assert escalates(router, asked, agrees=False, commitments=commitments)
    assert [each.went_far for each in commitments] == [True]
    other: list[Commitment] = []
    assert not escalates(router, asked, agrees=False, commitments=other)  # until the first bill is known, one task goes far at a time
    router.settle(asked, commitments, 0.01)
    router.settle(asked, other, 0.0)
    now[0] = 600.0
    assert escalates(router, asked, agrees=False, commitments=[])


def test_an_hour_that_is_spent_keeps_every_draft() -> None:
    router = Router(seed=0, monotonic=lambda: 0.0)
    asked = cascade(HOURLY)
    router.settle(asked, [], 1.1)
    assert not any(escalates(router, asked, agrees=False, commitments=[]) for _ in range(20))


def test_a_far_agent_that_took_over_from_a_failed_draft_has_its_dollars_set_aside_from_its_first_step() -> None:
    router = Router(seed=0)
    asked = cascade(HOURLY)
    commitments: list[Commitment] = []
    router.decide(asked, PAIR, commitments=commitments)
    router.extend(asked, commitments, 0.0, is_far=False)
    assert commitments == []
    router.extend(asked, commitments, 0.2, is_far=True)
    router.extend(asked, commitments, 0.3, is_far=True)
    assert [each.dollars for each in commitments] == [pytest.approx(0.6)]
    router.settle(asked, commitments, 0.4)
    rate = router.steering._rates[HOUR]
    assert rate.usual_bill == pytest.approx(0.4)
    assert rate._set_aside == 0


def test_of_two_drafts_with_the_same_gain_the_cheaper_one_goes_far() -> None:
    """Dollars are the unit: a long prompt costs many times as much."""
    now = [0.0]
    router = Router(seed=0, monotonic=lambda: now[0])
    far: dict[str, list[bool]] = {"cheap": [], "dear": []}
    for number in range(1200):
        now[0] += 3.0
        kind = "dear" if number % 2 else "cheap"
        asked = cascade({**HOURLY, "router": {"dollars_per_hour": 5.0}}, "word " * (4000 if kind == "dear" else 10), task_class=kind)
        commitments: list[Commitment] = []
        far[kind].append(escalates(router, asked, agrees=False, commitments=commitments))
        bill = (0.05 if kind == "dear" else 0.004) if far[kind][-1] else 0.0
        router.settle(asked, commitments, bill)
    shares = {kind: sum(goes) / len(goes) for kind, goes in far.items()}
    assert shares["cheap"] > 0.7 > 0.2 > shares["dear"]


@pytest.mark.parametrize(("name", "seconds"), [("dollars_per_hour", HOUR), ("dollars_per_day", DAY)])
def test_a_dollar_rate_holds_over_any_period(name: str, seconds: float) -> None:
    now, random = [0.0], Random(5)
    router = Router(seed=0, monotonic=lambda: now[0])
    policy = {"objective": {"dollars": 0.01}, "router": {name: 1.0}}
    paid: list[tuple[float, float]] = []
    while now[0] < 3 * seconds:
        now[0] += random.expovariate(300 / seconds)
        asked = cascade(policy, "word " * random.randrange(40))
        commitments: list[Commitment] = []
        bill = random.uniform(0.005, 0.015) if escalates(router, asked, agrees=random.random() < 0.5, commitments=commitments) else 0.0
        router.settle(asked, commitments, bill)
        paid.append((now[0], bill))
    sums = [sum(bill for when, bill in paid if end - seconds < when <= end) for end, _ in paid]
    assert max(sums) <= 1.05
    assert min(spent for (end, _), spent in zip(paid, sums, strict=True) if end > seconds) >= 0.9


@pytest.mark.parametrize("target", [0.75, 0.82])
def test_a_quality_is_kept_with_as_few_far_tasks_as_it_takes(target: float) -> None:
    router, random = Router(seed=0), Random(6)
    policy = {"router": {"least_quality": target}}
    quality, far = [], []
    for _ in range(2500):
        agrees = random.random() < 0.7
        goes = escalates(router, cascade(policy), agrees=agrees)
        draft, better = unlearned_chances(agrees, confidence=None, prompt=PROMPT)
        quality.append(better if goes else draft)
        far.append(goes)
    assert sum(quality) / len(quality) == pytest.approx(target, abs=0.01)
    (agreed, _), (doubted, better) = (unlearned_chances(each, confidence=None, prompt=PROMPT) for each in (True, False))
    least = (target - 0.7 * agreed - 0.3 * doubted) / (better - doubted)
    assert sum(far) / len(far) == pytest.approx(least, abs=0.02)


async def test_reported_outcomes_correct_what_a_quality_expects() -> None:
    """Drafts are worse than their evidence promises, so more of them go far."""
    near = ScriptedAgent(["Lima."] * 400, name="near", prices=priced(0))
    far = ScriptedAgent(["Quito."] * 400, name="far", side=Side.FAR, prices=priced(10))
    policy = Policy.model_validate({"strategy": "cascade", "sensitivity": "public", "router": {"least_quality": 0.6}})
    async with Hybrid(near=near, far=far, policy=policy) as hybrid:
        before = [await hybrid.run(f"Question {number}") for number in range(100)]
        for result in before:
            assert expected_quality(result) is not None
            hybrid.report(result, score=float(result.side is Side.FAR))
        after = [await hybrid.run(f"Question {number}") for number in range(100)]
    assert far_count(before) <= 2  # until the first evidence is there
    assert far_count(after) > 20


def test_a_floor_that_no_side_reaches_sends_all_far_that_gain_by_it() -> None:
    router = Router(seed=0)
    far = [escalates(router, cascade({"router": {"least_quality": 0.99}}), agrees=bool(number % 2)) for number in range(200)]
    assert all(far[::2])
    assert not any(far[51::2])  # on a short question that another agent agrees with, the far one is no better


@pytest.mark.parametrize("both", [{"far_share": 0.1, "dollars_per_day": 1}, {"least_quality": 0.9, "dollars_per_hour": 1}])
def test_two_budgets_at_once_are_refused(both: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="give one of them"):
        Policy.model_validate({"router": both})


def test_a_draft_that_takes_more_than_it_saves_is_left_out_once_enough_drafts_were_seen() -> None:
    """Waiting has a price, and the evidence about drafts has never spoken for one."""
    router = Router(seed=0)
    asked = cascade({"objective": {"seconds": 0.01}})
    first = router.decide(asked, PAIR)
    for _ in range(60):
        router.drafts.add(0.0, 0.9)
    at_once = router.decide(asked, PAIR)
    assert (first.candidates[0], at_once.candidates[0], at_once.judged) == ("near", "far", False)
    assert any("takes more than it is likely to save" in reason for reason in at_once.reasons)
    dear = cascade({"objective": {"seconds": 0.01}, "router": {"dollars_per_hour": 0.001}})
    router.settle(dear, [], 1.0)
    assert router.decide(dear, PAIR).candidates[0] == "near"  # the same multiplier holds it back


def test_auto_takes_no_arm_that_costs_where_the_hour_is_spent() -> None:
    router = Router(seed=0, monotonic=lambda: 0.0)
    asked = task(policy={"strategy": "auto", "router": {"dollars_per_hour": 1.0}})
    chosen = router.with_strategy(asked, PAIR).policy.strategy
    router.settle(asked, [], 2.0)
    report = router.explain_strategy(asked, PAIR)
    measured = [each for each in report.candidates if each.objection is None]
    assert chosen == "cascade"
    assert measured[0].utility >= measured[-1].utility


def card(folder: Path) -> Path:
    """A card from traces in which the length of a draft tells whether it is right."""
    random = Random(0)
    traces = []
    for number in range(300):
        is_right = random.random() < 0.6
        answers = {"near": "12" if is_right else "I do not know, it may be more", "far": "12"}
        scores = {"near": float(is_right), "far": float(random.random() < 0.9)}
        outcomes = {agent: AgentOutcome(score=scores[agent], answer=answers[agent]) for agent in answers}
        traces.append(Trace(prompt=f"How many are {number}?", outcomes=outcomes))
    examples = draft_examples_of(traces, draft="near", far="far", opinions={})
    Escalation(train_escalation(examples)).save(folder / "card.json")
    return folder / "card.json"


async def test_a_card_is_weighed_at_the_multiplier_of_the_budget(tmp_path: Path) -> None:
    near: list[Reply] = ["12", "I do not know, it may be more"] * 60
    policy = {"evidence": {"escalation": card(tmp_path)}}
    assert far_count(await serve(policy, 120, near=near)) == pytest.approx(60, abs=2)
    held = await serve({**policy, "router": {"far_share": 0.2}}, 120, near=near)
    assert far_count(held) == pytest.approx(24, abs=5)
    assert all(result.text != "12" for result in held if result.side is Side.FAR)
    assert any("but the budget has better uses" in result.attempts[0].reason for result in held)


def test_a_threshold_makes_looks_and_escalations_rarer(tmp_path: Path) -> None:
    escalation = Escalation.load(card(tmp_path))
    from nearfar.orchestrator.routing.looks import free_findings

    known = free_findings("How many?", "I do not know, it may be more", is_valid=None, is_grounded=None, confidence=None)
    findings = {name: found for name, found in known.items() if name in escalation.looks}
    actions = [escalation.decide(findings, far=Cost(), threshold=threshold).action for threshold in (-1e9, 0.0, 1e9)]
    assert actions == ["escalate", "escalate", "accept"]


@pytest.mark.parametrize("floor", [0.0, 1.0])
def test_a_quality_that_cannot_be_held_is_refused(floor: float) -> None:
    from nearfar.orchestrator.routing.steering import QualityController

    with pytest.raises(ConfigError):
        QualityController(floor)
