"""Workers that are stopped or killed from outside, in a step and while they load."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import anyio
import psutil
import pytest

pytest.importorskip("llguidance", reason="running models needs an engine: pip install 'nearfar[onnx]'")
from near_model import ENGINE, NEAR, QUESTION, ask, near_agent

from nearfar.device.worker.protocol import Liveness
from nearfar.protocols import AgentError, DeadlineExceeded, ModelError, Stalled, WorkerCrashed, complete
from nearfar.protocols.limits import Heartbeat

pytestmark = pytest.mark.anyio

_SECONDS = 60.0
_QUICK = Heartbeat(interval=0.1, silence_limit=0.2)


async def _stopped_in_mid_step(timeout: float | None = None) -> AgentError:
    """Stop the worker of a step, and return how the step ends."""
    async with near_agent() as agent:
        worker = psutil.Process((await agent.statistics()).process_id)
        worker.suspend()
        with pytest.raises(AgentError) as caught:
            await complete(agent, ask(QUESTION, timeout=timeout))
        return caught.value


async def test_a_stopped_worker_is_noticed_in_a_step_with_and_without_a_timeout() -> None:
    with anyio.fail_after(_SECONDS):
        endless, timely = await asyncio.gather(_stopped_in_mid_step(), _stopped_in_mid_step(timeout=0.1))
    assert isinstance(endless, Stalled)
    assert "SIGSTOP" in endless.message
    assert isinstance(timely, DeadlineExceeded)


async def _worker_that_loads(before: set[psutil.Process]) -> psutil.Process:
    while True:
        for process in set(psutil.Process().children()) - before:
            return process
        await anyio.sleep(0.001)


async def _hit_while_it_loads(hit: signal.Signals) -> AgentError:
    """Send a signal to a worker that has only been started, and return why it could not be loaded."""
    before = set(psutil.Process().children())
    loading = asyncio.ensure_future(ENGINE.load(NEAR))
    (await _worker_that_loads(before)).send_signal(hit)
    with anyio.fail_after(_SECONDS), pytest.raises(AgentError) as caught:
        await loading
    return caught.value


async def test_a_worker_that_is_stopped_while_it_loads_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.device.worker.process.Liveness", partial(Liveness, heartbeat=_QUICK))
    error = await _hit_while_it_loads(signal.SIGSTOP)
    assert isinstance(error, Stalled)
    assert "loaded" in error.message


@pytest.mark.parametrize("hit", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
async def test_a_worker_that_is_killed_while_it_loads_names_the_signal_and_does_not_blame_the_file(hit: signal.Signals) -> None:
    error = await _hit_while_it_loads(hit)
    assert isinstance(error, WorkerCrashed)
    assert hit.name in error.message
    assert "damaged" not in error.hint


async def test_a_worker_that_crashes_while_it_loads_still_blames_the_file() -> None:
    error = await _hit_while_it_loads(signal.SIGSEGV)
    assert isinstance(error, ModelError)
    assert "SIGSEGV" in error.message
    assert "damaged" in error.hint


@contextmanager
def _process(program: str) -> Iterator[psutil.Process]:
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield psutil.Process(process.pid)
        process.kill()


_LOCKED = "print(flush=True); sum(range(10**12))"
"""Holds the interpreter's lock for hours, as onnxruntime-genai does for a pass of a large model: no thread of it could send a beat."""
_WAITS = "print(flush=True); import time; time.sleep(1000)"


async def test_a_silent_process_that_computes_is_alive_until_it_is_stopped() -> None:
    with _process(_LOCKED) as process:
        # Longer intervals than the ticks in which a kernel counts CPU time, on a machine that has other work.
        still = asyncio.ensure_future(Liveness(process.pid, Heartbeat(interval=0.4, silence_limit=0.4)).until_still())
        done, _ = await asyncio.wait([still], timeout=1.7)
        assert not done
        process.suspend()
        with anyio.fail_after(_SECONDS):
            await still


async def test_a_process_that_neither_beats_nor_computes_stands_still() -> None:
    with _process(_WAITS) as process, anyio.fail_after(_SECONDS):
        await Liveness(process.pid, _QUICK).until_still()


async def test_a_process_that_beats_is_alive_although_it_does_nothing_else() -> None:
    with _process(_WAITS) as process:
        liveness = Liveness(process.pid, Heartbeat(interval=0.2, silence_limit=0.4))
        still = asyncio.ensure_future(liveness.until_still())
        for _ in range(20):
            liveness.heard()
            await anyio.sleep(0.05)
        assert not still.done()
        still.cancel()
