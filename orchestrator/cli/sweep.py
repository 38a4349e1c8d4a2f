"""`nearfar sweep`."""

import json
import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ...protocols import ConfigError, Unavailable
from ..lab.study.figures import require_matplotlib
from ..lab.study.folder import claim_folder
from ..lab.study.outcomes import Outcomes
from ..lab.study.pools import LocalPool, Pool
from ..lab.study.records import RecordLog
from ..lab.study.report import SUMMARY, write_report
from ..lab.study.study import Study, StudyFile, make_study, read_study_file, with_options
from ..lab.study.sweep import Sweep
from ..routing.run_record import RunRecord
from .console import execute, notes, output, print_json, warn
from .options import Selection
from .selection import chosen_config

EXIT_CEILING = 3
"""The cost ceiling ended the sweep: runs are missing."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for."""

    file: Path | None
    options: dict[str, object]
    """Keys of a study file that stand in place of its own."""
    out: Path
    ray: bool


def run_sweep(wanted: Wanted, selection: Selection, *, as_json: bool) -> None:
    """Make the runs that are missing, then write the report."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")

    async def work() -> None:
        study = _study(wanted, selection)
        with RecordLog(claim_folder(wanted.out, study)) as log:
            sweep = Sweep(study, log)
            try:
                await _make(sweep, study, ray=wanted.ray)
            finally:
                _say_what_is_left(sweep, study.ceiling)
            _conclude(sweep, wanted.out, as_json=as_json)
            if sweep.missing:
                raise typer.Exit(EXIT_CEILING)

    execute(work(), as_json=as_json)


def _study(wanted: Wanted, selection: Selection) -> Study:
    file = read_study_file(wanted.file) if wanted.file is not None else StudyFile()
    config = chosen_config(selection)
    return make_study(with_options(file, wanted.options), near=config.near, far=config.far, policy=config.policy)


async def _make(sweep: Sweep, study: Study, *, ray: bool) -> None:
    left = len(sweep.missing)
    if not left:
        notes.print("every run of this study is recorded already", style="dim")
        return
    notes.print(f"{left:,} of {len(sweep.runs):,} runs to make; opening the agents ...", style="dim")
    columns = (
        TextColumn("{task.fields[state]}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    async with _pool(study, ray=ray) as pool:
        with Progress(*columns, console=notes) as progress:
            line = progress.add_task("", total=len(sweep.runs), completed=len(sweep.runs) - left, state="")
            score = _RunningScore(sweep.records)

            def advance(record: RunRecord) -> None:
                score.add(record)
                progress.update(line, advance=1, state=f"score {score.mean:.2f}, ${sweep.budget.spent:.4f}")

            await sweep.make(pool, advance)


class _RunningScore:
    """The mean score so far."""

    def __init__(self, records: Sequence[RunRecord]) -> None:
        self._sum = sum(record.score for record in records)
        self._count = len(records)

    def add(self, record: RunRecord) -> None:
        self._sum += record.score
        self._count += 1

    @property
    def mean(self) -> float:
        return self._sum / self._count


def _pool(study: Study, *, ray: bool) -> Pool:
    if not ray:
        return LocalPool(study)
    from ..lab.study.ray_pool import RayPool

    return RayPool(study)


def _say_what_is_left(sweep: Sweep, ceiling: float | None) -> None:
    """Also where the sweep was stopped: every run that ended is recorded."""
    if not sweep.missing:
        return
    again = shlex.join(["nearfar", *sys.argv[1:]])
    spent = "" if ceiling is None else f" (${sweep.budget.spent:.4f} of ${ceiling:g} are spent, and a higher --ceiling allows more)"
    notes.print(f"{len(sweep.missing):,} of {len(sweep.runs):,} runs are missing; the same command makes them{spent}:", soft_wrap=True)
    notes.print(f"  {again}", soft_wrap=True)


def _conclude(sweep: Sweep, folder: Path, *, as_json: bool) -> None:
    records = sweep.records
    _refuse_total_failure(records)
    counts = {"runs": len(records), "missing": len(sweep.missing), "dollars": sweep.budget.spent, "folder": str(folder)}
    try:
        require_matplotlib()
    except ConfigError as error:
        warn(f"no report is written: {error}")
        if as_json:
            print_json(counts)
        return
    report = write_report(records, folder, missing=len(sweep.missing))
    if as_json:
        print_json({**counts, "report": str(report), **json.loads((folder / SUMMARY).read_text(encoding="utf-8"))})
    else:
        print_tables(Outcomes(records))
        output.print(f"report: {report}", soft_wrap=True)


def _refuse_total_failure(records: Sequence[RunRecord]) -> None:
    """Not a single run that went through shows a broken world or installation, and not weak agents."""
    if records and all(record.error is not None for record in records):
        raise Unavailable(
            f"every run failed, the first one with: {records[0].error}", hint="see `nearfar doctor`; delete runs.jsonl to start over"
        )


def print_tables(outcomes: Outcomes) -> None:
    """A table of configurations for each world."""
    for world in outcomes.worlds:
        table = Table(title=world, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
        rows = [_row(outcomes, world, label) for label in outcomes.configurations(world)]
        table.add_column("configuration", overflow="fold", min_width=8)
        for place, title in enumerate(("score", "95 %", "success", "far\ncalls", "$ / 1000\ntasks", "seconds"), start=1):
            # A label may be cut in two where the window is narrow, a figure may not be cut off.
            widths = map(len, (*title.split("\n"), *(row[place] for row in rows)))
            table.add_column(title, justify="right", min_width=max(widths), no_wrap=True)
        for row in rows:
            table.add_row(*row)
        output.print(table)


def _row(outcomes: Outcomes, world: str, label: str) -> list[str]:
    score = outcomes.estimate(world, label, "score")
    assert score is not None, "every run has a score"
    others = [outcomes.estimate(world, label, measure) for measure in ("success", "far_calls", "dollars", "seconds")]
    success, far_calls, dollars, seconds = (
        "unknown" if each is None else f"{scale * each.value:{form}}"
        for each, scale, form in zip(others, (1, 1, 1000, 1), (".1%", ".2f", ".3f", ".2f"), strict=True)
    )
    return [label, f"{score.value:.1%}", f"{score.low:.0%}-{score.high:.0%}", success, far_calls, dollars, seconds]
