"""`nearfar config` and `nearfar keys`: the configuration in force, and the keys of providers in this machine's keyring."""

import getpass
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from ...protocols import ConfigError
from ...protocols.secrets import StoredKey
from ..compose.config import Config, holds_secret, named_variables, provider_keys
from ..compose.config_lines import KeyPath, key_lines
from ..task.policy import PRESETS
from . import options
from .running import Line, Note, count_text, report_errors, show, table
from .selection import chosen_config

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_LONGEST: Final = 100_000
"""Most characters that are read as a key."""

Variable = Annotated[str, typer.Argument(metavar="NAME", help="Name of the variable, such as ANTHROPIC_API_KEY.")]

keys_app = typer.Typer(no_args_is_help=True)


@keys_app.command("set")
def set_key(name: Variable, as_json: options.AsJson = False) -> None:
    """Keep a key in the keyring. It is asked for without echo; without a terminal it is read from standard input."""
    with report_errors(as_json=as_json):
        stored = _stored(name)
        stored.keep(_read_key(stored.variable))
        lines: list[Line] = [f"{stored.variable} is in the keyring"]
        if stored.place == "environment":
            lines.append(Note(f"the environment sets {stored.variable}, too, and is read first", "yellow"))
        show({"name": stored.variable, "place": stored.place}, lines, as_json=as_json)


@keys_app.command("list")
def list_keys(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Further variables to look for.")] = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Show which keys are set, and where: those of the known providers and those that the configuration names."""
    with report_errors(as_json=as_json):
        wanted = dict.fromkeys([*provider_keys(), *_named(config), *(_stored(name).variable for name in names or ())])
        found = [(name, place_text(name)) for name in wanted]
        show({"keys": [{"name": name, "place": place} for name, place in found]}, _key_lines(found), as_json=as_json)


@keys_app.command("remove")
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


def _key_lines(found: list[tuple[str, str | None]]) -> Iterator[Line]:
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


_SHIPPED: Final = "shipped"
_DEFAULT: Final = "default"

app = typer.Typer(no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """The value of one key, and its source."""

    key: str
    """The key with its sections: `policy.limits.day.dollars`."""
    value: Any
    source: str
    """`FILE, line N`, `preset NAME`, `default`, or `shipped` for the models that run where no file is."""
    secret: str | None = None
    """For a key that names a variable: `environment`, `keyring` or `not set`."""


@app.callback()
def config() -> None:
    """Show the configuration that is in force."""


@app.command("show")
def show_config(config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Print every key with its value and where that comes from: a line of the file, the preset, or the default. Secrets are not shown."""
    with report_errors(as_json=as_json):
        loaded = chosen_config(options.AgentChoice(config, None, None))
        path = config or (options.DEFAULT_CONFIG if options.DEFAULT_CONFIG.exists() else None)
        values = effective_values(loaded, path)
        data = {"file": None if path is None else str(path), "keys": [asdict(value) for value in values]}
        show(data, _lines(values, path), as_json=as_json)


def effective_values(config: Config, path: Path | None) -> list[EffectiveValue]:
    """Return the value of each key, and its source. `path` is the file that `config` was read from."""
    lines = {} if path is None else key_lines(path.read_text(encoding="utf-8-sig"))
    preset = dict(_leaves(PRESETS[config.policy.preset], ("policy",)))
    usual = dict(_leaves(Config().model_dump(mode="json"), ()))
    variables = named_variables(config)

    def source(key: KeyPath, value: object) -> str:
        if key in lines:
            return f"{path}, line {lines[key]}"
        if key in preset:
            return f"preset {config.policy.preset}"
        return _SHIPPED if path is None and value != usual.get(key) else _DEFAULT

    def describe(key: KeyPath, value: object) -> EffectiveValue:
        name = ".".join(key)
        variable = variables.get(name)
        secret = None if variable is None else place_text(variable) or "not set"
        return EffectiveValue(name, value if variable is None else variable, source(key, value), secret)

    return [describe(key, value) for key, value in _leaves(config.model_dump(mode="json"), ())]


def _leaves(section: Mapping[str, Any], above: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield each key that is no section, with its path."""
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def _lines(values: Sequence[EffectiveValue], path: Path | None) -> Iterator[Line]:
    for value in values:
        style = "dim" if value.source == _DEFAULT else ""
        yield Text.assemble((f"{value.key} = {_value_text(value)}", style), (f"  # {value.source}", "dim"))
    set_here = sum(value.source not in (_DEFAULT, _SHIPPED) for value in values)
    where = f"{path}" if path is not None else "no nearfar.toml in this folder; nearfar init writes one"
    yield Note(f"{where}; {count_text(len(values), 'key')}, {set_here} set by the file or its preset")


def _value_text(value: EffectiveValue) -> str:
    shown = "not set" if value.value is None else json.dumps(value.value, ensure_ascii=False)
    if value.secret is None:
        return shown
    return f"{shown} ({f'set in the {value.secret}' if value.secret in ('environment', 'keyring') else value.secret})"
