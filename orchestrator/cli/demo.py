"""`nearfar demo`: a small study of the shipped pair, in one process."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import anyio
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ...protocols import ConfigError, Unavailable, WorkerCrashed
from ..compose.agents import EMBEDDED_CONFIDENCE, LocalFarConfig, NearConfig
from ..lab.study.figures import require_matplotlib
from ..lab.study.outcomes import Outcomes
from ..lab.study.report import render, summary
from ..lab.study.study import Study, StudyFile, make_study
from ..lab.study.sweep import all_runs
from ..lab.study.workbench import Item, Workbench
from ..routing.run_record import RunRecord
from ..task.task import Policy
from .console import execute, notes, output, print_json
from .sweep import print_tables

CASCADE: Final = f"cascade:minimum_confidence={EMBEDDED_CONFIDENCE}"
PLAN: Final = "pevr/inf"
CONFIGURATIONS: Final = ("device", "cloud", CASCADE, PLAN, "pevr/events", "eva/events")

_CRASH_HINT: Final = (
    "look at `nearfar doctor`; an engine that dies at its first step mostly does not suit this CPU, so build it here: "
    "pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
)


def run_demo(*, tasks: int, seed: int, report: Path, as_json: bool) -> None:
    """Compare the strategies on unseen tasks of both worlds; print the tables and write the report."""

    async def work() -> None:
        require_matplotlib()
        if report.is_dir() or not report.absolute().parent.is_dir():
            raise ConfigError(f"{report} is a folder or lies in none", hint="--report names a file in a folder that exists")
        notes.print("starting the near model here and the far one behind a gateway process ...", style="dim")
        records = await _made(_study(tasks, seed))
        report.write_text(render(records, missing=0, title="Nearfar demo"), encoding="utf-8")
        _refuse_total_failure(records)
        figures = search_figures(records)
        if as_json:
            print_json({**summary(records, missing=0), "findings": figures, "report": str(report)})
        else:
            _print(records, figures, report)

    execute(work(), as_json=as_json)


def search_figures(records: Sequence[RunRecord]) -> dict[str, float]:
    """In the search world: the gap between the sides, and what cascade and plan keep of far's right answers and spend of its tokens."""
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


async def _made(study: Study) -> list[RunRecord]:
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
    """No run went through so far and an engine died: the further ones would end no better."""
    return all(record.error for record in records) and any((record.error or "").startswith(WorkerCrashed.__name__) for record in records)


def _refuse_total_failure(records: Sequence[RunRecord]) -> None:
    """A configuration without a single run that went through shows a broken installation and not a weak model."""
    for label in {record.configuration for record in records}:
        errors = [record.error for record in records if record.configuration == label]
        if all(errors):
            raise Unavailable(f"every task under {label} failed: {errors[0]}", hint="see `nearfar doctor`")


def _print(records: Sequence[RunRecord], figures: dict[str, float], report: Path) -> None:
    print_tables(Outcomes(records))
    output.print(
        f"search: far - near {figures['far_minus_near_points']:+.0f} points; of far's right answers and tokens, "
        f"the cascade has {figures['cascade_score_share']:.0%} and {figures['cascade_far_token_share']:.0%}, "
        f"a plan by far {figures['plan_score_share']:.0%} and {figures['plan_far_token_share']:.0%}",
        soft_wrap=True,
    )
    output.print(
        f"dollars: far tokens at the {records[0].dollars_source}; both models ran here and cost nothing", style="dim", soft_wrap=True
    )
    output.print(f"report: {report}", soft_wrap=True)
