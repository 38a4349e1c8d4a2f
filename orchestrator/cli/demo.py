"""`nearfar demo`: a small study of the two models that ship with nearfar."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import anyio
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from ...protocols import ConfigError, Unavailable, WorkerCrashed
from ..compose.agents import EMBEDDED_CONFIDENCE, LocalFarConfig, NearConfig
from ..lab.study.figures import require_matplotlib
from ..lab.study.outcomes import Outcomes
from ..lab.study.report import render, summary
from ..lab.study.study import Study, StudyFile, make_study
from ..lab.study.sweep import all_runs
from ..lab.study.workbench import Item, Workbench
from ..routing.traces import RunRecord
from ..task.policy import Policy
from . import options
from .printing import Line, notes, show
from .running import execute
from .selection import DEMO_SEED
from .sweep import outcome_tables

CASCADE: Final = f"cascade:minimum_confidence={EMBEDDED_CONFIDENCE}"
PLAN: Final = "pevr/inf"
CONFIGURATIONS: Final = ("device", "cloud", CASCADE, PLAN, "pevr/events", "eva/events")

_CRASH_HINT: Final = (
    "run `nearfar doctor`. An engine that crashes at its first step mostly does not suit this CPU; build it here: "
    "pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
)

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    tasks: Annotated[int, typer.Option(min=1, help="Number of tasks for each strategy.")] = 120,
    seed: Annotated[int, typer.Option(help="Seed that the tasks are drawn with.")] = DEMO_SEED,
    report: Annotated[Path, typer.Option(help="File for the HTML report.")] = Path("report.html"),
    as_json: options.AsJson = False,
) -> None:
    """Compare the device, the cloud and a cascade on tasks that the models have not seen, offline.

    Prints a table for each world of tasks and writes a report.
    """

    async def work() -> None:
        require_matplotlib()
        if report.is_dir() or not report.absolute().parent.is_dir():
            raise ConfigError(f"the report cannot be written to {report}", hint="--report names a file in a folder that exists")
        notes.print("starting the near model in this process and the far one behind a gateway process ...", style="dim")
        records = await _run_all(_study(tasks, seed))
        report.write_text(render(records, missing=0, title="Nearfar demo"), encoding="utf-8")
        _refuse_total_failure(records)
        figures = search_figures(records)
        data = {**summary(records, missing=0), "findings": figures, "report": str(report)}
        show(data, _lines(records, figures, report), as_json=as_json)

    execute(work(), as_json=as_json)


def search_figures(records: Sequence[RunRecord]) -> dict[str, float]:
    """Return the figures of the search world.

    They are the gap between the sides in points, and the shares of the far side's right answers and tokens that the cascade and the plan
    have.
    """
    runs = [record for record in records if record.world == "search"]
    by_label = {label: [run for run in runs if run.configuration == label] for label in CONFIGURATIONS}
    solved = {label: sum(run.success for run in each) for label, each in by_label.items()}
    tokens = {label: sum(run.far_usage.total_tokens for run in each) for label, each in by_label.items()}

    def share(of: Mapping[str, int], label: str) -> float:
        return round(of[label] / of["cloud"], 4) if of["cloud"] else 0.0

    return {
        "far_minus_near_points": round(100 * (solved["cloud"] - solved["device"]) / len(by_label["cloud"]), 2),
        "cascade_score_share": share(solved, CASCADE),
        "cascade_far_token_share": share(tokens, CASCADE),
        "plan_score_share": share(solved, PLAN),
        "plan_far_token_share": share(tokens, PLAN),
    }


def _study(tasks: int, seed: int) -> Study:
    file = StudyFile(tasks=tasks, seeds=(seed,), runs=CONFIGURATIONS)
    return make_study(file, near=NearConfig(threads=1), far=LocalFarConfig(threads=1), policy=Policy())


async def _run_all(study: Study) -> list[RunRecord]:
    runs = all_runs(study)
    records: list[RunRecord] = []
    limit = anyio.CapacityLimiter(study.concurrency)
    columns = (TextColumn("{task.fields[state]}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=notes) as progress:
        line = progress.add_task("", total=len(runs), state="")

        async def make(item: Item) -> None:
            async with limit:
                records.append(await bench.run(item))
            if _crashed_at_once(records):
                running.cancel_scope.cancel()
            solved = sum(record.success for record in records)
            progress.update(line, advance=1, state=f"{solved} solved, {sum(record.far_calls for record in records)} far calls")

        async with Workbench(study) as bench, anyio.create_task_group() as running:
            for run in runs:
                running.start_soon(make, run.item)
    if _crashed_at_once(records):
        raise Unavailable(
            f"the first task ended with a crash: {next(record.error for record in records if record.error)}", hint=_CRASH_HINT
        )
    return records


def _crashed_at_once(records: Sequence[RunRecord]) -> bool:
    """Return True if every run so far has failed and an engine has crashed: the other runs would fail, too."""
    return all(record.error for record in records) and any((record.error or "").startswith(WorkerCrashed.__name__) for record in records)


def _refuse_total_failure(records: Sequence[RunRecord]) -> None:
    """Raise `Unavailable` if a configuration has no successful run: that shows a broken installation, not a weak model."""
    for label in {record.configuration for record in records}:
        errors = [record.error for record in records if record.configuration == label]
        if all(errors):
            raise Unavailable(f"every task under {label} failed: {errors[0]}", hint="run `nearfar doctor`")


def _lines(records: Sequence[RunRecord], figures: Mapping[str, float], report: Path) -> Iterator[Line]:
    yield from outcome_tables(Outcomes(records))
    yield (
        f"search: far - near {figures['far_minus_near_points']:+.0f} points; of far's right answers and tokens, "
        f"the cascade has {figures['cascade_score_share']:.0%} and {figures['cascade_far_token_share']:.0%}, "
        f"a plan by far {figures['plan_score_share']:.0%} and {figures['plan_far_token_share']:.0%}"
    )
    yield Text(f"dollars: far tokens at the {records[0].dollars_source}; both models ran here and cost nothing", style="dim")
    yield f"report: {report}"
