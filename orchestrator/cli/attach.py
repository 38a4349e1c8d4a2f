"""`nearfar worker attach` and `nearfar serve hub`: both ends of a worker's outgoing stream."""

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

from ...protocols import Agent, ConfigError, Side
from ...protocols.address import Address
from ...protocols.attach import Worker
from ...protocols.channel import client_tls
from ...protocols.limits import ask_for_open_files
from ...protocols.pairing import read_pairing
from ..compose.agents import open_local, read_device_state
from ..compose.hub import HubConfig, accept_workers
from ..compose.memory import open_memory
from .configuration import read_config
from .console import execute, notes, print_json
from .memory_store import chosen_memory
from .options import Listening, StoreChoice
from .serve import chosen_near, until_stopped

_PORT = 7445


@dataclass(frozen=True, kw_only=True)
class Lending:
    """Where a worker attaches and how it leaves."""

    address: str
    token: str
    certificate: Path | None
    pairing_file: str
    """The line that `nearfar worker pair` shows, in place of the three above; `-` reads it from standard input."""
    client_certificate: Path | None = None
    client_key: Path | None = None
    drain: float
    """Seconds that running steps get to finish."""


def attach_worker(lending: Lending, config: Path | None, near: str | None, *, as_json: bool) -> None:
    """Lend the near agent until Ctrl-C or SIGTERM."""

    async def work() -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
        worker_for = _worker_for(lending)
        agent = await open_local(chosen_near(config, near), name="near", side=Side.NEAR)
        try:
            await _run(worker_for(agent), drain=lending.drain, as_json=as_json)
        finally:
            with anyio.CancelScope(shield=True):
                await agent.aclose()

    execute(work(), as_json=as_json)


def _worker_for(lending: Lending) -> Callable[[Agent], Worker]:
    """Makes a worker for the hub that the options or the pairing name; they are looked at before a model is loaded."""
    make = partial(Worker, device_state=read_device_state)
    tls = client_tls(lending.certificate, lending.client_certificate, lending.client_key)
    if lending.pairing_file:
        if lending.address or lending.certificate is not None:
            raise ConfigError("the pairing names address and certificate already", hint="leave out HOST and --certificate")
        pairing = read_pairing(lending.pairing_file)
        return partial(make, address=pairing.address, token=pairing.token, tls=tls, fingerprint=pairing.fingerprint)
    if not lending.address or not (lending.token or lending.client_certificate):
        raise ConfigError("the hub's address or this device's token is missing", hint="give HOST and NEARFAR_TOKEN, or --pairing-file")
    return partial(make, address=_with_port(lending.address), token=lending.token or None, tls=tls)


async def _run(worker: Worker, *, drain: float, as_json: bool) -> None:
    """Serve until told to stop, then drain. Raises what the hub refuses the worker for."""
    refused: list[Exception] = []

    async def serve() -> None:
        try:
            await worker.run()
        except Exception as error:  # the boundary of a task: raised again below, without the group that tasks raise in
            refused.append(error)
        tasks.cancel_scope.cancel()

    async def announce() -> None:
        await worker.attached.wait()
        _announce(worker, as_json=as_json)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        tasks.start_soon(announce)
        await until_stopped()
        notes.print(f"leaving; running steps have {drain:g} s", style="dim")
        await worker.drain(drain)
    if refused:
        raise refused[0]


def run_hub(config: Path | None, listening: Listening, *, as_json: bool) -> None:
    """Accept workers until Ctrl-C or SIGTERM, and bring this machine's memory into step with theirs where `[hub]` says so."""

    async def work() -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
        ask_for_open_files()
        chosen = chosen_hub(config, listening, otherwise=HubConfig())
        async with AsyncExitStack() as stack:
            memory = open_memory(chosen_memory(StoreChoice(None, config))) if chosen.memory else None
            if memory is not None:
                stack.callback(memory.close)
            serving = accept_workers(chosen, memory=memory, insecure=listening.insecure)
            hub, address = await stack.enter_async_context(serving)
            if as_json:
                print_json({"address": address, "socket": str(chosen.socket), "workers": sorted(hub.agents), "memory": chosen.memory})
            else:
                _announce_hub(chosen, address, sorted(hub.agents))
            await until_stopped()

    execute(work(), as_json=as_json)


def _announce_hub(config: HubConfig, address: str, workers: list[str]) -> None:
    notes.print(f"workers may attach at {address}: {', '.join(workers)}")
    if config.memory:
        known = ", ".join(f"{name} as {worker.user}" for name, worker in config.workers.items() if worker.user is not None)
        notes.print(f"memory is synchronised with: {known or 'nobody: [hub.workers.NAME] user says whose device one is'}")
    notes.print(f"tasks reach them at {config.socket}; stop with Ctrl-C", style="dim")


def chosen_hub(config: Path | None, listening: Listening, *, otherwise: HubConfig) -> HubConfig:
    """The `[hub]` section, or `otherwise` where there is none, with the options laid over it."""
    loaded = read_config(config)
    hub = (loaded.hub if loaded is not None else None) or otherwise
    given = {
        "address": listening.address or None,
        "certificate": listening.certificate,
        "key": listening.key,
        "tokens": listening.tokens,
        "client_authority": listening.client_authority,
    }
    return hub.model_copy(update={name: value for name, value in given.items() if value is not None})


def _with_port(address: str) -> str:
    """`address` with the hub's usual port where it names none."""
    return address if ":" in address else str(Address(host=address, port=_PORT))


def _announce(worker: Worker, *, as_json: bool) -> None:
    if as_json:
        print_json({"worker": worker.name, "hub": worker.address})
        return
    notes.print(f"attached to {worker.address} as {worker.name}")
    notes.print("stop with Ctrl-C", style="dim")
