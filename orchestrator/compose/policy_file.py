"""The file nearfar.toml for people: its policy, which may be edited while tasks run, and its JSON Schema, which editors show."""

import ast
import codecs
import hashlib
import inspect
import logging
import os
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, Final, get_args

from pydantic import BaseModel

from ...protocols import ConfigError, Side, StoreUnavailable, VersionConflict
from ...protocols.system import replacing
from ..routing.eligibility import PolicyFinding, unknown_prices
from ..routing.policy_check import findings, require_usable, role_findings
from ..task.policy import Policy
from . import other_handle
from .config import Config, config_of, load_config

JsonObject = dict[str, Any]


def config_schema() -> JsonObject:
    """Return the JSON Schema (draft 2020-12) of nearfar.toml.

    The descriptions are the docstrings of the sections' fields, which are read from the source: nothing else needs them at run time.
    Where the source is not installed, there are none.
    """
    schema = Config.model_json_schema()
    _describe(schema, Config)
    for section in _sections(Config, {Config}):
        if (found := schema["$defs"].get(section.__name__)) is not None:
            _describe(found, section)
    return {**schema, "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "nearfar.toml"}


def _describe(schema: JsonObject, section: type[BaseModel]) -> None:
    """Add the descriptions of a section's keys to its schema."""
    known = docstrings(section)
    for name, key in schema.get("properties", {}).items():
        if name in known:
            key.setdefault("description", known[name])


def docstrings(section: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings behind the fields of a section and of the classes that it extends, by the fields' names.

    Where their source is not installed, there are none.
    """
    found: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        if issubclass(kind, BaseModel) and kind is not BaseModel:
            found.update(_fields(kind))
    return found


def _fields(kind: type[BaseModel]) -> Iterator[tuple[str, str]]:
    try:
        source = inspect.getsource(kind)
    except OSError:  # only the compiled modules are there
        return
    (node,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(node, ast.ClassDef)
    for field, text in pairwise(node.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            value = ast.literal_eval(text.value)
            yield field.target.id, " ".join(str(value).split())


def _sections(section: type[BaseModel], known: set[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    """Yield the sections that a section's fields are made of, each once."""
    for field in section.model_fields.values():
        for kind in _classes(field.annotation):
            if issubclass(kind, BaseModel) and kind not in known:
                known.add(kind)
                yield kind
                yield from _sections(kind, known)


def _classes(annotation: object) -> Iterator[type]:
    """Yield the classes in an annotation, such as those of a union."""
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    for part in get_args(annotation):
        yield from _classes(part)


logger = logging.getLogger(__name__)

SETTLED: Final = 0.1
"""Seconds after the last change from which a file counts as written to its end: editors that write in place empty it first."""

_Stamp = tuple[int, int, int]
"""Identifies one content of a file: the time of writing in nanoseconds, the size in bytes, and the inode."""


class PolicyFile:
    """Reads the file again when it has changed. A policy is replaced as a whole; one that cannot be used leaves the old one in force.

    A file that was replaced, as most editors do, is never seen half written. One that is written in place is read once it has rested.

    Args:
        path: of the file.
        agents: that the policy may name; None: not looked at.
        now: seconds since the epoch, as file systems have them.

    Raises `ConfigError` where the file cannot be used from the start. Calls may come from any thread.
    """

    def __init__(self, path: Path, agents: Mapping[str, Side] | None = None, *, now: Callable[[], float] = time.time) -> None:
        self.problem: str | None = None
        """Why the newest content is not in force; None where it is."""
        self._path = path
        self._teams = [] if agents is None else [agents]
        self._now = now
        self._lock = Lock()
        self._stamp = self._look()
        self._policy = self._read()

    def require(self, agents: Mapping[str, Side]) -> None:
        """Check the policy against these agents, too, from now on: one that cannot be used with them counts as broken."""
        self._teams.append(agents)

    @property
    def current(self) -> Policy:
        """The policy in force. It is immutable: a caller that holds one keeps it when the file changes."""
        stamp = self._look()
        if stamp != self._stamp and self._has_settled(stamp):
            with self._lock:
                self._reload(stamp)
        return self._policy

    def _reload(self, stamp: _Stamp | None) -> None:
        if stamp == self._stamp:
            return  # another thread was quicker
        policy, problem = self._tried()
        if self._look() != stamp:
            return  # it changed while it was read; the next call sees it again
        if problem is None:
            logger.info("%s changed; tasks that start now are served under the new policy", self._path)
        else:
            logger.warning("%s changed and cannot be used; the policy read before stays in force: %s", self._path, problem)
        self._policy, self._stamp, self.problem = policy, stamp, problem

    def _tried(self) -> tuple[Policy, str | None]:
        """Return the policy read from the file and None, or the policy in force and the problem."""
        try:
            return self._read(), None
        except (ConfigError, OSError, RecursionError, RuntimeError, ValueError) as error:  # whatever a file may hold, the old one stays
            return self._policy, str(error) or type(error).__name__

    def _read(self) -> Policy:
        if self._path.exists() and not self._path.is_file():
            raise ConfigError(f"{self._path} is not a file")  # reading a pipe would wait for a writer
        policy = load_config(self._path).policy
        if _says_nothing(self._path.read_text(encoding="utf-8-sig")):
            raise ConfigError(f"{self._path} is empty", hint="no rule would be left; write [policy] to mean that")
        for agents in self._teams:
            require_usable(policy, agents)
        return policy

    def _has_settled(self, stamp: _Stamp | None) -> bool:
        """Return whether the file has rested. A clock that was set back must not make it wait for ever."""
        return stamp is None or not 0 <= self._now() - stamp[0] / 1e9 < SETTLED

    def _look(self) -> _Stamp | None:
        """Return the stamp of the file; None if there is none, as for a moment while an editor replaces it."""
        try:
            seen = os.stat(self._path)
        except OSError:
            return None
        return (seen.st_mtime_ns, seen.st_size, seen.st_ino)


def _says_nothing(text: str) -> bool:
    """Return whether there are only blanks and comments, as in a file of which no more has been written yet."""
    return all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines())


def config_findings(config: Config, agents: Mapping[str, Side] | None = None) -> list[PolicyFinding]:
    """Return the mistakes in the policy and the roles of a configuration, and far agents of unknown price where dollars are limited.

    `agents` are the sides of the team, by name; None: those of the configuration.
    """
    agents = config.agents if agents is None else agents
    found = [*findings(config.policy, agents), *role_findings(config.roles, agents, config.policy)]
    return [*found, *unknown_prices(config.policy, _unpriced(config))]


def _unpriced(config: Config) -> dict[str, str]:
    """Return the models of the configured far agents whose price is unknown, by agent."""
    agents = ({} if config.far is None else {"far": config.far}) | config.others
    members = [other_handle(name, agent) for name, agent in agents.items()]
    return {member.name: member.model for member in members if member.is_unpriced}


def read_text(path: Path) -> tuple[str, str]:
    """Return the text of the file with line ends `\\n`, and the name of this content for `save_policy`.

    Raises `ConfigError` where it cannot be read.
    """
    try:
        content = path.read_bytes()
        return content.decode("utf-8-sig").replace("\r\n", "\n"), hashlib.sha256(content).hexdigest()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="save it as UTF-8, where you may read it") from error


def config_with_policy(path: Path, text: str, agents: Mapping[str, Side]) -> Config:
    """Return the configuration that a text for the file gives to these agents.

    Raises `ConfigError`, with line and key, for a text that cannot be used, and for one that changes another section than the policy, which
    no running process would take over.
    """
    new = config_of(text, path)
    try:
        old = load_config(path)
    except ConfigError as error:
        raise ConfigError(f"the file itself is broken: {error.message}", hint="mend it with an editor") from error
    changed = [name for name in Config.model_fields if name != "policy" and getattr(new, name) != getattr(old, name)]
    if changed:
        raise ConfigError(f"{path}: only [policy] can be changed here, not {', '.join(changed)}", hint="edit the file, and start again")
    errors = [finding for finding in config_findings(new, agents) if finding.kind == "error"]
    if errors:
        raise ConfigError("\n".join(map(str, errors)), hint="the policy in force stays")
    return new


def save_policy(path: Path, text: str, agents: Mapping[str, Side], *, over: str) -> None:
    """Replace the file atomically by a text whose policy can be used. A `PolicyFile` then takes it over.

    The file keeps its kind of line ends, and its byte order mark.

    Raises what `config_with_policy` raises, `VersionConflict` where the file no longer has the content `over`, and `StoreUnavailable` where
    it cannot be written.
    """
    config_with_policy(path, text, agents)
    if read_text(path)[1] != over:
        raise VersionConflict(f"{path} was changed meanwhile", hint="copy your text, reload the page, and edit the new file")
    try:
        encoding, newline = _form(path)
        with replacing(path) as fresh:
            fresh.write_text(text, encoding=encoding, newline=newline)
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be written: {error.strerror}", hint="the policy in force stays") from error


def _form(path: Path) -> tuple[str, str]:
    """Return the encoding of the file, which names its byte order mark, and its line ends."""
    content = path.read_bytes()
    return "utf-8-sig" if content.startswith(codecs.BOM_UTF8) else "utf-8", "\r\n" if b"\r\n" in content else "\n"
