"""The vocabulary of a policy: modes, strategies, and the properties of agents between which it chooses."""

from enum import StrEnum
from typing import Protocol

from ...protocols import Capabilities, Prices, Side
from ...protocols.messages import Value


class Mode(StrEnum):
    """How far from the device the user lets a task go."""

    ONLY_ON_DEVICE = "only_on_device"
    PREFER_ON_DEVICE = "prefer_on_device"
    AUTO = "auto"
    """Both sides, by the objective; the near one first if nothing is known of either, since it is free."""
    PREFER_IN_CLOUD = "prefer_in_cloud"
    ONLY_IN_CLOUD = "only_in_cloud"


class Strategy(StrEnum):
    """The way in which the two sides work on a task."""

    DEVICE = "device"
    """The near agent alone."""
    CLOUD = "cloud"
    """The far agent; the near one steps in where it fails and the mode allows. Refuses private tasks."""
    ROUTE = "route"
    """The router picks an agent before any token; the others are the fallback."""
    CASCADE = "cascade"
    """The near agent drafts; evidence about the draft decides whether the far one answers instead."""
    PEVR = "pevr"
    """Plan, execute, verify, replan: one side plans the task and checks at intervals whether the other keeps to the plan."""
    EVA = "eva"
    """Execute, verify, advise: one side checks the other's progress at intervals, and sums up and advises where it is lacking."""
    MINIONS = "minions"
    """The near agent reads a long context in pieces, for jobs that the far one writes without seeing it."""
    SUBTASKS = "subtasks"
    """The task is cut into subtasks; independent ones run in parallel, each routed on its own."""
    AUTO = "auto"
    """One of the others, chosen per task from the outcomes of similar tasks."""


SUPERVISED = frozenset({Strategy.PEVR, Strategy.EVA})
"""Strategies in which one side works and the other one supervises it."""
FAR_FIRST = frozenset({Strategy.CLOUD, Strategy.MINIONS, Strategy.SUBTASKS})
"""Strategies that begin on the far side, where the mode allows it."""


class AgentView(Protocol):
    """The properties of an agent that rules know before it is opened."""

    @property
    def name(self) -> str: ...
    @property
    def side(self) -> Side: ...
    @property
    def capabilities(self) -> Capabilities | None: ...
    @property
    def prices(self) -> Prices | None: ...


class Needs(Value):
    """The capabilities that a task needs from an agent."""

    tools: bool = False
    json_schema: bool = False

    def missing_in(self, capabilities: Capabilities) -> list[str]:
        wanted = {"tools": self.tools, "json_schema": self.json_schema}
        return [name for name, needed in wanted.items() if needed and not getattr(capabilities, name)]
