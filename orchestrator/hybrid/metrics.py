"""`GET /metrics` of one `Hybrid`: what is counted while tasks run, and the state of its parts when it is asked for."""

import logging
from collections.abc import Collection
from functools import partial
from pathlib import Path

from ...protocols import StoreError, Unavailable
from ..agents.breaker import BreakerState
from ..compose.hub import list_workers
from ..tracing.observing import Family, PrometheusMeter, gauge
from ..util.runtime import in_thread
from .preparation import Parts
from .turns import saved_against_far

_logger = logging.getLogger(__name__)


class Metrics:
    """The metrics of one `Hybrid`, for Prometheus. Runs are counted from the moment when `Hybrid.metrics` is read first.

    No metric names a user, a session, a prompt or a run, so that their number does not grow with the runs.
    """

    def __init__(self, parts: Parts, hubs: Collection[Path]) -> None:
        self._parts = parts
        self._hubs = hubs
        self._meter = PrometheusMeter(partial(saved_against_far, pool=parts.pool))
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
