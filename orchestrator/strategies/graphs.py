"""The graph of each strategy."""

from collections.abc import Callable, Mapping, Sequence

from langgraph.store.base import BaseStore
from langgraph.types import Checkpointer

from ...protocols import ConfigError
from ..agents.pool import Team
from ..routing.router import Router
from ..task.modes import Strategy
from ..task.tools import Tool
from . import eva, minions, pevr, single, subtasks
from .nodes import TaskNodes
from .runtime import TaskGraph, TaskGraphBuilder

Builder = Callable[[TaskNodes], TaskGraphBuilder]

BUILDERS: Mapping[Strategy, Builder] = {
    Strategy.DEVICE: single.build,
    Strategy.CLOUD: single.build,
    Strategy.ROUTE: single.build,
    Strategy.CASCADE: single.build,
    Strategy.PEVR: pevr.build,
    Strategy.EVA: eva.build,
    Strategy.MINIONS: minions.build,
    Strategy.SUBTASKS: subtasks.build,
}
"""The builder of each strategy's graph. Every graph takes `{"task": Task.model_dump(mode="json")}` and leaves the accepted attempt
behind."""


class Graphs:
    """The compiled graphs of a team, each built when it is first asked for. Strategies of one shape share a graph."""

    def __init__(
        self, team: Team, tools: Sequence[Tool], router: Router, *, checkpointer: Checkpointer = None, store: BaseStore | None = None
    ) -> None:
        self._nodes = TaskNodes(team, tools, router)
        self._checkpointer = checkpointer
        self._store = store
        self._compiled: dict[Builder, TaskGraph] = {}

    def __getitem__(self, strategy: Strategy) -> TaskGraph:
        """Return the graph of a strategy. Raises `ConfigError` for one that only chooses among the others."""
        build = BUILDERS.get(strategy)
        if build is None:
            raise ConfigError(f"strategy {strategy} has no graph of its own", hint="name one of " + ", ".join(BUILDERS))
        if build not in self._compiled:
            graph = build(self._nodes)
            self._compiled[build] = TaskGraph.compiled(graph, checkpointer=self._checkpointer, store=self._store, name="nearfar")
        return self._compiled[build]
