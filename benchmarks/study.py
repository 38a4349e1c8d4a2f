"""What the hybrid architectures reach against either side alone: the figures of a sweep over both worlds, each with its 95 % interval.

    python benchmarks/study.py --json --quick     40 tasks per world, 3 seeds, the configurations that the figures need: minutes
    python benchmarks/study.py --json             200 tasks per world and seed, 3 seeds, all standard configurations and the oracle's

Tasks are of unseen entities; every agent has 40 turns. The folder given by --out keeps the runs: the same command goes on where it was
stopped, and its report.html has the pictures. Without --out the runs are thrown away.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nearfar.orchestrator.compose import EMBEDDED_CONFIDENCE, NearConfig, parse_far
from nearfar.orchestrator.lab.report import write_sweep_report
from nearfar.orchestrator.lab.statistics import IntervalEstimate
from nearfar.orchestrator.lab.study import STANDARD, Study, StudyFile, claim_folder, make_study
from nearfar.orchestrator.lab.study.headline import AutoHeadline, Comparison, Reached, WorldHeadline, auto_headline, headline
from nearfar.orchestrator.lab.study.outcomes import Outcomes
from nearfar.orchestrator.lab.study.pools import LocalPool
from nearfar.orchestrator.lab.study.sweep import RecordLog, Sweep
from nearfar.orchestrator.routing.outcome_records import RunRecord
from nearfar.orchestrator.task.policy import Policy

TURNS = 40
SEEDS = (1, 2, 3)
QUICK = ("device", "cloud", "cascade", "pevr/inf", *(f"{name}/{pace}" for name in ("pevr", "eva") for pace in ("4", "8", "events")))
ON_DOUBT = (
    "pevr/inf:plan_below=0.999",
    "pevr/inf:plan_below=0.9995",
    "pevr/events:plan_below=0.9995",
    f"cascade:minimum_confidence={EMBEDDED_CONFIDENCE}",
)
"""Far is asked only where near is unsure; the limits were chosen for the shipped models on tasks of another seed, 777."""
ORACLE = ("pevr/4+oracle", "eva/4+oracle", "pevr/events+oracle", "eva/events+oracle")
WORLDS = ("search", "apps")
NO_ANSWER = f"no answer within {TURNS} turns"


def study_of(options: argparse.Namespace) -> Study:
    """The full study, or a part of it that takes minutes."""
    tasks = options.tasks or (40 if options.quick else 200)
    runs = (*(QUICK if options.quick else STANDARD), *ON_DOUBT, *(() if options.quick else ORACLE))
    file = StudyFile(worlds=WORLDS, tasks=tasks, seeds=SEEDS, runs=runs, policy={"maximum_turns": TURNS}, jobs=options.jobs)
    return make_study(file, near=NearConfig(model=options.near, threads=1), far=parse_far(options.far), policy=Policy())


async def run(study: Study, folder: Path) -> Sequence[RunRecord]:
    """Make the runs that the folder lacks, and write its report."""
    with RecordLog(claim_folder(folder, study)) as log:
        sweep = Sweep(study, log)
        if sweep.missing:
            async with LocalPool(study) as pool:
                await sweep.make(pool, lambda record: _show(log, sweep))
        write_sweep_report(sweep.records, folder, missing=len(sweep.missing))
        return sweep.records


def _show(log: RecordLog, sweep: Sweep) -> None:
    if len(log.records) % 100 == 0:
        print(f"{len(log.records)} of {len(sweep.runs)} runs", file=sys.stderr)


def _is_unanswered(record: RunRecord) -> bool:
    """The agents used up their turns, which is an outcome of the run and no failure of the program."""
    return record.error is not None and NO_ANSWER in record.error


def figures_of(records: Sequence[RunRecord]) -> dict[str, Any]:
    """The figures by world, and those of `auto` over both."""
    outcomes = Outcomes(records)
    worlds = {world: _world(headline(outcomes, world)) for world in outcomes.worlds}
    return {
        **worlds,
        "auto": _auto(auto_headline(records)),
        "runs": len(records),
        "unanswered": sum(_is_unanswered(each) for each in records),
        "errors": sum(each.error is not None and not _is_unanswered(each) for each in records),
    }


def _world(line: WorldHeadline) -> dict[str, Any]:
    return {
        "tasks": line.tasks,
        "near": _reached(line.near),
        "far": _reached(line.far),
        "best_hybrid": _reached(line.best_hybrid),
        "best_oracle": _reached(line.oracle),
        "over_near_at_half_of_fars_dollars": _compared(line.beats_near, "points", "success_points", "dollar_share"),
        "of_far_at_40_percent_of_its_dollars": _compared(line.approaches_far, "score_share", "success_share", "dollar_share"),
        "events_against_best_interval": _compared(line.events, "points", "success_points", "far_call_share"),
        **{f"peak_kv_of_{each.configuration.partition('/')[0]}_against_near": _compared(each, "kv_share") for each in line.memory},
    }


def _reached(what: Reached | None) -> dict[str, Any] | None:
    if what is None:
        return None
    return {
        "configuration": what.configuration,
        "score": _interval(what.score),
        "success": _interval(what.success),
        "dollars": _interval(what.dollars),
    }


def _compared(what: Comparison | None, *figures: str) -> dict[str, Any] | None:
    if what is None:
        return None
    return {"configuration": what.configuration, "against": what.against, **{name: _interval(getattr(what, name)) for name in figures}}


def _auto(line: AutoHeadline | None) -> dict[str, Any] | None:
    if line is None:
        return None
    front = [{**point.model_dump(), "points": _interval(point.points)} for point in line.front]
    return {
        **line.model_dump(exclude={"regret", "points", "front"}),
        "points": _interval(line.points),
        "front": front,
        "final_regret": line.regret[-1],
    }


def _interval(estimate: IntervalEstimate | None) -> list[float] | None:
    """The value, and where its interval begins and ends."""
    return None if estimate is None else [round(bound, 6) for bound in (estimate.value, estimate.low, estimate.high)]


def _lines(figures: dict[str, Any], path: str = "") -> Iterator[str]:
    """One line for each figure."""
    for name, value in figures.items():
        if isinstance(value, dict):
            yield from _lines(value, f"{path}{name} ")
        else:
            yield f"{path}{name}: {json.dumps(value)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--quick", action="store_true", help="fewer tasks and configurations")
    parser.add_argument("--tasks", type=int, help="per world and seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--near", default="near", help="model on this device")
    parser.add_argument("--far", default="far", help="model in the cloud")
    parser.add_argument("--out", type=Path, help="folder that keeps the runs and the report")
    options = parser.parse_args()
    with contextlib.nullcontext(options.out) if options.out else tempfile.TemporaryDirectory() as folder:
        figures = figures_of(asyncio.run(run(study_of(options), Path(folder))))
    print(json.dumps(figures) if options.json else "\n".join(_lines(figures)))


if __name__ == "__main__":
    main()
