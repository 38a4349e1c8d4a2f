"""`nearfar sweep` and `nearfar demo`: compare strategies on worlds of tasks, and report score and cost of each."""

import json
import logging
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import anyio
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from ...protocols import ConfigError, Unavailable, WorkerCrashed
from ...protocols.system import replace_text
from ..compose import EMBEDDED_CONFIDENCE, LocalFarConfig, NearConfig, runs_on_onnx
from ..compose.hub import ServeConfig
from ..lab.figures import require_matplotlib
from ..lab.report import SWEEP_SUMMARY, render_sweep, sweep_summary, write_sweep_report
from ..lab.story import Story, Telling, search_task, story_figures, tell
from ..lab.study import Study, StudyFile, claim_folder, make_study, read_study_file, with_options
from ..lab.study.outcomes import Outcomes
from ..lab.study.pools import LocalPool, RunPool
from ..lab.study.sweep import RecordLog, Sweep, all_runs
from ..lab.study.workbench import Item, Workbench
from ..lab.worlds.loading import SearchWorld
from ..routing.navigator import NAVIGATOR
from ..routing.outcome_records import RunRecord
from ..task.policy import Policy
from ..task.stores import RunsConfig
from . import options
from .http import open_console
from .running import Line, asynchronous, notes, print_lines, show, table, warn
from .selection import DEMO_SEED, chosen_config, open_hybrid, shipped_config

EXIT_CEILING: Final = 3
"""Exit code if the cost ceiling ended the sweep, so that runs are missing."""
CASCADE: Final = f"cascade:minimum_confidence={EMBEDDED_CONFIDENCE}"
PLAN: Final = "pevr/inf"
SEARCH: Final = "search"
"""World of the task that the demo shows step by step."""
STORY: Final = {"device": "near alone", "cloud": "far alone", PLAN: "together: far plans, near does the work"}
"""The configurations under which the demo shows one task step by step, and their names for a reader."""
STORY_TASK: Final = 7
"""Index of that task among those of the search world that `DEMO_SEED` draws: near alone fails at it, and far alone costs more than both
together."""
_CONSOLE_TASKS: Final = 6
"""Tasks that the demo's console shows."""
_STORY_FIELDS: Final = ("configuration", "answer", "success", "error", "far_calls", "far_usage", "dollars", "seconds")
NEXT_DEMOS: Final = ("errands", "private_mail", "survives_kill")
CONFIGURATIONS: Final = ("device", "cloud", CASCADE, PLAN, "pevr/events", "eva/events")
_CRASH_HINT: Final = (
    "run `nearfar doctor`. An engine that crashes at its first step mostly does not suit this CPU; build it here: "
    "pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
)


@asynchronous
async def sweep(
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
    call_price: Annotated[
        float, typer.Option(min=0, max=1, help="Share of a perfect score that a far call has to bring, for a navigator.")
    ] = 0.06,
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
    chosen = _study(study, given, selection)
    with RecordLog(claim_folder(out, chosen)) as log:
        made = Sweep(chosen, log)
        try:
            await _make(made, chosen, ray=ray)
        finally:
            _print_missing(made, chosen.ceiling)
        _conclude(made, out, call_price, as_json=as_json)
        if made.missing:
            raise typer.Exit(EXIT_CEILING)


_DEMO_TITLE: Final = "Nearfar demo"


def _check_report(report: Path) -> None:
    """Raise `ConfigError` where the report cannot be written, or would take the place of somebody's own file."""
    if report.is_dir() or not report.absolute().parent.is_dir():
        raise ConfigError(f"the report cannot be written to {report}", hint="--report names a file in a folder that exists")
    if report.is_file():
        present = report.read_bytes()
        if present and f"<title>{_DEMO_TITLE}</title>".encode() not in present:
            raise ConfigError(f"{report} exists already and is no report of this demo", hint="--report names another file")


@asynchronous
async def demo(
    tasks: Annotated[int, typer.Option(min=1, help="Number of tasks for each strategy.")] = 120,
    seed: Annotated[int, typer.Option(help="Seed that the tasks are drawn with.")] = DEMO_SEED,
    report: Annotated[Path, typer.Option(help="File for the HTML report.")] = Path("report.html"),
    console: Annotated[bool, typer.Option("--open", help="Open the console in a browser instead, with a few tasks to look at.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show one task step by step, then compare the device, the cloud and a cascade on tasks that the models have not seen, offline.

    Prints a table for each world of tasks and writes a report.
    """
    require_matplotlib()
    _check_report(report)
    notes.print("starting the near model in this process and the far one behind a gateway process ...", style="dim")
    if runs_on_onnx("near"):
        notes.print("llama.cpp is not installed: onnxruntime runs both models")
    if console:
        await _open_demo_console(as_json=as_json)
        return
    async with Workbench(_demo_study(max(tasks, STORY_TASK + 1), seed)) as bench:
        story = await _tell_story(bench, shown=not as_json)
        records = await _run_all(bench, _demo_study(tasks, seed))
    outcomes = Outcomes(records)
    replace_text(report, render_sweep(outcomes, missing=0, title=_DEMO_TITLE, story=story))
    _refuse_failed_configuration(records)
    figures = search_figures(records)
    told = story_figures(story, _STORY_FIELDS)
    data = {"story": told, **sweep_summary(outcomes, missing=0), "findings": figures, "report": str(report)}
    show(data, _demo_lines(outcomes, figures, report), as_json=as_json)


async def _open_demo_console(*, as_json: bool) -> None:
    """Serve a few tasks of the search world, and show them in the console until Ctrl-C."""
    tasks = SearchWorld().tasks(_CONSOLE_TASKS, DEMO_SEED)
    with tempfile.TemporaryDirectory() as folder:
        here = {"runs": RunsConfig(folder=Path(folder)), "serve": ServeConfig(address="127.0.0.1:0")}
        config = shipped_config().model_copy(update=here)
        async with open_hybrid(options.AgentChoice(None, None, None), config) as hybrid:
            for task in tasks:
                await hybrid.run(task.prompt, sensitivity="public")
            await open_console(hybrid, config, 1.0, as_json=as_json, opens=not as_json)


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
            records = sweep.records
            count, score = len(records), sum(record.score for record in records)

            def advance(record: RunRecord) -> None:
                nonlocal count, score
                count, score = count + 1, score + record.score
                progress.update(line, advance=1, state=f"score {score / count:.2f}, ${sweep.budget.spent:.4f}")

            await sweep.make(pool, advance)


def _pool(study: Study, *, ray: bool) -> RunPool:
    if not ray:
        return LocalPool(study)
    from ..lab.study.pools import RayPool

    return RayPool(study)


def _print_missing(sweep: Sweep, ceiling: float | None) -> None:
    """If runs are missing, print how many and the command that makes them; also after an interruption."""
    if not sweep.missing:
        return
    again = shlex.join(["nearfar", *sys.argv[1:]])
    spent = "" if ceiling is None else f" (${sweep.budget.spent:.4f} of ${ceiling:g} are spent; a higher --ceiling allows more)"
    notes.print(f"{len(sweep.missing):,} of {len(sweep.runs):,} runs are missing; the same command makes them{spent}:", soft_wrap=True)
    notes.print(f"  {again}", soft_wrap=True)


def _conclude(sweep: Sweep, folder: Path, call_price: float, *, as_json: bool) -> None:
    records = sweep.records
    _refuse_total_failure(records)
    counts = {"runs": len(records), "missing": len(sweep.missing), "dollars": sweep.budget.spent, "folder": str(folder)}
    if any(record.moves for record in records) and (trained := _train(records, folder, call_price)) is not None:
        counts["navigator"] = str(trained)
    try:
        require_matplotlib()
    except ConfigError as error:
        warn(f"no report is written: {error}")
        show(counts, (), as_json=as_json)
        return
    report = write_sweep_report(records, folder, missing=len(sweep.missing))
    summary = json.loads((folder / SWEEP_SUMMARY).read_text(encoding="utf-8"))
    show({**counts, "report": str(report), **summary}, _lines(records, report), as_json=as_json)


def _train(records: Sequence[RunRecord], folder: Path, call_price: float) -> Path | None:
    """Train a navigator on the moves of the runs, and return its file; None where they are too few."""
    from ..lab.training.navigation import train_navigator

    try:
        card = train_navigator(records, call_price=call_price)
    except ConfigError as error:
        warn(f"no navigator is trained: {error}")
        return None
    path = folder / NAVIGATOR
    replace_text(path, card.model_dump_json() + "\n")
    notes.print(f"trained on {card.runs:,} runs: [policy.supervision] navigator = {json.dumps(str(path))}", soft_wrap=True, markup=False)
    return path


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


def search_figures(records: Sequence[RunRecord]) -> dict[str, float]:
    """Return the figures of the search world.

    They are the gap between the sides in points, and the shares of the far side's right answers and tokens that the cascade and the plan
    have.
    """
    runs = [record for record in records if record.world == SEARCH]
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


def _demo_study(tasks: int, seed: int) -> Study:
    file = StudyFile(tasks=tasks, seeds=(seed,), runs=CONFIGURATIONS)
    return make_study(file, near=NearConfig(threads=1), far=LocalFarConfig(threads=1), policy=Policy())


async def _tell_story(bench: Workbench, *, shown: bool) -> Story:
    """Run one task under each configuration of `STORY`, print the steps as they happen if `shown`, and return what happened."""
    task, expected = search_task(STORY_TASK, DEMO_SEED)
    show_line = print_lines if shown else _print_nothing
    show_line([f"one task, three ways: {task}", Text(f"(the right answer is {expected})", style="dim")])
    tellings: list[Telling] = []
    for label, title in STORY.items():
        show_line(["", Text(title, style="bold")])
        item = Item(world=SEARCH, seed=DEMO_SEED, index=STORY_TASK, configuration=label)
        tellings.append(await tell(bench, item, title, lambda step: show_line(f"  {line}" for line in step.splitlines())))
        _refuse_crash([telling.record for telling in tellings])
        show_line([_conclusion(tellings[-1])])
    story = Story(task=task, right_answer=expected, tellings=tuple(tellings))
    show_line(["", Text(story.moral, style="bold"), ""] if story.moral else [""])
    return story


def _print_nothing(_lines: Iterable[Line]) -> None:
    """Print nothing: a script reads the figures instead."""


def _conclusion(telling: Telling) -> Text:
    if telling.record.error is not None:
        return Text(f"  {telling.answer}", style="red")
    verdict = Text("right", style="green") if telling.record.success else Text("wrong", style="red")
    return Text.assemble(f"  {telling.agent} answers: {telling.answer}: ", verdict, f"; {telling.price}")


async def _run_all(bench: Workbench, study: Study) -> list[RunRecord]:
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

        async with anyio.create_task_group() as running:
            for run in runs:
                running.start_soon(make, run.item)
    _refuse_crash(records)
    return records


def _refuse_crash(records: Sequence[RunRecord]) -> None:
    """Raise `Unavailable` if every run so far has failed and an engine has crashed."""
    if _crashed_at_once(records):
        raise Unavailable(
            f"the first task ended with a crash: {next(record.error for record in records if record.error)}", hint=_CRASH_HINT
        )


def _crashed_at_once(records: Sequence[RunRecord]) -> bool:
    """Return True if every run so far has failed and an engine has crashed: the other runs would fail, too."""
    return all(record.error for record in records) and any((record.error or "").startswith(WorkerCrashed.__name__) for record in records)


def _refuse_failed_configuration(records: Sequence[RunRecord]) -> None:
    """Raise `Unavailable` if a configuration has no successful run: that shows a broken installation, not a weak model."""
    for label in {record.configuration for record in records}:
        errors = [record.error for record in records if record.configuration == label]
        if all(errors):
            raise Unavailable(f"every task under {label} failed: {errors[0]}", hint="run `nearfar doctor`")


def _demo_lines(outcomes: Outcomes, figures: Mapping[str, float], report: Path) -> Iterator[Line]:
    yield from outcome_tables(outcomes)
    yield (
        f"search: far - near {figures['far_minus_near_points']:+.0f} points; of far's right answers and tokens, "
        f"the cascade has {figures['cascade_score_share']:.0%} and {figures['cascade_far_token_share']:.0%}, "
        f"a plan by far {figures['plan_score_share']:.0%} and {figures['plan_far_token_share']:.0%}"
    )
    yield Text(f"dollars: far tokens at the {outcomes.records[0].dollars_source}; both models ran here and cost nothing", style="dim")
    yield f"report: {report}"
    where = "next" if Path("demos").is_dir() else "next, in the repository of Nearfar"
    yield f"{where}: {'; '.join(f'{_interpreter()} demos/{name}/main.py' for name in NEXT_DEMOS)}"


def _interpreter() -> str:
    """Return how to call this Python from the current folder: `.venv/bin/python` after `make demo`."""
    python, here = Path(sys.executable), Path.cwd()
    return str(python.relative_to(here)) if python.is_relative_to(here) else "python"
