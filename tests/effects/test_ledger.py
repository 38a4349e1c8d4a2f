"""The ledger: a call has its effect once in a run, whoever makes it again and whenever the process died."""

import threading
from collections.abc import Mapping, Sequence

import anyio
import pytest
from ledgers import Run, made
from pydantic_core import CoreSchema, core_schema

from nearfar import tool
from nearfar.orchestrator.runs.effects import EffectRecords
from nearfar.orchestrator.runs.tool_calls import Occurrences, effect_key
from nearfar.orchestrator.task.tools import Tool
from nearfar.protocols import ApprovalRequest, LedgerConflict, RunBusy, ToolCall

pytestmark = pytest.mark.anyio


class Payments:
    """What was paid. `die` has the process die after the payment and before its result."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.die = False

    def pay(self, to: str, cents: int = 100) -> str:
        """Pay somebody."""
        self.paid.append(f"{to} {cents}")
        if self.die:
            raise Died
        return f"paid {len(self.paid)}"

    def tool(self, effect: str = "at_most_once") -> Tool:
        return tool(effect=effect)(self.pay)


class Died(BaseException):
    """Stands for the end of the process: nothing is written any more."""


async def test_a_call_that_is_made_again_gets_the_result_on_record(run: Run) -> None:
    payments = Payments()
    async with run.owner() as ledger:
        first = await made(ledger, payments.tool(), to="ann")
    async with run.owner() as ledger:
        again = await made(ledger, payments.tool(), to="ann")
    assert payments.paid == ["ann 100"]
    assert first.content == again.content == "paid 1"


async def test_one_thing_said_in_two_ways_is_one_effect(run: Run) -> None:
    payments = Payments()
    async with run.owner() as ledger:
        await made(ledger, payments.tool(), to="ann")
        await made(ledger, payments.tool(), to="ann", cents=100)
        await made(ledger, payments.tool(), cents="100", to="ann")
    assert payments.paid == ["ann 100"]


async def test_arguments_of_the_apps_own_types_are_told_apart_by_what_the_agent_wrote(run: Run) -> None:
    class Account:
        """Something that pydantic can make and not write."""

        def __init__(self, number: str) -> None:
            self.number = number

        @classmethod
        def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
            return core_schema.no_info_after_validator_function(cls, core_schema.str_schema())

    paid: list[str] = []

    @tool
    def pay(to: Account) -> str:
        """Pay an account."""
        paid.append(to.number)
        return f"paid {len(paid)}"

    for _ in range(2):
        async with run.owner() as ledger:
            await made(ledger, pay, to="ann")
            await made(ledger, pay, to="bob")
    assert paid == ["ann", "bob"]


async def test_a_second_equal_call_of_one_conversation_is_another_effect(run: Run) -> None:
    payments = Payments()
    async with run.owner() as ledger:
        await made(ledger, payments.tool(), to="ann", times=2)
    assert payments.paid == ["ann 100", "ann 100"]
    async with run.owner() as ledger:
        again = await made(ledger, payments.tool(), to="ann", times=2)
    assert payments.paid == ["ann 100", "ann 100"]
    assert again.content == "paid 2"


async def test_an_agent_that_takes_over_is_told_that_the_call_was_made_before(run: Run) -> None:
    payments = Payments()
    async with run.owner() as ledger:
        await made(ledger, payments.tool(), to="ann", turn=1)
        told = await made(ledger, payments.tool(), to="ann", turn=4)
    assert payments.paid == ["ann 100"]
    assert told.content.startswith("paid 1\n")
    assert "made earlier" in told.content


async def test_what_only_reads_looks_anew_on_a_later_turn_and_not_on_a_resume(run: Run) -> None:
    payments = Payments()
    async with run.owner() as ledger:
        await made(ledger, payments.tool("read"), to="ann", turn=1)
    async with run.owner() as ledger:
        resumed = await made(ledger, payments.tool("read"), to="ann", turn=1)
        later = await made(ledger, payments.tool("read"), to="ann", turn=2)
    assert (resumed.content, later.content) == ("paid 1", "paid 2")


async def test_an_idempotent_call_of_an_agent_that_takes_over_is_looked_up(run: Run) -> None:
    payments = Payments()
    async with run.owner() as ledger:
        await made(ledger, payments.tool("idempotent"), to="ann", turn=1)
        told = await made(ledger, payments.tool("idempotent"), to="ann", turn=4)
    assert payments.paid == ["ann 100"]
    assert "made earlier" in told.content


async def test_an_idempotent_call_that_failed_is_tried_again_as_the_same_effect(run: Run) -> None:
    keys: list[str] = []

    @tool(effect="idempotent")
    def send(text: str) -> str:
        """Send a text."""
        keys.append(effect_key())
        if len(keys) < 3:
            raise TimeoutError("no answer")
        return "sent"

    counted = Occurrences({}, turn=0)
    call = ToolCall(id="1", name="send", arguments={"text": "hi"})
    async with run.owner() as ledger:
        for turn in range(5):
            counted = Occurrences(counted.made, turn=turn)
            occurrence = counted.next(call, send)
            counted.settle(occurrence, send, await ledger.run(call, send, occurrence))
    assert len(keys) == 5  # failed, failed, sent; and then twice more, as the agent wanted it sent again
    assert [keys.index(key) for key in keys] == [0, 0, 0, 3, 4]


async def test_equal_calls_of_two_parts_are_two_effects(run: Run) -> None:
    payments = Payments()
    async with run.owner() as ledger:
        await made(ledger.within("subtask 1"), payments.tool(), to="ann")
        await made(ledger.within("subtask 2"), payments.tool(), to="ann")
        await made(ledger.within("subtask 1"), payments.tool(), to="ann")
    assert payments.paid == ["ann 100", "ann 100"]


async def test_equal_calls_of_one_message_run_side_by_side_and_each_once(run: Run) -> None:
    payments = Payments()
    pay = payments.tool()
    calls = [ToolCall(id=str(number), name="pay", arguments={"to": "ann"}) for number in range(3)]
    for _ in range(2):
        async with run.owner() as ledger:
            before = Occurrences({}, turn=0)
            async with anyio.create_task_group() as running:
                for call in calls:
                    running.start_soon(ledger.run, call, pay, before.next(call, pay))
    assert payments.paid == ["ann 100"] * 3


async def died_while_paying(run: Run, payments: Payments, effect: str) -> None:
    payments.die = True
    async with run.owner() as ledger:
        with pytest.raises(Died):
            await made(ledger, payments.tool(effect), to="ann")
    payments.die = False


async def test_after_a_death_in_the_middle_a_call_that_must_not_be_repeated_is_not(run: Run) -> None:
    payments = Payments()
    await died_while_paying(run, payments, "at_most_once")
    async with run.owner() as ledger:
        told = await made(ledger, payments.tool(), to="ann")
        again = await made(ledger, payments.tool(), to="ann", times=2)
    assert payments.paid == ["ann 100"]
    assert told.is_error
    assert "it is not known" in told.content
    assert again.is_error, "a model that tries once more does not have it twice either"


@pytest.mark.parametrize("effect", ["read", "idempotent", "transactional"])
async def test_after_a_death_in_the_middle_every_other_call_is_run_again(run: Run, effect: str) -> None:
    payments = Payments()
    await died_while_paying(run, payments, effect)
    async with run.owner() as ledger:
        assert (await made(ledger, payments.tool(effect), to="ann")).content == "paid 2"


@pytest.mark.parametrize(("answer", "paid"), [(True, 2), (False, 1)])
async def test_somebody_may_settle_a_call_of_which_nobody_knows(run: Run, answer: bool, paid: int) -> None:
    asked: list[ApprovalRequest] = []

    async def approver(requests: Sequence[ApprovalRequest]) -> Mapping[str, bool]:
        asked.extend(requests)
        return {request.id: answer for request in requests}

    payments = Payments()
    await died_while_paying(run, payments, "at_most_once")
    async with run.owner(approver) as ledger:
        told = await made(ledger, payments.tool(), to="ann")
    assert len(payments.paid) == paid
    assert told.is_error is not answer
    assert "it is not known" in asked[0].reason


async def test_the_key_of_an_effect_is_the_same_when_it_is_run_again_and_no_other_ones(run: Run) -> None:
    keys: list[str] = []

    @tool(effect="idempotent")
    def send(text: str) -> str:
        """Send a text."""
        keys.append(effect_key())
        if len(keys) == 1:
            raise Died
        return "sent"

    async with run.owner() as ledger:
        with pytest.raises(Died):
            await made(ledger, send, text="hi")
    async with run.owner() as ledger:
        await made(ledger, send, text="hi")
        await made(ledger, send, text="hi", turn=1, times=2)
        await made(ledger, send, text="hello")
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


async def test_an_owner_that_has_lost_the_run_runs_nothing(run: Run) -> None:
    payments = Payments()
    async with run.owner() as old, run.owner():
        with pytest.raises(RunBusy):
            await made(old, payments.tool(), to="ann")
    assert payments.paid == []


async def test_an_owner_that_loses_the_run_meanwhile_records_nothing(run: Run) -> None:
    started, may_end = threading.Event(), threading.Event()

    @tool
    def pay(to: str) -> str:
        """Pay somebody."""
        started.set()
        may_end.wait(10)
        return "paid by the old owner"

    async with run.owner() as old, anyio.create_task_group() as running:

        async def lose() -> None:
            with pytest.raises(RunBusy):
                await made(old, pay, to="ann")

        running.start_soon(lose)
        await anyio.to_thread.run_sync(started.wait)
        async with run.owner() as new:
            told = await made(new, pay, to="ann")
            may_end.set()
    async with run.owner() as ledger:
        assert "it is not known" in told.content
        assert "it is not known" in (await made(ledger, pay, to="ann")).content


async def test_a_tool_that_was_changed_since_is_not_taken_for_the_one_on_record(run: Run) -> None:
    payments = Payments()
    async with run.owner() as ledger:
        await made(ledger, payments.tool("at_most_once"), to="ann")
    async with run.owner() as ledger:
        with pytest.raises(LedgerConflict, match="pay"):
            await made(ledger, payments.tool("transactional"), to="ann")
    assert payments.paid == ["ann 100"]


@pytest.mark.parametrize("change", ["one more argument", "it only reads"])
async def test_nor_where_the_change_gives_the_same_call_another_key(run: Run, change: str) -> None:
    paid: list[str] = []
    never = anyio.Event()

    async def pay(to: str) -> str:
        """Pay somebody."""
        paid.append(to)
        await never.wait()
        return "paid"

    async def pay_with_note(to: str, note: str = "") -> str:
        """Pay somebody."""
        return await pay(to) + note

    async with run.owner() as ledger:
        await made(ledger, tool(time_limit=0.01)(pay), to="ann")
    changed = tool(effect="read")(pay) if change == "it only reads" else tool(name="pay")(pay_with_note)
    async with run.owner() as ledger:
        with pytest.raises(LedgerConflict, match="pay"):
            await made(ledger, changed, to="ann")
    assert paid == ["ann"]


async def test_a_failure_is_a_result_too_and_a_new_try_is_a_new_effect(run: Run) -> None:
    tries: list[int] = []

    @tool
    def fragile() -> str:
        """Fail once."""
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("out of order")
        return "done"

    async with run.owner() as ledger:
        assert (await made(ledger, fragile)).is_error
    async with run.owner() as ledger:
        assert (await made(ledger, fragile)).is_error
        assert (await made(ledger, fragile, times=2)).content == "done"
    assert len(tries) == 2


@pytest.mark.parametrize(("effect", "times"), [("at_most_once", 1), ("idempotent", 0), ("read", 0)])
async def test_what_must_not_be_repeated_is_begun_when_a_power_cut_cannot_take_its_intent(
    run: Run, effect: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    payments, synced = Payments(), list[int]()
    monkeypatch.setattr(EffectRecords, "sync", lambda _: synced.append(len(payments.paid)))
    async with run.owner() as ledger:
        await made(ledger, payments.tool(effect), to="ann")
    assert synced == [0] * times, "before the tool acts, and only where that matters"
