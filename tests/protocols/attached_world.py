"""A hub and workers for tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from nearfar.protocols import Agent, DeviceState, DeviceStateSource, Message, NearfarError, Side, StepRequest
from nearfar.protocols.attach import ClientTls, Worker
from nearfar.protocols.hub import Heartbeat, Hub, WorkerTerms, serve_hub

TOKENS = {"phone": "the token of the phone", "tablet": "the token of the tablet"}
OWN = {name: WorkerTerms(side=Side.NEAR) for name in TOKENS}
QUICK = Heartbeat(interval=0.1, silence_limit=0.5)


def ask(text: str = "go", **fields: object) -> StepRequest:
    return StepRequest.model_validate({"messages": (Message.user(text),), **fields})


@dataclass
class Running:
    """A worker whose `run` is under way, and what it raised in the end."""

    worker: Worker
    done: anyio.Event
    error: NearfarError | None = None


@asynccontextmanager
async def running(
    agent: Agent | dict[str, Agent],
    address: str,
    *,
    token: str = TOKENS["phone"],
    tls: ClientTls | None = None,
    device_state: DeviceStateSource = DeviceState,
) -> AsyncIterator[Running]:
    """A worker that runs until the context ends, then leaves at once."""
    state = Running(Worker(agent, address, token=token, tls=tls, device_state=device_state), anyio.Event())

    async def run() -> None:
        try:
            await state.worker.run()
        except NearfarError as error:
            state.error = error
        state.done.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        yield state
        await state.worker.drain(0)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def hub_with(agent: Agent, *, device_state: DeviceStateSource = DeviceState) -> AsyncIterator[tuple[Hub, str]]:
    """A hub, its address, and `agent` attached to it as the user's own phone."""
    hub = Hub(TOKENS, policies=OWN, heartbeat=QUICK)
    async with serve_hub(hub) as address, running(agent, address, device_state=device_state):
        await hub.wait_for("phone")
        yield hub, address
