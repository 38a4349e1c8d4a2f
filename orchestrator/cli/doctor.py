"""`nearfar doctor`: show what is installed, what this machine has, what works, and how to fix the rest."""

import platform
import re
import shlex
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import typer
from rich.text import Text

from ...protocols import ConfigError, Execution, NearfarError, Sensitivity, StepRequest, complete
from ...protocols.steps import Message, Value
from ...protocols.tls import expiry, first_certificate, read_pair, read_roots, validity_of
from ..agents import AgentHandle
from ..compose import (
    EMBEDDED,
    GatewayConfig,
    NearServerConfig,
    find_servers,
    how_to_set,
    model_path,
    probe_hardware,
    runs_on_onnx,
    sends_key_in_plain_text,
)
from ..compose.config import Config, provider_keys
from ..routing.eligibility import unknown_prices
from ..safety.detection.standard import load_detector
from ..task.modes import Strategy
from ..task.policy import Policy
from ..task.stores import LEAST_THRESHOLD, PeerConfig
from ..util.plugins import KINDS, PLUGIN_NAME, TAKEN, Plugin, find_plugin, find_plugins
from ..util.runtime import deadly_switches, tracing_switches
from . import options
from .running import EXIT_FAILED, asynchronous, output, print_json

if TYPE_CHECKING:
    from ..compose import Accelerator, Cpu, EngineProvider, Hardware, InferenceEngine, Memory

Status = Literal["ok", "absent", "expiring", "risky", "broken"]

_STYLES: Final = {
    "ok": "green",
    "present": "green",
    "absent": "yellow",
    "expiring": "yellow",
    "risky": "yellow",
    "unknown": "dim",
    "broken": "red",
}
_OK: Final[Status] = "ok"
_BROKEN: Final[Status] = "broken"
_EXTRAS: Final = {
    "llama": ("llama-cpp-python", "llguidance"),
    "onnx": ("onnxruntime-genai", "tokenizers"),
    "cloud": ("httpx", "keyring"),
    "memory": ("onnxruntime", "tokenizers", "cryptography"),
    "postgres": ("psycopg", "psycopg-pool"),
    "encryption": ("sqlcipher3",),
    "privacy": ("phonenumbers", "python-stdnum"),
}
_PROBE: Final = StepRequest(
    messages=(Message.user("What is the mayor of Port Alder?"),), max_output_tokens=8, timeout=60.0, sensitivity=Sensitivity.PUBLIC
)
_REPLACE_CERTIFICATE: Final = "replace the file; a running server takes the new one without a restart"
_MACHINE: Final = "machine"
_SHOWN_MODELS: Final = 20
"""Models of one server that are listed."""
_GIB: Final = 1 << 30
_REBUILD: Final = "pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
_BUILDS: Final = {"NVIDIA": ("cuda", "-DGGML_CUDA=on"), "AMD": ("rocm", "-DGGML_HIP=on"), "Intel": ("vulkan", "-DGGML_VULKAN=on")}
"""For the first word of a GPU's name: the backend of llama.cpp that computes on it, and the option that builds it."""


class Checkup(Value):
    """The state of one thing that doctor looked at."""

    area: str
    name: str
    status: Status
    detail: str
    advice: str = ""
    """How to fix it; empty if there is nothing to do."""


class MachineLine(NamedTuple):
    """One line about the machine, and the note below it."""

    area: str
    name: str
    presence: str
    detail: str
    note: str = ""


@asynchronous
async def doctor(config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Show what is installed, what this machine has, what works, and how to fix the rest.

    Exits with code 1 if something that is configured or shipped does not work.
    """
    hardware = await probe_hardware()
    if not as_json:
        for line in hardware_lines(hardware):
            _print(*line)
    found = []
    async for each in _examine(config):
        found.append(each)
        if not as_json:
            _print(each.area, each.name, each.status, each.detail, each.advice)
    is_broken = any(each.status == "broken" for each in found)
    if as_json:
        data = {"findings": [each.model_dump() for each in found], "hardware": hardware.model_dump(mode="json")}
        print_json({**data, "healthy": not is_broken})
    if is_broken:
        raise typer.Exit(EXIT_FAILED)


def _print(area: str, name: str, status: str, detail: str, note: str) -> None:
    output.print(Text.assemble(f"{area:>8}  {name:<18} ", (f"{status:<8}", _STYLES[status]), f" {detail}"), soft_wrap=True)
    if note:
        output.print(Text(f"{'':>38}{note}", style="dim"), soft_wrap=True)


async def _examine(config: Path | None) -> AsyncIterator[Checkup]:
    for finding in (*_packages(), *tracing_findings(), *plugin_findings(), *_embedded_models(), *await server_findings()):
        yield finding
    try:
        loaded = options.read_config(config)
    except ConfigError as error:
        yield Checkup(area="config", name=str(config or "nearfar.toml"), status="broken", detail=error.message, advice=error.hint)
        return
    if loaded is None:
        advice = "optional; without one, the models that ship with nearfar are used"
        yield Checkup(area="config", name="nearfar.toml", status="absent", detail="none in this folder", advice=advice)
        loaded = Config.model_validate({"near": {}, "far": {"provider": "llama"}})
    for finding in (
        *_keys(),
        *plain_key_findings(loaded),
        *trust_findings(loaded),
        *certificate_findings(loaded),
        *threshold_findings(loaded),
    ):
        yield finding
    async for finding in _agents(loaded):
        yield finding


def plugin_findings() -> Iterator[Checkup]:
    """Load each installed plugin, and yield a finding about it. One that fails harms nothing until it is named."""
    for kind in KINDS:
        installed = find_plugins(kind)
        for plugin in installed:
            name, status, detail, advice = f"{kind}: {plugin.name}", _OK, plugin.distribution, ""
            try:
                _try_plugin(plugin, [other.name for other in installed])
            except ConfigError as error:
                status, detail, advice = _BROKEN, error.message, error.hint
            yield Checkup(area="plugins", name=name, status=status, detail=detail, advice=advice)


def _try_plugin(plugin: Plugin, names: Sequence[str]) -> None:
    """Raise `ConfigError` where a plugin cannot be used. `names`: of all plugins of its kind."""
    taken = (*TAKEN.get(plugin.kind, ()), *(Strategy if plugin.kind == "strategies" else ()))
    if plugin.name in taken:
        raise ConfigError(f"{plugin.described}: the name is taken by nearfar itself, so that it can never be used")
    if re.match(PLUGIN_NAME, plugin.name) is None:
        raise ConfigError(f"{plugin.described}: a name begins with a letter, and has letters, digits, _ and -")
    if names.count(plugin.name) > 1:
        find_plugin(plugin.kind, plugin.name)
    if plugin.kind == "tools":
        from ..hybrid.arguments import load_plugin_tools

        load_plugin_tools(plugin)
    elif plugin.kind == "strategies":
        from ..strategies.builders import plugin_builder

        plugin_builder(plugin)
    elif plugin.kind == "detectors":
        load_detector(plugin)
    elif not callable(made := plugin.load()):
        raise plugin.misfit("a function that returns an Agent", made)


def threshold_findings(config: Config) -> Iterator[Checkup]:
    """Yield a finding for each similarity threshold so low that only the guards keep two questions apart."""
    for key, value in (config.cache.low_thresholds if config.cache is not None else {}).items():
        detail = f"{key} = {value:g} serves cached answers to questions that differ much"
        yield Checkup(
            area="cache", name="[cache]", status="risky", detail=detail, advice=f"set {LEAST_THRESHOLD:g} or more, or leave it out"
        )


def plain_key_findings(config: Config) -> Iterator[Checkup]:
    """Yield a finding for each agent whose API key leaves this machine without TLS."""
    agents = ({} if config.far is None else {"far": config.far}) | {f"other_far.{name}": far for name, far in config.other_far.items()}
    for name, far in agents.items():
        if sends_key_in_plain_text(far):
            detail = "its key goes to base_url in plain text"
            advice = "use https, or a network on which everyone may read the key"
            yield Checkup(area="keys", name=f"[{name}]", status="risky", detail=detail, advice=advice)


async def server_findings() -> list[Checkup]:
    """Return a finding for each model of a server that runs on this machine, with the line that uses it; one if there is no server."""
    found = []
    for server in await find_servers():
        name = server.label
        chatting = [model for model in server.state.models if model.is_chat]
        for model in chatting[:_SHOWN_MODELS]:
            if model.remote_host:
                detail = f"{model.name} runs at {model.remote_host}, not on this machine"
                found.append(Checkup(area="servers", name=name, status="risky", detail=detail, advice="it is no near agent"))
                continue
            advice = f'nearfar run "..." --near {shlex.quote(server.line(model))}'
            found.append(Checkup(area="servers", name=name, status="ok", detail=f"{model.name} at {server.base_url}", advice=advice))
        if (more := len(chatting) - _SHOWN_MODELS) > 0:
            detail = f"{more} more models at {server.base_url}"
            found.append(Checkup(area="servers", name=name, status="ok", detail=detail, advice=""))
        if server.needs_key:
            advice = f'[near] provider = "{server.provider}", key_variable = "VARIABLE", if the server is yours'
            found.append(Checkup(area="servers", name=name, status="absent", detail=f"at {server.base_url}, asks for a key", advice=advice))
        elif not server.state.models:
            detail = f"at {server.base_url}, without a model"
            found.append(Checkup(area="servers", name=name, status="absent", detail=detail, advice="load or pull a model there"))
    none = Checkup(area="servers", name="near servers", status="absent", detail="no Ollama, LM Studio, llama-server or vLLM runs here")
    return found or [none]


def trust_findings(config: Config) -> Iterator[Checkup]:
    """Yield a finding for each near agent whose server is on another machine, which the configuration trusts with private text."""
    own = {} if config.near is None else {"near": config.near}
    for name, near in (own | {f"other_near.{name}": near for name, near in config.other_near.items()}).items():
        if isinstance(near, NearServerConfig) and near.trusted:
            yield from _trust_finding(f"[{name}]", near)


def _trust_finding(name: str, near: NearServerConfig) -> Iterator[Checkup]:
    try:
        url = near.located().base_url or ""
    except ConfigError as error:
        yield Checkup(area="privacy", name=name, status="broken", detail=error.message, advice=error.hint)
        return
    if near.is_elsewhere:
        is_plain = url.startswith("http:")
        detail = f"private text goes to {near.host}: trusted = true" + (", in plain text" if is_plain else "")
        advice = "use https, or a network on which everyone may read it" if is_plain else ""
        yield Checkup(area="privacy", name=name, status="risky" if is_plain else "ok", detail=detail, advice=advice)


def tracing_findings() -> Iterator[Checkup]:
    """Yield a finding for each environment variable that turns on LangChain's tracing."""
    for name in tracing_switches():
        yield Checkup(area="tracing", name=name, status="ok", detail="is set; nearfar sends nothing about tasks to LangSmith")
    for name in deadly_switches():
        yield Checkup(area="tracing", name=name, status="broken", detail="is set, so LangChain runs nothing", advice=f"unset {name}")


def price_findings(team: Iterable[AgentHandle], policy: Policy) -> Iterator[Checkup]:
    """Yield a finding for each agent whose price is unknown although a dollar limit applies to it."""
    for member in team:
        for found in unknown_prices(policy, {member.name: member.model} if member.is_unpriced else {}):
            yield Checkup(area="prices", name=member.name, status="risky", detail=found.problem, advice=found.hint)


def _packages() -> Iterator[Checkup]:
    detail = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Checkup(area="packages", name="python", status="ok", detail=detail)
    yield Checkup(area="packages", name="nearfar", status="ok", detail=version("nearfar"))
    for extra, names in _EXTRAS.items():
        missing = [name for name in names if _version(name) is None]
        found = ", ".join(f"{name} {_version(name)}" for name in names if name not in missing)
        without = f"without {', '.join(missing)}" if missing else ""
        detail = ", ".join(filter(None, (found, without)))
        advice = _how_to_add(extra) if missing else ""
        yield Checkup(area="packages", name=f"[{extra}]", status="absent" if missing else "ok", detail=detail, advice=advice)


def _how_to_add(extra: str) -> str:
    """Return the command that adds an extra. The environments of uvx and pipx have no pip."""
    if find_spec("pip") is not None:
        return f'"{sys.executable}" -m pip install "nearfar[{extra}]"'
    return f'start it with the extra: uvx --from "nearfar[{extra}]" nearfar, or pipx run --spec "nearfar[{extra}]" nearfar'


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _embedded_models() -> Iterator[Checkup]:
    for name in EMBEDDED:
        path = model_path(name)
        if path.is_file():
            engine = ", run by onnxruntime: llama.cpp is not installed" if runs_on_onnx(name) else ""
            detail = f"{path.stat().st_size / 1e6:.1f} MB, knows the worlds search and apps only{engine}"
            yield Checkup(area="models", name=name, status="ok", detail=detail)
        else:
            yield Checkup(area="models", name=name, status="broken", detail="missing from the installation", advice="reinstall nearfar")


def _keys() -> Iterator[Checkup]:
    for variable, is_set in provider_keys().items():
        try:
            present = is_set()
        except ConfigError as error:
            yield Checkup(area="keys", name=variable, status="broken", detail=error.message, advice=error.hint)
            continue
        status: Status = "ok" if present else "absent"
        advice = "" if present else f"if you use this provider: {how_to_set(variable)}, where the gateway runs"
        yield Checkup(area="keys", name=variable, status=status, detail="set" if present else "not set", advice=advice)


async def _agents(config: Config) -> AsyncIterator[Checkup]:
    """Open each configured agent and let it take one real step. A paid provider is opened but not asked."""
    from ..hybrid import Hybrid

    try:
        async with Hybrid.from_config(config) as hybrid:
            for member in hybrid.pool:
                yield await _try_out(member)
            for finding in price_findings(hybrid.pool, config.policy):
                yield finding
    except NearfarError as error:
        yield Checkup(area="config", name="opening agents", status="broken", detail=error.message, advice=error.hint)


async def _try_out(member: AgentHandle) -> Checkup:
    try:
        agent = await member.open()
        card = agent.card
        detail = f"{card.model}, context {card.limits.context_tokens or 'unknown'}"
        if card.execution is not None:
            detail += f", on {_running(card.execution)}"
        if card.prices is not None and card.prices.output == 0:
            reply = await complete(agent, _PROBE)
            detail += f", answered with {reply.finished.usage.output_tokens} tokens"
        return Checkup(area="agents", name=member.name, status="ok", detail=detail)
    except NearfarError as error:
        return Checkup(area="agents", name=member.name, status="broken", detail=error.message, advice=error.hint)


def _running(execution: Execution) -> str:
    """Return the processor and engine that a model runs on."""
    offloaded = f", {execution.offloaded_layers} of {execution.layers} layers" if execution.offloaded_layers else ""
    without = f", extra buffer types are off: {execution.extra_buffers_off}" if execution.extra_buffers_off else ""
    return f"{execution.provider} ({execution.engine}{offloaded}){without}"


def certificate_findings(config: Config) -> Iterator[Checkup]:
    """Yield a finding for each certificate that the configuration names."""
    for name, (certificate, key) in _own_certificates(config).items():
        yield _examine_certificate(name, certificate, key)
    for name, roots in _trusted_certificates(config).items():
        yield _examine_certificate(name, roots, None)


def _examine_certificate(name: str, certificate: Path, key: Path | None) -> Checkup:
    """Check a certificate with its key or, if `key` is None, a file of trusted certificates."""
    if key is not None and not certificate.exists() and not key.exists():
        missing = f"neither {certificate} nor {key} exists"
        return Checkup(area="tls", name=name, status="absent", detail=missing, advice="for a hub, `nearfar worker pair` makes them")
    try:
        pem = read_roots(certificate) if key is None else read_pair(certificate, key)[1]
        validity = validity_of(first_certificate(pem))
    except ConfigError as error:
        return Checkup(area="tls", name=name, status="broken", detail=error.message, advice=error.hint)
    now = datetime.now(UTC)
    status: Status = "broken" if validity.ends <= now else "expiring" if validity.is_ending(now) else "ok"
    advice = "" if status == "ok" else _REPLACE_CERTIFICATE
    return Checkup(area="tls", name=name, status=status, detail=f"{certificate} {expiry(validity.ends, now)}", advice=advice)


def _own_certificates(config: Config) -> Mapping[str, tuple[Path, Path]]:
    """Return the certificates that this machine shows to others, with their keys, by section."""
    found = {name: (section.client_certificate, section.client_key) for name, section in _clients(config).items()}
    if config.hub is not None:
        found["hub"] = (config.hub.certificate, config.hub.key)
    return {f"[{name}]": (certificate, key) for name, (certificate, key) in found.items() if certificate is not None and key is not None}


def _trusted_certificates(config: Config) -> Mapping[str, Path]:
    """Return the files of certificates that this machine trusts, by section and key."""
    found = {f"[{name}] certificate": section.certificate for name, section in _clients(config).items()}
    if config.hub is not None:
        found["[hub] client_authority"] = config.hub.client_authority
    return {name: path for name, path in found.items() if path is not None}


def _clients(config: Config) -> Mapping[str, GatewayConfig | PeerConfig]:
    """Return the sections that name a server, by name."""
    agents = {"far": config.far, **{f"other_far.{name}": far for name, far in config.other_far.items()}}
    gateways = {name: far for name, far in agents.items() if isinstance(far, GatewayConfig)}
    peers = {} if config.memory is None else {f"memory.peers.{name}": peer for name, peer in config.memory.peers.items()}
    return {**gateways, **peers}


def hardware_lines(hardware: "Hardware") -> Iterator[MachineLine]:
    """Yield the lines about the machine itself, then those about its engines."""
    yield _cpu(hardware.cpu)
    memory, battery, power, heat = hardware.memory, hardware.battery, hardware.power, hardware.heat
    yield MachineLine(_MACHINE, "memory", memory.presence, _free(memory) or memory.reason)
    for accelerator in (*hardware.gpus, *hardware.npus):
        yield _accelerator(accelerator, hardware)
    yield MachineLine(_MACHINE, "battery", battery.presence, battery.reason if battery.charge is None else f"{battery.charge:.0%}")
    yield MachineLine(_MACHINE, "power source", power.presence, power.source or power.reason)
    hottest = max((sensor.celsius for sensor in heat.sensors), default=None)
    degrees = "" if hottest is None else f"; the hottest sensor shows {hottest:.0f} \N{DEGREE SIGN}C"
    yield MachineLine(_MACHINE, "heat", heat.presence, (heat.thermal or heat.reason) + degrees)
    for reader in hardware.energy:
        yield MachineLine("energy", reader.name, reader.presence, reader.reason)
    for engine in hardware.engines:
        yield from _engine(engine)


def _cpu(cpu: "Cpu") -> MachineLine:
    cores = f"{cpu.physical_cores or '?'} cores, {cpu.logical_cores or '?'} threads, {cpu.usable_cores} usable"
    return MachineLine(_MACHINE, "cpu", cpu.presence, f"{cpu.model or cpu.architecture}: {cores}", " ".join(cpu.features))


def _free(memory: "Memory") -> str:
    if memory.free_bytes is None or memory.total_bytes is None:
        return ""
    limited = "" if memory.limit_bytes is None else f", and {memory.limit_bytes / _GIB:.1f} for this process"
    return f"{memory.free_bytes / _GIB:.1f} GiB free of {memory.total_bytes / _GIB:.1f}{limited}"


def _accelerator(accelerator: "Accelerator", hardware: "Hardware") -> MachineLine:
    name = "npu" if accelerator.kind == "npu" else "gpu"
    if accelerator.presence != "present":
        return MachineLine(_MACHINE, name, accelerator.presence, accelerator.reason)
    backend, flag = _BUILDS.get(accelerator.name.split()[0], ("", ""))
    usable = {provider.name for engine in hardware.engines for provider in engine.providers if provider.presence == "present"}
    wants_build = name == "gpu" and backend and backend not in usable
    advice = f'no engine computes on it: CMAKE_ARGS="{flag}" {_REBUILD}'
    driver = f"driver {accelerator.driver}" if accelerator.driver else "without a driver"
    return MachineLine(_MACHINE, name, accelerator.presence, f"{accelerator.name}, {driver}", advice if wants_build else "")


def _engine(engine: "InferenceEngine") -> Iterator[MachineLine]:
    if engine.presence != "present":
        yield MachineLine("engines", engine.name, engine.presence, engine.reason)
    for (presence, reason), providers in groupby(engine.providers, key=lambda each: (each.presence, each.reason)):
        yield MachineLine("engines", engine.name, presence, _providers(providers, "" if presence == "present" else f": {reason}"))


def _providers(providers: Iterable["EngineProvider"], suffix: str) -> str:
    return ", ".join(_provider(provider) for provider in providers) + suffix


def _provider(provider: "EngineProvider") -> str:
    memory = "" if provider.free_memory_bytes is None else f", {provider.free_memory_bytes / _GIB:.1f} GiB free"
    return f"{provider.name} ({provider.device}{memory})" if provider.device else provider.name
