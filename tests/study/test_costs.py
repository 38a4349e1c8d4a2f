"""Dollars, joules and bytes against values computed by hand."""

from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from nearfar.orchestrator.lab.study.workbench import FLOP_PER_JOULE, ReferencePrice, context_tokens, dollars, joules, peak_kv_bytes
from nearfar.orchestrator.task.results import Call
from nearfar.protocols import AgentCard, Prices, Side, Usage

PRICES = Prices(input=Decimal(2), output=Decimal(10), cached_input=Decimal("0.5"), source="a list", as_of=date(2026, 1, 2))
REFERENCE = ReferencePrice(model="big", prices=PRICES)


def call(side: Side, *, role: str = "execute", read: int = 0, wrote: int = 0, cached: int = 0, **changes: Any) -> Call:  # noqa: ANN401
    usage = Usage(input_tokens=read, output_tokens=wrote, cached_tokens=cached)
    return Call(**{"role": role, "agent": "a", "side": side, "model": "m", "turn": 0, "usage": usage, "seconds": 1.0, **changes})


def card(prices: Prices | None) -> AgentCard:
    return AgentCard(name="far", side=Side.FAR, model="m", prices=prices)


def test_without_a_price_far_tokens_count_in_full_at_the_reference() -> None:
    calls = [call(Side.FAR, read=1_000_000, wrote=100_000, cached=900_000), call(Side.NEAR, read=5_000_000)]
    assert dollars(calls, card(None), REFERENCE) == (3.0, "list price of big, 2026-01-02")
    assert dollars(calls, None, REFERENCE) == (3.0, "list price of big, 2026-01-02")


def test_an_agents_own_price_comes_first_discount_included() -> None:
    calls = [call(Side.FAR, read=10, dollars=Decimal("0.25")), call(Side.FAR, read=10, dollars=Decimal("0.5"))]
    assert dollars(calls, card(PRICES), REFERENCE) == (0.75, "a list, 2026-01-02")


@pytest.mark.parametrize("prices", [None, PRICES])
def test_a_call_that_lost_count_of_its_tokens_leaves_the_price_unknown(prices: Prices | None) -> None:
    broken = call(Side.FAR, dollars=None, error="Stalled")
    assert dollars([call(Side.FAR, read=10, dollars=Decimal(1)), broken], card(prices), REFERENCE)[0] is None


def test_a_reply_that_was_counted_and_could_not_be_used_is_paid_for() -> None:
    unusable = call(Side.FAR, read=100_000, dollars=None, error="InvalidOutput")
    assert dollars([unusable], card(None), REFERENCE)[0] == dollars([call(Side.FAR, read=100_000)], card(None), REFERENCE)[0]


def test_a_run_without_the_far_side_is_free() -> None:
    assert dollars([call(Side.NEAR, read=10)], None, REFERENCE)[0] == 0.0


def test_energy_is_two_operations_per_weight_and_token() -> None:
    assert joules(Usage(input_tokens=900, output_tokens=100), 1_000_000) == pytest.approx(2 * 1_000_000 * 1000 / FLOP_PER_JOULE)
    assert joules(Usage(input_tokens=900), None) is None
    assert joules(Usage(), None) == 0.0


def test_memory_is_that_of_the_longest_near_call() -> None:
    calls = [call(Side.NEAR, read=100, wrote=20), call(Side.NEAR, read=150, wrote=10), call(Side.FAR, read=9_000)]
    assert peak_kv_bytes(calls, 512) == 160 * 512
    assert peak_kv_bytes(calls, None) is None
    assert peak_kv_bytes([call(Side.FAR, read=9_000)], None) == 0


def test_the_context_is_the_executors() -> None:
    calls = [
        call(Side.FAR, role="plan", read=50),
        call(Side.NEAR, read=10, wrote=2),
        call(Side.FAR, role="verify"),
        call(Side.NEAR, read=20),
    ]
    assert context_tokens(calls) == (12, 20)
