"""Calls that somebody has to say yes to: asked by the app, or at the terminal."""

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import cast

import anyio
import pytest
from anyio import to_thread

from nearfar import Hybrid, Policy, Strategy, tool
from nearfar.orchestrator.cli.options import pick_id
from nearfar.orchestrator.cli.selection import call_text, terminal_approver
from nearfar.orchestrator.task.events import ApprovalAsked, ToolStarted
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.orchestrator.task.tools import Approver
from nearfar.orchestrator.util.text import spell_out
from nearfar.protocols import ApprovalRequest, DeadlineExceeded, InvalidRequest, ScriptedAgent, Sensitivity, Side, ToolCall, Unavailable

pytestmark = pytest.mark.anyio


class Letters:
    """What was sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.tool = tool(approval=True)(self.send)

    def send(self, to: str) -> str:
        """Send a letter."""
        self.sent.append(to)
        return f"sent to {to}"


class Person:
    """Says yes to letters to those that they know."""

    def __init__(self, *known: str) -> None:
        self.known = known
        self.asked: list[ApprovalRequest] = []

    async def __call__(self, requests: Sequence[ApprovalRequest]) -> Mapping[str, bool]:
        self.asked += requests
        return {request.id: request.call.arguments["to"] in self.known for request in requests}


def letter(to: str, number: int = 1) -> ToolCall:
    return ToolCall(id=str(number), name="send", arguments={"to": to})


async def test_the_app_is_asked_and_what_it_says_no_to_is_not_run() -> None:
    letters, person = Letters(), Person("ann")
    near = ScriptedAgent([[letter("ann", 1), letter("eve", 2)], "one letter went out"])
    async with Hybrid(near=near, tools=[letters.tool]) as hybrid:
        await hybrid.run("Write to both", approver=person)
    assert letters.sent == ["ann"]
    assert [request.call.arguments["to"] for request in person.asked] == ["ann", "eve"]
    results = [message.tool_result for message in near.requests[-1].messages if message.tool_result is not None]
    assert [result.content for result in results] == ["sent to ann", "not run: send needs approval: the user said no"]


@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("said", ["no", "True", 1, [True], None])
async def test_only_true_is_a_yes(said: object, is_durable: bool, tmp_path: Path) -> None:
    letters = Letters()

    async def approver(requests: Sequence[ApprovalRequest]) -> Mapping[str, bool]:
        return cast(Mapping[str, bool], {request.id: said for request in requests})

    runs = RunsConfig(folder=tmp_path) if is_durable else None
    async with Hybrid(near=ScriptedAgent([letter("ann"), "done"]), tools=[letters.tool], records=runs) as hybrid:
        await hybrid.run("Write to Ann", approver=approver)
    assert letters.sent == []


@pytest.mark.parametrize("is_durable", [False, True])
async def test_who_said_no_is_not_asked_again_by_a_call_or_an_agent_behind_it(is_durable: bool, tmp_path: Path) -> None:
    letters, person = Letters(), Person("ann")
    near = ScriptedAgent([letter("eve"), letter("eve"), Unavailable("out of memory")])
    far = ScriptedAgent([[letter("eve", 1), letter("ann", 2)], "done"], name="far", side=Side.FAR)
    policy = Policy(strategy=Strategy.CASCADE, sensitivity=Sensitivity.PUBLIC)
    runs = RunsConfig(folder=tmp_path) if is_durable else None
    async with Hybrid(near=near, far=far, tools=[letters.tool], policy=policy, records=runs) as hybrid:
        result = await hybrid.run("Write to Eve", approver=person)
    assert [request.call.arguments["to"] for request in person.asked] == ["eve", "ann"]
    assert [made.outcome for made in result.tool_calls] == ["not_run", "not_run", "not_run", "done"]
    assert letters.sent == ["ann"]


async def test_an_approver_decides_for_the_task_that_it_is_given_to_alone() -> None:
    letters, person = Letters(), Person("ann")
    async with Hybrid(near=ScriptedAgent([letter("ann"), "done", letter("ann"), "done"]), tools=[letters.tool]) as hybrid:
        await hybrid.run("Write to Ann", approver=person)
        await hybrid.run("Write to Ann again")
    assert letters.sent == ["ann"]
    assert len(person.asked) == 1


async def test_a_stream_tells_what_is_asked_before_anything_runs() -> None:
    letters = Letters()
    async with Hybrid(near=ScriptedAgent([letter("ann"), "done"]), tools=[letters.tool]) as hybrid:
        events = [event async for event in hybrid.stream("Write to Ann", approver=Person("ann"))]
    asked = next(index for index, event in enumerate(events) if isinstance(event, ApprovalAsked))
    assert asked < next(index for index, event in enumerate(events) if isinstance(event, ToolStarted))


@contextmanager
def at_a_terminal(patch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other end of the terminal that this process has for now."""
    keyboard, terminal = os.openpty()
    with open(terminal, encoding="utf-8") as stdin, open(os.dup(terminal), "w", encoding="utf-8") as stderr, patch.context() as patched:
        patched.setattr(sys, "stdin", stdin)
        patched.setattr(sys, "stderr", stderr)
        yield keyboard
    os.close(keyboard)


@pytest.mark.parametrize(("typed", "sent"), [("y", ["ann"]), ("yes", ["ann"]), ("", []), ("n", []), ("yess", [])])
async def test_at_a_terminal_only_a_yes_is_a_yes(monkeypatch: pytest.MonkeyPatch, typed: str, sent: list[str]) -> None:
    letters = Letters()
    with at_a_terminal(monkeypatch) as keyboard:
        await write_to_ann(letters, keyboard, typed)
    assert letters.sent == sent


async def write_to_ann(letters: Letters, keyboard: int, typed: str) -> None:
    async with (
        Hybrid(near=ScriptedAgent([letter("ann"), "done"]), tools=[letters.tool]) as hybrid,
        anyio.create_task_group() as running,
    ):
        os.write(keyboard, b"y\n")  # typed before there was a question
        running.start_soon(answer, keyboard, typed)
        await hybrid.run("Write to Ann", approver=terminal_approver())


async def question(keyboard: int) -> bytes:
    """Return what the terminal has shown when it asks."""
    shown = b""
    with anyio.fail_after(10):
        while b"y/N" not in shown:
            await anyio.wait_readable(keyboard)
            shown += os.read(keyboard, 4096)
    return shown


async def answer(keyboard: int, typed: str) -> None:
    shown = await question(keyboard)
    assert b'send {"to": "ann"}' in shown
    assert b"run send, the 18 characters above?" in shown
    os.write(keyboard, f"{typed}\n".encode())


async def test_a_question_that_is_given_up_leaves_the_next_line_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = Letters()
    near = ScriptedAgent([letter("ann"), "done"])
    with at_a_terminal(monkeypatch) as keyboard:
        async with Hybrid(near=near, tools=[letters.tool]) as hybrid, anyio.create_task_group() as running:
            running.start_soon(partial(hybrid.run, "Write to Ann", approver=terminal_approver()))
            await question(keyboard)
            running.cancel_scope.cancel()
        os.write(keyboard, b"y\n")
        with anyio.fail_after(10):
            await anyio.wait_readable(sys.stdin)
            assert await to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True) == "y\n"
    assert letters.sent == []


def test_without_a_terminal_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, encoding="utf-8") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert terminal_approver() is None


def test_a_call_is_shown_whole_and_without_anything_that_hides_a_part_of_it() -> None:
    hidden = "ann\x1b[2K\r\u202eeve\u200b\x9b" + "x" * 5000
    shown = call_text(ApprovalRequest(id="1", call=letter(hidden), reason="because"))
    assert shown.isprintable()
    assert "\\u202e" in shown
    assert shown.count("x") >= 5000
    assert spell_out("Grüße, 世界 ✓") == "Grüße, 世界 ✓"


def sync_approver(requests: Sequence[ApprovalRequest]) -> dict[str, bool]:
    return {request.id: True for request in requests}


async def silent_approver(requests: Sequence[ApprovalRequest]) -> None:
    return None


@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("approver", [sync_approver, silent_approver])
async def test_an_approver_of_another_shape_is_a_typed_error_and_the_run_can_be_resumed(
    approver: object, is_durable: bool, tmp_path: Path
) -> None:
    letters = Letters()
    near = ScriptedAgent([letter("ann"), "done"])
    async with Hybrid(near=near, tools=[letters.tool], records=tmp_path if is_durable else None) as hybrid:
        with pytest.raises(InvalidRequest, match="no call is approved") as raised:
            await hybrid.run("Write to Ann", idempotency_key="ann", approver=cast(Approver, approver))
        assert "mapping from their ids" in (raised.value.hint or "")
        assert letters.sent == []
        if is_durable:
            await hybrid.resume("ann", approver=Person("ann"))
            assert letters.sent == ["ann"]


@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("is_closed", [False, True])
async def test_a_yes_that_comes_after_its_task_was_cancelled_runs_nothing(is_durable: bool, is_closed: bool, tmp_path: Path) -> None:
    letters, asked = Letters(), anyio.Event()

    async def stubborn(requests: Sequence[ApprovalRequest]) -> dict[str, bool]:
        asked.set()
        with suppress(asyncio.CancelledError):
            await anyio.sleep_forever()
        return {request.id: True for request in requests}

    near = ScriptedAgent([letter("ann"), "done"])
    async with Hybrid(near=near, tools=[letters.tool], records=tmp_path if is_durable else None) as hybrid:
        run = asyncio.create_task(hybrid.run("Write to Ann", idempotency_key="ann", approver=stubborn))
        await asked.wait()
        if is_closed:
            await hybrid.aclose()
        else:
            run.cancel()
        with pytest.raises(Unavailable if is_closed else asyncio.CancelledError):
            await run
    assert letters.sent == []


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_yes_of_an_approver_that_blocks_past_the_timeout_runs_nothing(is_durable: bool, tmp_path: Path) -> None:
    letters = Letters()

    async def blocks(requests: Sequence[ApprovalRequest]) -> dict[str, bool]:
        ends = time.monotonic() + 0.2
        while time.monotonic() < ends:
            pass
        return {request.id: True for request in requests}

    near = ScriptedAgent([letter("ann"), "done"])
    async with Hybrid(near=near, tools=[letters.tool], records=tmp_path if is_durable else None) as hybrid:
        with pytest.raises(DeadlineExceeded):
            await hybrid.run("Write to Ann", approver=blocks, timeout=0.2)
    assert letters.sent == []


@pytest.mark.parametrize("is_durable", [False, True])
async def test_an_approver_that_is_cancelled_is_a_typed_error_and_the_run_can_be_resumed(is_durable: bool, tmp_path: Path) -> None:
    letters = Letters()

    async def loses_its_dialog(requests: Sequence[ApprovalRequest]) -> dict[str, bool]:
        raise asyncio.CancelledError

    near = ScriptedAgent([letter("ann"), "done"])
    async with Hybrid(near=near, tools=[letters.tool], records=tmp_path if is_durable else None) as hybrid:
        with pytest.raises(InvalidRequest, match="the approver was cancelled"):
            await hybrid.run("Write to Ann", idempotency_key="ann", approver=loses_its_dialog)
        if is_durable:
            await hybrid.resume("ann", approver=Person("ann"))
    assert letters.sent == (["ann"] if is_durable else [])


async def test_calls_of_one_id_are_asked_about_under_ids_of_their_own() -> None:
    letters, person = Letters(), Person("ann")
    async with Hybrid(near=ScriptedAgent([letter("ann"), "done", letter("eve"), "done"]), tools=[letters.tool]) as hybrid:
        await hybrid.run("Write to Ann", approver=person)
        await hybrid.run("Write to Eve", approver=person)
    assert len({request.id for request in person.asked}) == len(person.asked) == 2
    assert letters.sent == ["ann"]


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_stream_and_the_approver_know_a_question_by_the_same_id(is_durable: bool, tmp_path: Path) -> None:
    letters, person = Letters(), Person("ann")
    near = ScriptedAgent([letter("ann"), "done"])
    async with Hybrid(near=near, tools=[letters.tool], records=tmp_path if is_durable else None) as hybrid:
        events = [event async for event in hybrid.stream("Write to Ann", approver=person)]
    assert [request for event in events if isinstance(event, ApprovalAsked) for request in event.requests] == person.asked


@pytest.mark.parametrize("is_durable", [False, True])
async def test_an_approver_that_changes_its_request_does_not_change_the_call(is_durable: bool, tmp_path: Path) -> None:
    letters = Letters()

    async def redacts(requests: Sequence[ApprovalRequest]) -> dict[str, bool]:
        for request in requests:
            request.call.arguments["to"] = "***"
        return {request.id: True for request in requests}

    async with Hybrid(
        near=ScriptedAgent([letter("ann"), "done"]), tools=[letters.tool], records=tmp_path if is_durable else None
    ) as hybrid:
        await hybrid.run("Write to Ann", approver=redacts)
    assert letters.sent == ["ann"]


def test_an_empty_id_names_no_call() -> None:
    assert pick_id("ab", ["abc"], "call") == "abc"
    with pytest.raises(InvalidRequest, match="the id of a call is empty"):
        pick_id("", ["abc"], "call")
