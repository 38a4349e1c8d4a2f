"""Far calls and scores of `pevr` under a navigator, over those of fixed triggers, with the shipped models in both worlds.

The navigator in this folder, of 1,699 weights, was trained on 7,852 runs (seeds 8101 to 8508 of the worlds), by chance alone at first,

    nearfar sweep --world search --world apps --run pevr:explore=1 --out moves

then with the navigator that those trained, `pevr:navigator=moves/navigator.json,explore=0.3`. Its price of a far call, its seed and the
triggers below were chosen on these runs and on seeds 9201 and 9601 to 9603. After seeds 9701 to 9703 were seen, a net of another price was
trained and tried on seeds 9801 to 9804; it saved less, and the first one was kept. Nothing else was chosen on the seeds here.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from nearfar.orchestrator.compose import NearConfig, parse_far
from nearfar.orchestrator.lab.statistics import IntervalEstimate
from nearfar.orchestrator.lab.study import StudyFile, make_study
from nearfar.orchestrator.lab.study.outcomes import Outcomes
from nearfar.orchestrator.lab.study.pools import LocalPool
from nearfar.orchestrator.lab.study.sweep import RecordLog, Sweep
from nearfar.orchestrator.routing.navigator import Navigator, navigated
from nearfar.orchestrator.routing.outcome_records import RunRecord
from nearfar.orchestrator.task.events import EVIDENCE
from nearfar.orchestrator.task.policy import Policy

CARD: Final = Path(__file__).with_name("navigator.json")
NAVIGATED: Final = f"pevr:navigator={CARD}"
WORLDS: Final = ("search", "apps")
AGAINST: Final = {"": "pevr/events", "_plan": "pevr/inf", "_thrifty": "pevr/inf:plan_below=0.9995"}
"""By the ending of a figure's name: the fixed triggers with the best score in both worlds, a plan for every task and no check, and a plan
where the first step is unsure."""
_SEEDS: Final = (9701, 9702, 9703, 9801, 9802, 9803, 9804)
_TURNS: Final = 40
_CHOICES, _TRIES = 500, 5


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Return ratios of far calls, and points of score, with 95 % intervals. `data` is not used."""
    outcomes = Outcomes(asyncio.run(_made(_SEEDS[:1], 10) if quick else _made(_SEEDS, 118)))
    found: dict[str, Any] = {"navigator_microseconds": _microseconds()}
    for world in WORLDS:
        (label,) = (label for label in outcomes.configurations(world) if "navigator" in label)
        for ending, against in AGAINST.items():
            calls, lead = outcomes.ratio(world, label, against, "far_calls"), outcomes.difference(world, label, against)
            found[f"navigator_calls{ending}_{world}"] = _interval(calls)
            found[f"navigator_points{ending}_{world}"] = _interval(None if lead is None else lead.times(100))
    return {**found, **_worst(found)}


def _worst(found: dict[str, Any]) -> dict[str, float]:
    """Return the largest upper bound of the ratios, and the smallest lower bound of the points, against the best fixed triggers."""
    return {
        "navigator_calls": max(found[f"navigator_calls_{world}"][2] for world in WORLDS),
        "navigator_points": min(found[f"navigator_points_{world}"][1] for world in WORLDS),
    }


async def _made(seeds: Sequence[int], tasks: int) -> Sequence[RunRecord]:
    """Make the runs of all configurations on the same tasks."""
    runs = (NAVIGATED, *AGAINST.values())
    file = StudyFile(worlds=WORLDS, tasks=tasks, seeds=tuple(seeds), runs=runs, policy={"maximum_turns": _TURNS}, jobs=2)
    study = make_study(file, near=NearConfig(model="near", threads=1), far=parse_far("far"), policy=Policy())
    with tempfile.TemporaryDirectory() as folder, RecordLog(Path(folder) / "runs.jsonl") as log:
        sweep = Sweep(study, log)
        async with LocalPool(study) as pool:
            await sweep.make(pool, lambda _: None)
        return sweep.records


def _microseconds() -> float:
    """Return the processor's time of one choice, the shortest of several measurements."""
    navigator, seen = Navigator.load(CARD), [0.5] * len(EVIDENCE)

    def taken() -> float:
        began = time.process_time()
        for _ in range(_CHOICES):
            navigated(navigator, seen, explore=0)
        return time.process_time() - began

    return 1e6 * min(taken() for _ in range(_TRIES)) / _CHOICES


def _interval(estimate: IntervalEstimate | None) -> list[float] | None:
    """Return the value, and where its interval begins and ends."""
    return None if estimate is None else [round(bound, 4) for bound in (estimate.value, estimate.low, estimate.high)]
