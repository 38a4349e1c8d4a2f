"""What is known of a run."""

from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Final

from ...protocols import Sensitivity, StoreCorrupt
from ...protocols.messages import Value
from ..task.auto_decision import SelectionDecision
from ..task.modes import Mode
from ..task.task import Policy, RecalledItem, Task

VERSION: Final = 1
"""Of how a run's task, checkpoints and outcome are written."""
TITLE: Final = 80
"""Characters of the prompt that a list of runs shows."""


class RunState(StrEnum):
    """How far a run has come."""

    RUNNING = "running"
    """Somebody works on it, or has died doing so."""
    WAITING = "waiting"
    """For somebody to say yes or no."""
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
    """Of the prompt, as much as a line holds."""
    steps: int
    """Nodes of the graph whose outcome is kept."""
    epoch: int
    """How many owners it has had."""
    owner: str | None
    """Who works on it, while somebody does."""
    is_orphaned: bool = False
    """Whoever worked on it has died: it can be resumed."""
    began: float
    """Seconds since 1970 by the clock of whoever began it; nothing is ordered by it."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a run, which ends when somebody else has it."""

    run: str
    epoch: int


class Bounds(Value):
    """How far a policy lets a task go that states nothing itself."""

    sensitivity: Sensitivity
    mode: Mode


class KeptTask(Value):
    """A task as it runs, with what else it takes to go on with it."""

    task: Task
    bounds: Bounds | None = None
    """Those of the policy under which it was begun."""
    recalled: tuple[RecalledItem, ...] = ()
    selection: SelectionDecision | None = None
    tools: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()

    @classmethod
    def of(cls, task: Task, *, tools: tuple[str, ...], agents: tuple[str, ...], bounds: Bounds | None = None) -> "KeptTask":
        return cls(task=task, bounds=bounds, recalled=task.recalled, selection=task.selection, tools=tools, agents=agents)

    @property
    def whole(self) -> Task:
        """The task with the parts that a graph's state does not have."""
        return self.task.model_copy(update={"recalled": self.recalled, "selection": self.selection})


class RunFailure(Value):
    """Why a run failed."""

    error: str
    """Name of the error's class."""
    message: str
    hint: str = ""


def digest(asked: Task) -> str:
    """What a task asks for: two tasks of one idempotency key must agree in it."""
    return sha256(asked.model_dump_json(include={"messages", "context", "output_schema", "user"}).encode()).hexdigest()


def tightened(asked: Task, begun: Task) -> list[str]:
    """The options by which a task is asked for under tighter bounds than it was begun under."""
    tools = begun.allowed_tools
    adds = asked.allowed_tools is not None and (tools is None or not tools <= asked.allowed_tools)
    return [*_tighter(asked.policy, begun.policy), *(["allowed_tools"] if adds else [])]


def tightened_since(kept: KeptTask, now: Bounds) -> list[str]:
    """The options in which the policy has become tighter since a task was begun, which was begun under looser ones."""
    changed = ["sensitivity", "mode"] if kept.bounds is None else _tighter(now, kept.bounds)
    return [option for option in _tighter(now, kept.task.policy) if option in changed]


def _tighter(one: Policy | Bounds, other: Policy | Bounds) -> list[str]:
    is_tighter = {
        "sensitivity": one.sensitivity is Sensitivity.PRIVATE is not other.sensitivity,
        "mode": one.mode is Mode.ONLY_ON_DEVICE is not other.mode,
    }
    return [option for option, is_so in is_tighter.items() if is_so]


def title(task: Task) -> str:
    prompts = [message.text for message in task.messages if message.role == "user"]
    words = " ".join(prompts[-1].split()) if prompts else ""
    return words if len(words) <= TITLE else f"{words[: TITLE - 1]}\u2026"


def damaged(run: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"what is kept of run {run} is damaged", hint="nearfar runs forget, and begin it anew; other runs are not concerned"
    )
