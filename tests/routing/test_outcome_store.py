"""The store of outcomes: one for the router and for `auto`, filled in this process and from files, those of earlier versions included."""

from pathlib import Path

import pytest

from nearfar import Hybrid, Policy, ScriptedAgent, Side
from nearfar.orchestrator.routing.outcome_records import Outcome
from nearfar.orchestrator.routing.outcomes import OutcomeStore
from nearfar.orchestrator.routing.success import length_gain, prior_probability
from nearfar.orchestrator.routing.traces import ScoredAnswer, append_outcome, read_outcomes, read_traces
from nearfar.protocols import ConfigError

EARLIER = Path(__file__).parent / "earlier_outcomes"
"""Files as they were written while prompts were predicted by a prior that was adapted to outcomes."""

pytestmark = pytest.mark.anyio


def test_a_log_of_an_earlier_version_is_learned_from_its_own_prior() -> None:
    answers = read_outcomes(EARLIER / "router.jsonl")
    assert len(answers) == 6
    for answer in answers:
        assert isinstance(answer, ScoredAnswer)
        estimate = answer.decision.estimate_of("near")
        assert estimate is not None
        assert estimate.predicted == pytest.approx(0.5, abs=0.01)  # it had fallen with every failure


def test_every_file_of_an_earlier_version_is_read() -> None:
    assert len(read_traces(EARLIER / "router.jsonl")) == 6
    assert [each.arm.strategy for each in read_outcomes(EARLIER / "reports.jsonl") if isinstance(each, Outcome)]
    runs = read_outcomes(EARLIER / "runs.jsonl")
    assert {each.label for each in runs if isinstance(each, Outcome)} == {"device", "cloud", "pevr/8"}


async def test_the_router_and_auto_go_on_from_the_files_of_an_earlier_version() -> None:
    policy = Policy.model_validate(
        {
            "sensitivity": "public",
            "strategy": "route",
            "router": {"log": EARLIER / "router.jsonl"},
            "auto": {"outcomes": EARLIER / "runs.jsonl", "reports": EARLIER / "reports.jsonl"},
        }
    )
    async with Hybrid(near=ScriptedAgent([], name="near"), far=ScriptedAgent([], name="far", side=Side.FAR), policy=policy) as hybrid:
        estimate = hybrid.explain_route("Is contract 99 void?", task_class="legal").estimate_of("near")
        selection = hybrid.explain("Please pay person 9.")
    assert estimate is not None
    assert estimate.success.value < 0.4  # six failures, half of them in a class inside this one
    assert {each.label: each.outcomes for each in selection.candidates if each.outcomes} == {
        "device": 4,
        "cloud": 4,
        "pevr/8": 3,
        "cascade": 1,
    }


def test_a_file_is_read_once_whoever_names_it(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    path.write_bytes(b"".join((EARLIER / name).read_bytes() for name in ("router.jsonl", "runs.jsonl", "reports.jsonl")))
    store = OutcomeStore()
    store.read(path)
    store.read(path)
    assert store.tallies.of(())["cloud"].outcomes == 4
    assert store.correction(None).corrected("near", "").outcomes == 6


def test_nothing_of_a_damaged_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    path.write_bytes((EARLIER / "runs.jsonl").read_bytes() + b"noise\n")
    store = OutcomeStore()
    for _ in range(2):
        with pytest.raises(ConfigError, match="line 10 is no outcome"):
            store.read(path)
    assert store.tallies.of(()) == {}


def test_a_missing_file_may_be_allowed(tmp_path: Path) -> None:
    store = OutcomeStore()
    store.read(tmp_path / "none.jsonl", may_be_missing=True)
    with pytest.raises(ConfigError, match="cannot be read"):
        store.read(tmp_path / "other.jsonl")


def test_a_decision_whose_prior_is_damaged_is_named(tmp_path: Path) -> None:
    path = tmp_path / "router.jsonl"
    path.write_text((EARLIER / "router.jsonl").read_text(encoding="utf-8").replace('"gain":', '"gains":', 1), encoding="utf-8")
    with pytest.raises(ConfigError, match="line 1 is no outcome: its decision is damaged"):
        read_outcomes(path)


def test_a_report_on_auto_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    (report, *_) = read_outcomes(EARLIER / "reports.jsonl")
    assert isinstance(report, Outcome)
    append_outcome(path, report, setting="[policy.auto] reports")
    with pytest.raises(ConfigError, match="line 1: a report on `auto` is no trace"):
        read_traces(path)


def test_without_outcomes_the_far_side_gains_on_longer_prompts() -> None:
    short, long = length_gain("What is it?"), length_gain("What is it? " * 100)
    assert -1 <= short < 0 < long <= 1
    assert length_gain("") < short
    assert prior_probability(Side.FAR, long) - prior_probability(Side.NEAR, long) == pytest.approx(long)
