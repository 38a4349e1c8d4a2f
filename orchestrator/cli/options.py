"""The options that several commands share, and small records of what was given for them."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Protocol, TypeVar

import typer

from ...protocols import ConfigError, InvalidRequest, UserError
from ..util.text import spell_out

if TYPE_CHECKING:
    from ..compose.config import Config as NearfarConfig
    from ..hybrid.arguments import TaskOptions

DEFAULT_CONFIG: Final = Path("nearfar.toml")
Section = TypeVar("Section")
Name = TypeVar("Name", bound=StrEnum)
_SHOWN: Final = 5
"""Number of ids that an error lists."""

Prompt = Annotated[str, typer.Argument(help="The task. `-` reads it from standard input.")]
Config = Annotated[
    Path | None, typer.Option("--config", "-c", help="Configuration file. Default: ./nearfar.toml, if it exists.", show_default=False)
]
Near = Annotated[
    str | None,
    typer.Option(
        help="Model on this device: ollama:MODEL, lmstudio:MODEL, llama-server:, vllm:MODEL, the URL of a server, a name from "
        "`nearfar models list`, a GGUF file, or a folder with an ONNX model."
    ),
]
Far = Annotated[
    str | None,
    typer.Option(
        help="Model in the cloud: openai:MODEL, anthropic:MODEL, gemini:MODEL, gateway:HOST:PORT, the URL of an API, a GGUF file, or `far`."
    ),
]
StrategyName = Annotated[
    str | None, typer.Option("--strategy", "-s", help="device, cloud, route, cascade, pevr, eva, minions, subtasks, speculate or auto.")
]
ModeName = Annotated[
    str | None, typer.Option("--mode", "-m", help="only_on_device, prefer_on_device, auto, prefer_in_cloud or only_in_cloud.")
]
EffortShare = Annotated[
    str | None,
    typer.Option("--effort", help="How long models think: none, minimal, low, medium, high, xhigh, max, or 0.1 to 2 times the usual."),
]
Public = Annotated[bool, typer.Option("--public", help="Allow the text of the task to leave this device. Without it, the text stays here.")]
TaskClass = Annotated[
    str, typer.Option("--class", help="Kind of task, from coarse to fine, such as billing/refund. Used by rules and for learning.")
]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="A word that rules of the policy can match. May be repeated.")]
Instructions = Annotated[
    str | None, typer.Option(help="What the agents are told before the task, such as who they are. @FILE reads it from a text file.")
]
Tools = Annotated[Path | None, typer.Option(help="Python file with @tool functions that the agents may call, or a tool plugin.")]
RoleName = Annotated[str, typer.Option("--role", help="Role that the task is given to: a [roles.NAME] section of the configuration.")]
RunName = Annotated[
    str | None, typer.Argument(help="Id of the run, or its beginning. `nearfar runs list` shows the ids.", show_default=False)
]
Last = Annotated[bool, typer.Option("--last", help="Take the newest run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen and change nothing.")]
ClientCertificate = Annotated[Path | None, typer.Option(help="This device's own certificate (PEM), if the server requires one.")]
ClientKey = Annotated[Path | None, typer.Option(help="Private key of this device's certificate (PEM).")]
ServerCertificate = Annotated[Path | None, typer.Option(help="Certificate (PEM) of the server, or of the authority that signed it.")]
Certificate = Annotated[Path | None, typer.Option(help="TLS certificate chain (PEM). Required unless the address is on loopback.")]
PrivateKey = Annotated[Path | None, typer.Option("--key", help="Private key of the certificate (PEM).")]
ClientAuthority = Annotated[
    Path | None, typer.Option(help="Authorities (PEM). Every client must then show a certificate that one of them signed.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--tokens", help="File of tokens, see `serve token`. Default: $NEARFAR_GATEWAY_TOKENS (caller=token,...)."),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Allow plain text. Refused for any address but loopback and unix sockets.")]
Drain = Annotated[float, typer.Option(min=0, help="Seconds that running steps get to finish after Ctrl-C or SIGTERM.")]


def read_config(path: Path | None) -> "NearfarConfig | None":
    """Return the configuration in `path` or, if that is None, in ./nearfar.toml; None without either. Raise `ConfigError`."""
    from ..compose.config import load_config

    file = config_file(path)
    return None if file is None else load_config(file)


def config_file(path: Path | None) -> Path | None:
    """Return the file that `read_config` reads; None where it reads none. A broken link is no reason to go on without its policy."""
    return path or (DEFAULT_CONFIG if os.path.lexists(DEFAULT_CONFIG) else None)


def read_section(path: Path | None, name: str, default: Callable[[], Section]) -> Section:
    """Return a section of the configuration, or the default one without it."""
    section: Section | None = getattr(read_config(path), name, None)
    return section or default()


def parse_name(text: str, kind: type[Name], noun: str, *, error: type[UserError] = InvalidRequest) -> Name:
    """Return what an option names. Raises `error` for a name that is not known."""
    try:
        return kind(text)
    except ValueError:
        raise error(f"there is no {noun} {text!r}", hint=f"the {noun}s are {', '.join(kind)}") from None


def _read_instructions(given: str) -> str:
    """Return instructions, or those in the file that `@FILE` names. Raises `ConfigError`."""
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"the instructions in {given[1:]!r} cannot be read: {reason}", hint="--instructions @FILE names a text file"
        ) from error


@dataclass(frozen=True, slots=True)
class AgentChoice:
    """The agents, tools and policy that a command works with, as named by its options."""

    config: Path | None
    near: str | None
    far: str | None
    strategy: str | None = None
    mode: str | None = None
    public: bool = False
    tools: Path | None = None
    instructions: str | None = None
    effort: str | None = None

    @property
    def stated(self) -> "TaskOptions":
        """The instructions, strategy, mode and effort from the command line; strategy and mode take precedence over rules that merely
        prefer others."""
        given: TaskOptions = {}
        if self.instructions is not None:
            given["instructions"] = _read_instructions(self.instructions)
        if self.strategy is not None:
            given["strategy"] = self.strategy
        if self.mode is not None:
            given["mode"] = self.mode
        if self.effort is not None:
            given["effort"] = self.effort
        return given


@dataclass(frozen=True, slots=True)
class Listening:
    """The address at which a server listens, and its TLS files and tokens."""

    address: str
    certificate: Path | None
    key: Path | None
    tokens: Path | None
    insecure: bool
    client_authority: Path | None = None


class KnowsRuns(Protocol):
    """A store that keeps something for each run."""

    def ids(self, prefix: str = "", *, limit: int = 10_000) -> Sequence[str]:
        """Return the ids that begin with `prefix`, the newest first."""
        ...


@dataclass(frozen=True, slots=True)
class RunChoice:
    """The run that a command is about: named by the beginning of its id, or the newest one."""

    run: str | None
    """An id or the beginning of one; None with `is_last`."""
    is_last: bool

    def id_in(self, store: KnowsRuns) -> str:
        """Return the id of the run.

        If no run in `store` begins like that, return the name as it was given: the store's own error says more. Raises `ConfigError` if no
        run or two are named, `InvalidRequest` if the beginning fits several.
        """
        if self.is_last:
            if self.run is not None:
                raise ConfigError("a run is named, and --last is given", hint="use one of them")
            return _newest(store)
        if not self.run:
            raise ConfigError("no run is named", hint="give the beginning of its id, or --last for the newest one")
        return full_id(self.run, store)


def full_id(given: str, store: KnowsRuns) -> str:
    """Return the only id that begins with `given`, or `given` if there is none. Raises `InvalidRequest` if there are several."""
    return pick_id(given, store.ids(given), "run")


def pick_id(given: str, known: Sequence[str], noun: str) -> str:
    """Return the only id of `known` that begins with `given`, or `given` if there is none.

    Raises `InvalidRequest` if there are several, or `given` is empty, as in `--approve "$UNSET"`: all ids begin with that.
    """
    if not given:
        raise InvalidRequest(f"the id of a {noun} is empty", hint="give the id or its beginning")
    found = [each for each in known if each.startswith(given)]
    if given in found or not found:
        return given
    if len(found) > 1:
        listed = ", ".join(map(spell_out, found[:_SHOWN])) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
        raise InvalidRequest(f"{len(found)} {noun}s begin with {given!r}: {listed}", hint="give more of the id")
    return found[0]


def _newest(store: KnowsRuns) -> str:
    newest = store.ids(limit=1)
    if not newest:
        raise ConfigError("there is no run yet", hint="with [runs] in nearfar.toml, every task is kept as a run")
    return newest[0]
