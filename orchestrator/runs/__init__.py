"""Runs, their records, the leases on them, and their LangGraph thread configurations.

An attachment in the checkpoints of a run is stored once: checkpoints name it by its hash.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ...protocols import Sensitivity, StoreCorrupt
from ...protocols.attachments import Attachment
from ...protocols.steps import Value
from ..storage import DatabaseSession, Tables
from ..task import Task
from ..task.decisions import SelectionDecision
from ..task.labels import RecalledItem
from ..task.modes import Mode
from ..task.policy import FindingType, GuardConfig, OnDoubt, OnFinding, Policy
from ..util.text import shorten

if TYPE_CHECKING:
    from .checkpointer import RunCheckpointer

R = TypeVar("R", bound=Value)
VERSION: Final = 1
"""Version of the format of a run's task, checkpoints and outcome."""
TITLE: Final = 80
"""Characters of the prompt that a list of runs shows."""


class RunState(StrEnum):
    """State of a run."""

    RUNNING = "running"
    """A process works on it, or has died doing so."""
    WAITING = "waiting"
    """It needs approval."""
    DONE = "done"
    FAILED = "failed"
    """It can be resumed from the last step that went well."""
    CANCELLED = "cancelled"


class Run(Value):
    """A line of the list of runs."""

    id: str
    """The task's idempotency key."""
    number: int
    """Runs are numbered in the order in which they began."""
    user: str
    """User on whose behalf it was begun."""
    state: RunState
    """Its state."""
    strategy: str
    """Its strategy."""
    title: str
    """Beginning of the prompt, as much as fits a line."""
    steps: int
    """Nodes of the graph whose outcome is stored."""
    epoch: int
    """Number of owners that it has had."""
    owner: str | None
    """The process that works on it; None: no process does."""
    is_orphaned: bool = False
    """Its process has died: it can be resumed."""
    began: float
    """Seconds since 1970 by the clock of the process that began it; nothing is ordered by it."""
    ended: float | None = None
    """Seconds since 1970 by the clock of the process that ended it; None: it has not ended."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a run, which ends when another process takes it over."""

    run: str
    epoch: int


class Bounds(Value):
    """Bounds of a policy for tasks that state none themselves."""

    sensitivity: Sensitivity
    mode: Mode
    findings: OnFinding = OnFinding.ALLOW
    """Treatment of texts in which something private is found."""
    detect: frozenset[FindingType] = frozenset()
    """Types of findings that count."""
    detectors: frozenset[str] = frozenset()
    """Plugins whose findings count, too."""
    placeholders: bool = True
    """Far agents may continue with placeholders for private tool results."""
    guard: GuardConfig = GuardConfig(tools=OnDoubt.ALLOW, arguments=OnDoubt.ALLOW)
    """Treatment of doubtful tool calls."""

    @classmethod
    def of(cls, policy: Policy, *, sensitivity: Sensitivity | None = None, mode: Mode | None = None) -> "Bounds":
        """Return the bounds of a policy, with the sensitivity and the mode that its rules decide."""
        privacy = policy.privacy
        return cls(
            sensitivity=sensitivity or policy.sensitivity,
            mode=mode or policy.mode,
            findings=privacy.findings,
            detect=frozenset(privacy.detect),
            detectors=frozenset(privacy.detectors),
            placeholders=privacy.placeholders,
            guard=policy.guard,
        )


class KeptTask(Value):
    """A stored task, with everything that is needed to resume it."""

    task: Task
    bounds: Bounds | None = None
    """Bounds of the policy under which it was begun."""
    recalled: tuple[RecalledItem, ...] = ()
    selection: SelectionDecision | None = None
    tools: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()

    @classmethod
    def of(cls, task: Task, *, tools: tuple[str, ...], agents: tuple[str, ...], bounds: Bounds | None = None) -> "KeptTask":
        return cls(task=task, bounds=bounds, recalled=task.recalled, selection=task.selection, tools=tools, agents=agents)

    @property
    def without_history(self) -> "KeptTask":
        """Return what is kept of a turn that was answered: its session keeps the earlier turns."""
        return self.model_copy(update={"task": self.task.without_history})

    @property
    def whole(self) -> Task:
        """Return the task with the parts that are missing in a graph's state."""
        return self.task.model_copy(update={"recalled": self.recalled, "selection": self.selection})


class RunFailure(Value):
    """The reason why a run failed."""

    error: str
    """Name of the error's class."""
    message: str
    hint: str = ""


def digest(asked: Task) -> str:
    """Return a hash of what a task asks for: two tasks with one idempotency key must have the same."""
    asks = {"messages", "instructions", "role", "context", "output_schema", "user", "caller"}
    return sha256(asked.model_dump_json(include=asks).encode()).hexdigest()


def find_tightened(asked: Task, begun: Task) -> list[str]:
    """Return the options whose bounds are tighter in `asked` than in the task that was begun."""
    tools = begun.allowed_tools
    adds = asked.allowed_tools is not None and (tools is None or not tools <= asked.allowed_tools)
    return [*_tighter(Bounds.of(asked.policy), Bounds.of(begun.policy)), *(["allowed_tools"] if adds else [])]


def find_tightened_since(kept: KeptTask, now: Bounds) -> list[str]:
    """Return the options that the policy has tightened since the task was begun, and that the task exceeds."""
    exceeded = _tighter(now, Bounds.of(kept.task.policy))
    return exceeded if kept.bounds is None else [option for option in exceeded if option in _tighter(now, kept.bounds)]


def _tighter(one: Bounds, other: Bounds) -> list[str]:
    is_tighter = {
        "sensitivity": one.sensitivity is Sensitivity.PRIVATE is not other.sensitivity,
        "mode": one.mode is Mode.ONLY_ON_DEVICE is not other.mode,
        "privacy": _is_more_private(one, other),
        "guard": any(_STRICTER[ours] > _STRICTER[theirs] for ours, theirs in _treatments(one, other)),
    }
    return [option for option, is_so in is_tighter.items() if is_so]


_STRICTER: Final = {treatment: rank for rank, treatment in enumerate(OnDoubt)}


def _treatments(one: Bounds, other: Bounds) -> tuple[tuple[OnDoubt, OnDoubt], ...]:
    return ((one.guard.tools, other.guard.tools), (one.guard.arguments, other.guard.arguments))


def _is_more_private(one: Bounds, other: Bounds) -> bool:
    """Return whether less may leave under one than under the other, by what is found or by what tools return."""
    strictest_first = list(OnFinding)
    is_stricter = strictest_first.index(one.findings) < strictest_first.index(other.findings)
    finds_more = one.findings is not OnFinding.ALLOW and not (one.detect <= other.detect and one.detectors <= other.detectors)
    return is_stricter or finds_more or (other.placeholders and not one.placeholders)


def title(task: Task) -> str:
    prompts = [message.text for message in task.messages if message.role == "user"]
    return shorten(prompts[-1], TITLE) if prompts else ""


def parse_record(model: type[R], run: str, content: str) -> R:
    """Return a record of a run from its JSON. Raises `StoreCorrupt` if it is damaged."""
    try:
        return model.model_validate_json(content)
    except ValueError as error:
        raise damaged_run(run) from error


def damaged_run(run: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"the record of run {run} is damaged",
        hint="remove it with `nearfar runs forget` and begin it again; other runs are not affected",
    )


EPOCH: Final = "nearfar_epoch"
"""Key in `configurable`: the epoch of the owner that writes."""
PART: Final = "nearfar_part"
"""Key in `configurable`: the name of a part of the run, which is a graph of its own."""


def thread_config(lease: Lease) -> dict[str, object]:
    """Return the configuration of the task's own graph."""
    return {"thread_id": lease.run, EPOCH: lease.epoch}


@dataclass(frozen=True)
class RunParts:
    """The parts of a run that this process owns."""

    checkpointer: "RunCheckpointer"
    lease: Lease
    scope: str = ""
    """Name of the part that these are parts of; empty: the run itself."""

    def thread(self, part: str) -> dict[str, object]:
        """Return the configuration of a part's graph, which is kept with the run."""
        return {**thread_config(self.lease), PART: nested_scope(self.scope, part)}

    def within(self, part: str) -> "RunParts":
        """Return the parts of a part."""
        return replace(self, scope=nested_scope(self.scope, part))


def nested_scope(scope: str, part: str) -> str:
    """Return the name of a part within a part."""
    return f"{scope}, {part}" if scope else part


ATTACHMENTS: Final = Tables(
    part="attachments",
    version=1,
    sql="CREATE TABLE attachments (run TEXT NOT NULL, digest BLOB NOT NULL, content TEXT NOT NULL, PRIMARY KEY (run, digest));\n",
)
LEAST_BYTES: Final = 16_384
"""Bytes of a stored value, or characters of an attachment, from which taking attachments out is worth the time."""
_ATTACHMENT_KEYS: Final = frozenset(Attachment.model_fields)
Contents = dict[bytes, str]
"""Attachments in base64, by their hashes."""


def without_attachments(value: Any, contents: Contents) -> Any:  # noqa: ANN401 - plain data of any form
    """Return plain data with a hash in the place of the data of each attachment, which go into `contents`.

    A hash is bytes, which a run's own data never have there.
    """
    if isinstance(value, list):
        return [without_attachments(each, contents) for each in value]
    if not isinstance(value, dict):
        return value
    data = value.get("data")
    if value.keys() == _ATTACHMENT_KEYS and isinstance(data, str) and len(data) >= LEAST_BYTES:
        digest = sha256(data.encode()).digest()
        contents[digest] = data
        return {**value, "data": digest}
    return {name: without_attachments(each, contents) for name, each in value.items()}


def with_attachments(value: Any, contents: Mapping[bytes, str], run: str) -> Any:  # noqa: ANN401 - as above
    """Return plain data of a `run` with its attachments again. Raises `StoreCorrupt` if one is missing."""
    if isinstance(value, list):
        return [with_attachments(each, contents, run) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == _ATTACHMENT_KEYS and isinstance(digest := value["data"], bytes):
        if digest not in contents:
            raise damaged_run(run)
        return {**value, "data": contents[digest]}
    return {name: with_attachments(each, contents, run) for name, each in value.items()}


def keep_attachments(session: DatabaseSession, run: str, contents: Contents) -> None:
    """Store the attachments that the run does not have yet."""
    if not contents:
        return
    known = {bytes(digest) for (digest,) in session.execute("SELECT digest FROM attachments WHERE run = ?", (run,)).fetchall()}
    for digest in contents.keys() - known:
        session.execute("INSERT INTO attachments (run, digest, content) VALUES (?, ?, ?)", (run, digest, contents[digest]))


def read_attachments(session: DatabaseSession, run: str) -> Contents:
    """Return the attachments of a run. Raises `StoreCorrupt` if one is damaged."""
    rows = session.execute("SELECT digest, content FROM attachments WHERE run = ?", (run,)).fetchall()
    contents = {bytes(digest): str(content) for digest, content in rows}
    if any(sha256(content.encode()).digest() != digest for digest, content in contents.items()):
        raise damaged_run(run)
    return contents
