"""A worker for phones: lends the llama-server on this device to a hub, through one outgoing connection.

    python -m nearfar.device.thin_worker --pairing-file ~/.nearfar-pairing

It needs grpcio and protobuf and nothing else of what nearfar depends on, since no other wheels exist for phones. `docs/devices.md` tells
how to set one up.

The state of the phone is read here, and by `device.hardware.state` on machines where more packages can be installed.
"""

import argparse
import asyncio
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from math import isfinite, isnan
from pathlib import Path
from uuid import uuid4

import grpc

from ..protocols.address import Pairing, parse_address, read_pairing, read_secret
from ..protocols.channel import explained, open_channel
from ..protocols.errors import (
    AgentError,
    Cancelled,
    ConfigError,
    DeadlineExceeded,
    InternalError,
    InvalidOutput,
    InvalidRequest,
    NearfarError,
    NotFound,
    Stalled,
    Unavailable,
    UserError,
    from_grpc_status,
)
from ..protocols.secrets import log_defect
from ..protocols.security import bearer_metadata
from ..protocols.tls import ClientTls, client_tls, pinned_tls
from ..protocols.v1 import agent_pb2 as pb
from ..protocols.v1 import hub_pb2
from ..protocols.v1.hub_pb2_grpc import HubServiceStub
from .hardware import entries, read_celsius, read_integer, read_text, zone_limits
from .thin import failure, inner, read_card, run_step
from .thin.llama_server import LlamaServer

_logger = logging.getLogger(__name__)

_REGISTER_SECONDS = 15.0
_DRAIN_SECONDS = 60.0
_CLOSE_SECONDS = 5.0
_FIRST_DELAY = 0.5
_LONGEST_DELAY = 30.0
_MOST_DOUBLINGS = 16
_MOST_REFUSALS = 5
"""By a hub that has another worker with this token. It may be this phone's own from before a restart, which the hub gives up soon."""
_REFUSED_DELAY = 1.5
"""Seconds between refusals at least: all of them together last longer than the silence after which a hub gives a worker up."""
_QUICKEST_BEAT, _LONGEST_SILENCE = 0.01, 3600.0
"""Seconds; a hub that asks for more or less would keep the worker busy, or deaf."""

StateSource = Callable[[], hub_pb2.DeviceState]
_COMMAND = "termux-battery-status"
_COMMAND_SECONDS = 3.0
"""Without its companion app (Termux:API) the command never answers."""

# Degrees Celsius. A phone slows down when its battery is at about the first, and switches off not far above the second.
_HOT_BATTERY, _DANGEROUS_BATTERY = 45.0, 50.0
_NEAR_CELSIUS = 5.0
"""So close below the point where performance is held back, a device is `fair`."""


@dataclass(frozen=True, kw_only=True)
class ThinWorker:
    """The llama-server that this process offers, and the hub that it offers it to."""

    server: LlamaServer
    hub: Pairing
    name: str
    read_state: StateSource
    own: ClientTls | None = None
    """The worker's own certificate, where the hub demands one."""
    look_every: float = 20.0
    """Seconds between two looks at the state of the device and at llama-server."""


async def serve(worker: ThinWorker, stopping: asyncio.Event) -> None:
    """Stay attached until `stopping` is set and the steps under way are done.

    Broken connections, and a llama-server that is not there yet, are tried again for ever, with longer and longer pauses. Raises
    `UserError` where trying again would change nothing: a wrong token, another certificate, a hub of another version.
    """
    instance, failures = uuid4().hex, 0
    while not stopping.is_set():
        attachment = None
        try:
            tls = await _tls_for_hub(worker)
            card = await read_card(worker.server, worker.name)
            async with open_channel(parse_address(worker.hub.address), tls) as channel:
                attachment = _Attachment(worker, card, channel, tls)
                await attachment.serve(instance, stopping)
        except (AgentError, ConfigError) as error:
            failures = 1 if attachment and attachment.is_registered else failures + 1
            if isinstance(error, ConfigError) and (attachment is None or failures > _MOST_REFUSALS):
                raise
            _logger.warning("not attached: %s", error)
            await _pause(failures, stopping, at_least=_REFUSED_DELAY if isinstance(error, ConfigError) else 0.0)


async def _tls_for_hub(worker: ThinWorker) -> ClientTls | None:
    """Return the TLS settings for the hub. Without a fingerprint the address decides: plaintext on this device, public authorities
    elsewhere."""
    hub = worker.hub
    if hub.fingerprint is None:
        return worker.own
    return await asyncio.to_thread(pinned_tls, parse_address(hub.address), hub.fingerprint, worker.own)


async def _pause(failures: int, stopping: asyncio.Event, *, at_least: float = 0.0) -> None:
    """Wait with full jitter: many workers that lost one hub must not come back in step."""
    longest = min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** min(failures, _MOST_DOUBLINGS))
    with suppress(TimeoutError):
        async with asyncio.timeout(at_least + random.uniform(0, longest)):
            await stopping.wait()


class _Attachment:
    """One stream, from registration to its end. The steps on it end with it: the hub has failed them, so they are not computed further."""

    def __init__(self, worker: ThinWorker, card: pb.AgentCard, channel: grpc.aio.Channel, tls: ClientTls | None) -> None:
        self.is_registered = False
        self._tls = tls
        self._worker = worker
        self._card = card
        self._call = HubServiceStub(channel).Attach(metadata=bearer_metadata(worker.hub.token))
        # It needs no bound: a hub that does not read is taken for dead within seconds.
        self._outbox: asyncio.Queue[hub_pb2.WorkerMessage | None] = asyncio.Queue()
        self._steps: dict[int, asyncio.Task[None]] = {}
        self._state = hub_pb2.DeviceState()
        self._interval = self._silence = _REGISTER_SECONDS
        self._heartbeat_at = 0.0
        self._is_draining = False

    async def serve(self, instance: str, stopping: asyncio.Event) -> None:
        """Returns once drained. Raises `NearfarError` if the stream ends otherwise."""
        jobs: set[asyncio.Task[None]] = set()
        try:
            await self._register(instance)
            jobs = {asyncio.create_task(job) for job in (self._read(), self._write(), self._watch(), self._drain(stopping))}
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            for job in done:
                job.result()
        except grpc.aio.AioRpcError as error:
            read = from_grpc_status(error.code().name, f"the hub at {self._worker.hub.address}: {error.details()}")
            raise await explained(parse_address(self._worker.hub.address), self._tls, error) or read from error
        except TimeoutError:
            raise Unavailable(f"the hub at {self._worker.hub.address} is silent", hint="check the network") from None
        finally:
            await _cancel_all(jobs | set(self._steps.values()))
            self._call.cancel()

    async def _register(self, instance: str) -> None:
        self._state = await asyncio.to_thread(self._worker.read_state)
        register = hub_pb2.Register(instance=instance, agents=[self._card], state=self._state)
        async with asyncio.timeout(_REGISTER_SECONDS):
            with suppress(asyncio.InvalidStateError):  # grpc raises it if the call is over; reading shows the reason
                await self._call.write(hub_pb2.WorkerMessage(register=register))
            message = await self._call.read()
        if not isinstance(message, hub_pb2.HubMessage) or not message.HasField("registered"):
            raise Unavailable(f"the hub at {self._worker.hub.address} did not confirm the registration")
        self._interval, self._silence = message.registered.heartbeat_interval, message.registered.silence_limit
        if not _QUICKEST_BEAT <= self._interval <= self._silence <= _LONGEST_SILENCE:
            raise InvalidOutput(f"the hub at {self._worker.hub.address} asks for impossible heartbeats")
        self.is_registered = True
        _logger.info("attached to %s as %s: %s", self._worker.hub.address, message.registered.worker, self._card.model)

    async def _read(self) -> None:
        while True:
            async with asyncio.timeout(self._silence):
                message = await self._call.read()
            if message is grpc.aio.EOF and self._is_draining:
                return
            if not isinstance(message, hub_pb2.HubMessage):  # the end of the stream, or bytes that are no message
                raise Unavailable(f"the hub at {self._worker.hub.address} has closed the stream")
            if message.HasField("start") and message.start.step not in self._steps:
                self._start(message.start)
            elif message.HasField("cancel") and (step := self._steps.get(message.cancel.step)):
                step.cancel()

    async def _write(self) -> None:
        """Send what is due, and a heartbeat whenever one is."""
        try:
            while (message := await self._next_message()) is not None:
                await self._call.write(message)
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the stream has ended; reading shows the reason
        await asyncio.Event().wait()

    async def _next_message(self) -> hub_pb2.WorkerMessage | None:
        """Return the next message, or a heartbeat if none came in time; None: there is none to follow."""
        try:
            async with asyncio.timeout_at(self._heartbeat_at):
                return await self._outbox.get()
        except TimeoutError:
            self._heartbeat_at = asyncio.get_running_loop().time() + self._interval
            return hub_pb2.WorkerMessage(heartbeat=hub_pb2.WorkerHeartbeat(state=self._state))

    async def _watch(self) -> None:
        """Keep the state of the device fresh, and detach if llama-server goes away, so that the hub asks another worker."""
        while True:
            await asyncio.sleep(self._worker.look_every)
            self._state = await asyncio.to_thread(self._worker.read_state)
            with suppress(Stalled):  # it is busy
                await self._worker.server.ask("/health")

    async def _drain(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self._is_draining = True
        self._outbox.put_nowait(hub_pb2.WorkerMessage(draining=hub_pb2.Draining()))
        if self._steps:
            _logger.info("finishing %d steps", len(self._steps))
            await asyncio.wait(self._steps.values(), timeout=_DRAIN_SECONDS)
        self._outbox.put_nowait(None)
        await asyncio.sleep(_CLOSE_SECONDS)  # the hub's end of the stream comes sooner

    def _start(self, start: hub_pb2.StartStep) -> None:
        task = asyncio.create_task(self._step(start))
        self._steps[start.step] = task
        task.add_done_callback(partial(self._ended, start))

    def _ended(self, start: hub_pb2.StartStep, task: asyncio.Task[None]) -> None:
        del self._steps[start.step]
        if task.cancelled():  # perhaps before it began
            self._fail(start, Cancelled("the step was cancelled"))

    async def _step(self, start: hub_pb2.StartStep) -> None:
        """Run a step and send what comes of it. Exactly one output ends it."""
        try:
            async with asyncio.timeout(_seconds(start)):
                last = await self._answer(start)
            self._send(start, last)
        except TimeoutError:
            self._fail(start, DeadlineExceeded("the step's timeout has passed"))
        except NearfarError as error:
            self._fail(start, error)
        except Exception as defect:  # the boundary of a step: a defect must not take the others down
            log_defect(_logger, f"step {start.step} failed", defect)
            self._fail(start, InternalError("the worker failed", hint="its log has the details"))

    async def _answer(self, start: hub_pb2.StartStep) -> pb.StepEvent:
        """Send the events but the last, which is returned: once it is sent, no cancellation may add a second end."""
        if self._is_draining:
            raise Unavailable("the worker is shutting down")
        if start.agent not in ("", self._card.name):
            raise NotFound(f"the worker has no agent {start.agent!r}", hint=f"it has {self._card.name!r}")
        events = run_step(self._worker.server, start.request, context_tokens=self._card.limits.context_tokens)
        last = pb.StepEvent()
        async with aclosing(events):
            async for event in events:
                if event.HasField("finished"):
                    last = event
                else:
                    self._send(start, event)
        return last

    def _send(self, start: hub_pb2.StartStep, event: pb.StepEvent) -> None:
        self._outbox.put_nowait(hub_pb2.WorkerMessage(output=hub_pb2.StepOutput(step=start.step, event=event)))

    def _fail(self, start: hub_pb2.StartStep, error: NearfarError) -> None:
        output = hub_pb2.StepOutput(step=start.step, failure=failure(error))
        self._outbox.put_nowait(hub_pb2.WorkerMessage(output=output))


def _seconds(start: hub_pb2.StartStep) -> float | None:
    """Return how long the step may take. Raises `InvalidRequest` for NaN, which would put the event loop's timers out of order."""
    if not start.HasField("timeout"):
        return None
    if isnan(start.timeout):
        raise InvalidRequest("the timeout is not a number")
    return start.timeout


async def _cancel_all(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel the tasks and wait for them. Their errors have been reported already, or no caller waits for them any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


TOKEN_VARIABLE = "NEARFAR_TOKEN"
_THREADS = 64
"""Each step under way waits for llama-server in a thread of its own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM. Returns the exit code: 0 when stopped, 2 where the options or the token are at fault, 1 otherwise."""
    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        asyncio.run(_run(_worker(options)))
    except NearfarError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2 if isinstance(error, UserError) else 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m nearfar.device.thin_worker",
        description="Lend the llama-server on this device to a hub.",
        epilog=f"The token may also stand in the environment variable {TOKEN_VARIABLE}; it is never taken from the command line.",
    )
    made.add_argument("hub", nargs="?", metavar="HOST:PORT", help="address of the hub; not needed with --pairing-file")
    made.add_argument("--pairing-file", metavar="FILE", help="the line that `nearfar worker pair` shows; - asks for it")
    made.add_argument("--token-file", metavar="FILE", type=Path, help="the token, in a file that only you can read")
    made.add_argument("--fingerprint", metavar="sha256:...", help="of the hub's certificate, if no public authority has signed it")
    made.add_argument("--client-certificate", metavar="FILE", type=Path, help="this device's own certificate, if the hub demands one")
    made.add_argument("--client-key", metavar="FILE", type=Path, help="the private key of the own certificate")
    made.add_argument("--name", help="what the worker's agent is called (default: the pairing's name, or phone)")
    made.add_argument("--server", metavar="URL", default="http://127.0.0.1:8080", help="the llama-server (default: %(default)s)")
    made.add_argument("--server-key-file", metavar="FILE", type=Path, help="the key that llama-server was started with, if any")
    return made


def _worker(options: argparse.Namespace) -> ThinWorker:
    """Raises `ConfigError` if the options contradict each other or are not enough."""
    hub = _hub(options)
    key = None if options.server_key_file is None else read_secret(options.server_key_file)
    own = client_tls(None, options.client_certificate, options.client_key)
    name = options.name or hub.name or "phone"
    return ThinWorker(server=LlamaServer(options.server, key=key), hub=hub, name=name, read_state=Phone(), own=own)


def _hub(options: argparse.Namespace) -> Pairing:
    if (options.hub is None) == (options.pairing_file is None):
        raise ConfigError("the hub is missing, or given twice", hint="give either HOST:PORT or --pairing-file")
    if options.pairing_file is not None:
        return read_pairing(options.pairing_file)
    token = read_secret(options.token_file) if options.token_file else os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise ConfigError("there is no token", hint=f"give --token-file or set {TOKEN_VARIABLE}")
    return Pairing(address=options.hub, token=token, fingerprint=options.fingerprint)


async def _run(worker: ThinWorker) -> None:
    """Serve until a signal comes: the first lets the steps under way finish, the second does not."""
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS))
    task = asyncio.create_task(serve(worker, stopping))

    def stop() -> None:
        if stopping.is_set():
            task.cancel()
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    await task


class Phone:
    """Reads the state of the device below `root`, which is "/" unless a test brings its own tree."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._sys = root / "sys/class"
        self._meminfo = root / "proc/meminfo"
        self._command = shutil.which(_COMMAND)

    def __call__(self) -> hub_pb2.DeviceState:
        """Read the state. It blocks for as long as Android takes to answer. A figure that cannot be read is absent."""
        state = self._from_termux() or self._from_power_supplies()
        state.thermal = max(state.thermal, *(_warmth_of_zone(zone) for zone in entries(self._sys / "thermal")), hub_pb2.THERMAL_UNKNOWN)
        if (free := self._free_memory()) is not None:
            state.free_memory_bytes = free
        return state

    def _from_termux(self) -> hub_pb2.DeviceState | None:
        """Ask Android's battery service, through Termux:API."""
        if self._command is None:
            return None
        try:
            done = subprocess.run([self._command], capture_output=True, timeout=_COMMAND_SECONDS, check=True)
            status = json.loads(done.stdout)
        except subprocess.TimeoutExpired:
            self._command = None  # nor will it answer the next time
            return None
        except (OSError, subprocess.CalledProcessError, ValueError):
            return None
        celsius = _number(inner(status, "temperature"))
        state = hub_pb2.DeviceState(thermal=_warmth(celsius, _HOT_BATTERY, _DANGEROUS_BATTERY))
        if (percentage := _number(inner(status, "percentage"))) is not None:
            state.battery = _share(percentage)
        plugged = inner(status, "plugged")
        if isinstance(plugged, str):
            state.power_source = hub_pb2.POWER_SOURCE_BATTERY if plugged == "UNPLUGGED" else hub_pb2.POWER_SOURCE_MAINS
        return state

    def _from_power_supplies(self) -> hub_pb2.DeviceState:
        """Read Linux's own files. Android hides them from apps, so that on a phone without Termux:API all stays unknown."""
        state = hub_pb2.DeviceState()
        for supply in entries(self._sys / "power_supply"):
            if read_text(supply / "type") == "Battery" and read_text(supply / "scope") != "Device":  # the latter is a mouse's
                if (capacity := read_integer(supply / "capacity")) is not None:
                    state.battery = _share(capacity)
                is_draining = read_text(supply / "status") == "Discharging"
                state.power_source = hub_pb2.POWER_SOURCE_BATTERY if is_draining else hub_pb2.POWER_SOURCE_MAINS
        return state

    def _free_memory(self) -> int | None:
        for line in (read_text(self._meminfo) or "").splitlines():
            name, _, amount = line.partition(":")
            digits = amount.removesuffix("kB").strip()
            if name == "MemAvailable" and digits.isdecimal():
                return int(digits) * 1024
        return None


def _warmth_of_zone(zone: Path) -> hub_pb2.Thermal:
    """Compare a thermal zone with its own trip points."""
    return _warmth(read_celsius(zone / "temp"), *zone_limits(zone))


def _warmth(celsius: float | None, held_back: float | None, dangerous: float | None) -> hub_pb2.Thermal:
    """Judge a temperature. `held_back` and `dangerous`: where the device slows down, and where it has to cool down; None: unknown."""
    if celsius is None or (held_back is None and dangerous is None):
        return hub_pb2.THERMAL_UNKNOWN
    if dangerous is not None and celsius >= dangerous:
        return hub_pb2.THERMAL_CRITICAL
    if held_back is None or celsius < held_back - _NEAR_CELSIUS:
        return hub_pb2.THERMAL_NOMINAL
    return hub_pb2.THERMAL_SERIOUS if celsius >= held_back else hub_pb2.THERMAL_FAIR


def _share(percentage: float) -> float:
    return min(max(percentage / 100, 0.0), 1.0)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and isfinite(value) else None


if __name__ == "__main__":
    sys.exit(main())
