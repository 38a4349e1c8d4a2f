"""`nearfar.toml`: read, validated, and explained where it is wrong."""

import difflib
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..protocols import ConfigError
from ..protocols.messages import Value
from .compose import FarConfig, NearConfig
from .task import Policy


class Config(Value):
    """The whole file. Every section may be left out."""

    near: NearConfig | None = None
    far: FarConfig | None = None
    policy: Policy = Policy()


def load_config(path: Path) -> Config:
    """Read and validate a file.

    Raises `ConfigError` that names the file, the line, the key, what is wrong with it and, for an unknown key, the nearest known one.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}", hint="create it, or name another with --config") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return parse_config(text, str(path))


def parse_config(text: str, source: str) -> Config:
    """Validate the text of a file; `source` names it in errors. Raises `ConfigError` as `load_config` does."""
    try:
        return Config.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from error
    except ValidationError as error:
        problems = [_describe(text, source, item) for item in error.errors(include_url=False)]
        raise ConfigError("\n".join(problems)) from error


def _describe(text: str, source: str, error: ErrorDetails) -> str:
    path = [str(part) for part in error["loc"]]
    path = _without_union_tags(path)
    where = f"{source}, line {_line_of(text, path)}: {'.'.join(path) or 'the file'}"
    if error["type"] == "extra_forbidden":
        return f"{where}: unknown key{_suggestion(path)}"
    return f"{where}: {error['msg']}, not {error['input']!r}" if path else f"{where}: {error['msg']}"


def _without_union_tags(path: Sequence[str]) -> list[str]:
    """The keys as written: pydantic also names the branch of `far` that it tried."""
    return [path[0], *path[2:]] if len(path) > 2 and path[0] == "far" else list(path)


def _line_of(text: str, path: Sequence[str]) -> int:
    """The line that sets the key, else the line of its section, else the first."""
    section: list[str] = []
    section_line = 1
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            section = [part.strip().strip("\"'") for part in header[1].split(".")]
            section_line = number if section == list(path[: len(section)]) else section_line
        if section == list(path):
            return number
        if (pair := re.match(r"\s*([\w\"'.-]+)\s*=", line)) and [*section, *_split(pair[1])] == list(path):
            return number
    return section_line


def _split(key: str) -> list[str]:
    return [part.strip("\"'") for part in key.split(".")]


def _suggestion(path: Sequence[str]) -> str:
    known = sorted(set(_known_keys(path[:-1])))
    near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known keys here: {', '.join(known)}"


def _known_keys(section: Sequence[str]) -> Iterator[str]:
    for model in _models_at(Config, section):
        yield from model.model_fields


def _models_at(model: type[BaseModel], section: Sequence[str]) -> Iterator[type[BaseModel]]:
    if not section:
        yield model
        return
    field = model.model_fields.get(section[0])
    for inner in _models_in(field.annotation) if field is not None else ():
        yield from _models_at(inner, section[1:])


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:  # noqa: ANN401 - any type expression
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models_in(argument)
