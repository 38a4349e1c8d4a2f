"""The report of a simulation."""

import json
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from recorded_tasks import FAR, NEAR, PUBLIC, SIDES, recorded

from nearfar.orchestrator.lab.replay.replayed import Online, Replayed, RoutedTask
from nearfar.orchestrator.lab.replay.simulation import Simulation, simulation
from nearfar.orchestrator.lab.report import FIGURES, SIMULATION_REPORT, SIMULATION_SUMMARY, render_simulation, write_simulation_report

TRUE_COLOUR = (2, 6)
"""Colour types of PNG: red, green and blue, with or without transparency."""
VOID = ("meta", "link", "path", "use", "br")


class Page(HTMLParser):
    """What a page is made of."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [
            value for name, value in attrs if name in ("src", "href", "xlink:href") and value and not value.startswith(("#", "data:"))
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def found() -> Simulation:
    return simulated()


def simulated(*, far_dollars: float | None = 0.002, name: str = FAR) -> Simulation:
    traces = []
    for trace in recorded(120):
        far = trace.outcomes[FAR].model_copy(update={"dollars": far_dollars})
        traces.append(trace.model_copy(update={"outcomes": {NEAR: trace.outcomes[NEAR], name: far}}))
    tasks = [
        RoutedTask(trace, place % 2, NEAR, name, advantage=(trace.task_class == "logic") + place / 1000, chosen=NEAR)
        for place, trace in enumerate(traces)
    ]
    sides = {NEAR: SIDES[NEAR], name: SIDES[FAR]}
    online = Online(target=0.3, far_share=0.31, window=50, running=(0.3, 0.32, 0.28), score=0.7, chosen=(NEAR, name))
    return simulation(Replayed(tuple(tasks), sides, 2, PUBLIC, incomplete=7, refused={"the policy refuses it: <no>": 3}, online=online))


def test_the_page_loads_nothing_and_runs_no_script(found: Simulation) -> None:
    page = Page(render_simulation(found))
    assert page.open == []
    assert page.loaded == []
    assert "script" not in page.tags


def test_the_page_says_what_was_left_out_and_why(found: Simulation) -> None:
    html = render_simulation(found)
    assert "7 traces lack the score" in html
    assert "refuses 3 tasks" in html
    assert "&lt;no&gt;" in html


def test_every_way_to_serve_the_tasks_is_in_the_table(found: Simulation) -> None:
    html = render_simulation(found)
    for name in ("this policy", "the same share by lot", f"{NEAR} (near)", f"{FAR} (far)", "in hindsight", "logic", "chores"):
        assert name in html


def test_names_of_agents_are_text_and_not_markup() -> None:
    html = render_simulation(simulated(name="<b>gpt</b>"))
    assert "<b>gpt" not in html


def test_pictures_are_written_in_true_colour_beside_the_page(found: Simulation, tmp_path: Path) -> None:
    path = write_simulation_report(found, tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / SIMULATION_REPORT
    pictures = sorted((path.parent / FIGURES).glob("*.png"))
    assert [picture.stem for picture in pictures] == ["budget", "score-dollars", "score-far-share"]
    for picture in pictures:
        width, height, _, colour = struct.unpack(">IIBB", picture.read_bytes()[16:26])
        assert width > height > 500
        assert colour in TRUE_COLOUR
        assert picture.with_suffix(".svg").exists()


def test_without_prices_there_is_no_picture_of_dollars(tmp_path: Path) -> None:
    path = write_simulation_report(simulated(far_dollars=None), tmp_path)
    assert not (path.parent / FIGURES / "score-dollars.png").exists()
    assert "unknown" in path.read_text(encoding="utf-8")


def test_the_same_simulation_gives_the_same_page(found: Simulation) -> None:
    assert render_simulation(found) == render_simulation(found)


def test_the_summary_beside_the_page_is_what_scripts_read(found: Simulation, tmp_path: Path) -> None:
    path = write_simulation_report(found, tmp_path)
    assert json.loads((path.parent / SIMULATION_SUMMARY).read_text(encoding="utf-8")) == json.loads(json.dumps(found.summary()))


def test_a_report_that_the_disk_has_no_room_for_leaves_the_old_one(
    found: Simulation, tmp_path: Path, no_room: Callable[[int], AbstractContextManager[None]]
) -> None:
    page = write_simulation_report(found, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    with no_room(10_000), pytest.raises(OSError, match="figures"):
        write_simulation_report(found, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before
    assert page in before


def test_the_two_sides_may_do_equally_well(tmp_path: Path) -> None:
    tasks = [trace.model_copy(update={"outcomes": dict.fromkeys(SIDES, trace.outcomes[NEAR])}) for trace in recorded(40)]
    replayed = Replayed(tuple(RoutedTask(task, 0, NEAR, FAR, 0.1, FAR) for task in tasks), SIDES, 1, PUBLIC, incomplete=0, refused={})
    assert "no gap to recover" in write_simulation_report(simulation(replayed), tmp_path).read_text(encoding="utf-8")
