"""Run the benchmarks and hold their figures against the bars of `benchmarks/bars.toml`.

python scripts/bars.py                    every benchmark with `--quick`, within ten minutes; exit code 1 where a bar is missed
python scripts/bars.py graph wire         these alone
python scripts/bars.py --full [NAME ...]  without `--quick`; keeps the figures in `benchmarks/results` and writes `docs/benchmarks.md`
python scripts/bars.py --page             write the page from the figures that are kept
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

ROOT: Final = Path(__file__).parents[1]
BARS: Final = ROOT / "benchmarks" / "bars.toml"
RESULTS: Final = ROOT / "benchmarks" / "results"
PAGE: Final = ROOT / "docs" / "benchmarks.md"
DATA: Final = ROOT.parent / "shared" / "data"
_HEAD: Final = """# Benchmarks

<!-- Written by scripts/bars.py from benchmarks/bars.toml and benchmarks/results. -->

Each figure, the bar that it has to clear, and what the last full run measured. `make bars` runs every benchmark with `--quick`, within ten
minutes, and names the bars that are missed. `make bench` runs all of it, keeps the figures and writes this page. Ratios compare two
programs that run turn by turn in one run on one machine, and so travel better than times, which belong to the machine: where the plain loop
that is named with it takes 200 ms, times are two to four times those of a machine where it takes 70.
"""
QUICK_LIMIT: Final = 180
"""Seconds for a benchmark with `--quick`; the slowest takes two minutes."""
_FULL_LIMIT: Final = 5400


@dataclass(frozen=True)
class Figure:
    """A figure that a benchmark prints, and its bar if it has one."""

    name: str
    """The key in the benchmark's JSON; a dot leads into an object."""
    means: str
    at_most: float | None = None
    at_least: float | None = None
    full_only: bool = False
    """`--quick` measures too little to hold it against the bar."""

    @property
    def bar(self) -> str:
        return f"<= {self.at_most:g}" if self.at_most is not None else f">= {self.at_least:g}" if self.at_least is not None else ""

    def is_met(self, value: object) -> bool:
        """Return True where the bar is met. A figure that is missing misses it; of one with an interval the value counts."""
        if not self.bar:
            return True
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, Mapping):
            value = value.get("value")
        if not isinstance(value, int | float):
            return False
        return (self.at_most is None or value <= self.at_most) and (self.at_least is None or value >= self.at_least)


@dataclass(frozen=True)
class Benchmark:
    """A program in `benchmarks`, or a command, that prints its figures as JSON."""

    name: str
    title: str
    about: str
    figures: tuple[Figure, ...]
    data: str | None = None
    """The folder of recorded data that it needs, within the one that `--data` names."""

    def command(self, *, data: Path, quick: bool) -> list[str]:
        chosen = ["--data", str(data / self.data)] if self.data is not None else []
        return [sys.executable, f"benchmarks/{self.name}.py", "--json", *(["--quick"] if quick else []), *chosen]

    def shown_command(self) -> str:
        return f"python benchmarks/{self.name}.py --json" + (" --data FOLDER" if self.data is not None else "")


@dataclass(frozen=True)
class Outcome:
    """The figures of one run of a benchmark, and what it ran on."""

    figures: Mapping[str, Any]
    seconds: float
    quick: bool
    measured: str
    """The day, in UTC."""
    commit: str
    machine: str
    load: float
    """Processes that wanted a core when it began; above 1, times are those of a busy machine."""
    versions: Mapping[str, str] = field(default_factory=dict)


def load_bars(path: Path = BARS) -> list[Benchmark]:
    """Return the benchmarks in the order of the file. Raises `TypeError` for a field that does not exist."""
    entries = _read(path)["benchmark"]
    return [Benchmark(**{**entry, "figures": tuple(Figure(**figure) for figure in entry["figures"])}) for entry in entries]


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def value_of(figures: Mapping[str, Any], name: str) -> object:
    """Return the figure with this name; None where the benchmark printed none."""
    found: Any = figures
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def run(benchmark: Benchmark, *, data: Path, quick: bool) -> Outcome:
    """Run a benchmark. Raises `CalledProcessError`, `TimeoutExpired`, and `ValueError` where it prints no JSON."""
    began, load = time.monotonic(), os.getloadavg()[0]
    printed = _output(benchmark.command(data=data, quick=quick), QUICK_LIMIT if quick else _FULL_LIMIT)
    figures = json.loads(printed.strip().rpartition("\n")[2] or "null")
    if not isinstance(figures, dict):
        raise ValueError("its last line holds no object")
    seconds = round(time.monotonic() - began, 1)
    day = datetime.now(UTC).date().isoformat()
    return Outcome(figures, seconds, quick, day, _commit(), _machine(), round(load, 1), versions())


def _output(command: Sequence[str], limit: float) -> str:
    """Return what a program prints, and end all processes that it leaves behind: they would disturb the next one.

    Files take the place of pipes, which such a process would hold open.
    """
    with (
        TemporaryFile("w+", encoding="utf-8") as out,
        TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints,
        subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=complaints, start_new_session=True) as process,
    ):
        try:
            code = process.wait(limit)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        out.seek(0)
        complaints.seek(0)
        if code:
            raise subprocess.CalledProcessError(code, command, stderr=complaints.read())
        return out.read()


def missed(benchmark: Benchmark, outcome: Outcome) -> list[Figure]:
    """Return the figures that miss their bars."""
    held = [figure for figure in benchmark.figures if not (figure.full_only and outcome.quick)]
    return [figure for figure in held if not figure.is_met(value_of(outcome.figures, figure.name))]


def page(benchmarks: Sequence[Benchmark], outcomes: Mapping[str, Outcome]) -> str:
    """Return `docs/benchmarks.md`."""
    sections = [_section(benchmark, outcomes.get(benchmark.name)) for benchmark in benchmarks]
    return "\n".join([_HEAD, *sections, _read(BARS)["closing"]])


def _section(benchmark: Benchmark, outcome: Outcome | None) -> str:
    lines = [f"## {benchmark.title}\n", benchmark.about.strip() + "\n"]
    if outcome is None:
        lines.append(f"`{benchmark.shown_command()}`: not run yet.\n")
    else:
        kind = "with `--quick` only" if outcome.quick else "in full"
        busy = f"; other work wanted {outcome.load:g} cores when it began" if outcome.load > 1 else ""
        when = f"run {kind} on {outcome.measured} at {outcome.commit} in {outcome.seconds:.0f} s{busy}"
        lines.append(f"`{benchmark.shown_command()}`, {when}. {outcome.machine}.\n")
    lines += ["| figure | bar | measured |", "|---|---|---|"]
    lines += [_row(figure, outcome) for figure in benchmark.figures]
    return "\n".join(lines) + "\n"


def _row(figure: Figure, outcome: Outcome | None) -> str:
    value = None if outcome is None else value_of(outcome.figures, figure.name)
    verdict = "" if outcome is None or figure.is_met(value) or (figure.full_only and outcome.quick) else " **missed**"
    bar = f"{figure.bar}" + (" (full run)" if figure.full_only else "")
    return f"| `{figure.name}`: {figure.means} | {bar} | {_shown(value)}{verdict} |"


def _shown(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case [float() | int() as middle, float() | int() as low, float() | int() as high]:
            return f"{_shown(middle)} [{_shown(low)}, {_shown(high)}]"
        case list():
            return ", ".join(_shown(each) for each in value)
        case {"value": float() | int() as middle, "low": float() | int() as low, "high": float() | int() as high}:
            return f"{_shown(middle)} [{_shown(low)}, {_shown(high)}]"
        case Mapping():
            return "; ".join(f"{name} {_shown(each)}" for name, each in value.items())
        case _:
            return str(value)


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "an unknown commit"


def _machine() -> str:
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    pace = f"a million steps of a plain loop take {1000 * min(_loop_seconds() for _ in range(3)):.0f} ms"
    return f"{os.cpu_count()} cores of {model}, {platform.system()}, Python {platform.python_version()}; {pace}"


def _loop_seconds() -> float:
    """Time a loop in plain Python: machines of one name differ threefold, and so do the times that they measure."""
    began, total = time.perf_counter(), 0
    for step in range(1_000_000):
        total += step * step
    return time.perf_counter() - began


def versions() -> dict[str, str]:
    """Return the versions of the libraries that figures depend on most."""
    return {name: _version(name) for name in ("grpcio", "langgraph", "llama-cpp-python", "onnxruntime", "pydantic")}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def kept() -> dict[str, Outcome]:
    """Return the outcomes of the last full runs, by the benchmarks' names."""
    return {file.stem: Outcome(**json.loads(file.read_text(encoding="utf-8"))) for file in sorted(RESULTS.glob("*.json"))}


def _keep(name: str, outcome: Outcome) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(asdict(outcome), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def measure(chosen: Sequence[Benchmark], options: argparse.Namespace, console: Console) -> dict[str, Outcome | str]:
    """Return what each benchmark measured, or why it did not."""
    found: dict[str, Outcome | str] = {}
    for number, benchmark in enumerate(chosen, 1):
        if benchmark.data is not None and not (options.data / benchmark.data).exists():
            found[benchmark.name] = f"left out: there is no {options.data / benchmark.data}; --data names the folder of recorded data"
            continue
        with console.status(f"{number} of {len(chosen)}: {benchmark.name} ..."):
            try:
                outcome = run(benchmark, data=options.data, quick=not options.full)
            except subprocess.CalledProcessError as error:
                found[benchmark.name] = f"failed with exit code {error.returncode}: {(error.stderr or '').strip()[-600:]}"
                continue
            except subprocess.TimeoutExpired as error:
                found[benchmark.name] = f"was not done within {error.timeout:.0f} s"
                continue
            except ValueError as error:
                found[benchmark.name] = f"printed no JSON object: {error}"
                continue
        found[benchmark.name] = outcome
        console.print(f"{benchmark.name}: {outcome.seconds:.0f} s, {len(missed(benchmark, outcome))} missed")
        if options.full:
            _keep(benchmark.name, outcome)
    return found


def table(chosen: Sequence[Benchmark], found: Mapping[str, Outcome | str]) -> Table:
    """Return the figures with bars, or the reason why there are none."""
    rows = Table("benchmark", "figure", "bar", "measured", "", box=None, pad_edge=False)
    for benchmark in chosen:
        outcome = found[benchmark.name]
        if isinstance(outcome, str):
            rows.add_row(benchmark.name, escape(outcome), "", "", "" if outcome.startswith("left out") else "[red]failed[/red]")
            continue
        short = missed(benchmark, outcome)
        for figure in benchmark.figures:
            if figure.bar:
                verdict = "not held (quick)" if figure.full_only and outcome.quick else "[red]missed[/red]" if figure in short else "met"
                rows.add_row(benchmark.name, figure.name, figure.bar, escape(_shown(value_of(outcome.figures, figure.name))), verdict)
    return rows


def _options(names: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; without one: all")
    parser.add_argument("--full", action="store_true", help="without --quick; keep the figures and write docs/benchmarks.md")
    parser.add_argument("--page", action="store_true", help="only write docs/benchmarks.md from the figures that are kept")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of recorded data")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(names)):
        parser.error(f"there is no benchmark {unknown[0]}; they are {', '.join(names)}")
    return options


def main() -> int:
    benchmarks = load_bars()
    options = _options([benchmark.name for benchmark in benchmarks])
    console = Console(stderr=True)
    if options.page:
        PAGE.write_text(page(benchmarks, kept()), encoding="utf-8")
        return 0
    chosen = [benchmark for benchmark in benchmarks if not options.names or benchmark.name in options.names]
    found = measure(chosen, options, console)
    if options.full:
        PAGE.write_text(page(benchmarks, kept()), encoding="utf-8")
    short = {benchmark.name: _short(benchmark, found[benchmark.name]) for benchmark in chosen}
    if options.json:
        print(json.dumps({"missed": short, "figures": {name: one if isinstance(one, str) else one.figures for name, one in found.items()}}))
    else:
        Console().print(table(chosen, found))
    return 1 if any(short.values()) else 0


def _short(benchmark: Benchmark, found: Outcome | str) -> list[str]:
    """Return what misses its bar, or why there are no figures; nothing where recorded data are not there."""
    if isinstance(found, str):
        return [] if found.startswith("left out") else [found]
    return [figure.name for figure in missed(benchmark, found)]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
