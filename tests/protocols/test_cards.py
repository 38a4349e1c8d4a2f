"""What a card says about prices."""

from datetime import date
from decimal import Decimal

import pytest

from nearfar.protocols import Prices, Usage

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
