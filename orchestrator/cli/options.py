"""The options that commands share."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..hybrid.arguments import TaskOptions

Config = Annotated[Path | None, typer.Option("--config", "-c", help="Configuration file; ./nearfar.toml unless given.", show_default=False)]
Near = Annotated[str | None, typer.Option(help="Model on this device: a name of `nearfar models list`, a GGUF file, or an ONNX folder.")]
Far = Annotated[
    str | None,
    typer.Option(help="Model in the cloud: openai:MODEL, anthropic:MODEL, gemini:MODEL, gateway:HOST:PORT, a GGUF file, or `far`."),
]
StrategyName = Annotated[
    str | None, typer.Option("--strategy", "-s", help="device, cloud, route, cascade, pevr, eva, minions, subtasks or auto.")
]
ModeName = Annotated[
    str | None, typer.Option("--mode", "-m", help="only_on_device, prefer_on_device, auto, prefer_in_cloud or only_in_cloud.")
]
Public = Annotated[bool, typer.Option("--public", help="The task's text may leave this device. Without it, it does not.")]
TaskClass = Annotated[str, typer.Option("--class", help="What the task is, from coarse to fine: billing/refund. For rules and learning.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="A word that rules can ask for; may be repeated.")]
Tools = Annotated[Path | None, typer.Option(help="Python file whose @tool functions the agents may call.")]
RunName = Annotated[str | None, typer.Argument(help="Its id, or the beginning of it, as `nearfar runs list` shows it.", show_default=False)]
Last = Annotated[bool, typer.Option("--last", help="The newest run.")]
Traces = Annotated[Path, typer.Option("--traces", help="Recorded outcomes: traces, a router's log, or the runs of a sweep.")]
NearAgents = Annotated[
    list[str] | None, typer.Option("--near-agent", help="Agent of the traces that is near; may be repeated. Else as configured.")
]
FarAgents = Annotated[list[str] | None, typer.Option("--far-agent", help="Agent of the traces that is far; may be repeated.")]
WordsOnly = Annotated[bool, typer.Option("--words-only", help="Look at the words of prompts, and not at their meaning: faster.")]
Seed = Annotated[int, typer.Option(help="Of the parts that the traces are divided into.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Address = Annotated[str, typer.Option(help="HOST:PORT (port 0: any free one) or unix:/path.")]
Certificate = Annotated[Path | None, typer.Option(help="TLS certificate chain (PEM); needed for any address off loopback.")]
PrivateKey = Annotated[Path | None, typer.Option("--key", help="Private key of the certificate (PEM).")]
ClientAuthority = Annotated[
    Path | None, typer.Option(help="Authorities (PEM) of which every client must show a certificate; without it, a token is enough.")
]
ClientCertificate = Annotated[Path | None, typer.Option(help="This device's own certificate (PEM), where the other side demands one.")]
ClientKey = Annotated[Path | None, typer.Option(help="Private key of the own certificate (PEM).")]
TokenFile = Annotated[
    Path | None,
    typer.Option("--tokens", help="File of tokens, see `serve token`; else $NEARFAR_GATEWAY_TOKENS (caller=token,...)."),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Plain text. Refused for any address but loopback and unix sockets.")]


Drain = Annotated[float, typer.Option(min=0, help="Seconds that running steps get to finish after Ctrl-C or SIGTERM.")]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which agents, tools and policy a command works with."""

    config: Path | None
    near: str | None
    far: str | None
    strategy: str | None
    mode: str | None
    public: bool
    tools: Path | None

    @property
    def stated(self) -> "TaskOptions":
        """What was said on the command line, which stands above rules that merely prefer something."""
        given: TaskOptions = {}
        if self.strategy is not None:
            given["strategy"] = self.strategy
        if self.mode is not None:
            given["mode"] = self.mode
        return given


@dataclass(frozen=True, slots=True)
class Files:
    """What a task is given as files."""

    context: Path | None
    schema: Path | None


@dataclass(frozen=True, slots=True)
class Listening:
    """Where and how a server listens."""

    address: str
    certificate: Path | None
    key: Path | None
    tokens: Path | None
    insecure: bool
    client_authority: Path | None = None


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """Which memory a command works on."""

    store: str | None
    """A path or `postgres://...`, in place of `[memory]`."""
    config: Path | None
