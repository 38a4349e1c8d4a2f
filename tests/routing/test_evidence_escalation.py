"""Accepting a draft, looking at it again or escalating: what is learned from traces, and how it decides."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import pytest
from pydantic import ValidationError

numpy = pytest.importorskip("numpy", reason="looks are weighed with numpy")

from hypothesis import given
from hypothesis import strategies as st

from nearfar.orchestrator.routing.answers import Answer
from nearfar.orchestrator.routing.escalation import Action, Escalation, EscalationCard, Fit, LearnedLook, Outlook
from nearfar.orchestrator.routing.looks import DRAFT, FREE, Cost, Look, Signal, free_findings, log_odds, second_opinion
from nearfar.orchestrator.routing.traces import AgentOutcome, Trace
from nearfar.orchestrator.routing.training import DraftExamples, draft_examples_of, out_of_fold_gains, train_escalation
from nearfar.orchestrator.task.routing_policy import ObjectiveConfig
from nearfar.protocols import ConfigError

OPINIONS = {"near-2": Cost(dollars=0.001), "near-3": Cost(dollars=0.002)}
FAR = Cost(dollars=0.05)


def traces(count: int, *, seed: int = 0) -> list[Trace]:
    """Sums of small numbers. The draft is right on three of five; another near agent is right more often where the draft is."""
    random = Random(seed)
    return [trace(number, random) for number in range(count)]


def trace(number: int, random: Random) -> Trace:
    first, second = random.randint(10, 99), random.randint(10, 99)
    is_right = random.random() < 0.6
    opinion_is_right = random.random() < (0.95 if is_right else 0.3)
    right = first + second
    return Trace(
        prompt=f"What is {first} + {second}?",
        outcomes={
            "near": outcome(right, is_right=is_right, random=random, confidence=random.betavariate(5, 2) if is_right else random.random()),
            "near-2": outcome(right, is_right=opinion_is_right, random=random),
            "near-3": outcome(right, is_right=random.random() < 0.5, random=random),
            "far": outcome(right, is_right=random.random() < 0.9, random=random),
        },
    )


def outcome(right: int, *, is_right: bool, random: Random, confidence: float | None = None) -> AgentOutcome:
    answer = right if is_right else right + random.randint(1, 50)
    return AgentOutcome(score=float(is_right), answer=str(answer), confidence=confidence)


def examples(told: Sequence[Trace], opinions: Mapping[str, Cost] = OPINIONS) -> DraftExamples:
    return draft_examples_of(told, draft="near", far="far", opinions=opinions)


@pytest.fixture(scope="module")
def learned() -> Escalation:
    return Escalation(train_escalation(examples(traces(600))))


def free(answer: str = "42", *, confidence: float | None = 0.8) -> dict[str, Signal]:
    found = free_findings("What is 20 + 22?", answer, is_valid=None, is_grounded=None, confidence=confidence)
    return {name: finding for name, finding in found.items() if finding.measures}


def opinion(draft: str, answer: str) -> Signal:
    return second_opinion(Answer.of_text(draft), Answer.of_text(answer))


def test_an_agent_that_agrees_makes_a_draft_more_probable_and_one_that_does_not_less(learned: Escalation) -> None:
    before, _ = learned.probabilities(free())
    agreed, _ = learned.probabilities(free() | {"near-2": opinion("42", "42")})
    disagreed, _ = learned.probabilities(free() | {"near-2": opinion("42", "43")})
    assert disagreed < before < agreed


def test_an_agreed_draft_is_accepted_and_a_disputed_one_escalated(learned: Escalation) -> None:
    others = {"near-3": opinion("42", "50")}
    agreed = learned.decide(free() | others | {"near-2": opinion("42", "42")}, far=FAR)
    disputed = learned.decide(free() | others | {"near-2": opinion("42", "43")}, far=FAR)
    assert (agreed.action, disputed.action) == (Action.ACCEPT, Action.ESCALATE)


def test_the_look_that_tells_more_is_taken_although_it_is_not_the_only_one(learned: Escalation) -> None:
    verdict = learned.decide(free(), far=FAR)
    assert (verdict.action, verdict.look) == (Action.LOOK, "near-2")
    assert "a look at near-2 is worth" in verdict.reason


def test_no_look_is_taken_where_it_costs_more_than_the_far_agent() -> None:
    dear = {name: Cost(dollars=1.0) for name in OPINIONS}
    escalation = Escalation(train_escalation(examples(traces(200), dear)))
    assert escalation.decide(free(), far=FAR).action is not Action.LOOK


def test_free_looks_come_first(learned: Escalation) -> None:
    seen = free()
    del seen["confidence"]
    assert learned.decide(seen, far=FAR).look == "confidence"


@given(st.floats(0, 1), st.floats(0, 1), st.sampled_from(["42", "43"]))
def test_a_dearer_far_agent_is_never_worth_more(one: float, other: float, second: str) -> None:
    cheap, dear = sorted((one, other))
    escalation = _CARDS["two looks"]
    seen = {DRAFT: Signal({"is right": float(second == "42")})}
    worth = [escalation.decide(seen, far=Cost(dollars=dollars)).worth for dollars in (cheap, dear)]
    assert worth[0] >= worth[1] - 1e-9
    assert escalation.decide(seen, far=Cost(dollars=1.0)).action is Action.ACCEPT


def hand_made(looks: Sequence[LearnedLook], outlooks: Sequence[Outlook], sets: Sequence[tuple[str, ...]]) -> Escalation:
    """An escalation for which draft and far agent are equally probable whatever is seen, so that the gain is 0."""
    width = 2 * len(looks)
    fits = [
        Fit(
            seen=seen, centre=(0.0,) * size, scale=(1.0,) * size, farthest=(4.0,) * size, draft=(0.0,) * (size + 1), far=(0.0,) * (size + 1)
        )
        for seen in sets
        for size in [width - 2 * (len(looks) - 1 - len(seen))]
    ]
    return Escalation(EscalationCard(draft="near", far="far", looks=tuple(looks), fits=tuple(fits), outlooks=tuple(outlooks), traces=100))


def test_each_measure_counts_up_to_its_own_distance() -> None:
    fit = Fit(seen=(), centre=(0.0,) * 4, scale=(1.0,) * 4, farthest=(4.0, 2.0, 4.0, 4.0), draft=(0.0, 1.0, 0.0, 1.0, 0.0), far=(0.0,) * 5)
    looks = tuple(LearnedLook(name=name, measures=("reading",), gives_answer=False) for name in ("near by", "far out"))
    escalation = Escalation(EscalationCard(draft="near", far="far", looks=looks, fits=(fit,), outlooks=(), traces=100))

    def odds(reading: float, *, at: str) -> float:
        found = {"near by": Signal({"reading": 0.0}), "far out": Signal({"reading": 0.0})} | {at: Signal({"reading": reading})}
        return log_odds(escalation.probabilities(found)[0])

    assert [odds(reading, at="near by") for reading in (1.5, 3.0, -9.0)] == pytest.approx([1.5, 2.0, -2.0])
    assert [odds(reading, at="far out") for reading in (1.5, 3.0, -9.0)] == pytest.approx([1.5, 3.0, -4.0])


def look(name: str, dollars: float) -> LearnedLook:
    return LearnedLook(name=name, cost=Cost(dollars=dollars), measures=("is right",), gives_answer=False)


_FIRST = Outlook(seen=(), look="first", gains=(0.0,), moves=((-0.4, 0.4),))
_SECOND = Outlook(seen=(), look="second", gains=(0.0,), moves=((-0.1, 0.1),))
_CARDS = {
    "one look": hand_made([look(DRAFT, 0), look("first", 0.05)], [_FIRST], [(), ("first",)]),
    "two looks": hand_made(
        [look(DRAFT, 0), look("first", 0.05), look("second", 0.01)],
        [
            _FIRST,
            _SECOND,
            Outlook(seen=("first",), look="second", gains=(0.0,), moves=((-0.3, 0.3),)),
            Outlook(seen=("second",), look="first", gains=(0.0,), moves=((-0.4, 0.4),)),
        ],
        [(), ("first",), ("second",), ("first", "second")],
    ),
}


def test_a_look_is_worth_what_it_may_change_less_its_price() -> None:
    verdict = _CARDS["one look"].decide({DRAFT: Signal({"is right": 1.0})}, far=Cost(dollars=0.2))
    # In one of two cases the gain becomes 0.4, of which the far agent takes 0.2.
    assert verdict.worth == pytest.approx(0.5 * (0.4 - 0.2) - 0.05, abs=1e-6)
    assert (verdict.action, verdict.look) == (Action.LOOK, "first")


def test_a_look_is_worth_more_where_another_may_follow_it() -> None:
    verdict = _CARDS["two looks"].decide({DRAFT: Signal({"is right": 1.0})}, far=Cost(dollars=0.2))
    after_first = [max(0.0, 0.5 * sum(max(0.0, gain + move - 0.2) for move in (-0.3, 0.3)) - 0.01, gain - 0.2) for gain in (-0.4, 0.4)]
    assert verdict.worth == pytest.approx(sum(after_first) / 2 - 0.05, abs=1e-6)


def test_the_weights_of_the_policy_decide_what_a_look_is_worth() -> None:
    seen = {DRAFT: Signal({"is right": 1.0})}
    escalation = _CARDS["one look"]
    assert escalation.decide(seen, far=Cost(dollars=0.2), objective=ObjectiveConfig(dollars=10.0)).action is Action.ACCEPT
    assert escalation.decide(seen, far=Cost(seconds=9.0), objective=ObjectiveConfig(seconds=0.0)).action is Action.LOOK


def test_probabilities_are_those_that_happen() -> None:
    escalation = Escalation(train_escalation(examples(traces(800))))
    fresh = examples(traces(2000, seed=1))
    expected = numpy.array([escalation.probabilities(found)[0] for found in fresh.findings])
    for group in numpy.array_split(numpy.argsort(expected), 5):
        assert abs(expected[group].mean() - fresh.draft_scores[group].mean()) < 0.08


def test_gains_out_of_fold_are_higher_where_the_far_agent_really_helps() -> None:
    told = examples(traces(300))
    gains, helped = out_of_fold_gains(told), told.far_scores > told.draft_scores
    assert gains[helped].mean() > gains[~helped].mean() + 0.2


def test_looks_that_could_not_be_taken_count_as_unknown(learned: Escalation) -> None:
    known, _ = learned.probabilities(free() | {"near-2": opinion("42", "43")})
    unknown, _ = learned.probabilities(free() | {"near-2": Signal()})
    assert known < unknown
    assert learned.decide(free() | {"near-2": Signal(), "near-3": Signal()}, far=FAR).action is not Action.LOOK


def test_a_saved_escalation_decides_the_same(learned: Escalation, tmp_path: Path) -> None:
    learned.save(tmp_path / "escalation.json")
    loaded = Escalation.load(tmp_path / "escalation.json")
    assert loaded.decide(free(), far=FAR) == learned.decide(free(), far=FAR)
    assert (tmp_path / "escalation.json").stat().st_size < 50_000


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"version": 7}'])
def test_a_file_that_holds_no_escalation_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "escalation.json").write_text(content)
    with pytest.raises(ConfigError, match="holds no escalation"):
        Escalation.load(tmp_path / "escalation.json")


def test_another_version_is_refused(learned: Escalation) -> None:
    with pytest.raises(ValidationError, match="it is 'escalation/0'"):
        EscalationCard.model_validate({**learned.card.model_dump(), "version": "escalation/0"})


def test_other_agents_and_missing_looks_are_refused(learned: Escalation) -> None:
    learned.require(draft="near", far="far", looks=[*FREE, *OPINIONS])
    with pytest.raises(ConfigError, match="not small and far"):
        learned.require(draft="small", far="far", looks=learned.looks)
    with pytest.raises(ConfigError, match="near-3"):
        learned.require(draft="near", far="far", looks=[*FREE, "near-2"])


def test_findings_of_an_unknown_look_are_refused(learned: Escalation) -> None:
    with pytest.raises(ConfigError, match="without the looks near-9"):
        learned.decide(free() | {"near-9": Signal({"agrees": 1.0})}, far=FAR)


def test_traces_with_an_unknown_outcome_are_left_out_and_counted() -> None:
    unknown = AgentOutcome(score=None, answer="7")
    told = traces(60)
    told += [each.model_copy(update={"outcomes": {**each.outcomes, "far": unknown}}) for each in traces(5)]
    told += [each.model_copy(update={"outcomes": {"far": unknown}}) for each in traces(5)]
    card = train_escalation(examples(told))
    assert (card.traces, card.left_out) == (60, 10)


def test_an_opinion_that_some_traces_lack_is_learned_from_the_others() -> None:
    told = [
        each if number % 2 else each.model_copy(update={"outcomes": {name: each.outcomes[name] for name in ("near", "far")}})
        for number, each in enumerate(traces(300))
    ]
    escalation = Escalation(train_escalation(examples(told)))
    agreed, _ = escalation.probabilities(free() | {"near-2": opinion("42", "42")})
    assert agreed > escalation.probabilities(free() | {"near-2": Signal()})[0]


def test_too_few_traces_are_refused_with_how_many_were_left_out() -> None:
    unknown = [each.model_copy(update={"outcomes": {"far": AgentOutcome()}}) for each in traces(50)]
    with pytest.raises(ConfigError, match="10 traces are too few to learn from, 50 are left out"):
        train_escalation(examples(traces(10) + unknown))


def test_an_agent_that_is_always_right_cannot_be_learned_from() -> None:
    told = examples(traces(60))
    always = DraftExamples("near", "far", told.looks, told.findings, told.draft_scores, numpy.ones(60))
    with pytest.raises(ConfigError, match="'far' are all the same"):
        train_escalation(always)


def test_more_paid_looks_than_can_be_weighed_are_refused() -> None:
    told = examples(traces(60))
    many = [*told.looks, *(Look(name=f"more-{number}", cost=Cost(dollars=1)) for number in range(4))]
    with pytest.raises(ConfigError, match="6 looks cost something"):
        train_escalation(DraftExamples("near", "far", many, told.findings, told.draft_scores, told.far_scores))


def test_a_learned_head_adds_what_it_predicts() -> None:
    told = draft_examples_of(traces(60), draft="near", far="far", opinions={}, predict=lambda prompt: {"near": 0.5, "far": 0.9})
    (prompt,) = (each for each in train_escalation(told).looks if each.name == "prompt")
    assert {"log odds of near", "log odds of far"} <= set(prompt.measures)


def test_deciding_needs_no_torch(learned: Escalation, tmp_path: Path) -> None:
    learned.save(tmp_path / "escalation.json")
    code = (
        "import sys; from pathlib import Path\n"
        "from nearfar.orchestrator.routing.escalation import Escalation\n"
        "from nearfar.orchestrator.routing.looks import Cost, Signal\n"
        f"escalation = Escalation.load(Path({str(tmp_path / 'escalation.json')!r}))\n"
        "found = {look.name: Signal() for look in escalation.card.looks if look.is_free}\n"
        "escalation.decide(found, far=Cost(dollars=1.0))\n"
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
