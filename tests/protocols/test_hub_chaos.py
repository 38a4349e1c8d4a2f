"""Workers in processes of their own are killed, stopped and cut off in mid-step: nobody hangs, nothing is answered or run twice."""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from attached_world import ask
from hub_worker_process import PIECES

from nearfar.protocols import Finished, ScriptedAgent, Side, StepRequest, TextDelta, Unavailable, complete, stream
from nearfar.protocols.hub import AttachedAgent, Heartbeat, Hub, WorkerTerms, serve_hub
from nearfar.protocols.testing import ChaosProxy, chaos_proxy

pytestmark = pytest.mark.anyio

WORKERS = 10
CALLERS = 3
HEARTBEAT = Heartbeat(interval=0.3, silence_limit=0.9)


class Victim:
    """A worker process behind a proxy, and what can happen to it."""

    def __init__(self, proxy: ChaosProxy, token: str, log: Path) -> None:
        self._proxy = proxy
        self._arguments = [proxy.address, token, str(log)]
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        script = Path(__file__).with_name("hub_worker_process.py")
        return subprocess.Popen([sys.executable, str(script), *self._arguments], stderr=subprocess.DEVNULL)

    async def kill(self, heal: anyio.Event) -> None:
        self.process.kill()
        await anyio.to_thread.run_sync(self.process.wait)
        await heal.wait()
        self.process = self._start()

    async def stop(self, heal: anyio.Event) -> None:
        self.process.send_signal(signal.SIGSTOP)
        await heal.wait()
        self.process.send_signal(signal.SIGCONT)

    async def cut_off(self, heal: anyio.Event) -> None:
        self._proxy.black_hole()
        await heal.wait()
        self._proxy.reset()
        await self._proxy.resume()

    async def reset(self, heal: anyio.Event) -> None:
        self._proxy.reset()
        await heal.wait()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


Incident: TypeAlias = Callable[[Victim, anyio.Event], Coroutine[Any, Any, None]]
INCIDENTS: tuple[Incident, ...] = (Victim.kill,) * 2 + (Victim.stop,) * 3 + (Victim.cut_off,) * 3 + (Victim.reset,) * 2
"""Of each worker, in random order. Few kills, since it takes a second or more until a new process is attached."""


@asynccontextmanager
async def victims(hub_address: str, tokens: dict[str, str], log: Path) -> AsyncIterator[dict[str, Victim]]:
    async with AsyncExitStack() as stack:
        made = {}
        for name, token in tokens.items():
            made[name] = Victim(await stack.enter_async_context(chaos_proxy(hub_address)), token, log)
            stack.callback(made[name].end)
        yield made


async def run_or_rerun(agent: AttachedAgent, request: StepRequest, spare: ScriptedAgent, seen: Callable[[], None]) -> str:
    """One caller: reads a step, and asks another agent if the worker was lost. Returns who answered."""
    events = []
    try:
        async with stream(agent, request) as incoming:
            async for event in incoming:
                events.append(event)
                seen()
    except Unavailable:
        assert (await complete(spare, request)).text == "".join(PIECES)
        return "elsewhere"
    assert [event.text for event in events if isinstance(event, TextDelta)] == PIECES
    assert [event for event in events if isinstance(event, Finished)] == events[-1:]
    return "worker"


async def suffer(agent: AttachedAgent, victim: Victim, incident: Incident, answers: "Counter[str]") -> None:
    """One incident in the middle of several steps, and every caller's one answer."""
    spare = ScriptedAgent(lambda _: PIECES)
    heal, strike = anyio.Event(), anyio.Event()
    after = random.randint(1, CALLERS * len(PIECES) // 2)
    count = 0

    def seen() -> None:
        nonlocal count
        count += 1
        if count >= after:
            strike.set()

    async def call() -> None:
        who = await run_or_rerun(agent, ask(), spare, seen)
        answers[who] += 1
        if who == "elsewhere":
            strike.set()  # on a busy machine a worker may be silent for too long by itself

    async with anyio.create_task_group() as tasks:
        async with anyio.create_task_group() as callers:
            for _ in range(CALLERS):
                callers.start_soon(call)
            await strike.wait()
            tasks.start_soon(incident, victim, heal)
        heal.set()  # only when every caller has its answer


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGSTOP")
async def test_hundred_incidents_leave_no_caller_hanging_and_no_step_run_twice(tmp_path: Path) -> None:
    tokens = {f"worker-{number}": f"the token of worker {number}" for number in range(WORKERS)}
    hub = Hub(tokens, policies={name: WorkerTerms(side=Side.NEAR) for name in tokens}, heartbeat=HEARTBEAT)
    answers: Counter[str] = Counter()
    log = tmp_path / "steps.log"

    async def torment(name: str, victim: Victim) -> None:
        for incident in random.sample(INCIDENTS, len(INCIDENTS)):
            await suffer(await hub.wait_for(name), victim, incident, answers)

    with anyio.fail_after(150):
        async with serve_hub(hub) as address, victims(address, tokens, log) as made, anyio.create_task_group() as tasks:
            for name, victim in made.items():
                tasks.start_soon(torment, name, victim)
    assert answers.total() == WORKERS * len(INCIDENTS) * CALLERS
    assert answers["elsewhere"] >= WORKERS * len(INCIDENTS)  # each incident loses at least the step that was read when it struck
    started = log.read_text(encoding="utf-8").split()
    assert len(started) == len(set(started))


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGSTOP")
async def test_stopped_worker_is_noticed_within_six_seconds(tmp_path: Path) -> None:
    hub = Hub({"phone": "the token of the phone"}, policies={"phone": WorkerTerms(side=Side.NEAR)})
    async with serve_hub(hub) as address, victims(address, {"phone": "the token of the phone"}, tmp_path / "log") as made:
        with anyio.fail_after(30):
            agent = await hub.wait_for("phone")
        async with stream(agent, ask()) as events:
            await anext(aiter(events))
            os.kill(made["phone"].process.pid, signal.SIGSTOP)
            with anyio.fail_after(6), pytest.raises(Unavailable):
                [event async for event in events]  # whatever has still come, it ends with the error
