"""`nearfar.toml`: read, validated, and explained where it is wrong."""

import difflib
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..protocols import ConfigError
from ..protocols.messages import Value
from .compose import FarConfig, GatewayConfig, LocalFarConfig, NearConfig, anchored_model
from .task import Policy

Section = TypeVar("Section", bound=Value)

_PROVIDERS = "openai, anthropic, gemini, llama, gateway"


class Config(Value):
    """The whole file. Every section may be left out."""

    near: NearConfig | None = None
    far: FarConfig | None = None
    policy: Policy = Policy()


def load_config(path: Path) -> Config:
    """Read and validate a file.

    Paths in it are relative to its own folder. Raises `ConfigError` that names the file, the line, the key, what is wrong with it and,
    for an unknown key, the nearest known one.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}", hint="create it, or name another with --config") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return _anchored(parse_config(text, str(path)), path.absolute().parent)


def parse_config(text: str, source: str) -> Config:
    """Validate the text of a file; `source` names it in errors. Raises `ConfigError` as `load_config` does."""
    try:
        return Config.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from error
    except ValidationError as error:
        problems = [_describe(text, source, item) for item in error.errors(include_url=False)]
        raise ConfigError("\n".join(problems)) from error


def _anchored(config: Config, folder: Path) -> Config:
    """The configuration with its relative paths made absolute."""
    near, far = config.near, config.far
    if near is not None:
        near = near.model_copy(update={"model": anchored_model(near.model, folder)})
    if isinstance(far, LocalFarConfig):
        far = far.model_copy(update={"model": anchored_model(far.model, folder)})
    if isinstance(far, GatewayConfig) and far.certificate is not None:
        far = far.model_copy(update={"certificate": folder / far.certificate.expanduser()})
    return config.model_copy(update={"near": near, "far": far, "policy": _anchored_policy(config.policy, folder)})


def _anchored_policy(policy: Policy, folder: Path) -> Policy:
    auto = _anchored_files(policy.auto, ("outcomes", "reports"), folder)
    router = _anchored_files(policy.router, ("escalation", "head", "log"), folder)
    return policy.model_copy(update={"auto": auto, "router": router})


def _anchored_files(section: Section, names: Sequence[str], folder: Path) -> Section:
    files = {name: getattr(section, name) for name in names}
    return section.model_copy(update={name: folder / path.expanduser() for name, path in files.items() if path is not None})


def _describe(text: str, source: str, error: ErrorDetails) -> str:
    """What is wrong, where. Text in [far] is never quoted: a provider's key in the wrong place must not reach a log."""
    tag, path = _split_union_tag([str(part) for part in error["loc"]])
    kind = error["type"]
    if kind.startswith("union_tag"):
        path = [*path, "provider"]
    where = f"{source}, line {_line_of(text, path)}: {'.'.join(path) or 'the file'}"
    if kind == "extra_forbidden":
        return f"{where}: unknown key{_suggestion(path, tag)}"
    if kind in ("missing", "union_tag_not_found"):
        return f"{where} is missing" + (f"; choose one of {_PROVIDERS}" if kind.startswith("union_tag") else "")
    if kind == "union_tag_invalid":
        return f"{where}: there is no provider {error['ctx']['tag']!r}; choose one of {_PROVIDERS}"
    if kind == "model_type" or kind.endswith("_attributes_type"):
        return f"{where} must be a section: [{'.'.join(path)}]"
    is_quotable = path[:1] != ["far"] or isinstance(error["input"], (int, float))
    quoted = f", not {error['input']!r}" if is_quotable else ""
    return f"{where}: {error['msg'].removeprefix('Value error, ')}{quoted}"


def _split_union_tag(path: list[str]) -> tuple[str, list[str]]:
    """The branch of `far` that pydantic tried, which it names in the path, and the keys as written."""
    return (path[1], [path[0], *path[2:]]) if len(path) > 2 and path[0] == "far" else ("", path)


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


def _suggestion(path: Sequence[str], tag: str) -> str:
    known = sorted(set(_known_keys(path[:-1], tag)))
    near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known keys here: {', '.join(known)}"


def _known_keys(section: Sequence[str], tag: str) -> Iterator[str]:
    """The keys of a section; where it may be one of several models, of those with this provider."""
    for model in _models_at(Config, section):
        provider = model.model_fields.get("provider")
        if not tag or provider is None or tag in get_args(provider.annotation):
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
