"""`nearfar config`: show the configuration that is in force, and where each value comes from."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import typer
from rich.text import Text

from ..compose.config import Config, named_variables
from ..compose.config_lines import KeyPath, key_lines
from ..task.policy import PRESETS
from . import options
from .keys import place_text
from .printing import Line, Note, count_text, show
from .running import report_errors
from .selection import chosen_config

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
