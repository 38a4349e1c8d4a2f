"""Serve the configured agents over HTTP, as a console in the browser, and to A2A clients, with traces exported to OpenTelemetry."""

import asyncio
import gc
import logging
import os
import secrets
import sys
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import anyio
import typer

from ...protocols import ConfigError
from ...protocols.address import Address
from ...protocols.limits import ask_for_open_files
from ...protocols.security import Scope, TokenRecord, hashed
from ...protocols.token_file import follow_tokens, load_tokens
from ..compose import caller_tokens
from ..compose.config import Config
from ..compose.gateway_process import ask_providers_here
from ..compose.hub import ServeConfig
from ..compose.policy_file import PolicyFile
from ..task.stores import RunsConfig
from ..tracing.telemetry import instrument
from ..util.runtime import in_thread
from . import options
from .running import Line, Note, asynchronous, load_langgraph, notes, show
from .selection import chosen_config, open_hybrid

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

    from ..a2a import A2aServer
    from ..console.view import BrowserLogins
    from ..hybrid import Hybrid
    from ..serve import Front

_OTLP: Final = "OTEL_EXPORTER_OTLP_"
_PROTOCOL: Final = "http/protobuf"


@asynccontextmanager
async def exporting(hybrid: "Hybrid") -> AsyncIterator[None]:
    """Export the spans and metrics of a server's tasks within the block, without texts, by OTLP over HTTP; what is left when it ends, too.

    Nothing is exported where no variable names an endpoint. Raises `ConfigError` for another protocol, and for missing packages.
    """
    places = {signal: endpoint for signal in ("TRACES", "METRICS") if (endpoint := _endpoint(signal))}
    if not places:
        yield
        return
    try:
        spans = _tracer_provider() if "TRACES" in places else None
        meters = _meter_provider() if "METRICS" in places else None
    except ImportError as error:
        hint = f"pip install 'nearfar[otel]', or unset {_OTLP}ENDPOINT"
        raise ConfigError("exporting spans needs OpenTelemetry's SDK and exporter", hint=hint) from error
    async with AsyncExitStack() as stack:
        if spans is not None:
            stack.push_async_callback(in_thread, spans.shutdown)
        if meters is not None:
            stack.push_async_callback(in_thread, meters.shutdown)
        instrument(hybrid, tracer_provider=spans, meter_provider=meters)
        for signal, endpoint in places.items():
            notes.print(f"{signal.lower()} are exported to {urlsplit(endpoint).hostname}", style="dim")
        yield


def _endpoint(signal: str) -> str:
    """Return where a signal is exported to; empty: nowhere. Raises `ConfigError` for a protocol that is not spoken here."""
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp") != "otlp"
    endpoint = "" if is_off else _variable(signal, "ENDPOINT")
    protocol = _variable(signal, "PROTOCOL") or _PROTOCOL
    if endpoint and protocol != _PROTOCOL:
        raise ConfigError(f"spans and metrics are not exported by {protocol}", hint=f"{_OTLP}PROTOCOL={_PROTOCOL}, usually at port 4318")
    return endpoint


def _variable(signal: str, name: str) -> str:
    return os.environ.get(f"{_OTLP}{signal}_{name}") or os.environ.get(f"{_OTLP}{name}", "")


def _tracer_provider() -> "TracerProvider":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    _name_service()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _meter_provider() -> "MeterProvider":
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    _name_service()
    return MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], shutdown_on_exit=False)


def _name_service() -> None:
    """Let backends show this program by its name, unless the user has named it."""
    if "service.name" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        os.environ.setdefault("OTEL_SERVICE_NAME", "nearfar")


_CALLER: Final = "local"
"""Name of the caller that the token of a server without a token file is made for."""
_PACKAGES: Final = ("starlette", "uvicorn")


@asynchronous
async def serve_http(
    config: options.Config = None,
    near: options.Near = None,
    far: options.Far = None,
    tools: options.Tools = None,
    strategy: options.StrategyName = None,
    mode: options.ModeName = None,
    public: options.Public = False,
    address: Annotated[str, typer.Option(help="HOST:PORT (port 0: any free one). Default: [serve] address.")] = "",
    certificate: options.Certificate = None,
    key: options.PrivateKey = None,
    tokens: Annotated[
        Path | None, typer.Option(help="File of tokens, see `serve token`. Default: [serve] tokens, else one token is made and printed.")
    ] = None,
    drain: options.Drain = 30.0,
    as_json: options.AsJson = False,
) -> None:
    """Let clients of OpenAI and Anthropic have their turns served, until Ctrl-C or SIGTERM."""
    selection = options.AgentChoice(config, near, far, strategy, mode, public, tools)
    chosen = _chosen(selection, address=address, certificate=certificate, key=key, tokens=tokens)
    await _serve(selection, chosen, drain, as_json=as_json)


@asynchronous
async def serve_console(
    config: options.Config = None,
    near: options.Near = None,
    far: options.Far = None,
    tools: options.Tools = None,
    strategy: options.StrategyName = None,
    mode: options.ModeName = None,
    public: options.Public = False,
    address: Annotated[str, typer.Option(help="HOST:PORT (port 0: any free one). Default: [serve] address.")] = "",
    certificate: options.Certificate = None,
    key: options.PrivateKey = None,
    drain: options.Drain = 5.0,
    as_json: options.AsJson = False,
) -> None:
    """Show pages of what this machine's agents do: chat, runs, approvals, policy, money, memory, devices. A one-time link opens them.

    The same process serves what `serve http` serves.
    """
    selection = options.AgentChoice(config, near, far, strategy, mode, public, tools)
    chosen = _chosen(selection, address=address, certificate=certificate, key=key)
    chosen = chosen.model_copy(update={"runs": chosen.runs or RunsConfig()})
    overrides = selection.strategy or selection.mode or selection.public
    file = None if overrides else options.config_file(config)
    async with open_hybrid(selection, chosen, policy=None if file is None else PolicyFile(file)) as hybrid:
        await open_console(hybrid, chosen, drain, as_json=as_json, file=file)


def _chosen(selection: options.AgentChoice, *, address: str, **given: Path | None) -> Config:
    """Return the configuration, with what the options say about serving in its place. Raises `ConfigError` without the packages."""
    if any(find_spec(package) is None for package in _PACKAGES):
        raise ConfigError("serving HTTP needs starlette and uvicorn", hint="pip install 'nearfar[serve]'")
    config = chosen_config(selection)
    update = {name: value for name, value in {"address": address or None, **given}.items() if value is not None}
    ask_for_open_files()
    return config.model_copy(update={"serve": config.serve.model_copy(update=update)})


async def open_console(
    hybrid: "Hybrid", config: Config, seconds: float, *, as_json: bool, file: Path | None = None, opens: bool = False
) -> None:
    """Serve the console of a `hybrid` until Ctrl-C or SIGTERM, and print the link to it. `opens`: also open it in a browser."""
    from ..console import console_around

    load_langgraph()
    async with (
        AsyncExitStack() as stack,  # outlives the next blocks, the last of which serves until it is stopped
        console_around(hybrid, config, config.serve, file) as (logins, front),
        _served(hybrid, config, seconds, front) as (url, made),
    ):
        link = _link(url, logins)
        once = Note("open this link in a browser; it works once, within ten minutes:", "")
        stop = Note("press Enter for another link, stop with Ctrl-C" if _owns_terminal() and not as_json else "stop with Ctrl-C")
        show({"url": url, "link": link, "token": made or None}, [once, link, stop], as_json=as_json)
        if not as_json:
            stack.enter_context(_at_enter(lambda: show({}, [_link(url, logins)], as_json=False)))
        if opens:
            await in_thread(webbrowser.open, link)


def _link(url: str, logins: "BrowserLogins") -> str:
    return f"{url}/console/enter?key={logins.link()}"


@contextmanager
def _at_enter(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` each time that Enter is pressed in this process's terminal; never without one, and on Windows."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        if not _owns_terminal():
            return  # the keys are another process's: reading them would stop this one
        if sys.stdin.readline():
            act()
        else:
            loop.remove_reader(sys.stdin)  # its end

    if not _owns_terminal():
        yield
        return
    loop.add_reader(sys.stdin, read)
    try:
        yield
    finally:
        loop.remove_reader(sys.stdin)


def _owns_terminal() -> bool:
    """Standard input is a terminal, and this process is the one in front of it."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        return False
    return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()


async def _serve(selection: options.AgentChoice, config: Config, seconds: float, *, as_json: bool) -> None:
    load_langgraph()
    async with open_hybrid(selection, config) as hybrid, _served(hybrid, config, seconds) as (url, made):
        gc.collect()
        gc.freeze()  # what is loaded now lives as long as the server: no collection needs to look at it again
        agents = [handle.name for handle in hybrid.pool]
        show({"url": url, "agents": agents, "token": made or None}, _lines(url, agents, made), as_json=as_json)


@asynccontextmanager
async def _served(hybrid: "Hybrid", config: Config, seconds: float, front: "Front | None" = None) -> AsyncIterator[tuple[str, str]]:
    """Serve a `hybrid`; yield the URL and the token that was made, if none is configured; then serve on until Ctrl-C or SIGTERM."""
    from ..serve import Front, serve_hybrid
    from .serve import drain, log_to_stderr, until_stopped

    serve = config.serve
    log_to_stderr()
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    made = "" if serve.tokens is not None else secrets.token_hex(32)
    records = load_tokens(serve.tokens) if serve.tokens is not None else (_record(made),)
    async with (
        exporting(hybrid),
        serve_hybrid(hybrid, serve, tokens=records, drain=seconds, front=front or Front()) as server,
        anyio.create_task_group() as tasks,
    ):
        ask_providers_here(hybrid.pool, {"far": config.far, **config.other_far})
        if serve.tokens is not None:
            tasks.start_soon(follow_tokens, serve.tokens, server.access.replace_tokens)
        yield server.address, made
        await until_stopped()
        await drain(server.drain(), f"{server.live_requests} requests", seconds)
        server.end_now()
        tasks.cancel_scope.cancel()


def _record(token: str) -> TokenRecord:
    return TokenRecord(id=_CALLER, caller=_CALLER, digest=hashed(token), scopes=frozenset({Scope.TASKS, Scope.METRICS}))


def _lines(url: str, agents: list[str], token: str) -> Iterator[Line]:
    yield Note(f"serving {', '.join(agents)} at {url}; callers need a token", "")
    yield Note("to point OpenAI's or Anthropic's clients at it, with the model nearfar/auto:", "")
    shown = token or "TOKEN"
    yield f"export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={shown}"
    yield f"export ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN={shown}"
    yield Note("stop with Ctrl-C")


_MISSING: Final = "serving A2A needs the Python package a2a-sdk"


@asynchronous
async def serve_a2a(
    config: options.Config = None,
    near: options.Near = None,
    far: options.Far = None,
    tools: options.Tools = None,
    strategy: options.StrategyName = None,
    mode: options.ModeName = None,
    public: options.Public = False,
    host: Annotated[str, typer.Option(help="Host name or address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of JSON-RPC and HTTP+JSON; 0: any free one.")] = 7447,
    grpc_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of gRPC; 0: any free one.")] = 7448,
    certificate: options.Certificate = None,
    key: options.PrivateKey = None,
    tokens: options.TokenFile = None,
    insecure: options.Insecure = False,
    drain: options.Drain = 5.0,
    as_json: options.AsJson = False,
) -> None:
    """Let other agents give tasks to this one, by A2A 1.0, until Ctrl-C or SIGTERM. Every task is a durable run.

    What a caller may do stands in [serve.callers.NAME].
    """
    selection = options.AgentChoice(config, near, far, strategy, mode, public, tools)
    if find_spec("a2a") is None:
        raise ConfigError(_MISSING, hint="pip install 'nearfar[a2a]'")
    from ..a2a import serve_a2a as serving
    from .serve import until_stopped

    loaded = chosen_config(selection)
    if loaded.runs is None:
        loaded = loaded.model_copy(update={"runs": RunsConfig()})
    settings = _settings(loaded.serve, certificate, key)
    found = caller_tokens(tokens or settings.tokens)
    where = Address(host=host, port=port)
    async with (
        open_hybrid(selection, loaded) as hybrid,
        exporting(hybrid),
        serving(hybrid, settings, address=where, grpc_port=grpc_port, tokens=found, insecure=insecure, drain=drain) as server,
        anyio.create_task_group() as tasks,
    ):
        _announce(server, as_json=as_json)
        if (file := tokens or settings.tokens) is not None:
            tasks.start_soon(follow_tokens, file, server.access.replace_tokens)
        await until_stopped()
        tasks.cancel_scope.cancel()


def _settings(settings: ServeConfig, certificate: Path | None, key: Path | None) -> ServeConfig:
    """Return the `[serve]` section with the options applied. Raises `ConfigError` for one of two files."""
    given = settings.model_copy(update={name: file for name, file in (("certificate", certificate), ("key", key)) if file is not None})
    if (given.certificate is None) != (given.key is None):
        raise ConfigError("a certificate and its key belong together", hint="give --certificate and --key")
    return given


def _announce(server: "A2aServer", *, as_json: bool) -> None:
    is_open = server.access.authenticator.is_open
    guard = "any local process may call it; --tokens FILE changes that" if is_open else "callers need a token"
    told = f"serving A2A at {server.url} and, by gRPC, at {server.grpc_address} ({guard}); stop with Ctrl-C"
    show({"url": server.url, "grpc": server.grpc_address, "token": not is_open}, [Note(told, "")], as_json=as_json)
