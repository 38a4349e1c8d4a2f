"""`nearfar.toml`: read, validated, and explained where it is wrong."""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ...cloud.config import GatewayLimits, ProviderConfig, usual_key
from ...protocols import ConfigError, Side
from ...protocols.steps import Value
from ..mcp import McpName, McpServerConfig
from ..routing.policy_check import role_findings
from ..task.policy import Policy
from ..task.roles import Role, RoleName
from ..task.stores import CacheConfig, MemoryConfig, RunsConfig
from ..util.plugins import PLUGIN_TAG, PluginConfig, find_plugins, has_plugin
from ..util.settings import as_path, key_lines, line_of
from . import (
    LOCAL_TAG,
    PROVIDERS,
    FarConfig,
    GatewayConfig,
    LlamaConfig,
    LocalFarConfig,
    NearConfig,
    NearSection,
    anchored_model,
    how_to_set,
)
from .hub import AgentName, AttachedConfig, HubConfig, ServeConfig

_CONTAINERS = (Mapping, Sequence, dict, list, tuple)
"""Their entries have a name or a number of their own between the section and its keys."""


def fields_at(root: type[BaseModel], section: Sequence[str], provider: str = "") -> dict[str, FieldInfo]:
    """Return the keys of a section. If it may be one of several models, return those of the given provider, or of all."""
    found: dict[str, FieldInfo] = {}
    for model in _models_at(root, section):
        field = model.model_fields.get("provider")
        is_plugin = issubclass(model, PluginConfig)
        tags = (LOCAL_TAG,) if field is None else (PLUGIN_TAG,) if is_plugin else get_args(field.annotation)
        if not provider or provider in tags or (is_plugin and has_plugin("agents", provider)):
            found.update(model.model_fields)
    return found


def _models_at(model: type[BaseModel], section: Sequence[str]) -> Iterator[type[BaseModel]]:
    if not section:
        yield model
        return
    field = model.model_fields.get(section[0])
    if field is None:
        return
    depth = 2 if any(get_origin(part) in _CONTAINERS for part in (field.annotation, *get_args(field.annotation))) else 1
    if depth <= len(section):
        for inner in _models_in(field.annotation):
            yield from _models_at(inner, section[depth:])


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:  # noqa: ANN401 - any type expression
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


_LONGEST: Final = 1_000_000
"""Characters of a file: more would be another kind of file, or a device without an end."""
_VARIABLE: Final = "_variable"
_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_SECRET_WORDS: Final = re.compile(
    r"(?i)api_?keys?|keys?|token|secrets?|passwords?|passwd|passphrase|pwd|credentials?|bearer|auth|authorization"
)


@dataclass(frozen=True, slots=True)
class LiteralSecret:
    """One secret, without the secret itself."""

    path: tuple[str, ...]
    """The keys that lead to it."""
    advice: str
    """The text to write in the secret's place."""


def literal_secrets(document: Mapping[str, object], root: type[BaseModel]) -> Iterator[LiteralSecret]:
    """Yield the secrets in a configuration: values under a key that sounds like one and is not known, and values that look like a
    secret."""
    for path, value in _texts(document, ()):
        end = max((place for place, part in enumerate(path) if not part.isdigit()), default=0)
        section, key = path[:end], path[end]
        by_name = bool(value) and _is_secret(key) and key not in fields_at(root, section, _provider(document, section))
        if by_name or holds_secret(value):
            yield LiteralSecret(path[: end + 1], _advice(document, root, section, key, value))


def _texts(value: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield all strings with their paths, at any depth."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, (*path, str(key)))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _texts(inner, (*path, str(position)))


def _is_secret(key: str) -> bool:
    return not key.endswith(_VARIABLE) and any(map(_SECRET_WORDS.fullmatch, _WORDS.findall(key)))


def holds_secret(value: str) -> bool:
    """Return whether a text has the form of a secret, such as `sk-...`."""
    # Here, as commands without a configuration need none of it.
    from ..safety.detection.keys import KEYS

    return any(detector.find(value) for detector in KEYS)


def _advice(document: Mapping[str, object], root: type[BaseModel], section: tuple[str, ...], key: str, value: str) -> str:
    """Which key of the section names a variable, and which one to use."""
    fields = fields_at(root, section, provider := _provider(document, section))
    options = [name for name in fields if name.endswith(_VARIABLE)]
    if not options:
        instead = (
            "make it with `nearfar serve token add`, for the file that `tokens` names" if "tokens" in fields else "nothing here needs one"
        )
        return f"a secret must not stand in the file: remove it; {instead}"
    option = key if key in options else _fitting(options, key, value)
    usual = usual_variable(provider) if option == "key_variable" else fields[option].default
    made = "_".join(("nearfar", *section, option.removesuffix(_VARIABLE))).upper()
    variable = usual if isinstance(usual, str) else re.sub(r"\W", "_", made, flags=re.ASCII)
    return f'a secret must not stand in the file: write {option} = "{variable}" in its place, and {how_to_set(variable)}'


def _fitting(options: Sequence[str], key: str, value: str) -> str:
    """Return the option that resembles the written key most."""
    wanted = "postgres" if value.startswith("postgres") else "token" if "token" in key.lower() else "key"
    return next((option for option in options if option.startswith(wanted)), options[0])


def _provider(document: Mapping[str, object], section: tuple[str, ...]) -> str:
    """Return the provider that a section for a far agent names; empty if it names none."""
    inner: object = document
    for part in section:
        inner = inner.get(part) if isinstance(inner, Mapping) else None
    provider = inner.get("provider") if isinstance(inner, Mapping) else None
    return provider if isinstance(provider, str) else ""


Section = TypeVar("Section", bound=Value)

_MODEL_HINT = 'name a GGUF file, a folder with an ONNX model or a stored model; "near" and "far" are small demonstration models'
_DEEPEST = 32
"""Levels of sections and lists."""
_ABOVE: Final = "instructions"
"""A key that TOML takes for one of the section above it unless it stands at the top."""
_PROVIDERS = "openai, anthropic, gemini, llama, gateway"
_TAG_DEPTHS: Final = {"near": 1, "far": 1, "other_near": 2, "other_far": 2}
"""Places of the kind of an agent in the paths of pydantic's errors, by section."""


class Config(Value):
    """The whole file. Every section may be left out."""

    model_config = ConfigDict(hide_input_in_errors=True)  # a secret may stand in the wrong place

    instructions: str = ""
    """The app's instructions for all agents and tasks, above the first section of the file."""
    tools: tuple[str, ...] = ()
    """Names of tool plugins whose tools the agents may call, above the first section of the file."""
    near: NearSection | None = None
    """The agent on this device."""
    far: FarConfig | None = None
    """The agent in the cloud."""
    other_near: Mapping[AgentName, NearSection] = {}
    """Further agents on this device, by the names that rules use."""
    other_far: Mapping[AgentName, FarConfig] = {}
    """Further agents in the cloud."""
    roles: Mapping[RoleName, Role] = {}
    """Agents by name, with instructions and tools of their own, which tasks are given to."""
    hub: HubConfig | None = None
    """Further agents that other devices lend."""
    gateway: GatewayLimits = GatewayLimits()
    """Limits for the callers of `nearfar serve gateway`."""
    serve: ServeConfig = ServeConfig()
    """The HTTP server of `nearfar serve http`."""
    cache: CacheConfig | None = None
    """Answers that are kept; None: every task is computed."""
    memory: MemoryConfig | None = None
    """The memory of tasks; None: tasks remember and recall nothing."""
    runs: RunsConfig | None = None
    """The folder or database of durable runs, which another process can resume; None: a task ends with its process."""
    mcp: Mapping[McpName, McpServerConfig] = {}
    """Servers of the Model Context Protocol, whose tools the agents may call once they are approved."""
    policy: Policy = Policy()
    """How tasks are served unless they say otherwise."""

    @property
    def others(self) -> dict[str, NearSection | FarConfig | AttachedConfig]:
        """All further agents."""
        return {**self.other_near, **self.other_far, **self._attached}

    @property
    def agents(self) -> dict[str, Side]:
        """The side of every agent, by name."""
        near = {"near": Side.NEAR} if self.near is not None else {}
        far = {"far": Side.FAR} if self.far is not None else {}
        attached = {name: agent.side for name, agent in self._attached.items()}
        return {**near, **far, **dict.fromkeys(self.other_near, Side.NEAR), **dict.fromkeys(self.other_far, Side.FAR), **attached}

    @property
    def _attached(self) -> dict[str, AttachedConfig]:
        return {} if self.hub is None else self.hub.agents

    @model_validator(mode="after")
    def _names_each_agent_once(self) -> Self:
        names = ["near", "far", *self.other_near, *self.other_far, *self._attached]
        taken = sorted(name for name in set(names) if names.count(name) > 1)
        if taken:
            raise ValueError(f"two agents are called {taken[0]!r}")
        return self


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read and validate the file at `path`.

    Paths in it are relative to its own folder. Raises `ConfigError` that names the file, the line, the key, what is wrong with it and, for
    an unknown key, the nearest known one.
    """
    path = as_path("path", path)
    try:
        with path.open(encoding="utf-8-sig") as file:  # editors on Windows put a mark before it
            text = file.read(_LONGEST + 1)
    except FileNotFoundError:
        if path.is_symlink():
            raise ConfigError(f"{path} is a link to {path.readlink()}, which does not exist", hint="correct or remove it") from None
        raise ConfigError(f"there is no {path}", hint="create it, or name another with --config") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}", hint="name a file that you may read") from error
    if len(text) > _LONGEST:
        raise ConfigError(f"{path} has more than {_LONGEST:,} characters", hint="name a nearfar.toml")
    return config_of(text, path)


def config_of(text: str, path: Path) -> Config:
    """Return the configuration that the file at `path` has with this text. Raises `ConfigError` as `load_config` does."""
    try:
        return _anchored(parse_config(text, str(path)), path.absolute().parent)
    except RuntimeError as error:  # of a path that begins with the ~ of a user who is not there
        raise ConfigError(f"{path}: a path in it begins with ~, and that user's folder is not known") from error


def parse_config(text: str, source: str) -> Config:
    """Validate the text of a file; `source` names it in errors. Raises `ConfigError` as `load_config` does."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from error
    except ValueError as error:  # of Python itself, which reads no number of thousands of digits
        raise ConfigError(f"{source} is not valid TOML: a number in it is too long") from error
    except RecursionError as error:
        raise ConfigError(f"{source} is nested too deeply") from error
    if impossible := [_at(text, source, path, problem) for path, problem in _impossible_values(document)]:
        raise ConfigError("\n".join(dict.fromkeys(impossible)))
    if secrets := [_at(text, source, secret.path, secret.advice) for secret in literal_secrets(document, Config)]:
        raise ConfigError("\n".join(dict.fromkeys(secrets)), hint="readers of the file may know it: get a new one")
    try:
        # As JSON: where pydantic is strict with Python's own values, it also refuses a list for a tuple and a string for a path.
        config = Config.model_validate_json(json.dumps(document, default=str), strict=True)
    except ValidationError as error:
        problems = [_describe(text, source, item) for item in error.errors(include_url=False)]
        raise ConfigError("\n".join(problems)) from error
    _require_models(document, text, source)
    agents = {"near": Side.NEAR, "far": Side.FAR, **config.agents}  # the command line may name the sides that the file does not
    for finding in role_findings(config.roles, agents, config.policy):
        if finding.kind == "error":
            raise ConfigError(_at(text, source, finding.where.split("."), finding.problem), hint=finding.hint)
    return config


def provider_keys() -> dict[str, Callable[[], bool]]:
    """Return, for the usual key variable of each provider, a function that tells whether the environment or the keyring holds the key.

    The function raises `ConfigError` if the keyring cannot be read.
    """
    keys = [usual_key(provider) for provider in PROVIDERS]
    return {key.variable: key.is_set for key in keys}


def usual_variable(provider: str) -> str | None:
    """Return the usual key variable of a provider; None for an unknown one."""
    return next((usual_key(known).variable for known in PROVIDERS if known == provider), None)


def named_variables(config: Config) -> dict[str, str]:
    """Return the variables that hold the secrets of a configuration, by the keys that name them. An agent at its provider's own API
    that names none has the provider's usual one."""
    named = dict(_variables(config.model_dump(mode="json"), ""))
    agents = {"far": config.far, **{f"other_far.{name}": far for name, far in config.other_far.items()}}
    for name, agent in agents.items():
        if isinstance(agent, ProviderConfig) and agent.base_url is None:
            named.setdefault(f"{name}.key_variable", str(usual_variable(agent.provider)))
    return named


def _variables(section: Mapping[str, Any], above: str) -> Iterator[tuple[str, str]]:
    for name, value in section.items():
        if isinstance(value, dict):
            yield from _variables(value, f"{above}{name}.")
        elif isinstance(value, str) and name.endswith(_VARIABLE):
            yield f"{above}{name}", value
        elif isinstance(value, list) and name == "variables":
            yield from ((f"{above}{name}.{place}", variable) for place, variable in enumerate(value))


def with_line(error: ConfigError, path: Path) -> ConfigError:
    """Return an error about a `Hybrid` that was made from a file, with the line of the key that its message begins with, if it does."""
    key, _, problem = error.message.partition(": ")
    text = path.read_text(encoding="utf-8-sig")
    if not problem or tuple(key.split(".")) not in key_lines(text):
        return error
    return ConfigError(_at(text, str(path), key.split("."), problem), hint=error.hint)


def _impossible_values(document: Mapping[str, object]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield what no key can be set to, with the path to it."""
    left: list[tuple[tuple[str, ...], object]] = [((), document)]
    while left:
        path, value = left.pop()
        if len(path) > _DEEPEST:
            yield path[:_DEEPEST], "it is nested too deeply"
        elif isinstance(value, dict):
            left.extend(((*path, name), part) for name, part in value.items())
        elif isinstance(value, list):
            left.extend(((*path, str(place)), part) for place, part in enumerate(value))
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            yield path, "a whole number has at most 64 bits"
        elif isinstance(value, str) and "\0" in value:
            yield path, "a text has no zero character"


def _require_models(document: Mapping[str, object], text: str, source: str) -> None:
    """Raise `ConfigError` for a section of a local model that names none: the models that ship with nearfar are no default."""
    sections: dict[tuple[str, ...], object] = {(name,): document.get(name) for name in ("near", "far")}
    for kind in ("other_near", "other_far"):
        agents = document.get(kind)
        sections |= {(kind, name): section for name, section in agents.items()} if isinstance(agents, dict) else {}
    for path, section in sections.items():
        provider = section.get("provider") if isinstance(section, dict) else None
        names_no_model = isinstance(section, dict) and "model" not in section
        if names_no_model and (provider == "llama" or (provider is None and "near" in path[0])):
            raise ConfigError(_at(text, source, [*path, "model"]) + " is missing", hint=_MODEL_HINT)


def _anchored(config: Config, folder: Path) -> Config:
    """Return the configuration with its relative paths made absolute."""
    anchored = {
        "near": None if config.near is None else _anchored_near(config.near, folder),
        "far": None if config.far is None else _anchored_far(config.far, folder),
        "other_near": {name: _anchored_near(near, folder) for name, near in config.other_near.items()},
        "other_far": {name: _anchored_far(far, folder) for name, far in config.other_far.items()},
        "hub": None if config.hub is None else config.hub.anchored(folder),
        "serve": config.serve.anchored(folder),
        "cache": None if config.cache is None else config.cache.anchored(folder),
        "memory": None if config.memory is None else config.memory.anchored(folder),
        "runs": None if config.runs is None else config.runs.anchored(folder),
        "mcp": {name: server.anchored(folder) for name, server in config.mcp.items()},
        "policy": _anchored_policy(config.policy, folder),
    }
    return config.model_copy(update=anchored)


def _anchored_near(near: NearSection, folder: Path) -> NearSection:
    return near.model_copy(update=_anchored_models(near, folder)) if isinstance(near, NearConfig) else near


def _anchored_far(far: FarConfig, folder: Path) -> FarConfig:
    if isinstance(far, LocalFarConfig):
        return far.model_copy(update=_anchored_models(far, folder))
    return _anchored_files(far, ("certificate", "client_certificate", "client_key"), folder) if isinstance(far, GatewayConfig) else far


def _anchored_models(config: LlamaConfig, folder: Path) -> dict[str, object]:
    adapters = {name: anchored_model(adapter, folder) for name, adapter in config.adapters.items()}
    projector = None if config.projector is None else anchored_model(config.projector, folder)
    return {"model": anchored_model(config.model, folder), "adapters": adapters, "projector": projector}


def _anchored_policy(policy: Policy, folder: Path) -> Policy:
    auto = _anchored_files(policy.auto, ("outcomes", "reports"), folder)
    evidence = _anchored_files(policy.evidence, ("escalation",), folder)
    router = _anchored_files(policy.router, ("head", "log"), folder)
    supervision = _anchored_files(policy.supervision, ("navigator",), folder)
    return policy.model_copy(update={"auto": auto, "evidence": evidence, "router": router, "supervision": supervision})


def _anchored_files(section: Section, names: Sequence[str], folder: Path) -> Section:
    files = {name: getattr(section, name) for name in names}
    return section.model_copy(update={name: folder / path.expanduser() for name, path in files.items() if path is not None})


def _describe(text: str, source: str, error: ErrorDetails) -> str:
    """Return the message for a validation error, with its place. Never quote text about far agents, or in place of an address
    or of a variable's name: it may be a secret."""
    tag, path = _split_union_tag([str(part) for part in error["loc"]])
    kind = error["type"]
    if kind.startswith("union_tag"):
        path = [*path, "provider"]
    where = _at(text, source, path)
    if kind == "extra_forbidden":
        return f"{where}: unknown key{_suggestion(path, tag)}"
    if kind in ("missing", "union_tag_not_found"):
        return f"{where} is missing" + (f"; choose one of {_PROVIDERS}" if kind.startswith("union_tag") else "")
    if kind == "union_tag_invalid":
        plugins = ", ".join(plugin.name for plugin in find_plugins("agents"))
        listed = f"{_PROVIDERS}, or a plugin: {plugins or 'none is installed'}"
        return f"{where}: there is no provider {error['ctx']['tag']!r}; choose one of {listed}"
    if kind == "model_type" or kind.endswith("_attributes_type"):
        return f"{where} must be a section: [{'.'.join(path)}]"
    may_be_secret = path[:1] in (["far"], ["other_far"]) or "".join(path[-1:]).endswith(("_variable", "base_url"))
    is_section = isinstance(error["input"], dict)
    is_quotable = not (may_be_secret or is_section) or isinstance(error["input"], (int, float))
    quoted = f", not {error['input']!r}" if is_quotable else ""
    return f"{where}: {error['msg'].removeprefix('Value error, ')}{quoted}"


def _at(text: str, source: str, path: Sequence[str], problem: str = "") -> str:
    """Return the place of a key in the file, followed by its problem."""
    where = f"{source}, line {line_of(text, path)}: {'.'.join(path) or 'the file'}"
    return f"{where}: {problem}" if problem else where


def _split_union_tag(path: list[str]) -> tuple[str, list[str]]:
    """Return the provider or kind that pydantic names in a path of an agent's section, and the path as written in the file."""
    depth = _TAG_DEPTHS.get(path[0] if path else "")
    return (path[depth], [*path[:depth], *path[depth + 1 :]]) if depth is not None and len(path) > depth else ("", path)


def _suggestion(path: Sequence[str], tag: str) -> str:
    homes = [f"[{section}]" for section in Config.model_fields if len(path) == 1 and path[0] in fields_at(Config, (section,))]
    if homes:
        return f"; it belongs in {' or '.join(homes)}"
    known = sorted(fields_at(Config, path[:-1], tag))
    if path[-1] == _ABOVE:
        return f"; {_ABOVE} for all agents stand above the first section of the file"
    near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known keys here: {', '.join(known)}"
