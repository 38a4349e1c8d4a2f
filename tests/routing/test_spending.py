"""Limits on what tasks may spend."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from situations import NOON, priced

from nearfar.orchestrator.routing.settings import Amounts, Limits
from nearfar.orchestrator.routing.spending import Account, Spending, Spent
from nearfar.protocols import AgentCard, BudgetExceeded, Message, Side, StepRequest


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


def card(side: Side = Side.FAR, *, dollars_per_million: float | None = 10) -> AgentCard:
    prices = None if dollars_per_million is None else priced(dollars_per_million)
    return AgentCard(name=str(side), side=side, model="m", prices=prices)


def request(characters: int = 400) -> StepRequest:
    return StepRequest(messages=(Message.user("x" * characters),))


def account(limits: Limits, *, session: str | None = None, spending: Spending | None = None) -> Account:
    return Account(spending or Spending(Clock()), limits, session=session)


def test_without_limits_a_request_is_left_alone() -> None:
    asked = request()
    assert account(Limits()).bounded(asked, card(dollars_per_million=None)) is asked


def test_a_call_may_write_no_more_than_its_dollars_pay_for() -> None:
    bounded = account(Limits(call=Amounts(dollars=0.002))).bounded(request(400), card())
    assert bounded.max_output_tokens is not None
    assert 0 < bounded.max_output_tokens <= 100  # 200 tokens for $0.002, of which the prompt takes 100 or more


def test_a_call_whose_prompt_alone_is_too_dear_is_not_made() -> None:
    with pytest.raises(BudgetExceeded, match="limit for the call"):
        account(Limits(call=Amounts(dollars=0.0009))).bounded(request(400), card())


def test_a_call_gets_the_time_that_is_left_to_its_task() -> None:
    spender = account(Limits(task=Amounts(seconds=10), call=Amounts(seconds=8)))
    assert spender.bounded(request(), card()).timeout == 8
    spender.charge(Spent(seconds=7.5))
    assert spender.bounded(request(), card()).timeout == 2.5
    spender.charge(Spent(seconds=2.5))
    with pytest.raises(BudgetExceeded, match="limit for the task"):
        spender.bounded(request(), card())


def test_an_unknown_price_is_refused_where_dollars_are_limited_unless_the_agent_is_near() -> None:
    limited = account(Limits(day=Amounts(dollars=1)))
    with pytest.raises(BudgetExceeded, match="price is unknown"):
        limited.bounded(request(), card(dollars_per_million=None))
    asked = request()
    assert limited.bounded(asked, card(Side.NEAR, dollars_per_million=None)) == asked


def test_what_is_free_may_follow_when_all_dollars_are_spent() -> None:
    spender = account(Limits(day=Amounts(dollars=1)))
    spender.charge(Spent(dollars=1.0))
    assert spender.bounded(request(), card(Side.NEAR, dollars_per_million=0)).max_output_tokens is None
    with pytest.raises(BudgetExceeded, match="limit for the day"):
        spender.bounded(request(), card())


def test_a_session_is_limited_by_itself() -> None:
    spending, limits = Spending(Clock()), Limits(session=Amounts(tokens=300))
    account(limits, session="one", spending=spending).charge(Spent(tokens=250))
    with pytest.raises(BudgetExceeded, match="limit for the session"):
        account(limits, session="one", spending=spending).bounded(request(), card())
    account(limits, session="two", spending=spending).bounded(request(), card())


def test_a_new_day_begins_with_a_full_purse() -> None:
    clock = Clock()
    spending, limits = Spending(clock), Limits(day=Amounts(dollars=1))
    spending.add(Spent(dollars=0.75), session=None)
    assert spending.share_left(limits, session=None) == 0.25
    clock.now += timedelta(days=1)
    assert spending.share_left(limits, session=None) == 1.0


def test_an_expense_of_unknown_price_leaves_nothing_of_a_dollar_limit() -> None:
    spending, limits = Spending(Clock()), Limits(day=Amounts(dollars=1))
    spending.add(Spent(dollars=None), session=None)
    assert spending.share_left(limits, session=None) == 0.0


@given(st.lists(st.floats(min_value=0, max_value=0.01), max_size=30), st.integers(min_value=1, max_value=2000))
def test_no_row_of_calls_spends_more_than_the_task_may_have(shares: list[float], characters: int) -> None:
    limit = 0.01
    spender = account(Limits(task=Amounts(dollars=limit)))
    for share in shares:
        asked = request(characters)
        try:
            bounded = spender.bounded(asked, card())
        except BudgetExceeded:
            break
        prompt = -(-characters // 4)
        assert bounded.max_output_tokens is not None
        written = int(share * 100 * bounded.max_output_tokens)
        spender.charge(Spent(dollars=(prompt + written) * 10 / 1e6, tokens=prompt + written))
    assert spender.spent.dollars is not None
    assert spender.spent.dollars <= limit + 10 / 1e6
