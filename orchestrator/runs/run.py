"""Runs, their records, the leases on them, and their LangGraph thread configurations."""

from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Final, TypeVar

from ...protocols import Sensitivity, StoreCorrupt
from ...protocols.steps import Value
from ..task.labels import RecalledItem
from ..task.modes import Mode
from ..task.policy import OnFinding, Policy
from ..task.results import SelectionDecision
from ..task.task import Task

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
    state: RunState
    strategy: str
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
    return sha256(asked.model_dump_json(include={"messages", "instructions", "context", "output_schema", "user"}).encode()).hexdigest()


def find_tightened(asked: Task, begun: Task) -> list[str]:
    """Return the options whose bounds are tighter in `asked` than in the task that was begun."""
    tools = begun.allowed_tools
    adds = asked.allowed_tools is not None and (tools is None or not tools <= asked.allowed_tools)
    return [*_tighter(asked.policy, begun.policy), *(["allowed_tools"] if adds else [])]


def find_tightened_since(kept: KeptTask, now: Bounds) -> list[str]:
    """Return the options that the policy has tightened since the task was begun, and that the task exceeds."""
    changed = ["sensitivity", "mode", "privacy"] if kept.bounds is None else _tighter(now, kept.bounds)
    return [option for option in _tighter(now, kept.task.policy) if option in changed]


def _tighter(one: Policy | Bounds, other: Policy | Bounds) -> list[str]:
    strictest_first = list(OnFinding)
    rank, other_rank = (
        strictest_first.index(each.privacy.findings if isinstance(each, Policy) else each.findings) for each in (one, other)
    )
    is_tighter = {
        "sensitivity": one.sensitivity is Sensitivity.PRIVATE is not other.sensitivity,
        "mode": one.mode is Mode.ONLY_ON_DEVICE is not other.mode,
        "privacy": rank < other_rank,
    }
    return [option for option, is_so in is_tighter.items() if is_so]


def title(task: Task) -> str:
    prompts = [message.text for message in task.messages if message.role == "user"]
    words = " ".join(prompts[-1].split()) if prompts else ""
    return words if len(words) <= TITLE else f"{words[: TITLE - 1]}\u2026"


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

    def thread(self, part: str) -> dict[str, object]:
        """Return the configuration of a part's graph, which is kept with the run."""
        return {**thread_config(self.lease), PART: part}
