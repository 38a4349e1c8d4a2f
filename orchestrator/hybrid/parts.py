"""The parts of a `Hybrid`: the records that it keeps of its tasks, what serves the tasks, and the metrics of all parts."""

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...protocols import ConfigError, DeviceState, DeviceStateSource, StoreError, Unavailable
from ..agents import AgentPool
from ..agents.breaker import BreakerState
from ..budgets import BudgetBook, open_budgets
from ..compose.hub import list_workers
from ..routing import Router
from ..runs.erasing import open_store
from ..runs.store import RunStore
from ..safety.outbound_filter import PrivacyRecords
from ..task.policy import Policy
from ..task.roles import Team
from ..task.stores import CacheConfig, RunsConfig
from ..task.tools import Tool
from ..tracing import TraceStore, traces_if_usable
from ..tracing.observing import Family, Observers, PrometheusMeter, gauge
from ..util.runtime import in_thread
from ..util.settings import Location, as_path, parse_section, require, wrong_type

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore
    from langgraph.types import Checkpointer

    from ..cache import AnswerCache
    from ..cache.plans import PlanCache
    from ..memory.consolidation import BackgroundConsolidation
    from ..memory.in_tasks import TaskMemory


_logger = logging.getLogger(__name__)

Part = TypeVar("Part")


class DeviceReader:
    """Reads the state of the device. It holds no `Hybrid`: one that is dropped must not be kept by what it has opened."""

    def __init__(self, source: DeviceStateSource) -> None:
        self.source = source

    def read(self) -> DeviceState:
        """Return the state. Raises `ConfigError` if the source returns anything else."""
        state = self.source()
        if not isinstance(state, DeviceState):
            raise wrong_type("what device_state returns", state, "a DeviceState", hint="DeviceState(battery=0.5)")
        return state


class Records:
    """The records that a `Hybrid` keeps of its tasks, on disk or in Postgres.

    `Records("records")` keeps all of it in one folder: durable runs, which another process can resume, the budget book, the outbound log
    with the placeholders of unfinished runs, and traces. The `Hybrid` opens the folder and closes it.

    Args:
        where: a folder, or a `RunsConfig` or mapping, which is the `[runs]` section of nearfar.toml; None: only the parts that follow.
        runs, budgets, privacy, traces: a part that is open already, used in place of the one in `where`; the caller closes it.
        cache: answers of agents: the path of a file, a `CacheConfig` or mapping, which is the `[cache]` section, or an open cache.
        checkpointer: a LangGraph checkpointer, under which tasks name a `thread_id`. Durable runs have a checkpointer of their own.

    Raises `ConfigError` that names the argument for one of another type, and for runs together with a checkpointer.
    """

    def __init__(
        self,
        where: RunsConfig | Mapping[str, Any] | Location | None = None,
        *,
        runs: RunStore | None = None,
        budgets: BudgetBook | None = None,
        privacy: PrivacyRecords | None = None,
        traces: TraceStore | None = None,
        cache: "AnswerCache | CacheConfig | Mapping[str, Any] | Location | None" = None,
        checkpointer: "Checkpointer" = None,
    ) -> None:
        self.where = _section(where)
        self.runs = _part("runs", runs, RunStore)
        self.budgets = _part("budgets", budgets, BudgetBook)
        self.privacy = _part("privacy", privacy, PrivacyRecords)
        self.traces = _part("traces", traces, TraceStore)
        self.cache = _cache(cache)
        self.checkpointer = checkpointer
        if checkpointer is not None and checkpointer is not False:
            self._check_checkpointer()

    def _check_checkpointer(self) -> None:
        from langgraph.checkpoint.base import BaseCheckpointSaver

        require(
            "checkpointer", self.checkpointer, BaseCheckpointSaver, "a checkpointer of LangGraph", hint="Records(folder) keeps durable runs"
        )
        if self.where is not None or self.runs is not None:
            raise ConfigError("runs and a checkpointer are both given", hint="runs have a checkpointer of their own: leave it out")


@dataclass
class OpenRecords:
    """Open stores; None for what is not kept."""

    runs: RunStore | None
    budgets: BudgetBook | None
    privacy: PrivacyRecords | None
    traces: TraceStore | None
    cache: "AnswerCache | None"
    checkpointer: "Checkpointer"
    closing: ExitStack = field(default_factory=ExitStack)
    """Closes what was opened here."""

    def fill(self, where: RunsConfig, opened: ExitStack) -> None:
        """Open the parts that are missing; `opened` closes them."""
        if self.budgets is None:
            self.budgets = opened.enter_context(closing(open_budgets(where)))
        if self.privacy is None:
            self.privacy = opened.enter_context(closing(PrivacyRecords(where.folder, keep=where.keep)))
        if self.traces is None and (traces := traces_if_usable(where)) is not None:
            self.traces = opened.enter_context(closing(traces))
        if self.runs is None:
            self.runs = opened.enter_context(closing(open_store(where)))
            if self.traces is not None:
                self.runs.forgetting.append(self.traces.forget_all)  # after what is still to be written

    @cached_property
    def keeps_threads(self) -> bool:
        """True where a checkpointer keeps tasks under the `thread_id` that they name; False is LangGraph's word for none."""
        return self.checkpointer is not None and self.checkpointer is not False

    def close(self) -> None:
        """Close what was opened here; what the caller opened stays open."""
        self.closing.close()


def open_records(records: Records) -> OpenRecords:
    """Open what is not open yet. Raises `StoreUnavailable`, `StoreCorrupt`, and `ConfigError` where no address is set."""
    with ExitStack() as opened:
        cache = records.cache
        if isinstance(cache, CacheConfig):
            from ..cache import AnswerCache

            cache = opened.enter_context(closing(AnswerCache(cache)))
        found = OpenRecords(records.runs, records.budgets, records.privacy, records.traces, cache, records.checkpointer)
        if records.where is not None:
            found.fill(records.where, opened)
        found.closing = opened.pop_all()
    return found


def records_argument(given: object) -> Records:
    """Return the records that `Hybrid` is given. Raises `ConfigError` for another type."""
    return given if isinstance(given, Records) else Records(_section(given))


def _section(given: object) -> RunsConfig | None:
    """Return the `[runs]` section that a mapping or a folder stands for."""
    if isinstance(given, Mapping):
        return parse_section("records", given, RunsConfig).anchored(Path())
    if given is None or isinstance(given, RunsConfig):
        return given
    return RunsConfig(folder=as_path("records", given, otherwise="a Records, a RunsConfig, a mapping"))


def _cache(given: object) -> "AnswerCache | CacheConfig | None":
    """Return the cache, or the `[cache]` section that a mapping or a path stands for."""
    if isinstance(given, Mapping):
        return parse_section("cache", given, CacheConfig).anchored(Path())
    if given is None or isinstance(given, CacheConfig):
        return given
    from ..cache import AnswerCache

    if isinstance(given, AnswerCache):
        return given
    return CacheConfig(path=as_path("cache", given, otherwise="an AnswerCache, a CacheConfig, a mapping"))


def _part(name: str, given: Part | None, kind: type[Part]) -> Part | None:
    require(name, given, kind, f"an open {kind.__name__}", hint="Records(folder) opens all parts itself")
    return given


@dataclass(frozen=True)
class Parts:
    """The parts of a `Hybrid` that serve its tasks."""

    pool: AgentPool
    router: Router
    policy: Callable[[], Policy]
    """Returns the policy of tasks that start now."""
    tools: tuple[Tool, ...]
    """The tools that all tasks may call."""
    team: Team
    """The roles that tasks may be given to."""
    memory: "TaskMemory | None"
    rest: "BackgroundConsolidation | None"
    """Consolidates the memory while no task is served."""
    store: "BaseStore | None"
    """LangGraph's store."""
    instructions: str
    """Instructions of all tasks."""
    records: OpenRecords
    observers: Observers
    """Spans and metrics of the tasks."""


def plan_cache(parts: Parts) -> "PlanCache | None":
    """Return the cache of plans; None where plans are not kept."""
    cache = parts.records.cache
    if cache is None or not cache.settings.plans:
        return None
    from ..cache.plans import PlanCache

    return PlanCache(cache.database, cache.settings)


class Metrics:
    """The metrics of one `Hybrid`, for Prometheus. Runs are counted from the moment when `Hybrid.metrics` is read first.

    No metric names a user, a session, a prompt or a run, so that their number does not grow with the runs.
    """

    def __init__(self, parts: Parts, hubs: Collection[Path]) -> None:
        self._parts = parts
        self._hubs = hubs
        self._meter = PrometheusMeter(parts.pool.saved_against_far)
        parts.observers.meters.append(self._meter)

    async def text(self) -> str:
        """Return all metrics in Prometheus' text format, version 0.0.4."""
        gauges = [self._breakers(), await self._workers(), *await in_thread(self._stored)]
        return self._meter.text(gauges)

    def _breakers(self) -> Family:
        states: dict[tuple[str, ...], float] = {
            (handle.name, state.value): float(handle.health.state is state) for handle in self._parts.pool for state in BreakerState
        }
        return gauge("nearfar_breaker_state", "1 for the state that an agent's circuit breakers are in.", ("agent", "state"), states)

    async def _workers(self) -> Family:
        attached = 0
        for socket in self._hubs:
            try:
                attached += sum(worker.is_attached for worker in await list_workers(socket))
            except Unavailable as error:
                _logger.warning("the workers of a hub are not counted: %s", error)
        return gauge("nearfar_workers_attached", "Devices that are attached to the hubs of this machine.", (), {(): float(attached)})

    def _stored(self) -> list[Family]:
        """Read the budget book and the store of runs, which may have to be waited for; leave out what cannot be read."""
        try:
            return [*self._budgets(), self._approvals()]
        except StoreError as error:
            _logger.warning("budgets and approvals are not told: %s", error)
            return []

    def _budgets(self) -> list[Family]:
        left = self._parts.router.spending.left_of_day(self._parts.policy().limits)
        about = "What the limit for the day leaves, in {}."
        return [gauge(f"nearfar_budget_remaining_{unit}", about.format(unit), (), {(): rest}) for unit, rest in left.items()]

    def _approvals(self) -> Family:
        runs = self._parts.records.runs
        waiting = 0 if runs is None else runs.waiting()
        return gauge("nearfar_approvals_waiting", "Runs that wait for an approval.", (), {(): float(waiting)})
