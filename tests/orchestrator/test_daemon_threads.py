"""Work in daemon threads: idle ones are used again, one that hangs holds none up, and a forked child has its own."""

import asyncio
import os
import threading
import warnings

import pytest

from nearfar.orchestrator.util.runtime import run_in_daemon_thread

pytestmark = pytest.mark.anyio


async def test_work_one_after_another_shares_a_thread() -> None:
    homes = {await run_in_daemon_thread(threading.get_ident) for _ in range(50)}
    assert len(homes) < 10


async def test_work_side_by_side_has_a_thread_each() -> None:
    together = threading.Barrier(20)
    homes = await asyncio.gather(*(run_in_daemon_thread(lambda: (together.wait(30), threading.get_ident())) for _ in range(20)))
    assert len(set(homes)) == 20


async def test_an_error_is_raised_in_the_caller_and_costs_no_thread() -> None:
    for _ in range(20):
        with pytest.raises(ZeroDivisionError):
            await run_in_daemon_thread(lambda: 1 / 0)
    assert await run_in_daemon_thread(lambda: "still here") == "still here"


async def test_work_that_was_left_alone_holds_none_up() -> None:
    begun, end = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        end.wait(30)

    left = asyncio.create_task(run_in_daemon_thread(hang))
    await asyncio.to_thread(begun.wait, 30)
    left.cancel()
    assert await run_in_daemon_thread(lambda: "done") == "done"
    end.set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
async def test_a_forked_child_starts_threads_of_its_own() -> None:
    await run_in_daemon_thread(threading.get_ident)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of threads that a fork leaves behind: so does this test
        child = os.fork()
    if child == 0:
        done: list[object] = []
        other = threading.Thread(target=lambda: done.append(asyncio.run(asyncio.wait_for(run_in_daemon_thread(lambda: "done"), 20))))
        other.start()
        other.join()
        os._exit(0 if done == ["done"] else 1)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
