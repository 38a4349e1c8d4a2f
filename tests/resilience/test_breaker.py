"""Breakers, by themselves: when they open, for how long, and how they close again."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moved_clock import MovedClock

from nearfar.orchestrator.agents.breaker import Health
from nearfar.orchestrator.task.routing_policy import BreakerConfig
from nearfar.protocols import (
    BudgetExceeded,
    Cancelled,
    ContextOverflow,
    InternalError,
    InvalidOutput,
    InvalidRequest,
    NearfarError,
    QuotaExceeded,
    RateLimited,
    Stalled,
    Unavailable,
    WorkerCrashed,
)

SETTINGS = BreakerConfig()


class Patient:
    """An agent's health on a clock of its own, whose breakers open for exactly as long as the settings say."""

    def __init__(self, *, chance: float = 0.5, **settings: object) -> None:
        self.clock = MovedClock()
        self.health = Health("far", monotonic=self.clock, chance=lambda: chance)
        self.health.settings = BreakerConfig.model_validate(settings)

    def call(self, error: BaseException | None = None, *, seconds: float = 0.0) -> None:
        """One call that takes so long and ends so."""
        with contextlib.suppress(*([type(error)] if error is not None else [])), self.health.trying():
            self.clock.now += seconds
            if error is not None:
                raise error

    def fail(self, times: int = 1, error: type[NearfarError] = Unavailable) -> None:
        for _ in range(times):
            self.call(error("down"))

    @property
    def wait(self) -> float:
        """Seconds until the agent may be asked; 0 where it may be asked now."""
        objection = self.health.objection()
        return 0.0 if objection is None else objection.retry_after


def test_an_agent_is_asked_until_it_has_failed_three_times_in_a_row() -> None:
    patient = Patient()
    patient.fail(2)
    patient.call()
    patient.fail(2)
    assert patient.wait == 0
    patient.fail()
    assert patient.wait == pytest.approx(SETTINGS.open_seconds)


def test_an_agent_that_fails_every_other_time_is_left_alone_too() -> None:
    patient = Patient()
    for _ in range(5):
        patient.fail()
        patient.call()
        assert patient.wait == 0
    patient.fail()
    assert patient.wait == pytest.approx(SETTINGS.open_seconds)


def test_an_agent_that_takes_long_to_turn_out_unreachable_is_left_alone_at_once() -> None:
    patient = Patient()
    for error, seconds in ((Unavailable("down"), 1.9), (WorkerCrashed("gone"), 60), (Stalled("silent"), 60)):
        patient.call(error, seconds=seconds)
        assert patient.wait == 0
    patient.call(Unavailable("gone quiet"), seconds=2.0)
    assert patient.wait == pytest.approx(SETTINGS.open_seconds)


def test_failures_of_different_kinds_are_counted_apart() -> None:
    patient = Patient()
    for _ in range(2):
        for error in (Unavailable, Stalled, InternalError):
            patient.fail(error=error)
    assert patient.wait == 0


@pytest.mark.parametrize("error", [ContextOverflow, InvalidOutput, InvalidRequest, Cancelled, BudgetExceeded])
def test_what_is_wrong_with_a_request_says_nothing_against_the_agent(error: type[NearfarError]) -> None:
    patient = Patient()
    patient.fail(30, error)
    assert patient.wait == 0


def test_who_asks_an_open_breaker_is_refused_and_told_how_long_it_stays_open() -> None:
    patient = Patient()
    patient.fail(3)
    patient.clock.now += 2
    with (
        pytest.raises(
            Unavailable, match=r"far was not asked: circuit breaker open, retrying in 3.0 s \(unreachable: 3 failures in a row"
        ) as caught,
        patient.health.trying(),
    ):
        raise NotImplementedError
    assert caught.value.retry_after == pytest.approx(SETTINGS.open_seconds - 2)


def test_half_open_lets_one_call_at_a_time_find_out() -> None:
    patient = Patient()
    patient.fail(3)
    patient.clock.now += SETTINGS.open_seconds
    assert patient.health.note == "retrying far: circuit breaker half-open after unreachable (3 failures in a row: Unavailable)"
    with patient.health.trying():
        assert patient.wait == 10
        with pytest.raises(Unavailable, match="another call is probing the agent"), patient.health.trying():
            raise NotImplementedError
    assert patient.wait == 0


def test_once_a_probe_is_being_answered_others_may_try_as_well_and_both_count() -> None:
    patient = Patient()
    patient.fail(3)
    patient.clock.now += SETTINGS.open_seconds
    with patient.health.trying() as long_answer:
        patient.health.end_probe(long_answer)
        assert patient.wait == 0
        patient.call()
        assert patient.health.note is not None
    assert patient.health.note is None


def test_a_probe_that_fails_when_others_have_closed_the_breaker_is_a_failure_like_any_other() -> None:
    patient = Patient()
    patient.fail(3)
    patient.clock.now += SETTINGS.open_seconds
    with contextlib.suppress(Unavailable), patient.health.trying() as broken_off:
        patient.health.end_probe(broken_off)
        patient.call()
        patient.call()
        raise Unavailable("broken off")
    assert patient.wait == 0
    assert patient.health.note is None


def test_a_probe_that_hears_nothing_keeps_others_waiting_for_a_while_only() -> None:
    patient = Patient()
    patient.fail(3)
    patient.clock.now += SETTINGS.open_seconds
    with patient.health.trying():
        patient.clock.now += 10
        assert patient.wait == 0
        patient.fail()
        assert patient.wait == pytest.approx(2 * SETTINGS.open_seconds)
    assert patient.wait == pytest.approx(2 * SETTINGS.open_seconds)  # what became of the earlier probe is no news


def test_a_breaker_closes_after_two_calls_that_went_well() -> None:
    patient = Patient()
    patient.fail(3)
    patient.clock.now += SETTINGS.open_seconds
    patient.call()
    assert patient.health.note is not None
    patient.call()
    assert patient.health.note is None
    patient.fail(2)
    assert patient.wait == 0  # it begins to count anew


def test_a_failed_probe_opens_the_breaker_for_twice_as_long_up_to_a_bound() -> None:
    patient = Patient(open_seconds=5, longest_open_seconds=30)
    patient.fail(3)
    waits = []
    for _ in range(5):
        waits.append(patient.wait)
        patient.clock.now += patient.wait
        patient.fail()
    assert waits == pytest.approx([5, 10, 20, 30, 30])


def test_an_agent_that_fails_soon_after_it_came_back_is_left_alone_for_longer() -> None:
    patient = Patient()
    patient.fail(3)
    patient.clock.now += SETTINGS.open_seconds
    patient.call()
    patient.call()
    patient.fail(3)
    assert patient.wait == pytest.approx(2 * SETTINGS.open_seconds)


def test_after_a_long_calm_the_time_begins_small_again() -> None:
    patient = Patient()
    patient.fail(3)
    patient.clock.now += SETTINGS.open_seconds
    for _ in range(2 + SETTINGS.window):
        patient.call()
    patient.fail(3)
    assert patient.wait == pytest.approx(SETTINGS.open_seconds)


def test_those_who_failed_together_do_not_come_back_together() -> None:
    early, late = Patient(chance=0.0), Patient(chance=1.0)
    for patient in (early, late):
        patient.fail(3)
    assert early.wait == pytest.approx(0.8 * SETTINGS.open_seconds)
    assert late.wait == pytest.approx(1.2 * SETTINGS.open_seconds)


@pytest.mark.parametrize("error", [RateLimited, Unavailable, QuotaExceeded])
def test_who_says_when_to_come_back_is_not_asked_before(error: type[NearfarError]) -> None:
    patient = Patient()
    patient.call(error("slow down", retry_after=300))
    assert patient.wait == 300
    patient.clock.now += 299.9
    assert patient.wait == pytest.approx(0.1)
    patient.clock.now += 0.2
    assert patient.wait == 0


def test_a_call_that_began_earlier_may_still_learn_when_to_come_back() -> None:
    patient = Patient()
    with contextlib.suppress(RateLimited), patient.health.trying():
        patient.call(RateLimited("slow down", retry_after=10))
        raise RateLimited("slower", retry_after=60)
    assert patient.wait == 60


def test_late_news_of_calls_from_before_neither_close_nor_prolong() -> None:
    patient = Patient()
    with contextlib.suppress(Unavailable), patient.health.trying():
        with patient.health.trying():
            patient.fail(3)
        raise Unavailable("down")
    assert patient.wait == pytest.approx(SETTINGS.open_seconds)


def test_an_absurd_time_to_come_back_counts_as_a_day_and_nonsense_as_none() -> None:
    patient, nonsense = Patient(), Patient()
    patient.call(RateLimited("never", retry_after=float("inf")))
    assert patient.wait == 24 * 3600
    for retry_after in (float("nan"), -1.0, 0.0):
        nonsense.call(Stalled("x", retry_after=retry_after))
        nonsense.call()
    assert nonsense.wait == 0


def test_a_probe_that_is_cancelled_leaves_the_place_to_another_one() -> None:
    patient = Patient()
    patient.fail(3)
    patient.clock.now += SETTINGS.open_seconds
    patient.call(KeyboardInterrupt())
    assert patient.wait == 0
    assert patient.health.note is not None


def test_an_answer_that_the_agent_did_not_compute_does_not_close_its_breaker() -> None:
    patient = Patient()
    patient.fail(3)
    patient.clock.now += SETTINGS.open_seconds
    for _ in range(5):
        with patient.health.trying() as trial:
            trial.counts = False
    assert patient.health.note is not None


@given(st.lists(st.one_of(st.none(), st.sampled_from([Unavailable, Stalled, RateLimited, InvalidOutput]), st.floats(0, 50)), max_size=60))
def test_whatever_happens_a_breaker_never_stays_open_for_longer_than_its_bound(history: list[type[NearfarError] | float | None]) -> None:
    patient = Patient(chance=1.0)
    for event in history:
        if isinstance(event, float):
            patient.clock.now += event
        elif patient.wait == 0:
            patient.call(None if event is None else event("x"))
        assert 0 <= patient.wait <= SETTINGS.longest_open_seconds
