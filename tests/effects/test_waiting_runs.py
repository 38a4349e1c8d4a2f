"""Durable runs that wait for somebody's yes, and agents that take over from each other."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pydantic import BaseModel

from nearfar import Hybrid, Strategy, Tool, effect_key, tool
from nearfar.orchestrator.runs import RunState
from nearfar.orchestrator.runs.leases import read_details
from nearfar.orchestrator.runs.ledger import pending_requests
from nearfar.orchestrator.runs.store import RunStore
from nearfar.orchestrator.task.events import ApprovalAsked, TaskEvent, ToolStarted
from nearfar.orchestrator.task.policy import Policy
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import (
    ApprovalNeeded,
    ApprovalRequest,
    Cancelled,
    InvalidRequest,
    NotFound,
    RunBusy,
    ScriptedAgent,
    Sensitivity,
    Side,
    StepRequest,
    ToolCall,
    Unavailable,
)

pytestmark = pytest.mark.anyio

RUN = "run-1"


class _Sent(BaseModel):
    to: str


class Letters:
    """What was sent, and how often somebody looked."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.looks = 0

    @property
    def tools(self) -> list[Tool]:
        return [tool(approval=True)(self.send), tool(effect="read")(self.look), tool(self.post)]

    def send(self, to: str) -> str:
        """Send a letter."""
        self.sent.append(f"{to} {effect_key()}")
        return f"sent to {to}"

    def look(self) -> str:
        """Look into the mailbox."""
        self.looks += 1
        return "empty"

    def post(self, to: str) -> str:
        """Post a card, for which nobody is asked."""
        self.sent.append(f"{to} {effect_key()}")
        return f"posted to {to}"

    @property
    def receivers(self) -> list[str]:
        return [line.split()[0] for line in self.sent]


def letter(to: str, name: str = "send") -> ToolCall:
    return ToolCall(id=f"{name}-{to}", name=name, arguments={"to": to})


def writing(*calls: ToolCall) -> Callable[[StepRequest], Sequence[ToolCall] | str]:
    """An agent that makes the calls at once, and then repeats what it was told."""

    def reply(request: StepRequest) -> Sequence[ToolCall] | str:
        told = [message.tool_result.content for message in request.messages if message.tool_result is not None]
        return "; ".join(told) if told else calls

    return reply


def opened(folder: Path, letters: Letters, *calls: ToolCall) -> Hybrid:
    return Hybrid(near=ScriptedAgent(writing(*calls)), tools=letters.tools, records=RunsConfig(folder=folder))


def state_of(folder: Path) -> RunState:
    store = RunStore.open(RunsConfig(folder=folder))
    try:
        return store.show(RUN).state
    finally:
        store.close()


async def needed(folder: Path, letters: Letters, *calls: ToolCall) -> ApprovalNeeded:
    """What the first process stops with."""
    async with opened(folder, letters, *calls) as hybrid:
        with pytest.raises(ApprovalNeeded) as caught:
            await hybrid.run("Write to them", idempotency_key=RUN)
    return caught.value


async def test_a_run_stops_before_anything_of_the_message_has_run_and_goes_on_in_another_process(tmp_path: Path) -> None:
    letters = Letters()
    calls = [ToolCall(id="1", name="look"), letter("ann")]
    error = await needed(tmp_path, letters, *calls)
    assert error.run == RUN
    assert [request.call for request in error.requests] == [letter("ann")]
    assert (letters.sent, letters.looks) == ([], 0)
    assert state_of(tmp_path) is RunState.WAITING
    async with opened(tmp_path, letters, *calls) as hybrid:
        result = await hybrid.resume(RUN, approvals={_id(error): True})
    assert result.text == "empty; sent to ann"
    assert letters.receivers == ["ann"]
    assert state_of(tmp_path) is RunState.DONE


async def test_a_run_that_nobody_has_decided_about_goes_on_waiting(tmp_path: Path) -> None:
    letters = Letters()
    first = await needed(tmp_path, letters, letter("ann"))
    async with opened(tmp_path, letters, letter("ann")) as hybrid:
        with pytest.raises(ApprovalNeeded) as caught:
            await hybrid.resume(RUN)
    assert _id(caught.value) == _id(first)
    assert state_of(tmp_path) is RunState.WAITING


async def test_what_somebody_says_no_to_is_not_run_and_the_model_is_told(tmp_path: Path) -> None:
    letters = Letters()
    error = await needed(tmp_path, letters, letter("ann"))
    async with opened(tmp_path, letters, letter("ann")) as hybrid:
        result = await hybrid.resume(RUN, approvals={_id(error): False})
    assert "the user said no" in result.text
    assert letters.sent == []


async def test_a_model_that_does_not_take_a_no_for_an_answer_asks_nobody_again(tmp_path: Path) -> None:
    letters = Letters()
    error = await needed(tmp_path, letters, letter("ann"))
    near = ScriptedAgent([letter("ann"), letter("ann"), "I was told not to"])
    async with Hybrid(near=near, tools=letters.tools, records=RunsConfig(folder=tmp_path)) as hybrid:
        result = await hybrid.resume(RUN, approvals={_id(error): False})
    assert result.text == "I was told not to"
    assert letters.sent == []


async def test_of_two_calls_each_is_decided_about_and_both_before_one_runs(tmp_path: Path) -> None:
    letters = Letters()
    error = await needed(tmp_path, letters, letter("ann"), letter("eve"))
    async with opened(tmp_path, letters, letter("ann"), letter("eve")) as hybrid:
        with pytest.raises(ApprovalNeeded) as caught:
            await hybrid.resume(RUN, approvals={_id(error): True})
        assert letters.sent == []
        assert [request.call.arguments["to"] for request in caught.value.requests] == ["eve"]
        result = await hybrid.resume(RUN, approvals={_id(caught.value): False})
    assert letters.receivers == ["ann"]
    assert "sent to ann" in result.text


async def test_an_answer_to_what_was_not_asked_is_told_so_and_changes_nothing(tmp_path: Path) -> None:
    letters = Letters()
    error = await needed(tmp_path, letters, letter("ann"))
    async with opened(tmp_path, letters, letter("ann")) as hybrid:
        with pytest.raises(NotFound, match="does not wait for nothing-of-mine") as caught:
            await hybrid.resume(RUN, approvals={_id(error): True, "nothing-of-mine": True})
    assert _id(error) in caught.value.hint
    store = RunStore.open(RunsConfig(folder=tmp_path))
    assert [request.id for request in pending_requests(store.database, RUN)] == [_id(error)]
    store.close()


async def test_a_decision_may_be_given_again_and_not_changed(tmp_path: Path) -> None:
    letters = Letters()
    error = await needed(tmp_path, letters, letter("ann"))
    async with opened(tmp_path, letters, letter("ann")) as hybrid:
        with pytest.raises(InvalidRequest, match="with another output"):
            await hybrid.resume(RUN, approvals={_id(error): True}, output=_Sent)
        result = await hybrid.resume(RUN, approvals={_id(error): True})
        assert await hybrid.resume(RUN, approvals={_id(error): True}) == result
        with pytest.raises(NotFound, match="does not wait for"):
            await hybrid.resume(RUN, approvals={_id(error): False})
    assert letters.receivers == ["ann"]


async def test_an_approval_may_be_given_again_after_the_approved_call_was_interrupted(tmp_path: Path) -> None:
    started, calls = asyncio.Event(), list[str]()

    @tool(approval=True)
    async def send(to: str) -> str:
        """Send a letter, which takes for ever."""
        calls.append(to)
        started.set()
        await asyncio.Event().wait()
        return "sent"

    def reply(request: StepRequest) -> str | ToolCall:
        told = request.messages[-1].tool_result
        return letter("ann") if told is None else told.content

    async with Hybrid(near=ScriptedAgent(reply), tools=[send], records=tmp_path) as hybrid:
        with pytest.raises(ApprovalNeeded) as caught:
            await hybrid.run("Write to Ann", idempotency_key=RUN)
        approvals = {_id(caught.value): True}
        interrupted = asyncio.create_task(hybrid.resume(RUN, approvals=approvals))
        await started.wait()
        interrupted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await interrupted
        with pytest.raises(NotFound, match="does not wait for"):
            await hybrid.resume(RUN, approvals={_id(caught.value): False})
        result = await hybrid.resume(RUN, approvals=approvals)
    assert calls == ["ann"]
    assert "outcome unknown" in result.text


async def test_a_stream_tells_what_is_asked_and_ends_with_it(tmp_path: Path) -> None:
    letters = Letters()
    events: list[TaskEvent] = []
    async with opened(tmp_path, letters, letter("ann")) as hybrid:
        with pytest.raises(ApprovalNeeded):
            await _heard(hybrid, events)
    store = RunStore.open(RunsConfig(folder=tmp_path))
    assert [event.requests for event in events if isinstance(event, ApprovalAsked)] == [pending_requests(store.database, RUN)]
    store.close()
    assert not any(isinstance(event, ToolStarted) for event in events)


async def _heard(hybrid: Hybrid, events: list[TaskEvent]) -> None:
    async for event in hybrid.stream("Write to Ann", idempotency_key=RUN):
        events.append(event)


async def test_with_an_approver_a_durable_run_does_not_stop_and_asks_no_more_once_it_is_answered(tmp_path: Path) -> None:
    letters, asked = Letters(), []

    async def approver(requests: Sequence[ApprovalRequest]) -> dict[str, bool]:
        asked.append(requests)
        return {request.id: True for request in requests}

    near = ScriptedAgent(writing(letter("ann")))
    async with Hybrid(near=near, tools=letters.tools, records=RunsConfig(folder=tmp_path)) as hybrid:
        await hybrid.run("Write to Ann", idempotency_key=RUN, approver=approver)
        await hybrid.run("Write to Ann", idempotency_key=RUN, approver=approver)
    assert letters.receivers == ["ann"]
    assert len(asked) == 1


async def test_an_agent_that_takes_over_gets_the_results_of_the_one_that_failed(tmp_path: Path) -> None:
    letters = Letters()
    near = ScriptedAgent([[letter("ann", "post")], Unavailable("it is gone")], name="near")
    far = ScriptedAgent([[letter("ann", "post"), letter("bob", "post")], "both are written to"], name="far", side=Side.FAR)
    policy = Policy(sensitivity=Sensitivity.PUBLIC)
    async with Hybrid(near=near, far=far, tools=letters.tools, policy=policy, records=RunsConfig(folder=tmp_path)) as hybrid:
        result = await hybrid.run("Write to Ann and Bob", strategy="route", mode="prefer_on_device")
    assert result.side is Side.FAR
    assert letters.receivers == ["ann", "bob"]
    told = [message.tool_result.content for message in far.requests[-1].messages if message.tool_result is not None]
    assert told[0].startswith("posted to ann")
    assert "made earlier" in told[0]


PARTS = {"a": "Write to Ann", "b": "Write to Bob", "c": "Post a card to Cleo", "d": "Say what was done"}
NEEDS: dict[str, list[str]] = {"a": [], "b": [], "c": [], "d": ["a", "b", "c"]}


def planner(request: StepRequest) -> ToolCall | str:
    """Plans, and does what the near agent is not trusted with."""
    if not request.messages[0].text.startswith("Cut the task"):
        return writer(request)
    return json.dumps({"subtasks": [{"id": name, "task": task, "needs": NEEDS[name]} for name, task in PARTS.items()]})


def writer(request: StepRequest) -> ToolCall | str:
    """Does what one part of the plan says. All parts name their calls alike, as small models do."""
    task = next(message.text for message in request.messages if message.role == "user").partition("\n\n")[0]
    last = request.messages[-1]
    if last.tool_result is not None:
        return last.tool_result.content
    if task == PARTS["d"]:
        return "all were written to" if "sent to bob" in last.text else "somebody was not"
    return letter(task.split()[-1].lower(), "post" if "Post" in task else "send").model_copy(update={"id": "call_0"})


async def test_parts_that_run_side_by_side_wait_together_and_what_others_did_is_not_done_again(tmp_path: Path) -> None:
    letters, asked_of_near = Letters(), list[str]()

    def noted(request: StepRequest) -> ToolCall | str:
        asked_of_near.append(request.messages[0].text)
        return writer(request)

    def opened_for_parts() -> Hybrid:
        near, far = ScriptedAgent(noted, name="near"), ScriptedAgent(planner, name="far", side=Side.FAR)
        policy = Policy(strategy=Strategy.SUBTASKS, sensitivity=Sensitivity.PUBLIC)
        return Hybrid(near=near, far=far, tools=letters.tools, policy=policy, records=RunsConfig(folder=tmp_path))

    async with opened_for_parts() as hybrid:
        with pytest.raises(ApprovalNeeded) as caught:
            await hybrid.run("Write to them all", idempotency_key=RUN)
    asked = {str(request.call.arguments["to"]): request.id for request in caught.value.requests}
    assert sorted(asked) == ["ann", "bob"]
    assert letters.receivers == ["cleo"]
    async with opened_for_parts() as hybrid:
        with pytest.raises(ApprovalNeeded) as caught:
            await hybrid.resume(RUN, approvals={asked["ann"]: True})
        assert [request.id for request in caught.value.requests] == [asked["bob"]]
    async with opened_for_parts() as hybrid:
        result = await hybrid.resume(RUN, approvals={asked["bob"]: True})
    assert result.text == "all were written to"
    assert letters.receivers == ["cleo", "ann", "bob"]
    assert asked_of_near.count(PARTS["c"]) == 2, "a call and an answer: the part that was done is not served again"
    assert sum(call.role == "execute" and call.side is Side.NEAR for call in result.calls) == 7, "nor forgotten"


def _id(error: ApprovalNeeded) -> str:
    return error.requests[0].id


async def test_a_no_that_another_process_records_while_the_user_is_asked_stands(tmp_path: Path) -> None:
    letters = Letters()
    identifier = (await needed(tmp_path, letters, letter("ann"))).requests[0].id
    asked, decides = asyncio.Event(), asyncio.Event()

    async def approver(requests: Sequence[ApprovalRequest]) -> dict[str, bool]:
        asked.set()
        await decides.wait()
        return {request.id: True for request in requests}

    async with opened(tmp_path, letters, letter("ann")) as owner, opened(tmp_path, letters, letter("ann")) as other:
        resumed = asyncio.create_task(owner.resume(RUN, approver=approver))
        await asked.wait()
        with pytest.raises(RunBusy):
            await other.resume(RUN, approvals={identifier: False})
        decides.set()
        assert "the user said no" in (await resumed).text
    assert letters.sent == []


async def test_a_yes_to_a_call_of_a_run_that_is_done_is_refused(tmp_path: Path) -> None:
    letters = Letters()
    parts: list[dict[str, object]] = [{"id": name, "task": f"send {name}", "needs": []} for name in ("ann", "bob")]

    def near(request: StepRequest) -> ToolCall | str:
        told = [message.tool_result.content for message in request.messages if message.tool_result is not None]
        return told[0] if told else letter("ann" if "ann" in request.messages[-1].text else "bob")

    async def loses_one_dialog(requests: Sequence[ApprovalRequest]) -> dict[str, bool]:
        if requests[0].call.arguments["to"] == "ann":
            raise Unavailable("the dialog is gone")
        return {request.id: True for request in requests}

    def opened_with_plan() -> Hybrid:
        far = ScriptedAgent([json.dumps({"subtasks": parts}), "one went out"], name="far", side=Side.FAR)
        policy = Policy(strategy=Strategy.SUBTASKS, sensitivity=Sensitivity.PUBLIC)
        agent = ScriptedAgent(near, name="near", confidence=0.9)
        return Hybrid(near=agent, far=far, tools=letters.tools, policy=policy, records=RunsConfig(folder=tmp_path))

    async with opened_with_plan() as hybrid:
        with pytest.raises(ApprovalNeeded) as caught:
            await hybrid.run("Write to them", idempotency_key=RUN)
        asked = {request.call.arguments["to"]: request.id for request in caught.value.requests}
        await hybrid.resume(RUN, approver=loses_one_dialog)
        assert (letters.receivers, read_details(hybrid.runs, RUN).waits_for) == (["bob"], ())
        with pytest.raises(NotFound, match="does not wait for"):
            await hybrid.resume(RUN, approvals={asked["ann"]: True})
    assert letters.receivers == ["bob"]


async def test_a_cancelled_run_waits_for_nothing(tmp_path: Path) -> None:
    letters = Letters()
    error = await needed(tmp_path, letters, letter("ann"))
    async with opened(tmp_path, letters, letter("ann")) as hybrid:
        await hybrid.cancel(RUN)
        assert read_details(hybrid.runs, RUN).waits_for == ()
        with pytest.raises(Cancelled):
            await hybrid.resume(RUN, approvals={error.requests[0].id: True})
    assert letters.sent == []
