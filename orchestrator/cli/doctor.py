"""`nearfar doctor`: what is installed, what this machine has, what works, and what to do about the rest."""

import platform
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.text import Text

from ...protocols import ConfigError, Execution, NearfarError, Sensitivity, StepRequest, complete
from ...protocols.messages import Message
from ..agents.pool import AgentHandle
from ..compose.agents import EMBEDDED, model_path, probe_hardware, provider_keys, sends_key_in_plain_text
from ..compose.config import Config
from ..hybrid.hybrid import Hybrid
from ..routing.check import unknown_prices
from ..task.sections.cache import LEAST_THRESHOLD
from ..task.task import Policy
from ..util.untraced import deadly_switches, tracing_switches
from .configuration import read_config
from .console import EXIT_FAILED, execute, output, print_json
from .doctor_certificates import certificate_findings
from .doctor_hardware import hardware_lines
from .finding import Finding, Status

_STYLES = {
    "ok": "green",
    "present": "green",
    "absent": "yellow",
    "expiring": "yellow",
    "risky": "yellow",
    "unknown": "dim",
    "broken": "red",
}
_EXTRAS = {
    "llama": ("llama-cpp-python", "llguidance"),
    "onnx": ("onnxruntime-genai", "tokenizers"),
    "cloud": ("httpx", "keyring"),
    "memory": ("onnxruntime", "tokenizers", "cryptography"),
    "postgres": ("psycopg", "psycopg-pool"),
    "encryption": ("sqlcipher3",),
    "privacy": ("phonenumbers", "python-stdnum"),
}


def run_doctor(*, config: Path | None, as_json: bool) -> None:
    """Print the findings; exit with an error where something that was configured or shipped does not work."""
    broken = False

    async def work() -> None:
        nonlocal broken
        hardware = await probe_hardware()
        if not as_json:
            for line in hardware_lines(hardware):
                _print(*line)
        findings = []
        async for finding in _examine(config):
            findings.append(finding)
            if not as_json:
                _print(finding.area, finding.name, finding.status, finding.detail, finding.advice)
        broken = any(finding.status == "broken" for finding in findings)
        if as_json:
            found = {"findings": [finding.model_dump() for finding in findings], "hardware": hardware.model_dump(mode="json")}
            print_json({**found, "healthy": not broken})

    execute(work(), as_json=as_json)
    if broken:
        raise SystemExit(EXIT_FAILED)


async def _examine(config: Path | None) -> AsyncIterator[Finding]:
    for finding in (*_packages(), *tracing_findings(), *_embedded_models()):
        yield finding
    try:
        loaded = read_config(config)
    except ConfigError as error:
        yield Finding(area="config", name=str(config or "nearfar.toml"), status="broken", detail=error.message, advice=error.hint)
        return
    if loaded is None:
        advice = "optional; the models that ship with nearfar are used without one"
        yield Finding(area="config", name="nearfar.toml", status="absent", detail="none in this folder", advice=advice)
        loaded = Config.model_validate({"near": {}, "far": {"provider": "llama"}})
    for finding in (*_keys(), *plain_key_findings(loaded), *certificate_findings(loaded), *threshold_findings(loaded)):
        yield finding
    async for finding in _sides(loaded):
        yield finding


def threshold_findings(config: Config) -> Iterator[Finding]:
    """Yield a finding for each threshold at which the guards alone stand between two questions."""
    for key, value in (config.cache.low_thresholds if config.cache is not None else {}).items():
        detail = f"{key} = {value:g} serves answers to questions that are not close"
        yield Finding(
            area="cache", name="[cache]", status="risky", detail=detail, advice=f"set {LEAST_THRESHOLD:g} or more, or leave it out"
        )


def plain_key_findings(config: Config) -> Iterator[Finding]:
    """Yield a finding for each agent whose key leaves this machine without TLS."""
    agents = ({} if config.far is None else {"far": config.far}) | {f"other_far.{name}": far for name, far in config.other_far.items()}
    for name, far in agents.items():
        if sends_key_in_plain_text(far):
            detail = "its key goes to base_url in plain text"
            advice = "use https, or a network whose every member may have the key"
            yield Finding(area="keys", name=f"[{name}]", status="risky", detail=detail, advice=advice)


def tracing_findings() -> Iterator[Finding]:
    """Yield a finding for each variable by which LangChain's tracing is on in this environment."""
    for name in tracing_switches():
        yield Finding(area="tracing", name=name, status="ok", detail="is set; LangSmith hears nothing of tasks all the same")
    for name in deadly_switches():
        yield Finding(
            area="tracing", name=name, status="broken", detail="is set, with which LangChain runs nothing", advice=f"unset {name}"
        )


def price_findings(team: Iterable[AgentHandle], policy: Policy) -> Iterator[Finding]:
    """Yield a finding for each agent whose price is unknown where a dollar limit holds."""
    for member in team:
        for found in unknown_prices(policy, {member.name: member.model} if member.is_unpriced else {}):
            yield Finding(area="prices", name=member.name, status="risky", detail=found.problem, advice=found.hint)


def _packages() -> Iterator[Finding]:
    detail = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Finding(area="packages", name="python", status="ok", detail=detail)
    yield Finding(area="packages", name="nearfar", status="ok", detail=version("nearfar"))
    for extra, names in _EXTRAS.items():
        missing = [name for name in names if _version(name) is None]
        found = ", ".join(f"{name} {_version(name)}" for name in names if name not in missing)
        advice = f'"{sys.executable}" -m pip install "nearfar[{extra}]"' if missing else ""
        status: Status = "absent" if missing else "ok"
        yield Finding(area="packages", name=f"[{extra}]", status=status, detail=found or f"without {', '.join(missing)}", advice=advice)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _embedded_models() -> Iterator[Finding]:
    for name in EMBEDDED:
        path = model_path(name)
        if path.is_file():
            yield Finding(area="models", name=name, status="ok", detail=f"{path.stat().st_size / 1e6:.1f} MB, search world only")
        else:
            yield Finding(area="models", name=name, status="broken", detail="not in the installation", advice="reinstall nearfar")


def _keys() -> Iterator[Finding]:
    for variable, is_set in provider_keys().items():
        try:
            present = is_set()
        except ConfigError as error:
            yield Finding(area="keys", name=variable, status="broken", detail=error.message, advice=error.hint)
            continue
        status: Status = "ok" if present else "absent"
        advice = "" if present else f"export {variable}=... where the gateway runs, if you use this provider"
        yield Finding(area="keys", name=variable, status=status, detail="set" if present else "not set", advice=advice)


async def _sides(config: Config) -> AsyncIterator[Finding]:
    """Open what is configured and let each side take one real step; a paid provider is opened but not asked."""
    try:
        async with Hybrid.from_config(config) as hybrid:
            for member in hybrid.pool:
                yield await _member(member)
            for finding in price_findings(hybrid.pool, config.policy):
                yield finding
    except NearfarError as error:
        yield Finding(area="config", name="what it opens", status="broken", detail=error.message, advice=error.hint)


async def _member(member: AgentHandle) -> Finding:
    try:
        agent = await member.open()
        card = agent.card
        detail = f"{card.model}, context {card.limits.context_tokens or 'unknown'}"
        if card.execution is not None:
            detail += f", on {_running(card.execution)}"
        if card.prices is not None and card.prices.output == 0:
            reply = await complete(agent, _PROBE)
            detail += f", answered with {reply.finished.usage.output_tokens} tokens"
        return Finding(area="agents", name=member.name, status="ok", detail=detail)
    except NearfarError as error:
        return Finding(area="agents", name=member.name, status="broken", detail=error.message, advice=error.hint)


def _running(execution: Execution) -> str:
    """What really runs a model."""
    offloaded = f", {execution.offloaded_layers} of {execution.layers} layers" if execution.offloaded_layers else ""
    without = f", extra buffer types are off: {execution.extra_buffers_off}" if execution.extra_buffers_off else ""
    return f"{execution.provider} ({execution.engine}{offloaded}){without}"


_PROBE = StepRequest(
    messages=(Message.user("What is the mayor of Port Alder?"),), max_output_tokens=8, timeout=60.0, sensitivity=Sensitivity.PUBLIC
)


def _print(area: str, name: str, status: str, detail: str, note: str) -> None:
    output.print(Text.assemble(f"{area:>8}  {name:<18} ", (f"{status:<8}", _STYLES[status]), f" {detail}"), soft_wrap=True)
    if note:
        output.print(Text(f"{'':>38}{note}", style="dim"), soft_wrap=True)
