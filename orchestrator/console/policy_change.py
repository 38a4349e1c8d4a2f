"""Replay recorded tasks under a changed policy: the place of each policy on the front, before and after."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_process

from ...protocols import ConfigError, DeadlineExceeded, RateLimited, Side
from ..hybrid.hybrid import Hybrid
from ..lab.replay.simulation import compare_policies
from ..task.policy import Policy
from .charts import Mark, scatter
from .html import Html, join, table, tag, text

if TYPE_CHECKING:
    from ..lab.replay.simulation import Served, Simulation
    from ..lab.statistics import IntervalEstimate

_PATIENCE: Final = 300.0
"""Seconds after which a simulation is given up."""
_simulating = anyio.CapacityLimiter(1)
"""Lets one simulation run at a time, which uses all processors."""


async def simulated_change(hybrid: Hybrid, then: Policy) -> Html:
    """Return what the policy `then` does to recorded tasks, compared with the one in force.

    Raises `ConfigError` where nothing is recorded or packages are missing, `RateLimited` while another simulation runs, and
    `DeadlineExceeded`.
    """
    recorded = next((path for path in recordings(then) if path.exists()), None)
    if recorded is None:
        keys = "[policy.auto] outcomes names the runs of `nearfar sweep`, [policy.router] log keeps what Hybrid.report tells of answers"
        raise ConfigError("there are no recorded outcomes to replay", hint=keys)
    sides = {handle.name: handle.side for handle in hybrid.pool}
    return _change(*await _compared(recorded, sides, hybrid.policy, then), recorded)


def recordings(policy: Policy) -> Iterator[Path]:
    """Yield the files of recorded outcomes that a policy names: runs of a sweep, and the router's log."""
    yield from (path for path in (policy.auto.outcomes, policy.router.log) if path is not None)


async def _compared(recorded: Path, sides: Mapping[str, Side], now: Policy, then: Policy) -> "tuple[Simulation, Simulation]":
    """Replay in a process of its own, which ends if the browser leaves: it needs torch, and all processors for a while."""
    try:
        _simulating.acquire_nowait()
    except anyio.WouldBlock:
        raise RateLimited("another simulation is running", hint="wait for it", retry_after=30.0) from None
    try:
        with anyio.fail_after(_PATIENCE):
            first, second = await anyio.to_process.run_sync(compare_policies, recorded, sides, (now, then), cancellable=True)
    except TimeoutError:
        raise DeadlineExceeded(f"the simulation took longer than {_PATIENCE:.0f} s", hint="simulate on fewer tasks") from None
    finally:
        _simulating.release()
    return first, second


def _change(now: "Simulation", then: "Simulation", recorded: Path) -> Html:
    """Return what the change does to recorded tasks: where the policy stands on the front, before and after."""
    knows = now.policy.dollars is not None and then.policy.dollars is not None
    marks = [
        *(_mark(each, each.name, str(now.sides[each.name]), knows) for each in then.singles),
        _mark(now.policy, "now", "", knows),
        _mark(then.policy, "with this text", "here", knows),
    ]
    fronts = [[_point(each, knows) for each in found.front] for found in (then, now)]
    across = "dollars per task" if knows else "share of tasks that go far"
    title = f"{then.tasks:,} recorded tasks of {recorded.name}, replayed: up and left is better. Bars are 95 % intervals."
    drawn = scatter(title, marks, across=across, up="score", front=fronts[0], before=fronts[1])
    legend = (
        "The dashed line joins what the router reaches under other thresholds with this text, the dotted line with the policy in force."
    )
    ways = [("now", now.policy), ("with this text", then.policy), *((each.name, each) for each in then.singles), ("oracle", then.oracle)]
    rows = [(text(name), _share(way.far_share), _share(way.score), _dollars(way.dollars)) for name, way in ways]
    figures = table("Means per task, with 95 % intervals", ("served by", "far share", "score", "dollars"), rows)
    notes = [tag("li", text(note)) for note in _notes(now, then)]
    return join([tag("h2", "The change on recorded tasks"), drawn, tag("p", legend, class_="note"), figures, tag("ul", notes)])


def _notes(now: "Simulation", then: "Simulation") -> Iterator[str]:
    yield from then.warnings
    yield from (f"Now: {note}" for note in now.warnings if note not in then.warnings)
    yield from (f"With this text, {count:,} of them are refused: {reason}" for reason, count in then.refused.items())


def _mark(way: "Served", name: str, css: str, knows_dollars: bool) -> Mark:
    across = way.dollars if knows_dollars and way.dollars is not None else way.far_share
    return Mark(name, across.value, way.score.value, (across.low, across.high), (way.score.low, way.score.high), css)


def _point(way: "Served", knows_dollars: bool) -> tuple[float, float]:
    across = way.dollars if knows_dollars and way.dollars is not None else way.far_share
    return across.value, way.score.value


def _share(figure: "IntervalEstimate") -> str:
    return f"{figure.value:.1%} [{figure.low:.1%}, {figure.high:.1%}]"


def _dollars(figure: "IntervalEstimate | None") -> str:
    if figure is None:
        return "unknown"
    return f"{figure.value:.5f} [{figure.low:.5f}, {figure.high:.5f}]" if figure.high else "0"
