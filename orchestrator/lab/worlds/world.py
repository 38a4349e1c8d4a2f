"""`World`: tasks, the environment they are worked on in, and how an outcome is graded. Implement it to measure on tasks of your own."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

from pydantic import Field

from ....protocols import Agent
from ....protocols.messages import Value
from ...task.tools import Tool

Split = Literal["train", "test"]


class WorldTask(Value):
    """One task of a world."""

    identifier: str = Field(min_length=1)
    """Names the same task in every process and every run."""
    prompt: str = Field(min_length=1)
    """Text that the agents are given."""
    kind: str
    """Its class, for comparing like with like: `hops`, `payment` ..."""
    difficulty: int = Field(ge=1)
    """1 is the easiest of its world."""
    context: str | None = None
    """A long text that the task is about, which `minions` keep on the device and other strategies put behind the prompt."""


class Grade(Value):
    """How well a task was done."""

    success: bool
    score: float = Field(ge=0, le=1)
    """Partial credit: 1 is perfect."""
    measures: Mapping[str, float] = {}
    """The world's own figures by name, such as `exact_match` and `f1`, or `test_pass_ratio`."""


@runtime_checkable
class Episode(Protocol):
    """One task being worked on, with a state of its own."""

    @property
    def tools(self) -> Sequence[Tool]:
        """Tools that the agents may call; they act on this episode's state."""
        ...

    def grade(self, answer: str) -> Grade:
        """Grade the final answer together with the state that the tools left behind."""
        ...

    def close(self) -> None:
        """Free what the episode holds."""
        ...


@runtime_checkable
class World(Protocol):
    """A source of tasks. The same arguments always give the same tasks."""

    @property
    def name(self) -> str: ...

    def tasks(self, count: int, seed: int) -> Sequence[WorldTask]:
        """Draw `count` tasks."""
        ...

    def reset(self, task: WorldTask) -> Episode:
        """Start over on a task that this world drew. Raises a `NearfarError` where it cannot."""
        ...


@runtime_checkable
class SolvableWorld(World, Protocol):
    """A world that knows its own solutions."""

    def oracle(self) -> Agent:
        """Return a far supervisor that plans, verifies, replans and advises by the world's own solver: a ceiling, not a model."""
        ...
