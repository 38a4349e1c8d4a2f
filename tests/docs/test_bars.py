"""The bars of the project, and the page that is written from the last figures."""

import argparse
import json
import socket
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from scripts import bars

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmark() -> bars.Benchmark:
    figures = (
        bars.Figure("ratio", "ours / theirs", at_most=1.5),
        bars.Figure("parts.recall", "found", at_least=0.8, full_only=True),
        bars.Figure("items", "how many"),
    )
    return bars.Benchmark("graph", "A graph", "About it.", figures)


def outcome(figures: dict[str, object], quick: bool = True) -> bars.Outcome:
    return bars.Outcome(figures, 3.0, quick, "2026-11-23", "abc1234", "2 cores", 0.1)


def test_the_page_is_what_is_written_from_the_kept_figures() -> None:
    assert bars.PAGE.read_text(encoding="utf-8") == bars.page(bars.load_bars(), bars.kept()), "run: python scripts/bars.py --page"


def test_every_benchmark_has_bars_or_figures() -> None:
    programs = {path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py")}
    known = bars.load_bars()
    assert {each.name for each in known} == programs
    assert all(each.figures for each in known)


def test_a_figure_beyond_its_bar_is_missed(benchmark: bars.Benchmark) -> None:
    assert [each.name for each in bars.missed(benchmark, outcome({"ratio": 1.6, "parts": {"recall": 0.9}}))] == ["ratio"]
    assert bars.missed(benchmark, outcome({"ratio": 1.5, "items": 1})) == []


def test_a_figure_that_is_not_printed_is_missed(benchmark: bars.Benchmark) -> None:
    assert [each.name for each in bars.missed(benchmark, outcome({"items": 1}))] == ["ratio"]


def test_a_quick_run_is_not_held_to_bars_of_full_runs(benchmark: bars.Benchmark) -> None:
    low: dict[str, object] = {"ratio": 1.0, "parts": {"recall": 0.1}}
    assert bars.missed(benchmark, outcome(low)) == []
    assert [each.name for each in bars.missed(benchmark, outcome(low, quick=False))] == ["parts.recall"]


def test_of_a_figure_with_an_interval_the_value_counts() -> None:
    figure = bars.Figure("recall", "found", at_least=0.8)
    assert figure.is_met([0.81, 0.7, 0.9])
    assert not figure.is_met([0.79, 0.7, 0.9])
    assert not figure.is_met([])
    assert figure.is_met({"value": 0.81, "low": 0.7, "high": 0.9})
    assert not figure.is_met({"low": 0.81})


def test_the_page_says_what_is_missed_and_how_it_was_run(benchmark: bars.Benchmark) -> None:
    page = bars.page([benchmark], {"graph": replace(outcome({"ratio": 1.6, "items": 3}, quick=False), load=2.5)})
    assert "| `ratio`: ours / theirs | <= 1.5 | 1.6 **missed** |" in page
    assert "run in full on 2026-11-23 at abc1234" in page
    assert "other work wanted 2.5 cores" in page
    assert "not run yet" in bars.page([benchmark], {})


def test_a_benchmark_that_is_run_says_what_it_printed() -> None:
    start = next(each for each in bars.load_bars() if each.name == "graph")
    figures = bars.run(start, data=bars.DATA, quick=True).figures
    assert json.dumps(figures)
    assert isinstance(figures["overhead_ratio"], float)


def run_program(folder: Path, source: str, monkeypatch: pytest.MonkeyPatch, benchmark: bars.Benchmark) -> bars.Outcome | str:
    """What `make bars` makes of a benchmark with this source."""
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "graph.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(bars, "ROOT", folder)
    options = argparse.Namespace(full=False, data=folder)
    return bars.measure([benchmark], options, Console(quiet=True))["graph"]


@pytest.mark.parametrize("printed", ["", "print(5)", "print([1])", "print('{broken')", "print('null')"])
def test_a_benchmark_that_prints_no_figures_is_told(
    printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, benchmark: bars.Benchmark
) -> None:
    found = run_program(tmp_path, printed, monkeypatch, benchmark)
    assert isinstance(found, str)
    assert "no JSON object" in found


def test_a_benchmark_that_crashes_is_told_whatever_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, benchmark: bars.Benchmark
) -> None:
    found = run_program(tmp_path, "raise SystemExit('[/usr/lib] was [red]not[/blue] found')", monkeypatch, benchmark)
    assert isinstance(found, str)
    assert "exit code 1" in found
    said = StringIO()
    Console(file=said, width=200).print(bars.table([benchmark], {"graph": found}))
    assert "[/usr/lib] was [red]not[/blue] found" in said.getvalue()


@pytest.mark.parametrize(("last_line", "told"), [("child.wait()", "was not done within 2 s"), ("print('{}')", None)])
def test_a_benchmark_leaves_no_process_behind(
    last_line: str, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, benchmark: bars.Benchmark
) -> None:
    monkeypatch.setattr(bars, "QUICK_LIMIT", 2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = f"import socket, time; line = socket.create_connection({listener.getsockname()}); print('x', flush=True); time.sleep(600)"
        begin = f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)"
        source = f"import subprocess, sys\n{begin}\nchild.stdout.read(1)\n"
        found = run_program(tmp_path, source + last_line, monkeypatch, benchmark)
        assert (found if isinstance(found, str) else None) == told
        listener.settimeout(10)
        line, _ = listener.accept()
        with line:
            line.settimeout(10)
            assert line.recv(1) == b""  # it closes when the child ends


def test_a_library_that_is_not_installed_stops_no_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "onnxruntime":
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(bars, "version", version)
    assert bars.versions()["onnxruntime"] == "not installed"
