"""Read which room of the orchestrator imports which, and draw it into docs/rooms.svg.

    python scripts/rooms.py

A room is a folder below `orchestrator/`. It may import the rooms on the floors below its own and, on its own floor, rooms that do not
import it back.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "rooms.svg"
FLOORS = (
    ("cli",),
    ("console",),
    ("serve", "a2a"),
    ("lab",),
    ("hybrid", "compose", "langchain"),
    ("strategies",),
    ("runs", "tracing", "safety", "cache"),
    ("routing",),
    ("agents", "memory", "budgets", "compression", "mcp"),
    ("task",),
    ("storage", "util"),
)
"""From the top floor down."""

_WIDTH, _HEIGHT, _GAP, _MARGIN = 132, 34, 30, 24


class Arrow(NamedTuple):
    """One import statement that leads from a room to another one."""

    importer: str
    """Path of the file."""
    start: str
    end: str

    def __str__(self) -> str:
        return f"{self.importer} imports from {self.end}"


def arrows(root: Path = ROOT) -> list[Arrow]:
    """Return every import between two rooms."""
    found = []
    for path in sorted((root / "orchestrator").rglob("*.py")):
        inside = path.relative_to(root).parts
        if len(inside) > 2:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            ends = {end for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for end in _rooms_named(node, inside[:-1])}
            found += [Arrow("/".join(inside), inside[1], end) for end in sorted(ends - {inside[1]})]
    return found


def _rooms_named(node: ast.ImportFrom, package: tuple[str, ...]) -> Iterator[str]:
    if not node.level:
        return
    base = (*package[: len(package) - node.level + 1], *(node.module.split(".") if node.module else ()))
    if base == ("orchestrator",):
        yield from (alias.name for alias in node.names)
    elif base[:1] == ("orchestrator",):
        yield base[1]


def floor_of(room: str) -> int:
    """Return the number of a room's floor, 0 at the bottom. Raise `ValueError` for a room that stands on none."""
    for number, rooms in enumerate(reversed(FLOORS)):
        if room in rooms:
            return number
    raise ValueError(f"orchestrator/{room} stands on no floor: name it in FLOORS of scripts/rooms.py")


def arrows_up(found: list[Arrow]) -> list[Arrow]:
    """Return the imports that lead to a higher floor."""
    return [arrow for arrow in found if floor_of(arrow.end) > floor_of(arrow.start)]


def cycles(found: list[Arrow]) -> list[tuple[str, str]]:
    """Return pairs of rooms on one floor each of which can be reached from the other."""
    reaching: dict[str, set[str]] = {}
    for arrow in found:
        if floor_of(arrow.start) == floor_of(arrow.end):
            reaching.setdefault(arrow.start, set()).add(arrow.end)
    reached = {room: _reached(room, reaching) for room in reaching}
    return sorted((one, other) for one in reached for other in reached[one] if one < other and one in reached.get(other, ()))


def _reached(room: str, reaching: Mapping[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    todo = [room]
    while todo:
        for end in reaching.get(todo.pop(), set()) - reached:
            reached.add(end)
            todo.append(end)
    return reached


def drawing(found: list[Arrow]) -> str:
    """Return the floors as SVG, with a line for each pair of rooms of which one imports the other, the thicker the more files do."""
    places = dict(_places())
    counts: dict[tuple[str, str], int] = {}
    for arrow in found:
        counts[arrow.start, arrow.end] = counts.get((arrow.start, arrow.end), 0) + 1
    width = 2 * _MARGIN + 4 * _WIDTH + 3 * _GAP
    height = 2 * _MARGIN + len(FLOORS) * _HEIGHT + (len(FLOORS) - 1) * _GAP
    lines = [_line(places[start], places[end], count) for (start, end), count in sorted(counts.items())]
    boxes = [_box(room, x, y) for room, (x, y) in places.items()]
    title = "<title>The rooms of the orchestrator: each imports only rooms below it</title>"
    style = 'font-family="sans-serif" font-size="14" text-anchor="middle"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" {style}>'
    background = f'<rect width="{width}" height="{height}" fill="#fff"/>'
    return "\n".join([head, title, background, *lines, *boxes, "</svg>"]) + "\n"


def _places() -> Iterator[tuple[str, tuple[int, int]]]:
    """The middle of each room."""
    middle = _MARGIN + (4 * _WIDTH + 3 * _GAP) // 2
    for number, rooms in enumerate(FLOORS):
        y = _MARGIN + number * (_HEIGHT + _GAP) + _HEIGHT // 2
        left = middle - (len(rooms) * _WIDTH + (len(rooms) - 1) * _GAP) // 2
        for place, room in enumerate(rooms):
            yield room, (left + place * (_WIDTH + _GAP) + _WIDTH // 2, y)


def _line(start: tuple[int, int], end: tuple[int, int], count: int) -> str:
    width = min(1 + count / 20, 6)
    return f'<path d="M{start[0]} {start[1]}L{end[0]} {end[1]}" stroke="#8aa" stroke-opacity=".45" stroke-width="{width:.1f}"/>'


def _box(room: str, x: int, y: int) -> str:
    corner = f'x="{x - _WIDTH // 2}" y="{y - _HEIGHT // 2}" width="{_WIDTH}" height="{_HEIGHT}"'
    return f'<rect {corner} rx="6" fill="#eef4f4" stroke="#466"/><text x="{x}" y="{y + 5}" fill="#122">{room}</text>'


if __name__ == "__main__":
    PICTURE.write_text(drawing(arrows()), encoding="utf-8")
