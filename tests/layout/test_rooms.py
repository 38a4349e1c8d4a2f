"""A room of the orchestrator imports only rooms below it."""

import ast

import pytest

from scripts import rooms
from scripts.rooms import Arrow


@pytest.fixture(scope="module")
def found() -> list[Arrow]:
    return rooms.arrows()


def test_every_folder_of_the_orchestrator_stands_on_a_floor() -> None:
    folders = {path.parent.name for path in (rooms.ROOT / "orchestrator").glob("*/__init__.py")}
    assert folders == {room for floor in rooms.FLOORS for room in floor}


def test_no_module_stands_outside_of_a_room() -> None:
    assert [path.name for path in (rooms.ROOT / "orchestrator").glob("*.py")] == ["__init__.py"]


def test_no_room_imports_a_room_above_it(found: list[Arrow]) -> None:
    assert [str(arrow) for arrow in rooms.arrows_up(found)] == []


def test_no_two_rooms_import_each_other(found: list[Arrow]) -> None:
    assert rooms.cycles(found) == []


def test_the_picture_shows_the_rooms_as_they_are(found: list[Arrow]) -> None:
    assert rooms.PICTURE.read_text(encoding="utf-8") == rooms.drawing(found), "run python scripts/rooms.py"


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("from ..task.labels import Label", ["task"]),
        ("from ...task import labels", []),
        ("from .. import task", ["task"]),
        ("from .own import thing", ["cache"]),
        ("from ...protocols import Message", []),
        ("from collections import Counter", []),
    ],
)
def test_every_way_to_name_a_room_is_seen(statement: str, named: list[str]) -> None:
    (node,) = ast.parse(statement).body
    assert isinstance(node, ast.ImportFrom)
    assert list(rooms._rooms_named(node, ("orchestrator", "cache"))) == named


def test_an_arrow_up_and_a_cycle_are_found() -> None:
    made = [Arrow("task/a.py", "task", "routing"), Arrow("runs/a.py", "runs", "tracing"), Arrow("tracing/a.py", "tracing", "runs")]
    assert rooms.arrows_up(made) == made[:1]
    assert rooms.cycles(made) == [("runs", "tracing")]
