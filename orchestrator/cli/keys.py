"""`nearfar keys`: keep the keys of providers in the keyring of this machine, and see which are set. Their values are never shown."""

import getpass
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from ...protocols import ConfigError
from ...protocols.secrets import StoredKey
from ..compose.agents import provider_keys
from ..compose.config import Config, holds_secret, named_variables
from . import options
from .printing import Line, Note, show, table
from .running import report_errors

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_LONGEST: Final = 100_000
"""Most characters that are read as a key."""

Variable = Annotated[str, typer.Argument(metavar="NAME", help="Name of the variable, such as ANTHROPIC_API_KEY.")]

app = typer.Typer(no_args_is_help=True)


@app.command("set")
def set_key(name: Variable, as_json: options.AsJson = False) -> None:
    """Keep a key in the keyring. It is asked for without echo; without a terminal it is read from standard input."""
    with report_errors(as_json=as_json):
        stored = _stored(name)
        stored.keep(_read_key(stored.variable))
        lines: list[Line] = [f"{stored.variable} is in the keyring"]
        if stored.place == "environment":
            lines.append(Note(f"the environment sets {stored.variable}, too, and is read first", "yellow"))
        show({"name": stored.variable, "place": stored.place}, lines, as_json=as_json)


@app.command("list")
def list_keys(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Further variables to look for.")] = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Show which keys are set, and where: those of the known providers and those that the configuration names."""
    with report_errors(as_json=as_json):
        wanted = dict.fromkeys([*provider_keys(), *_named(config), *(_stored(name).variable for name in names or ())])
        found = [(name, place_text(name)) for name in wanted]
        show({"keys": [{"name": name, "place": place} for name, place in found]}, _lines(found), as_json=as_json)


@app.command("remove")
def remove_key(name: Variable, as_json: options.AsJson = False) -> None:
    """Remove a key from the keyring."""
    with report_errors(as_json=as_json):
        stored = _stored(name)
        stored.remove()
        lines: list[Line] = [f"{stored.variable} is no longer in the keyring"]
        if stored.place == "environment":
            lines.append(Note(f"the environment still sets {stored.variable}", "yellow"))
        show({"name": stored.variable, "place": stored.place or None}, lines, as_json=as_json)


def place_text(variable: str) -> str | None:
    """Return the place of a secret, or why the keyring cannot be read; None: it is not set."""
    try:
        return StoredKey(variable).place or None
    except ConfigError as error:
        return f"unknown: {error.message}"


def _named(path: Path | None) -> Iterator[str]:
    yield from named_variables(options.read_config(path) or Config()).values()


def _lines(found: list[tuple[str, str | None]]) -> Iterator[Line]:
    yield table(("name", "set in"), ((name, place or "not set") for name, place in found))
    yield Note("nearfar keys set NAME keeps a key in the keyring")


def _stored(name: str) -> StoredKey:
    """Return the key of a variable. The error does not repeat the name: it may be the key itself."""
    if not _VARIABLE.fullmatch(name) or holds_secret(name):
        raise ConfigError("this is no name of a variable", hint="first the name, such as ANTHROPIC_API_KEY; the key itself is asked for")
    return StoredKey(name)


def _read_key(name: str) -> str:
    if sys.stdin.isatty():
        try:
            return getpass.getpass(f"{name}: ").strip()
        except EOFError:
            raise KeyboardInterrupt from None
    text = sys.stdin.read(_LONGEST).strip()
    if not text:
        raise ConfigError("standard input holds no key", hint=f"at a terminal it is asked for; in a script: ... | nearfar keys set {name}")
    return text
