"""`nearfar serve a2a`: be an agent of the A2A protocol."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import anyio
import typer

from ...protocols import ConfigError
from ...protocols.address import Address
from ...protocols.token_file import follow_tokens
from ..compose.agents import caller_tokens
from ..compose.http import ServeConfig
from ..task.stores import RunsConfig
from . import options
from .printing import Note, show
from .running import execute
from .selection import chosen_config, open_hybrid
from .telemetry import exporting

if TYPE_CHECKING:
    from ..a2a.server import A2aServer

_MISSING: Final = "serving A2A needs the Python package a2a-sdk"


def serve_a2a(
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

    async def work() -> None:
        if find_spec("a2a") is None:
            raise ConfigError(_MISSING, hint="pip install 'nearfar[a2a]'")
        from ..a2a.server import serve_a2a as serving
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

    execute(work(), as_json=as_json)


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
