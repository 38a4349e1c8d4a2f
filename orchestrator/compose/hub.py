"""The `[hub]` and `[serve]` sections: agents that other devices lend, and where HTTP is served, to whom.

The hub has a process of its own; tasks reach what it holds through a socket.
"""

import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import anyio
from pydantic import AfterValidator, Field, model_validator

from ...protocols import Agent, AgentCard, ConfigError, DeviceState, ModelError, NotFound, Sensitivity, Side, Unavailable
from ...protocols.address import Address, Pairing, parse_address
from ...protocols.steps import Value
from ..task.modes import Mode
from ..task.routing_policy import LimitsConfig

if TYPE_CHECKING:
    import grpc

    from ...protocols.hub import Hub, WorkerTerms
    from ..memory.store import MemoryStore

AgentName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]

CERTIFICATE: Final = Path("hub.pem")
"""The hub's certificate where no configuration names one."""
KEY: Final = Path("hub-key.pem")
_ALL_ADDRESSES: Final = ("0.0.0.0", "::")
_UNREACHED: Final = ("192.0.2.1", 9)
"""An address reserved for documentation. Nothing is sent to it."""
_LIST_LIMIT = 5.0
_START_HINT = "start `nearfar serve hub` here, and `nearfar worker attach` or the thin worker on the device"


class WorkerConfig(Value):
    """A `[hub.workers.NAME]` section: a device that lends its model, by the name that its token has."""

    trust: Side = Side.FAR
    """`near` means that the device is your own, so that private text may be sent to it; `far`, that it belongs to another person."""
    minimum_battery: float | None = Field(default=None, ge=0, le=1)
    """Share of a full charge below which the device gets no steps while it runs on its battery."""
    user: str | None = Field(default=None, min_length=1, max_length=200)
    """Whose device it is: it is brought into step with what of the hub's memory is theirs or shared. None: it sees no memory."""
    instructions: str = ""
    """Instructions in front of each step that this agent takes for a task, before those of the file and of the task."""


def checked_address(address: str) -> str:
    """Return the address of a server. Raises `ValueError`, for a validator of pydantic's, if it is none."""
    try:
        parse_address(address)
    except ConfigError as error:
        raise ValueError(f"it is no address: {error.hint}") from error
    return address


class HubConfig(Value):
    """The `[hub]` section: where `nearfar serve hub` accepts workers, and which of them tasks may use."""

    address: str = "127.0.0.1:7445"
    """`host:port` at which devices reach the hub."""
    tokens: Path = Path("workers.toml")
    """File with a token for each worker. It is read again when it changes; a worker whose line is gone is shut out at once."""
    certificate: Path | None = None
    """PEM file of the hub's certificate; needed for any address that other devices can reach."""
    key: Path | None = None
    """PEM file of the certificate's private key."""
    client_authority: Path | None = None
    """PEM file of the authorities of which every worker must show a certificate; None: its token is enough."""
    socket: Path = Path("hub.sock")
    """The Unix socket by which tasks on this machine reach the hub; only your own user can open it."""
    memory: bool = False
    """Bring the memory of this machine, `[memory]`, into step with that of workers whose user is known."""
    web_address: str = ""
    """`host:port` of the page for browsers that `nearfar serve hub --web` serves. Empty: the hub's host, and port 7447."""
    web_model: str = "near"
    """GGUF model that the page's browsers load: a name of `nearfar models list`, or a path."""
    workers: Mapping[AgentName, WorkerConfig] = {}
    """The workers that tasks may use, as further agents under these names."""

    @property
    def agents(self) -> dict[str, "AttachedConfig"]:
        """The workers as agents that tasks may be given to."""
        return {
            name: AttachedConfig(socket=self.socket, worker=name, side=worker.trust, instructions=worker.instructions)
            for name, worker in self.workers.items()
        }

    def anchored(self, folder: Path) -> "HubConfig":
        """Return the section with its relative paths made absolute, starting at `folder`."""
        files = {name: getattr(self, name) for name in ("tokens", "certificate", "key", "client_authority", "socket")}
        return self.model_copy(update={name: folder / file.expanduser() for name, file in files.items() if file is not None})


class AttachedConfig(Value):
    """An agent of a worker that is attached to this machine's hub."""

    socket: Path
    """The hub's socket on this machine."""
    worker: str
    """Name of the device."""
    side: Side
    """The side that it counts as."""
    instructions: str = ""
    """Instructions in front of each step that it takes for a task."""


async def open_attached(config: AttachedConfig) -> Agent:
    """Connect to an agent of a worker. Raises `Unavailable` while there is no hub, or the worker is not attached to it."""
    from ...protocols.client import RemoteAgent

    try:
        return await RemoteAgent.connect(f"unix:{config.socket.absolute()}", agent=config.worker)
    except NotFound as error:
        raise Unavailable(f"worker {config.worker!r} has not been attached to the hub yet", hint=_START_HINT) from error
    except Unavailable as error:
        raise Unavailable(f"no hub answers at {config.socket}", hint=_START_HINT) from error


class KnownWorker(Value):
    """The state of one worker, as this machine's hub knows it."""

    name: str
    is_attached: bool
    is_draining: bool
    agents: tuple[AgentCard, ...]
    """Cards as last registered, with the side that the hub gives them; empty if the worker was never attached."""
    state: DeviceState
    live_steps: int

    @property
    def text(self) -> str:
        """The state in words."""
        if not self.is_attached:
            return "not attached"
        power = "" if self.state.power_source is None else f" ({self.state.power_source})"
        parts = [
            "leaving" if self.is_draining else "attached",
            ", ".join(f"{card.name}: {card.model}, {card.side}" for card in self.agents),
            f"{self.live_steps} steps",
            "battery unknown" if self.state.battery is None else f"battery {self.state.battery:.0%}{power}",
            f"heat {self.state.thermal or 'unknown'}",
            "free memory unknown" if self.state.free_memory_bytes is None else f"{self.state.free_memory_bytes / 2**30:.1f} GiB free",
        ]
        return "; ".join(parts)


async def list_workers(socket: Path) -> list[KnownWorker]:
    """Return the workers of the hub at `socket`. Raises `Unavailable` where there is none."""
    import grpc

    from ...protocols.channel import open_channel
    from ...protocols.hub_session import device_state_from_proto
    from ...protocols.v1 import hub_pb2 as pb
    from ...protocols.v1.hub_pb2_grpc import HubServiceStub
    from ...protocols.wire import card_from_proto

    async with open_channel(Address(path=str(socket.absolute())), None) as channel:
        try:
            reply: pb.ListResponse = await HubServiceStub(channel).List(pb.ListRequest(), timeout=_LIST_LIMIT)
        except grpc.aio.AioRpcError as error:
            raise Unavailable(f"no hub answers at {socket}", hint="start `nearfar serve hub` here") from error
    return [
        KnownWorker(
            name=worker.name,
            is_attached=worker.is_attached,
            is_draining=worker.is_draining,
            agents=tuple(map(card_from_proto, worker.agents)),
            state=device_state_from_proto(worker.state),
            live_steps=worker.live_steps,
        )
        for worker in reply.workers
    ]


@asynccontextmanager
async def accept_workers(
    config: HubConfig,
    *,
    memory: "MemoryStore | None" = None,
    insecure: bool = False,
) -> AsyncIterator[tuple["Hub", str]]:
    """Run the hub until the context ends: workers attach at its address, tasks of this machine reach them at its socket. Workers whose user
    is known synchronise with `memory`.

    Yields the hub and the address where it really listens. Raises `ConfigError` for tokens, files or addresses that cannot be used.
    """
    from ...protocols.hub import SERVICE, Hub, HubService, serve_hub
    from ...protocols.server import serve
    from ...protocols.tls import server_tls
    from ...protocols.token_file import follow_tokens, read_tokens

    tls = server_tls(config.certificate, config.key, config.client_authority)
    hub = Hub(read_tokens(config.tokens), policies={name: _policy(worker) for name, worker in config.workers.items()})
    further = {} if memory is None else _memory_handlers(memory, config)
    serving = serve_hub(hub, config.address, tls=tls, insecure=insecure, further=further)
    local = serve(hub.agents, f"unix:{config.socket.absolute()}", further={SERVICE: HubService(hub).local_handlers()})
    async with local, serving as address, anyio.create_task_group() as tasks:
        tasks.start_soon(follow_tokens, config.tokens, hub.replace_tokens)
        yield hub, address
        tasks.cancel_scope.cancel()


def _memory_handlers(memory: "MemoryStore", config: HubConfig) -> "dict[str, grpc.GenericRpcHandler]":
    """Let workers synchronise with the memory, each as the user whose device it is."""
    from ..memory.sync.service import SERVICE, MemoryService, peers_of

    users = {name: worker.user for name, worker in config.workers.items() if worker.user is not None}
    return {SERVICE: MemoryService(memory, peers_of(users), is_hub=True).handlers()}


def _policy(config: WorkerConfig) -> "WorkerTerms":
    from ...protocols.hub import WorkerTerms

    return WorkerTerms(side=config.trust, minimum_battery=config.minimum_battery)


def serve_command(hub: HubConfig) -> str:
    """Return the command that serves the hub, with the files of `pair_device`."""
    files = f"--tokens {hub.tokens} --certificate {hub.certificate or CERTIFICATE} --key {hub.key or KEY}"
    return f"nearfar serve hub --address {hub.address} {files}"


def pair_device(hub: HubConfig, name: str) -> Pairing:
    """Make a token for a device, and the hub's certificate if there is none, and return what the device needs to attach.

    Raises `ConfigError` for a name that has a token already, and for files or addresses that cannot be used.
    """
    from ...protocols.security import Scope
    from ...protocols.tls import ensure_certificate
    from ...protocols.token_file import add_token

    reached = reachable(parse_address(hub.address))
    fingerprint = ensure_certificate(hub.certificate or CERTIFICATE, hub.key or KEY, [reached.host])
    # The hub's configuration decides whose memory the device may see, if any.
    token = add_token(hub.tokens, name, scopes=(Scope.ATTACH, Scope.MEMORY)).token
    return Pairing(address=str(reached), token=token, fingerprint=fingerprint, name=name)


def reachable(address: Address) -> Address:
    """Return the address at which other devices reach a server at `address`; for "all addresses", this machine's own."""
    if address.path:
        raise ConfigError("a device cannot reach a unix socket", hint="give the HOST:PORT that the hub listens at")
    return Address(host=_own_address(), port=address.port) if address.host in _ALL_ADDRESSES else address


def _own_address() -> str:
    """Return the address that this machine would send from. Finding it sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_UNREACHED)
        except OSError as error:
            raise ConfigError("this machine has no address in a network", hint="give the address with --address HOST:PORT") from error
        return str(probe.getsockname()[0])


_MOST_CONTEXT: Final = 4096
"""Tokens: a phone has memory for the key-value cache of no more."""
_PART_BYTES: Final = 2 * 1024**3
"""Bytes of one file that wllama can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageModel:
    """A model that tabs load from the hub."""

    described: Mapping[str, Any]
    """The page's JSON: name, context_tokens, parameters, takes_tools, and the sha256 and the bytes of each part."""
    parts: Mapping[str, Path]
    """The files, by their checksums in hexadecimal, in the order of the model."""


def read_page_model(name: str, progress: Callable[[str, int, int], None]) -> PageModel:
    """Read the header of a GGUF model and take the checksums of its files. `name` is a model of `nearfar models list`, or a path.

    Raises `ModelNotFound` or `ModelError` for a model that tabs cannot load.
    """
    from ...device.gguf import model_parts, read_header
    from ...device.store.download import sha256_of
    from . import model_path  # which imports this module

    path = model_path(name)
    header = read_header(path)
    files = model_parts(path)
    if large := [file for file in files if file.stat().st_size > _PART_BYTES]:
        raise ModelError(
            f"{large[0].name} has more than 2 GiB, which no browser loads", hint="split it with llama-gguf-split --split-max-size 2G"
        )
    parts = {sha256_of(file, progress): file for file in files}
    described = {
        "name": path.stem,
        "context_tokens": min(header.context_tokens or _MOST_CONTEXT, _MOST_CONTEXT),
        "parameters": header.parameters,
        "world": header.world,
        "takes_tools": "tool" in (header.chat_template or ""),
        "parts": [{"sha256": digest, "bytes": file.stat().st_size} for digest, file in parts.items()],
    }
    return PageModel(described=described, parts=parts)


def engine_files() -> Path:
    """Return the folder of wllama's files. Raises `ConfigError` if they are not installed."""
    from ...device.store.browser_engine import require_engine

    return require_engine()


def fetch_engine(progress: Callable[[str, int, int], None], archives: Path | None) -> Path:
    """Install wllama from npm's registry, or from the `archives` in a folder, and return where it is. Raises as `install_engine` does."""
    from ...device.store.browser_engine import install_engine

    return install_engine(progress, archives)


CallerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]


class CallerConfig(Value):
    """A `[serve.callers.NAME]` section: what a caller may do, by the name that its token has. Its requests can only narrow that."""

    sensitivity: Sensitivity | None = None
    """Sensitivity of its tasks: `public` ones may leave this device. None: as the policy says."""
    mode: Mode | None = None
    """Sides that may serve its tasks. None: as the policy says."""
    limits: LimitsConfig = LimitsConfig()
    """Limits of spending; those of the policy hold, too. `user` is what all its tasks may take together."""
    models: tuple[str, ...] = ()
    """Names of models that it may ask for, such as `nearfar/auto`. None: all."""
    user: str = Field(default="", max_length=200)
    """On whose behalf its tasks are served. Empty: the caller's own."""


class ServeConfig(Value):
    """The `[serve]` section: the HTTP server for clients of OpenAI and Anthropic."""

    address: Annotated[str, AfterValidator(checked_address)] = "127.0.0.1:7446"
    """`host:port` at which it listens. One that other devices can reach needs TLS and tokens."""
    tokens: Path | None = None
    """File with a token for each caller, which is read again when it changes. None: one token is made at each start, and printed."""
    certificate: Path | None = None
    """PEM file of its certificate."""
    key: Path | None = None
    """PEM file of the certificate's private key."""
    hosts: tuple[str, ...] = ()
    """Further names of this server in the `Host` header, such as that of a proxy in front. Addresses and `localhost` need none."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may call it from a browser, such as `https://app.example`."""
    callers: Mapping[CallerName, CallerConfig] = {}
    """The rights of callers. A caller without a section may do what the policy allows."""

    @model_validator(mode="after")
    def _has_both_files(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together")
        return self

    def anchored(self, folder: Path) -> "ServeConfig":
        """Return the section with its relative paths made absolute, starting at `folder`."""
        files = {name: getattr(self, name) for name in ("tokens", "certificate", "key")}
        return self.model_copy(update={name: folder / file.expanduser() for name, file in files.items() if file is not None})

    def caller(self, name: str) -> CallerConfig:
        """Return what the caller called `name` may do."""
        return self.callers.get(name) or CallerConfig()
