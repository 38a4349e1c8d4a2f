"""Programs that use synchronous calls: ended by signals, without closing anything, and after a fork."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

PREAMBLE = """
    import asyncio, os, sys, threading, warnings
    from nearfar import ConfigError, Hybrid, ScriptedAgent, ToolCall, Unavailable, tool

    @tool
    async def wait() -> str:
        "Wait for ever."
        print("waiting", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            print("stopped", flush=True)

    def asks(request):
        return ToolCall(id="1", name="wait", arguments={})

    def greets(request):
        return "hello"
"""


@contextmanager
def program(body: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program of its own, and kill it if it is still there when the block ends."""
    source = textwrap.dedent(PREAMBLE) + textwrap.dedent(body)
    command = [sys.executable, "-W", "error", "-c", source]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return the exit status and the output of a program that has to end by itself."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_a_signal_handler_may_close_what_is_being_closed() -> None:
    with program(
        """
        import signal

        loop = released = None

        @tool
        async def cling() -> str:
            "Wait for ever, and end only after the signal."
            global loop, released
            loop, released = asyncio.get_running_loop(), asyncio.Event()
            try:
                await asyncio.Event().wait()
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                await released.wait()

        def end(*_):
            loop.call_soon_threadsafe(released.set)
            hybrid.close()
            print("closed", flush=True)

        signal.signal(signal.SIGTERM, end)
        hybrid = Hybrid(near=ScriptedAgent(lambda _: ToolCall(id="1", name="cling", arguments={})), tools=[cling])
        events = hybrid.stream_sync("Wait.")
        while next(events).type != "tool_started":
            pass
        hybrid.close()
        print([thread.name for thread in threading.enumerate() if "nearfar" in thread.name])
        """
    ) as process:
        assert ended(process) == (0, "closed\n[]\n", "")


def test_a_thread_is_told_where_the_program_ends_without_running_its_loop_on() -> None:
    with program(
        """
        def ask():
            try:
                hybrid.run_sync("Wait.")
            except Unavailable as error:
                print(error.message)

        async def begin():
            async with asyncio.timeout(30):
                await hybrid.__aenter__()
                threading.Thread(target=ask).start()
                await begun.wait()

        @tool
        async def rest() -> str:
            "Wait for ever."
            begun.set()
            await asyncio.Event().wait()

        begun = asyncio.Event()
        hybrid = Hybrid(near=ScriptedAgent(lambda _: ToolCall(id="1", name="rest", arguments={})), tools=[rest])
        warnings.simplefilter("ignore", ResourceWarning)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin())
        """
    ) as process:
        status, out, _ = ended(process)  # asyncio says that this program leaves its loop open, and tasks in it
    assert (status, out) == (0, "the task was cancelled: its Hybrid was closed, or its event loop has ended\n")


@pytest.mark.parametrize("call", ["hybrid.run_sync('Wait.')", "[*hybrid.stream_sync('Wait.')]"])
def test_control_c_cancels_the_task_and_is_raised_when_it_has_ended(call: str) -> None:
    with program(
        f"""
        with Hybrid(near=ScriptedAgent(asks), tools=[wait]) as hybrid:
            try:
                {call}
            except KeyboardInterrupt:
                print("interrupted")
        """
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert ended(process) == (0, "stopped\ninterrupted\n", "")


def test_control_c_that_is_not_caught_ends_the_program() -> None:
    with program("Hybrid(near=ScriptedAgent(asks), tools=[wait]).run_sync('Wait.')") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        status, out, err = ended(process)
    assert (status, out) == (-signal.SIGINT, "stopped\n")
    assert err.endswith("KeyboardInterrupt\n")


@pytest.mark.parametrize(
    "body",
    [
        "Hybrid(near=ScriptedAgent(greets)).run_sync('Greet me.')",
        "hybrid = Hybrid(near=ScriptedAgent(greets)); hybrid.run_sync('Greet me.')",
        "hybrid = Hybrid(near=ScriptedAgent(greets)); events = hybrid.stream_sync('Greet me.'); next(events)",
        "hybrid = Hybrid(near=ScriptedAgent(greets), memory='memory.db', records='records'); hybrid.run_sync('Greet me.')",
        "hybrid = Hybrid(near='near'); print(hybrid.run_sync('What is the employer of Ines Falk?').side)",
    ],
)
def test_a_program_that_closes_nothing_ends_at_once_and_in_silence(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = psutil.Process().children(recursive=True)
    with program(body) as process:
        status, _, err = ended(process)
    assert (status, err) == (0, "")
    assert psutil.Process().children(recursive=True) == before


def test_a_task_of_a_daemon_thread_is_cancelled_when_the_program_ends() -> None:
    with program(
        """
        hybrid = Hybrid(near=ScriptedAgent(asks), tools=[wait])
        events = hybrid.stream_sync("Wait.")
        while next(events).type != "tool_started":
            pass

        def drain():
            try:
                list(events)
            except Unavailable:
                pass

        threading.Thread(target=drain, daemon=True).start()
        """
    ) as process:
        assert ended(process) == (0, "waiting\nstopped\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_child_may_use_one_that_was_made_and_not_one_that_was_used_before_the_fork() -> None:
    with program(
        """
        fresh, used = Hybrid(near=ScriptedAgent(greets)), Hybrid(near=ScriptedAgent(greets))
        used.run_sync("Greet me.")
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of threads that a fork leaves behind: so does this test
        child = os.fork()
        if child == 0:
            try:
                used.run_sync("Greet me.")
            except ConfigError as error:
                print(error.message, flush=True)
            try:
                asyncio.run(used.run("Greet me."))
            except ConfigError as error:
                print(error.message, flush=True)
            print(fresh.run_sync("Greet me.").text, flush=True)
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(used.run_sync("Greet me.").text)
        """
    ) as process:
        status, out, err = ended(process)
    refused = "this Hybrid was used before the process was forked"
    assert (status, out.splitlines()) == (0, [refused, refused, "hello", "7", "hello"])
