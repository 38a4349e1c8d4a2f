"""`nearfar sweep`: run configurations on worlds of tasks and report score and cost of each."""

import json
import logging
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from ...protocols import ConfigError, Unavailable
from ..lab.study.figures import require_matplotlib
from ..lab.study.folder import claim_folder
from ..lab.study.outcomes import Outcomes
from ..lab.study.pools import LocalPool, Pool
from ..lab.study.records import RecordLog
from ..lab.study.report import SUMMARY, write_report
from ..lab.study.study import Study, StudyFile, make_study, read_study_file, with_options
from ..lab.study.sweep import Sweep
from ..routing.traces import RunRecord
from . import options
from .printing import Line, notes, show, table, warn
from .running import execute
from .selection import chosen_config

EXIT_CEILING: Final = 3
"""Exit code if the cost ceiling ended the sweep, so that runs are missing."""

app = typer.Typer(add_completion=False)


@app.command()
def sweep(
    study: Annotated[Path | None, typer.Argument(help="Study file (TOML). Options take the place of its keys.")] = None,
    world: Annotated[list[str] | None, typer.Option(help="search, apps, or package.module:factory. May be repeated.")] = None,
    tasks: Annotated[int | None, typer.Option(min=1, help="Tasks drawn from each world with each seed.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds, counted from 1.")] = None,
    run: Annotated[list[str] | None, typer.Option(help="Configuration such as pevr/8 or eva:triggers=loop+stall. May be repeated.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report. An interrupted sweep continues there.")] = Path("sweep"),
    jobs: Annotated[int | None, typer.Option(min=1, help="Number of processes, each with its own agents.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Runs at the same time in each process.")] = None,
    ceiling: Annotated[float | None, typer.Option(min=0, help="US dollars at which no further run starts (exit code 3).")] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Use Ray instead of processes on this machine.")] = False,
    agents: Annotated[str | None, typer.Option(help="package.module:factory that makes the near and the far agent.")] = None,
    public: options.Public = False,
    config: options.Config = None,
    near: options.Near = None,
    far: options.Far = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare strategies on worlds of tasks, with error bars, and report the score and cost of each.

    Runs that are recorded in the folder already are not made again.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    named: dict[str, object] = {"worlds": world, "tasks": tasks, "seeds": seeds, "runs": run, "jobs": jobs, "concurrency": concurrency}
    named |= {"ceiling": ceiling, "agents": agents, "public": public or None}
    given = {name: value for name, value in named.items() if value is not None}
    selection = options.AgentChoice(config, near, far)

    async def work() -> None:
        chosen = _study(study, given, selection)
        with RecordLog(claim_folder(out, chosen)) as log:
            made = Sweep(chosen, log)
            try:
                await _make(made, chosen, ray=ray)
            finally:
                _print_missing(made, chosen.ceiling)
            _conclude(made, out, as_json=as_json)
            if made.missing:
                raise typer.Exit(EXIT_CEILING)

    execute(work(), as_json=as_json)


def _study(path: Path | None, given: dict[str, object], selection: options.AgentChoice) -> Study:
    file = read_study_file(path) if path is not None else StudyFile()
    config = chosen_config(selection)
    return make_study(with_options(file, given), near=config.near, far=config.far, policy=config.policy)


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
    """The mean score of the runs so far."""

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


def _print_missing(sweep: Sweep, ceiling: float | None) -> None:
    """If runs are missing, print how many and the command that makes them; also after an interruption."""
    if not sweep.missing:
        return
    again = shlex.join(["nearfar", *sys.argv[1:]])
    spent = "" if ceiling is None else f" (${sweep.budget.spent:.4f} of ${ceiling:g} are spent; a higher --ceiling allows more)"
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
        show(counts, (), as_json=as_json)
        return
    report = write_report(records, folder, missing=len(sweep.missing))
    summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    show({**counts, "report": str(report), **summary}, _lines(records, report), as_json=as_json)


def _lines(records: Sequence[RunRecord], report: Path) -> Iterator[Line]:
    yield from outcome_tables(Outcomes(records))
    yield f"report: {report}"


def _refuse_total_failure(records: Sequence[RunRecord]) -> None:
    """Raise `Unavailable` if every run has failed: that shows a broken world or installation, not weak agents."""
    if records and all(record.error is not None for record in records):
        raise Unavailable(
            f"every run failed, the first one with: {records[0].error}", hint="run `nearfar doctor`; delete runs.jsonl to start over"
        )


def outcome_tables(outcomes: Outcomes) -> Iterator[Table]:
    """Yield a table of configurations for each world."""
    for world in outcomes.worlds:
        rows = [_row(outcomes, world, label) for label in outcomes.configurations(world)]
        columns = [Column("configuration", overflow="fold", min_width=8)]
        for place, title in enumerate(("score", "95 %", "success", "far\ncalls", "$ / 1000\ntasks", "seconds"), start=1):
            # In a narrow window a label may be folded; a figure must not be cut off.
            widths = map(len, (*title.split("\n"), *(row[place] for row in rows)))
            columns.append(Column(title, justify="right", min_width=max(widths), no_wrap=True))
        yield table(columns, rows, title=world)


def _row(outcomes: Outcomes, world: str, label: str) -> list[str]:
    score = outcomes.estimate(world, label, "score")
    assert score is not None, "every run has a score"
    others = [outcomes.estimate(world, label, measure) for measure in ("success", "far_calls", "dollars", "seconds")]
    success, far_calls, dollars, seconds = (
        "unknown" if each is None else f"{scale * each.value:{form}}"
        for each, scale, form in zip(others, (1, 1, 1000, 1), (".1%", ".2f", ".3f", ".2f"), strict=True)
    )
    return [label, f"{score.value:.1%}", f"{score.low:.0%}-{score.high:.0%}", success, far_calls, dollars, seconds]
