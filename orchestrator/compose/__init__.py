"""The composition root: the one place where configuration becomes agents, and where the orchestrator meets `device` and `cloud`."""

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import date
from functools import partial
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypedDict, Unpack

from pydantic import ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError, field_validator

from ...cloud.config import A2aAgentConfig, ProviderConfig, prices_of
from ...cloud.config import GatewayLimits as GatewayLimits
from ...cloud.near_server import PROGRAMS, open_server, parse_server
from ...cloud.near_server import NearServerConfig as NearServerConfig
from ...cloud.near_server import find_servers as find_servers
from ...protocols import Agent, ConfigError, DeviceState, NearfarError, Prices, Side
from ...protocols.secrets import StoredKey
from ...protocols.steps import Value
from ...protocols.system import expand_home
from ..agents import AgentHandle
from ..task.stores import calls_folder
from ..util.plugins import PLUGIN_TAG, FarPluginConfig, NearPluginConfig, has_plugin, names_plugin, open_plugin_agent, provider_tag
from .hub import AttachedConfig, checked_address, open_attached

if TYPE_CHECKING:
    from ...cloud.prices import PriceLine as PriceLine
    from ...device.hardware.probe import EngineProvider as EngineProvider
    from ...device.hardware.probe import Hardware as Hardware
    from ...device.hardware.probe import InferenceEngine as InferenceEngine
    from ...device.hardware.processors import Accelerator as Accelerator
    from ...device.hardware.processors import Cpu as Cpu
    from ...device.hardware.state import Memory as Memory
    from ...device.profiles import Profile as Profile
    from ...device.store import ModelStore
    from ...device.store import StoredModel as StoredModel
    from ...device.store.fit import Fits
    from ...device.store.fit import ModelFit as ModelFit
    from ...protocols.security import Tokens
    from ...protocols.server import Server
    from ...protocols.tls import ServerTls

EMBEDDED = ("near", "far")
"""The small models that ship with nearfar; they know nothing but the two worlds that they were trained in."""
EMBEDDED_ADAPTERS = ("near-text", "near-calls", "near-judge")
"""The adapters that ship for `near`: two to plan for itself, one for its text and one for its tool calls, and one to judge finished work
(docs/near-models.md)."""
EMBEDDED_CONFIDENCE = 0.98
"""The minimum confidence of a draft in a cascade of the two: the lowest hundredth at which it keeps nine tenths of far's right answers
to 300 questions that neither demo nor study uses (docs/near-models.md)."""


class LlamaConfig(Value):
    """A model on this machine: a GGUF file run by llama.cpp, or a folder run by onnxruntime-genai."""

    model: str = "near"
    """Path of a GGUF file or of a folder with a genai_config.json, a name in the store, or `near` / `far`, which ship with nearfar."""
    context_tokens: int | None = Field(default=None, gt=0)
    """Tokens of prompt and output together; None: the length that the model was trained for, at most 8192."""
    parallel: int = Field(default=4, gt=0, le=64)
    """Steps that are decoded in one batch."""
    threads: int | None = Field(default=None, gt=0)
    """None: one for tiny models, else half of the CPUs, and for batches all cores where that is faster."""
    compute: str = Field(default="fastest", pattern="^[a-z][a-z0-9_]*$")
    """The processor to compute on: `fastest`, `lowest_power`, or a provider such as `cpu`, `cuda` or `metal`."""
    allow_fallback: bool = False
    """If that provider is absent, use another one instead of failing."""
    gpu_layers: int | None = Field(default=None, ge=-1)
    """Layers kept on the GPU, where `compute` is one; -1: all; None: as many as fit its memory."""
    adapters: Mapping[str, str] = {}
    """LoRA adapters of the model by name: paths of GGUF files, for a folder of .onnx_adapter files, or `near-text`, `near-calls` and
    `near-judge`, which ship with nearfar for `near`. One named `judge` is used for verdicts of the verifier `outcome`."""
    adapter: str | None = None
    """The adapter of steps that name none: for the prompt, for reasoning and for text."""
    call_adapter: str | None = None
    """The adapter for the text inside tool calls; None: the same as for text."""
    projector: str | None = None
    """Path of the model's multimodal projector, a GGUF file such as `mmproj-MODEL.gguf`; None: the model reads no images."""
    keep_calls: bool = False
    """Keep tool calls in the user's data folder, so that later ones are drafted faster after a restart, too; llama.cpp only."""
    prices: Prices | None = None
    """None: free of charge."""
    instructions: str = ""
    """Instructions in front of each step that this agent takes for a task, before those of the file and of the task."""


class NearConfig(LlamaConfig):
    """The `[near]` section for a model that nearfar itself runs."""


LOCAL_TAG: Final = "model"
SERVER_TAG: Final = "openai"
"""Tags of the two kinds of near sections, under which pydantic reports their mistakes; the second is one of its providers."""


def _near_tag(given: object) -> str:
    """Return the kind of a `[near]` section: the keys of a server, or those of a model that nearfar itself runs."""
    if names_plugin(given):
        return PLUGIN_TAG
    is_server = isinstance(given, NearServerConfig) or (isinstance(given, Mapping) and not {"provider", "base_url"}.isdisjoint(given))
    return SERVER_TAG if is_server else LOCAL_TAG


NearSection = Annotated[
    Annotated[NearConfig, Tag(LOCAL_TAG)] | Annotated[NearServerConfig, Tag(SERVER_TAG)] | Annotated[NearPluginConfig, Tag(PLUGIN_TAG)],
    Discriminator(_near_tag),
]
NEAR_CONFIGS: Final = (NearConfig, NearServerConfig, NearPluginConfig)
"""The classes that `NearSection` stands for."""


class LocalFarConfig(LlamaConfig):
    """A `[far]` section whose model is a GGUF too, served by a gateway process on this machine: offline and without a key."""

    provider: Literal["llama"] = "llama"
    """`llama`: a model of this machine."""
    model: str = "far"
    """Path or name of the model."""


class GatewayConfig(Value):
    """A `[far]` section that names a gateway which runs elsewhere."""

    provider: Literal["gateway"]
    """`gateway`: a gateway on another machine, or one that runs already."""
    address: str = Field(min_length=1)
    """`host:port` or `unix:/path`."""
    agent: str = ""
    """Name of the agent there; empty means the gateway's first."""
    token_variable: str = "NEARFAR_TOKEN"
    """Environment variable, or keyring entry, that holds the bearer token."""
    certificate: Path | None = None
    """PEM file of the authority that signed the gateway's certificate; None: the system's authorities."""
    client_certificate: Path | None = None
    """PEM file of this device's own certificate, where the gateway demands one."""
    client_key: Path | None = None
    """PEM file of its private key."""
    instructions: str = ""
    """Instructions in front of each step that this agent takes for a task, before those of the file and of the task."""

    _names_a_port = field_validator("address")(checked_address)


class ServeOptions(TypedDict, total=False):
    """How a server guards its address."""

    tokens: "Tokens"
    """Caller name -> bearer token, or what a token file holds; empty: anybody who reaches the address."""
    tls: "ServerTls | None"
    insecure: bool


class LocalOptions(TypedDict):
    """Arguments with which the agents of all engines on this machine are loaded."""

    name: str
    side: Side
    context_tokens: int | None
    parallel: int
    threads: int | None
    compute: str
    allow_fallback: bool
    adapters: Mapping[str, Path | str]
    adapter: str | None
    call_adapter: str | None
    prices: Prices | None


FarConfig = Annotated[
    Annotated[ProviderConfig, Tag("openai")]
    | Annotated[LocalFarConfig, Tag("llama")]
    | Annotated[GatewayConfig, Tag("gateway")]
    | Annotated[A2aAgentConfig, Tag("a2a")]
    | Annotated[FarPluginConfig, Tag(PLUGIN_TAG)],
    Discriminator(provider_tag),
]
FAR_CONFIGS: Final = (ProviderConfig, LocalFarConfig, GatewayConfig, A2aAgentConfig, FarPluginConfig)
"""The classes that `FarConfig` stands for."""


def sends_key_in_plain_text(config: FarConfig) -> bool:
    """Return whether an agent's key leaves this machine without TLS."""
    return isinstance(config, ProviderConfig) and config.sends_key_in_plain_text


PROVIDERS: tuple[Literal["openai", "anthropic", "gemini"], ...] = ("openai", "anthropic", "gemini")
_FAR: TypeAdapter[FarConfig] = TypeAdapter(FarConfig, config=ConfigDict(defer_build=True))


def model_path(name: str) -> Path:
    """Return the file of an embedded model or adapter, or of a model in the store, or the path that `name` is.

    Raises `ModelNotFound` for a model of the hub that was not pulled, `ModelError` for one in quarantine, and `ConfigError` for the
    folder of a user that is not known.
    """
    if name in (*EMBEDDED, *EMBEDDED_ADAPTERS):
        with as_file(files("nearfar.device") / "models" / f"{name}.gguf") as path:
            return path
    return model_store().path_of(name) if _is_stored(name) else expand_home(Path(name))


def anchored_model(name: str, folder: Path) -> str:
    """`name` as an absolute path, relative to `folder`; an embedded model or adapter, or a model in the store, stays a name."""
    return name if name in (*EMBEDDED, *EMBEDDED_ADAPTERS) or _is_stored(name) else str(folder / Path(name).expanduser())


def model_store() -> "ModelStore":
    """Return the models of this user on this device."""
    from ...device.store import ModelStore

    return ModelStore()


def model_fits(name: str | None, *, context: int | None, parallel: int) -> "Fits":
    """Return whether a model, or each on this device, fits into the free memory. Raises `ModelNotFound`, `ModelError` or `ConfigError`."""
    from ...device.hardware.state import free_memory_bytes
    from ...device.store.fit import fits, local_candidate, stored_candidates

    store = model_store()
    shipped = [local_candidate(embedded, model_path(embedded)) for embedded in EMBEDDED if name in (None, embedded)]
    others = [] if name in EMBEDDED else stored_candidates(store, name)
    return fits([*shipped, *others], free_memory_bytes(), context=context, parallel=parallel)


def _is_stored(name: str) -> bool:
    """Return whether a name is looked up in the store: it names a model of the hub, or the store has one of that name."""
    is_name = "/" not in name and not name.endswith(".gguf")
    return name.startswith("hf:") or (is_name and model_store().find(name) is not None)


def near_handle(near: Agent | NearSection | str | Path | None) -> AgentHandle | None:
    """Return a handle for the near side, opened on first use."""
    if near is None:
        return None
    if isinstance(near, (str, Path)):
        near = parse_near(str(near))
    return other_handle("near", near) if isinstance(near, NEAR_CONFIGS) else _borrowed(near, Side.NEAR)


def far_handle(far: Agent | FarConfig | str | Path | None) -> AgentHandle | None:
    """Return a handle for the far side, which is reached by gRPC. Without a named gateway, one is started as a child process on first
    use."""
    if far is None:
        return None
    if isinstance(far, (str, Path)):
        far = parse_far(str(far))
    return other_handle("far", far) if isinstance(far, FAR_CONFIGS) else _borrowed(far, Side.FAR)


def other_handle(name: str, other: Agent | NearSection | FarConfig | AttachedConfig) -> AgentHandle:
    """Return a handle for an agent, opened on first use, under the name that the policy uses. Its side is that of its kind, or of its
    card."""
    if isinstance(other, NearConfig):
        pace = partial(find_profile, other)
        return AgentHandle(name, Side.NEAR, partial(open_near, other, name=name), pace=pace, instructions=other.instructions)
    if isinstance(other, NearServerConfig):
        server = other.located()
        opener = partial(open_near, server, name=name)
        handle = partial(AgentHandle, name, Side.NEAR, opener, model=server.model or "", instructions=server.instructions)
        return handle(is_elsewhere=server.is_elsewhere, place=server.place)
    if isinstance(other, NearPluginConfig):
        return AgentHandle(name, Side.NEAR, partial(open_near, other, name=name), model=other.model, instructions=other.instructions)
    if isinstance(other, FAR_CONFIGS):
        model = (other.model or "") if isinstance(other, ProviderConfig) else ""
        handle = partial(AgentHandle, name, Side.FAR, _far_opener(other), prices=_expected_prices(other), model=model)
        return handle(instructions=other.instructions, is_foreign=isinstance(other, A2aAgentConfig))
    if isinstance(other, AttachedConfig):
        return AgentHandle(name, other.side, partial(open_attached, other), is_elsewhere=True, instructions=other.instructions)
    return AgentHandle(name, other.card.side, other, is_elsewhere=_is_elsewhere(other))


def parse_near(text: str) -> NearSection:
    """Parse the short form of a near side: `ollama:MODEL` and the like, the address of a server, or a model that nearfar runs itself.

    Raises `ConfigError` for an address that is malformed or not near, and for the short form of a far side.
    """
    if (server := parse_server(text)) is not None:
        return server
    provider, colon, model = text.partition(":")
    if colon and has_plugin("agents", provider):
        return NearPluginConfig(provider=provider, model=model)
    if colon and provider in (*PROVIDERS, "gateway"):
        known = ", ".join(f"{program}:MODEL" for program in PROGRAMS)
        raise ConfigError(f"{text!r} is a far agent", hint=f"give it as far; near servers are {known}, or an address on this machine")
    return NearConfig(model=text)


def parse_far(text: str) -> FarConfig:
    """Parse the short form of a far side: `PROVIDER:MODEL`, `gateway:ADDRESS`, the address of an API (`URL` or `URL#MODEL`), `far`, or the
    path of a GGUF file."""
    provider, _, rest = text.partition(":")
    fields: dict[str, object]
    if provider == "gateway":
        fields = {"provider": provider, "address": rest}
    elif provider in ("http", "https"):
        address, _, model = text.partition("#")
        fields = {"provider": "openai", "base_url": address, **({"model": model} if model else {})}
    elif text in EMBEDDED or text.endswith(".gguf") or _is_stored(text):
        fields = {"provider": "llama", "model": text}
    else:
        fields = {"provider": provider, "model": rest}
    try:
        return _FAR.validate_python(fields)
    except ValidationError as error:
        hint = 'write "openai:MODEL", "anthropic:MODEL", "gemini:MODEL", "gateway:HOST:PORT", a URL, "far", a stored model or a .gguf file'
        shown = "the address" if "base_url" in fields else repr(text)  # it may hold a password
        raise ConfigError(f"{shown} does not name a far agent", hint=hint) from error


async def open_near(config: NearSection, *, name: str) -> Agent:
    """Open a near agent: load its model, or try out the one of a server. Raises what `open_local` or `open_server` raises."""
    if isinstance(config, NearConfig):
        return await open_local(config, name=name, side=Side.NEAR)
    if isinstance(config, NearPluginConfig):
        return await open_plugin_agent(config, name=name, side=Side.NEAR)
    return await open_server(config, name=name)


async def open_local(config: LlamaConfig, *, name: str, side: Side) -> Agent:
    """Load a model that runs on this machine: a GGUF file in llama.cpp, a folder in onnxruntime-genai. Without llama.cpp, an embedded
    model runs in onnxruntime-genai, too.

    Raises `ModelNotFound` or `ModelError`, and `ConfigError` where the engine is not installed.
    """
    if not hasattr(os, "fork"):  # its workers share sockets and signals with this process
        raise ConfigError("nearfar runs models itself on Linux and macOS only", hint='use a server that runs them: near="ollama:MODEL"')
    path = model_path(config.model)
    options: LocalOptions = {
        "name": name,
        "side": side,
        "context_tokens": config.context_tokens,
        "parallel": config.parallel,
        "threads": config.threads,
        "compute": config.compute,
        "allow_fallback": config.allow_fallback,
        "adapters": {adapter: model_path(file) for adapter, file in config.adapters.items()},
        "adapter": config.adapter,
        "call_adapter": config.call_adapter,
        "prices": config.prices,
    }
    if not path.is_dir() and not runs_on_onnx(config.model):
        from ...device.llama import LlamaAgent

        projector = None if config.projector is None else model_path(config.projector)
        kept = calls_folder() if config.keep_calls else None
        return await LlamaAgent.load(path, gpu_layers=config.gpu_layers, projector=projector, calls_folder=kept, **options)
    from ...device.onnx import OnnxAgent

    if config.gpu_layers is not None:
        raise ConfigError(f"gpu_layers is set, and onnxruntime runs {path}", hint="leave gpu_layers out: onnxruntime moves whole models")
    if config.projector is not None:
        raise ConfigError(f"projector is set, and onnxruntime runs {path}", hint="leave projector out: only GGUF models take one")
    return await OnnxAgent.load(path, **options)


def runs_on_onnx(model: str) -> bool:
    """Return True for an embedded model that onnxruntime runs, because llama.cpp is not installed."""
    return model in EMBEDDED and find_spec("llama_cpp") is None and find_spec("onnxruntime_genai") is not None


def find_profile(config: NearConfig) -> "Profile | None":
    """Return the profile that `nearfar models bench` measured for a model on this device and the processor that it would run on."""
    from ...device.hardware.processors import FASTEST, LOWEST_POWER
    from ...device.profiles import profiles_of

    try:
        profiles = profiles_of(model_path(config.model))
    except NearfarError:
        return None  # What is wrong with the model is said when it is opened.
    is_open = config.compute in (FASTEST, LOWEST_POWER)
    return next((profile for profile in profiles if is_open or profile.execution.provider == config.compute), None)


async def bench_model(config: NearConfig, *, watts: float | None, progress: Callable[[int, int], None]) -> tuple["Profile", Path]:
    """Measure a model on this device; returns its profile, and where it is kept. Raises what opening the model raises."""
    from ...device.profiles import bench, save_profile
    from ...device.worker import LocalAgent

    async def load() -> LocalAgent:
        agent = await open_local(config, name=config.model, side=Side.NEAR)
        assert isinstance(agent, LocalAgent), "it runs on this machine"
        return agent

    profile = await bench(load, model_path(config.model), watts=watts, progress=progress)
    return profile, save_profile(profile)


def serve_near(agent: Agent, address: str, **options: Unpack[ServeOptions]) -> "AbstractAsyncContextManager[Server]":
    """Serve a near agent to other processes."""
    from ...protocols.server import serve

    return serve(agent, address, **options)


def caller_tokens(path: Path | None) -> "Tokens":
    """Return the tokens of callers: from the file, else from NEARFAR_GATEWAY_TOKENS. Raises `ConfigError` for what cannot be used."""
    from ...cloud.gateway import environment_tokens
    from ...protocols.token_file import load_tokens

    return load_tokens(path) if path is not None else environment_tokens()


def reference_price() -> tuple[str, Prices]:
    """Return the real model, and its price, at which the demo states what its far tokens would cost."""
    from ...cloud.prices import reference_price as read

    return read()


def known_prices() -> "Iterator[PriceLine]":
    """Yield the lines of the price tables, imported ones first. Raises `ConfigError` where an imported table cannot be read."""
    from ...cloud.prices import price_lines

    return price_lines()


def imported_prices_day() -> date | None:
    """Return the day on which prices were imported, or None if none were."""
    from ...cloud.prices import imported_table

    return getattr(imported_table(), "imported", None)


def import_price_table(file: Path, *, source: str, as_of: date) -> tuple[int, Path]:
    """Keep the prices of LiteLLM's public table; return the number of models and where they are kept. Raises `ConfigError`."""
    from ...cloud.prices import keep_imported, read_public_table

    lines = read_public_table(file, source=source, as_of=as_of)
    return len(lines), keep_imported(lines)


def read_device_state() -> DeviceState:
    """Return the present state of this machine."""
    from ...device.hardware.state import read_device_state as read

    return read()


async def probe_hardware() -> "Hardware":
    """Return the hardware of this machine, and the processors that its engines can compute on."""
    from ...device.hardware.probe import probe_hardware as probe

    return await probe()


def how_to_set(variable: str) -> str:
    """Return a sentence that tells a person how to set a secret."""
    return StoredKey(variable).how_to_set


def _expected_prices(config: FarConfig) -> Callable[[], Prices | None] | None:
    """Return a function that looks for an agent's prices; None for one behind a gateway, which tells them."""
    if isinstance(config, ProviderConfig):
        return partial(prices_of, config)
    return partial(_local_prices, config) if isinstance(config, LocalFarConfig) else None


def _local_prices(config: LocalFarConfig) -> Prices:
    return config.prices or Prices.free("runs on this machine")


def _far_opener(config: FarConfig) -> Callable[[], Awaitable[Agent]]:
    async def connect() -> Agent:
        import anyio.to_thread

        from ...protocols.client import RemoteAgent
        from ...protocols.tls import client_tls

        assert isinstance(config, GatewayConfig), "chosen below"
        token = await anyio.to_thread.run_sync(StoredKey(config.token_variable).find)
        tls = client_tls(config.certificate, config.client_certificate, config.client_key)
        return await RemoteAgent.connect(config.address, agent=config.agent, token=token, tls=tls)

    async def start() -> Agent:
        from .gateway_process import GatewayProcess

        return await GatewayProcess.start(config)

    return connect if isinstance(config, GatewayConfig) else start


def _borrowed(agent: Agent, side: Side) -> AgentHandle:
    """Return a handle for an agent that the caller opened and will close."""
    if agent.card.side is not side:
        raise ConfigError(f"agent {agent.card.name!r} says that it is on the {agent.card.side} side, not the {side} side")
    return AgentHandle(agent.card.name, side, agent, is_elsewhere=_is_elsewhere(agent))


def _is_elsewhere(agent: Agent) -> bool:
    """Return whether an agent is a connection to another process, which may be on another machine."""
    return bool(getattr(agent, "is_elsewhere", False))
