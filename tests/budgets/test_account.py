"""What a call may take by the limits, and what counts for it."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import date
from decimal import Decimal
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.orchestrator.budgets import BudgetBook, BudgetScope, Spent, open_budgets
from nearfar.orchestrator.budgets import account as accounts
from nearfar.orchestrator.budgets.account import Account, Allowance
from nearfar.orchestrator.budgets.storage import MemoryStorage
from nearfar.orchestrator.storage import DatabaseSession
from nearfar.orchestrator.task.routing_policy import AmountsConfig, LimitsConfig
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import AgentCard, BudgetExceeded, LongPrompt, Message, Prices, Side, StepRequest, StoreUnavailable, Usage
from nearfar.protocols.agent import Limits as CardLimits

pytestmark = pytest.mark.anyio


def card(side: Side = Side.FAR, *, dollars_per_million: float | None = 10) -> AgentCard:
    """Reading costs as much as writing."""
    each = None if dollars_per_million is None else Decimal(str(dollars_per_million))
    prices = None if each is None else Prices(input=each, output=each, source="a test", as_of=date(2026, 11, 18))
    return AgentCard(name=str(side), side=side, model="m", prices=prices)


def request(characters: int = 400, **fields: object) -> StepRequest:
    return StepRequest.model_validate({"messages": (Message.user("x" * characters),), **fields})


def account(limits: LimitsConfig, *, book: BudgetBook | None = None, session: str | None = None, user: str = "") -> Account:
    return Account(book or BudgetBook(MemoryStorage()), limits, task="a task", session=session, user=user)


async def spend(spender: Account, spent: Spent, *, side: Side = Side.NEAR) -> None:
    allowance = await spender.reserve(request(1), card(side))
    await allowance.settle(spent)


async def test_without_limits_a_request_is_left_alone() -> None:
    asked = request()
    assert (await account(LimitsConfig()).reserve(asked, card(dollars_per_million=None))).request is asked


async def test_the_most_that_is_set_aside_covers_a_prompt_that_is_stored_whole_and_long() -> None:
    long = LongPrompt(above=1000, input=Decimal(4), output=Decimal(20), cache_write=Decimal(5))
    rates = {"input": Decimal(2), "output": Decimal(10), "cache_write": Decimal("2.5")}
    prices = Prices(**rates, long_prompts=(long,), source="a test", as_of=date(2026, 11, 18))
    agent = card().model_copy(update={"prices": prices})
    limited = account(LimitsConfig(task=AmountsConfig(dollars=1)))
    for characters in (400, 40_000):
        allowance = await limited.reserve(request(characters, max_output_tokens=100), agent)
        read = allowance.most.tokens - 100
        usage = Usage(input_tokens=read, cache_write_tokens=read, output_tokens=100)
        assert allowance.most.dollars == pytest.approx(float(prices.dollars(usage)))
        await allowance.settle(Spent(dollars=0.0))


async def test_the_output_that_is_left_is_bounded_at_the_rate_of_a_long_prompt() -> None:
    long = LongPrompt(above=100, input=Decimal(0), output=Decimal(100))
    prices = Prices(input=Decimal(0), output=Decimal(1), long_prompts=(long,), source="a test", as_of=date(2026, 11, 18))
    agent = card().model_copy(update={"prices": prices})
    allowance = await account(LimitsConfig(task=AmountsConfig(dollars=0.01))).reserve(request(4000), agent)
    assert allowance.request.max_output_tokens == 100


async def test_calls_without_limits_are_counted_for_the_day_and_the_session() -> None:
    book = BudgetBook(MemoryStorage())
    free = account(LimitsConfig(), book=book, session="a session")
    await spend(free, Spent(dollars=0.5, tokens=70), side=Side.FAR)
    await spend(free, Spent(dollars=0.25, tokens=30))
    assert book.balance(BudgetScope("session", "a session")).spent.tokens == 100
    assert book.balances()[book.today()].spent.of("dollars") == 0.75
    assert not any(book.balance(BudgetScope("day")).reserved)


async def test_what_was_spent_without_limits_counts_for_a_task_that_has_one() -> None:
    book = BudgetBook(MemoryStorage())
    await spend(account(LimitsConfig(), book=book), Spent(tokens=4900))
    limited = account(LimitsConfig(day=AmountsConfig(tokens=5000)), book=book)
    with pytest.raises(BudgetExceeded, match="4900 of 5000 tokens"):
        await limited.reserve(request(1000), card())


async def test_a_lost_call_without_limits_counts_for_the_most_it_can_have_taken() -> None:
    allowance = await account(LimitsConfig()).reserve(request(max_output_tokens=100), card())
    assert allowance.most.tokens > 100
    assert allowance.most.dollars is not None
    assert allowance.most.dollars > 0


async def test_a_call_may_write_no_more_than_its_dollars_pay_for() -> None:
    bounded = (await account(LimitsConfig(call=AmountsConfig(dollars=0.002))).reserve(request(400), card())).request
    assert bounded.max_output_tokens is not None
    assert 0 < bounded.max_output_tokens <= 100  # 200 tokens for $0.002, of which the prompt takes 100 or more


async def test_a_large_context_window_does_not_reserve_a_large_answer() -> None:
    spender = account(LimitsConfig(day=AmountsConfig(dollars=10)))
    allowance = await spender.reserve(request(), card().model_copy(update={"limits": CardLimits(context_tokens=1_000_000)}))
    assert allowance.request.max_output_tokens == accounts.USUAL_OUTPUT
    allowance = await spender.reserve(request(), card().model_copy(update={"limits": CardLimits(max_output_tokens=20_000)}))
    assert allowance.request.max_output_tokens == 20_000
    allowance = await spender.reserve(request(), card().model_copy(update={"limits": CardLimits(context_tokens=500)}))
    assert allowance.request.max_output_tokens == 500


async def test_a_call_that_is_bounded_anew_is_a_step_of_its_own_and_one_that_is_not_stays_the_same() -> None:
    spender, asked = account(LimitsConfig(task=AmountsConfig(tokens=20_000))), request()
    first = await spender.reserve(asked, card())
    assert first.request.idempotency_key == asked.idempotency_key
    await first.settle(Spent(tokens=15_000))
    second = await spender.reserve(asked, card())
    assert second.request.idempotency_key == f"{asked.idempotency_key}/{second.request.max_output_tokens}"


async def test_a_call_whose_prompt_alone_is_too_dear_is_not_made() -> None:
    with pytest.raises(BudgetExceeded, match="limit for the call"):
        await account(LimitsConfig(call=AmountsConfig(dollars=0.0009))).reserve(request(400), card())


async def test_a_call_gets_the_time_that_is_left_to_its_task() -> None:
    spender = account(LimitsConfig(task=AmountsConfig(seconds=10), call=AmountsConfig(seconds=8)))
    allowance = await spender.reserve(request(), card())
    assert allowance.request.timeout == 8
    await allowance.settle(Spent(seconds=7.5))
    allowance = await spender.reserve(request(), card())
    assert allowance.request.timeout == 2.5
    await allowance.settle(Spent(seconds=2.5))
    with pytest.raises(BudgetExceeded, match="limit for the task"):
        await spender.reserve(request(), card())


async def test_an_unknown_price_is_refused_where_dollars_are_limited_unless_the_agent_is_near() -> None:
    limited = account(LimitsConfig(day=AmountsConfig(dollars=1)))
    with pytest.raises(BudgetExceeded, match="price is unknown"):
        await limited.reserve(request(), card(dollars_per_million=None))
    asked = request()
    assert (await limited.reserve(asked, card(Side.NEAR, dollars_per_million=None))).most.dollars == 0


async def test_an_unknown_price_is_let_pass_where_the_policy_allows_it_and_counts_as_no_dollars() -> None:
    limits = LimitsConfig(day=AmountsConfig(dollars=1), task=AmountsConfig(tokens=100_000), unknown_price="allow")
    spender = account(limits)
    allowance = await spender.reserve(request(), card(dollars_per_million=None))
    assert allowance.most.dollars is None
    await allowance.settle(Spent(dollars=None, tokens=50))
    assert spender.spent == Spent(dollars=0.0, tokens=50)
    assert (await spender.reserve(request(), card())).most.dollars


async def test_what_cost_nobody_knows_what_leaves_no_dollars_once_they_are_limited() -> None:
    book = BudgetBook(MemoryStorage())
    allowance = await account(LimitsConfig(), book=book).reserve(request(), card(dollars_per_million=None))
    await allowance.settle(Spent(dollars=None))
    with pytest.raises(BudgetExceeded, match="price is unknown of 1 earlier calls"):
        await account(LimitsConfig(day=AmountsConfig(dollars=1)), book=book).reserve(request(), card())


async def test_a_near_agent_without_a_price_is_held_to_its_tokens() -> None:
    spender = account(LimitsConfig(day=AmountsConfig(dollars=0, tokens=1000)))
    near = card(Side.NEAR, dollars_per_million=None)
    allowance = await spender.reserve(request(), near)
    assert allowance.request.max_output_tokens is not None
    assert allowance.request.max_output_tokens < 1000
    await allowance.settle(Spent(tokens=990))
    with pytest.raises(BudgetExceeded, match="990 of 1000 tokens are spent"):
        await spender.reserve(request(), near)


async def test_a_budget_of_zero_leaves_the_agents_that_are_free() -> None:
    spender = account(LimitsConfig(day=AmountsConfig(dollars=0)))
    assert (await spender.reserve(request(), card(Side.NEAR, dollars_per_million=None))).most.dollars == 0
    with pytest.raises(BudgetExceeded, match="it may spend no dollars, so that only what takes none may serve"):
        await spender.reserve(request(), card())


async def test_what_is_free_may_follow_when_all_dollars_are_spent() -> None:
    spender = account(LimitsConfig(day=AmountsConfig(dollars=1)))
    await spend(spender, Spent(dollars=1.0), side=Side.FAR)
    assert (await spender.reserve(request(), card(Side.NEAR, dollars_per_million=0))).most.dollars == 0
    with pytest.raises(BudgetExceeded, match="limit for the day"):
        await spender.reserve(request(), card())


async def test_tasks_without_a_user_share_the_limit_of_one() -> None:
    book, limits = BudgetBook(MemoryStorage()), LimitsConfig(user=AmountsConfig(tokens=300))
    await spend(account(limits, book=book), Spent(tokens=300))
    with pytest.raises(BudgetExceeded, match="limit for the user"):
        await account(limits, book=book).reserve(request(), card())


@pytest.mark.parametrize(("kind", "name"), [("session", "one"), ("user", "ana")])
async def test_sessions_and_users_are_limited_each_by_itself(kind: str, name: str) -> None:
    book, limits = BudgetBook(MemoryStorage()), LimitsConfig.model_validate({kind: {"tokens": 300}})

    def mine() -> Account:
        return account(limits, book=book, **{kind: name})

    await spend(mine(), Spent(tokens=250))
    with pytest.raises(BudgetExceeded, match=f"limit for the {kind}"):
        await mine().reserve(request(), card())
    other = account(limits, book=book, session="another", user="another")
    assert (await other.reserve(request(), card())).most.tokens == 300


async def test_two_calls_at_a_time_are_not_both_given_the_last_cent() -> None:
    spender = account(LimitsConfig(task=AmountsConfig(dollars=0.01)))
    first = await spender.reserve(request(), card())
    with pytest.raises(BudgetExceeded, match="are reserved for calls under way"):
        await spender.reserve(request(timeout=0.001), card())
    await first.settle(Spent(dollars=0.001))
    assert (await spender.reserve(request(), card())).most.dollars == pytest.approx(0.009)


async def test_a_call_waits_for_those_under_way_rather_than_to_be_cut_short() -> None:
    spender = account(LimitsConfig(task=AmountsConfig(dollars=0.01)))
    first = await spender.reserve(request(), card())
    second: list[Allowance] = []

    async def wait() -> None:
        second.append(await spender.reserve(request(), card()))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.lowlevel.checkpoint()
            assert not second
            await first.settle(Spent(dollars=0.001))
    assert second[0].most.dollars == pytest.approx(0.009)


@pytest.mark.parametrize("is_shared", [False, True])
async def test_calls_side_by_side_get_to_the_cap_and_no_further(is_shared: bool, tmp_path: Path) -> None:
    book = open_budgets(RunsConfig(folder=tmp_path)) if is_shared else BudgetBook(MemoryStorage())
    spender = account(LimitsConfig(task=AmountsConfig(tokens=5000)), book=book)
    asked = request(100, max_output_tokens=100, timeout=20)
    refused = 0

    async def call() -> None:
        nonlocal refused
        try:
            allowance = await spender.reserve(asked, card())
        except BudgetExceeded:
            refused += 1
            return
        await anyio.lowlevel.checkpoint()
        await allowance.settle(Spent(tokens=allowance.most.tokens))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for _ in range(60):
                tasks.start_soon(call)
    balance = book.balance(BudgetScope("task", "a task"))
    assert refused
    assert 4900 < balance.spent.tokens <= 5000
    assert not any(balance.reserved)
    book.close()


async def test_a_call_that_is_cancelled_while_it_reserves_gives_back_what_it_got(tmp_path: Path) -> None:
    book = open_budgets(RunsConfig(folder=tmp_path))
    spender = account(LimitsConfig(task=AmountsConfig(tokens=5000)), book=book)
    with anyio.fail_after(60):
        for _ in range(20):
            asking = asyncio.create_task(spender.reserve(request(), card()))
            await anyio.lowlevel.checkpoint()
            asking.cancel()
            await asyncio.wait([asking])
            while book.balance(BudgetScope("task", "a task")).reserved.tokens:
                await anyio.lowlevel.checkpoint()
    assert not any(book.balance(BudgetScope("task", "a task")).spent)
    book.close()


def test_a_call_that_is_cancelled_with_its_event_loop_while_it_reserves_gives_back_what_it_got(tmp_path: Path) -> None:
    book = open_budgets(RunsConfig(folder=tmp_path))
    spender = account(LimitsConfig(task=AmountsConfig(tokens=5000)), book=book)

    async def ask(other: sqlite3.Connection) -> None:
        asking = asyncio.create_task(spender.reserve(request(), card()))
        for _ in range(10):
            await asyncio.sleep(0)  # its thread waits for the other one
        asyncio.get_running_loop().call_later(0.1, other.execute, "ROLLBACK")
        asking.cancel()
        await asyncio.wait([asking])

    with closing(sqlite3.connect(tmp_path / "budgets.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        asyncio.run(ask(other))
    assert not any(book.balance(BudgetScope("task", "a task")).reserved)
    book.close()


class Broken(MemoryStorage):
    """A storage that other processes share, and whose disk is full from some moment on."""

    is_shared = True
    is_full = False

    @contextmanager
    def writing(self) -> Iterator[DatabaseSession]:
        if self.is_full:
            raise StoreUnavailable("the disk is full")
        with super().writing() as session:
            yield session


async def test_where_nothing_can_be_written_limited_calls_are_not_made_and_others_are(caplog: pytest.LogCaptureFixture) -> None:
    storage = Broken()
    book = BudgetBook(storage)
    limited = account(LimitsConfig(day=AmountsConfig(tokens=5000)), book=book)
    allowance = await limited.reserve(request(), card())
    storage.is_full = True
    await allowance.settle(Spent(tokens=50))
    assert "stays reserved" in caplog.text
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await limited.reserve(request(), card())
    await (await account(LimitsConfig(), book=book).reserve(request(), card())).settle(Spent(tokens=50))
    assert "is not counted" in caplog.text
    assert book.balance(BudgetScope("day")).reserved.tokens == 5000


async def test_a_part_is_held_to_its_share_and_to_what_its_whole_has_left() -> None:
    whole = account(LimitsConfig(task=AmountsConfig(tokens=20_000)))
    part = whole.part(LimitsConfig(task=AmountsConfig(tokens=1000)))
    allowance = await part.reserve(request(), card())
    assert allowance.most.tokens == 1000
    await allowance.settle(Spent(tokens=1000))
    with pytest.raises(BudgetExceeded, match="1000 of 1000 tokens"):
        await part.reserve(request(), card())
    assert (whole.spent.tokens, whole.left_of_task().tokens) == (1000, 19_000)
    other = whole.part(LimitsConfig(task=AmountsConfig(tokens=1000)))
    assert (await other.reserve(request(), card())).most.tokens == 1000


async def test_a_task_that_begins_again_has_spent_what_it_had() -> None:
    book, limits = BudgetBook(MemoryStorage()), LimitsConfig(task=AmountsConfig(tokens=1000))
    await spend(account(limits, book=book), Spent(tokens=400))
    again = account(limits, book=book)
    assert again.spent.tokens == 400
    assert (await again.reserve(request(), card())).most.tokens == 600


async def test_a_part_of_a_task_that_begins_again_has_all_of_its_new_share() -> None:
    book, limits = BudgetBook(MemoryStorage()), LimitsConfig(task=AmountsConfig(tokens=20_000))
    await spend(account(limits, book=book).part(LimitsConfig(task=AmountsConfig(tokens=10_000))), Spent(tokens=8000))
    again = account(limits, book=book)
    assert again.left_of_task().tokens == 12_000
    part = again.part(LimitsConfig(task=AmountsConfig(tokens=6000)))
    assert (await part.reserve(request(), card())).most.tokens == 6000


async def test_a_task_without_a_limit_of_its_own_is_not_kept() -> None:
    book = BudgetBook(MemoryStorage())
    await spend(account(LimitsConfig(), book=book, session="chat", user="ana"), Spent(tokens=10))
    assert {scope.kind for scope in book.balances()} == {"session", "user", "day"}


async def test_prompts_of_digits_are_not_taken_for_short() -> None:
    digits = StepRequest(messages=(Message.user("7" * 900),))
    assert accounts.most_prompt_tokens(digits) >= 900


@given(st.lists(st.floats(min_value=0, max_value=1), max_size=30), st.integers(min_value=1, max_value=2000))
def test_no_row_of_calls_spends_more_than_the_task_may_have(shares: list[float], characters: int) -> None:
    limit, book = 0.01, BudgetBook(MemoryStorage())

    async def calls() -> None:
        spender = account(LimitsConfig(task=AmountsConfig(dollars=limit)), book=book)
        for share in shares:
            try:
                allowance = await spender.reserve(request(characters), card())
            except BudgetExceeded:
                return
            prompt, written = -(-characters // 4), int(share * (allowance.request.max_output_tokens or 0))
            await allowance.settle(Spent(dollars=(prompt + written) * 10 / 1e6, tokens=prompt + written))

    anyio.run(calls)
    assert book.balance(BudgetScope("task", "a task")).spent.of("dollars") <= limit
