"""What a step is said to have taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from near_model import NEAR, ask, long_prompt, near_agent

from nearfar.device.energy import EnergyInterval, Measures, Measuring, Meter
from nearfar.protocols import EnergySource, complete

pytestmark = pytest.mark.anyio


class Counter:
    """A reader whose counter the test moves."""

    name = "counter"
    least_seconds = 0.0

    def __init__(self, *laps: float | None) -> None:
        self.laps = list(laps)

    def lap(self) -> float | None:
        return self.laps.pop(0)


class Endless:
    """A reader of which every lap has one joule."""

    name = "endless"
    least_seconds = 0.0
    laps = 0

    def lap(self) -> float:
        self.laps += 1
        return 1.0


def step(measuring: Measuring, tokens: int = 0) -> Measures:
    """A step that has begun and put so many tokens through the model."""
    begun = Measures()
    measuring.begin(begun)
    begun.fed(tokens)
    begun.chosen(1)
    return begun


def test_a_step_alone_is_charged_all_that_was_drawn_while_it_ran() -> None:
    measuring = Measuring(meter=Meter(Counter(1000.0, 3.5)), kv_bytes_per_token=10)
    only = step(measuring, 20)
    measuring.end(only, cells=25)
    performance = measuring.performance(only, 5)
    assert (performance.joules, performance.joules_source) == (3.5, EnergySource.MEASURED)
    assert performance.kv_bytes == 250


def test_steps_side_by_side_share_what_was_drawn_by_the_tokens_that_they_put_through_the_model() -> None:
    measuring = Measuring(meter=Meter(Counter(1000.0, 8.0, 10.0, 4.0)))
    first = step(measuring, 3)
    second = step(measuring, 4)
    first.fed(1)
    measuring.end(first, cells=4)
    measuring.end(second, cells=4)
    assert measuring.performance(first, 1).joules == pytest.approx(8.0 + 10.0 / 5)
    assert measuring.performance(second, 1).joules == pytest.approx(10.0 * 4 / 5 + 4.0)


def test_what_is_drawn_between_steps_is_nobody_s() -> None:
    measuring = Measuring(meter=Meter(Counter(0.0, 1.0, 500.0, 2.0)))
    for joules in (1.0, 2.0):
        one = step(measuring, 1)
        measuring.end(one, cells=1)
        assert measuring.performance(one, 1).joules == joules


@given(st.lists(st.tuples(st.sampled_from(["begin", "feed", "end"]), st.integers(0, 3), st.integers(1, 50)), max_size=60))
def test_what_was_drawn_while_steps_ran_is_shared_out_whole(moves: list[tuple[str, int, int]]) -> None:
    counter = Endless()
    measuring = Measuring(meter=Meter(counter))
    running: list[Measures] = []
    over: list[Measures] = []
    idle = 0
    for move, which, tokens in moves:
        if move == "begin":
            idle += not running
            running.append(step(measuring))
        elif running and move == "feed":
            running[which % len(running)].fed(tokens)
        elif running:
            over.append(running.pop(which % len(running)))
            measuring.end(over[-1], cells=1)
    shares = [each.joules for each in (*running, *over)]
    assert sum(share for share in shares if share is not None) == pytest.approx(counter.laps - idle)
    assert all(share is not None and share >= 0 for share in shares)


@pytest.mark.parametrize("lap", [None, 0.0])
def test_what_the_meter_did_not_see_is_estimated_and_says_so(lap: float | None) -> None:
    measuring = Measuring(meter=Meter(Counter(0.0, lap)), estimate=lambda prompt, output: 0.5 * prompt + 2.0 * output)
    only = step(measuring, 10)
    measuring.end(only, cells=1)
    performance = measuring.performance(only, 3)
    assert (performance.joules, performance.joules_source) == (11.0, EnergySource.ESTIMATED)


def test_a_step_shorter_than_the_reader_resolves_is_not_measured() -> None:
    counter = Counter(0.0, 7.0)
    counter.least_seconds = 60.0
    measuring = Measuring(meter=Meter(counter))
    only = step(measuring, 10)
    measuring.end(only, cells=1)
    performance = measuring.performance(only, 3)
    assert (performance.joules, performance.joules_source) == (None, EnergySource.UNAVAILABLE)


def test_where_nobody_knows_the_energy_it_is_unavailable_and_no_zero() -> None:
    measuring = Measuring(estimate=lambda prompt, output: None)
    only = step(measuring, 10)
    measuring.end(only, cells=1)
    performance = measuring.performance(only, 3)
    assert (performance.joules, performance.joules_source, performance.kv_bytes) == (None, EnergySource.UNAVAILABLE, None)


def test_a_step_that_ended_before_its_first_token_has_no_rates() -> None:
    measuring = Measuring()
    only = Measures()
    measuring.begin(only)
    measuring.end(only, cells=0)
    performance = measuring.performance(only, 0)
    assert performance.first_token_seconds is None
    assert performance.prefill_tokens_per_second is None
    assert performance.decode_tokens_per_second is None


async def test_a_real_step_says_how_fast_it_went_and_what_its_cache_took() -> None:
    async with near_agent(NEAR) as agent:
        finished = (await complete(agent, ask(await long_prompt(), max_output_tokens=12))).finished
    performance, usage = finished.performance, finished.usage
    assert performance is not None
    assert performance.first_token_seconds
    assert performance.prefill_tokens_per_second == pytest.approx(usage.input_tokens / performance.first_token_seconds, rel=0.01)
    assert performance.decode_tokens_per_second
    # The last token is not decoded once more.
    assert agent.card.kv_bytes_per_token is not None
    assert performance.kv_bytes is not None
    assert performance.kv_bytes // agent.card.kv_bytes_per_token in (usage.total_tokens - 1, usage.total_tokens)


async def test_a_prompt_found_in_the_cache_is_not_counted_as_prefilled() -> None:
    async with near_agent(NEAR, parallel=1) as agent:
        await complete(agent, ask("What is the mayor of Port Alder?", max_output_tokens=4))
        finished = (await complete(agent, ask("What is the mayor of Port Alder?", max_output_tokens=4))).finished
    performance = finished.performance
    assert performance is not None
    assert finished.usage.cached_tokens > 0
    fresh = finished.usage.input_tokens - finished.usage.cached_tokens
    assert performance.prefill_tokens_per_second is not None
    assert performance.first_token_seconds is not None
    assert performance.prefill_tokens_per_second * performance.first_token_seconds == pytest.approx(fresh)


def test_an_interval_that_nobody_measured_has_no_power() -> None:
    assert EnergyInterval(seconds=2.0, joules=None).watts is None
