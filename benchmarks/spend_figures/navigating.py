"""Far calls and scores of `pevr` under a navigator, over those of the best fixed triggers, with the shipped models in both worlds.

The navigator beside this file, of 1,699 weights, was trained on 7,214 runs, whose moves were left to chance in whole or by three in ten:

    nearfar sweep --world search --world apps --run pevr:explore=1 --out moves

and then on runs under what that had trained, with `pevr:navigator=moves/navigator.json,explore=0.3`; seeds 8101 to 8408. Price and
triggers were chosen on seed 9201; nothing was chosen on the seeds here.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from nearfar.orchestrator.compose.agents import NearConfig, parse_far
from nearfar.orchestrator.lab.statistics import IntervalEstimate
from nearfar.orchestrator.lab.study.outcomes import Outcomes
from nearfar.orchestrator.lab.study.pools import LocalPool
from nearfar.orchestrator.lab.study.study import StudyFile, make_study
from nearfar.orchestrator.lab.study.sweep import RecordLog, Sweep
from nearfar.orchestrator.routing.navigator import Navigator, navigated
from nearfar.orchestrator.routing.run_records import RunRecord
from nearfar.orchestrator.task.events import EVIDENCE
from nearfar.orchestrator.task.policy import Policy

CARD: Final = Path(__file__).with_name("navigator.json")
NAVIGATED: Final = f"pevr:navigator={CARD}"
BEST: Final = {"search": "pevr/events", "apps": "pevr/events:plan_below=0.9995"}
"""The fixed triggers with the best score."""
THRIFTY: Final = "pevr/inf:plan_below=0.9995"
"""The fewest far calls within half a point of them, in both worlds."""
_SEEDS: Final = (9601, 9602, 9603)
_TURNS: Final = 40
_DECISIONS: Final = 2000


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Return ratios of far calls, and points of score, with 95 % intervals. `data` is not used."""
    outcomes = Outcomes(asyncio.run(_made(_SEEDS[:1], 14) if quick else _made(_SEEDS, 150)))
    found: dict[str, Any] = {"navigator_microseconds": _microseconds()}
    for world in outcomes.worlds:
        (label,) = (label for label in outcomes.configurations(world) if "navigator" in label)
        for name, against in (("", BEST[world]), ("_thrifty", THRIFTY)):
            calls, lead = outcomes.ratio(world, label, against, "far_calls"), outcomes.difference(world, label, against)
            found[f"navigator_calls{name}_{world}"] = _interval(calls)
            found[f"navigator_points{name}_{world}"] = _interval(None if lead is None else lead.times(100))
    return {**found, **_worst(found)}


def _worst(found: dict[str, Any]) -> dict[str, float]:
    """Return the largest upper bound of the ratios, and the smallest lower bound of the points, against the best fixed triggers."""
    return {
        "navigator_calls": max(found[f"navigator_calls_{world}"][2] for world in BEST),
        "navigator_points": min(found[f"navigator_points_{world}"][1] for world in BEST),
    }


async def _made(seeds: Sequence[int], tasks: int) -> Sequence[RunRecord]:
    """Make the runs of all configurations on the same tasks."""
    runs = tuple(dict.fromkeys((NAVIGATED, *BEST.values(), THRIFTY)))
    file = StudyFile(worlds=tuple(BEST), tasks=tasks, seeds=tuple(seeds), runs=runs, policy={"maximum_turns": _TURNS}, jobs=2)
    study = make_study(file, near=NearConfig(model="near", threads=1), far=parse_far("far"), policy=Policy())
    with tempfile.TemporaryDirectory() as folder, RecordLog(Path(folder) / "runs.jsonl") as log:
        sweep = Sweep(study, log)
        async with LocalPool(study) as pool:
            await sweep.make(pool, lambda _: None)
        return sweep.records


def _microseconds() -> float:
    """Return the time of one choice."""
    navigator, seen = Navigator.load(CARD), [0.5] * len(EVIDENCE)
    began = time.perf_counter()
    for _ in range(_DECISIONS):
        navigated(navigator, seen, explore=0)
    return 1e6 * (time.perf_counter() - began) / _DECISIONS


def _interval(estimate: IntervalEstimate | None) -> list[float] | None:
    """Return the value, and where its interval begins and ends."""
    return None if estimate is None else [round(bound, 4) for bound in (estimate.value, estimate.low, estimate.high)]
