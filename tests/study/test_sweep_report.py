"""The report: complete, self-contained, and without an error in a browser."""

import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from study_records import KNOBS, record

from nearfar.orchestrator.lab.figures import blank, place_names
from nearfar.orchestrator.lab.report import write_sweep_report
from nearfar.orchestrator.lab.statistics import IntervalEstimate
from nearfar.orchestrator.routing.outcome_records import Check, RunRecord

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.timeout(400)

BROWSER = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)


def everything() -> list[RunRecord]:
    """Runs of every kind of configuration in two worlds, with labels and text that HTML would trip over."""
    checks = (Check(turn=1, trigger="interval", verdict="intervene"), Check(turn=2, trigger="loop", verdict="continue"))
    return [
        record(label, task, world=world, seed=seed, score=float((task + place) % 3 > 0), checks=checks, interventions=task % 3)
        for world in ("search", "apps & <more>")
        for place, label in enumerate(KNOBS)
        for seed in (1, 2)
        for task in range(6)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of `everything`."""
    folder = tmp_path_factory.mktemp("sweep")
    assert write_sweep_report(everything(), folder, missing=3) == folder / "report.html"
    return folder


def test_the_page_is_self_contained(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert not re.search(r'\b(src|href)="(?!data:|#)', page.replace("xlink:href", "href"))
    assert not re.search(r"url\((?!#)", page)
    assert "apps & <more>" not in page


def test_a_sweep_of_oracles_alone_has_a_report(tmp_path: Path) -> None:
    page = write_sweep_report([record("pevr/4+oracle", task) for task in range(4)], tmp_path, missing=0)
    assert "pevr/4+oracle" in page.read_text(encoding="utf-8")


def test_the_page_shows_every_part(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    for part in (
        "3 runs of the study are missing",
        "Which system solves what",
        "How often the supervisor is wrong",
        "Interventions",
        "Choosing per task",
    ):
        assert part in page
    for lesson in range(1, 12):
        assert f"<h3>{lesson}. " in page
    assert page.count('<svg role="img" aria-label=') == 2 * 6 + 1
    assert page.count('scope="col"') > 20


def test_pictures_are_files_too(folder: Path) -> None:
    names = {path.name for path in (folder / "figures").iterdir()}
    assert "regret.png" in names
    for cost in ("dollars", "seconds", "joules", "peak_kv_bytes"):
        assert {f"search-score-{cost}.svg", f"search-score-{cost}.png"} <= names
    for name in names:
        start = (folder / "figures" / name).read_bytes()[:8]
        assert start.startswith(b"\x89PNG" if name.endswith(".png") else b"<?xml")


def test_the_summary_is_json_with_the_same_figures(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert [world["world"] for world in summary["worlds"]] == ["search", "apps & <more>"]
    assert len(summary["configurations"]) == 2 * len(KNOBS)
    assert summary["auto"]["tasks"] == 24


def test_the_same_runs_make_the_same_page(folder: Path, tmp_path: Path) -> None:
    again = write_sweep_report(everything(), tmp_path, missing=3)
    assert again.read_bytes() == (folder / "report.html").read_bytes()


def test_a_single_run_has_a_report(tmp_path: Path) -> None:
    page = write_sweep_report([record()], tmp_path, missing=0).read_text(encoding="utf-8")
    assert "are missing" not in page
    assert "Cannot be tested here" in page


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_a_browser_opens_it_without_a_console_message(folder: Path, tmp_path: Path) -> None:
    assert BROWSER is not None
    shot = tmp_path / "page.png"
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path}",
        f"--screenshot={shot}",
    ]
    opened = subprocess.run([BROWSER, *options, (folder / "report.html").as_uri()], capture_output=True, text=True, timeout=100)
    assert shot.stat().st_size > 10_000, opened.stderr
    assert "CONSOLE" not in opened.stderr


def exactly(value: float) -> IntervalEstimate:
    return IntervalEstimate(value=value, low=value, high=value)


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 1)), min_size=1, max_size=7))
@settings(max_examples=25, deadline=None)
def test_no_name_in_a_picture_covers_another_one(points: list[tuple[float, float]]) -> None:
    from matplotlib.text import Text

    figure, axes = blank("dollars", "score")
    axes.set_xlim(-0.5, 3.5)
    axes.set_ylim(-0.2, 1.2)
    estimates = [(exactly(across), exactly(up)) for across, up in points]
    place_names(axes, {f"configuration {place}": point for place, point in enumerate(points)}, estimates)
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in axes.texts]  # without the lines that lead to their points
    assert not any(one.shrunk(0.9, 0.9).overlaps(other.shrunk(0.9, 0.9)) for one, other in itertools.combinations(boxes, 2))
