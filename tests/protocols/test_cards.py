"""What a card says about prices."""

from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nearfar.protocols import LongPrompt, Prices, Usage

PRICES = Prices(input=Decimal(4), output=Decimal(8), cached_input=Decimal(1), source="a test", as_of=date(2026, 1, 1))


@pytest.mark.parametrize(
    ("usage", "dollars"),
    [
        (Usage(), "0"),
        (Usage(input_tokens=100, output_tokens=10), "0.00048"),
        (Usage(input_tokens=100, output_tokens=10, cached_tokens=60), "0.0003"),
        (Usage(input_tokens=100, cached_tokens=100), "0.0001"),
        (Usage(input_tokens=100, cached_tokens=1_000_000), "0.0001"),
    ],
)
def test_cached_tokens_are_a_part_of_the_input_even_where_a_server_counts_more(usage: Usage, dollars: str) -> None:
    assert PRICES.dollars(usage) == Decimal(dollars)


LONG = LongPrompt(above=200_000, input=Decimal(8), output=Decimal(12), cached_input=Decimal(2), cache_write=Decimal(10))
TIERED = PRICES.model_copy(update={"cache_write": Decimal(5), "long_prompts": (LONG,)})


@pytest.mark.parametrize(
    ("usage", "dollars"),
    [
        (Usage(input_tokens=100, cache_write_tokens=100), "0.0005"),
        (Usage(input_tokens=100, cached_tokens=60, cache_write_tokens=30), "0.00025"),
        (Usage(input_tokens=100, cached_tokens=60, cache_write_tokens=1_000_000), "0.00026"),
        (Usage(input_tokens=200_000, output_tokens=1000), "0.808"),
        (Usage(input_tokens=200_001, output_tokens=1000), "1.612008"),
        (Usage(input_tokens=300_000, cached_tokens=200_000, cache_write_tokens=50_000), "1.3"),
    ],
)
def test_stored_tokens_and_long_prompts_have_rates_of_their_own(usage: Usage, dollars: str) -> None:
    assert TIERED.dollars(usage) == Decimal(dollars)


RATE = st.decimals(0, 1000, places=3)
RATES: dict[str, st.SearchStrategy[Decimal | None]] = {
    "input": RATE,
    "output": RATE,
    "cached_input": st.none() | RATE,
    "cache_write": st.none() | RATE,
}
TIERS = st.lists(st.builds(LongPrompt, above=st.integers(1, 10**6), **RATES), max_size=3, unique_by=lambda tier: tier.above)
ANY_PRICES = st.builds(Prices, source=st.just("a test"), as_of=st.just(date(2026, 1, 1)), long_prompts=TIERS.map(tuple), **RATES)
TOKENS = st.integers(0, 2 * 10**6)


@given(ANY_PRICES, TOKENS, TOKENS, TOKENS, TOKENS, TOKENS)
def test_no_usage_within_the_tokens_set_aside_costs_more_than_the_dollars_set_aside(
    prices: Prices, most: int, read: int, written: int, cached: int, stored: int
) -> None:
    usage = Usage(input_tokens=min(read, most), output_tokens=written, cached_tokens=cached, cache_write_tokens=stored)
    assert prices.dollars(usage) <= prices.most_dollars(most, written)


def test_two_rates_for_one_threshold_are_refused() -> None:
    with pytest.raises(ValidationError, match="share one threshold"):
        Prices(input=Decimal(1), output=Decimal(1), long_prompts=(LONG, LONG), source="a test", as_of=date(2026, 1, 1))


def test_a_price_for_long_prompts_or_stored_tokens_alone_is_not_free() -> None:
    free = Prices.free("a test")
    assert free.is_free
    assert not free.model_copy(update={"long_prompts": (LONG,)}).is_free
    assert not free.model_copy(update={"cache_write": Decimal(1)}).is_free
