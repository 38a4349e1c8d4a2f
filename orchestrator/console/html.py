"""Build HTML in which every text is escaped, and charts as SVG: only what this module made is taken as it is."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple, TypeAlias

from ..util.text import printable, shorten

LONGEST_TEXT: Final = 20_000
"""Characters of a text that a page shows: untrusted content may be of any length."""
_LINES: Final = frozenset({"tr", "div", "section", "li"})
"""Elements that end a line: of an open page, only its new lines are sent."""
_EMPTY: Final = frozenset({"br", "hr", "img", "input", "link", "meta"})


class Html(str):
    """HTML that is ready to be sent."""

    __slots__ = ()


Child: TypeAlias = "Html | str | int | None | Iterable[Child]"
Attribute: TypeAlias = "str | int | float | bool | None"


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """Return an element. `class_` is written `class`, and `aria_label` is written `aria-label`; None and False are left out."""
    written = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None and value is not False)
    end = "\n" if name in _LINES else ""
    return Html(f"<{name}{written}>" if name in _EMPTY else f"<{name}{written}>{join(children)}</{name}>{end}")


def join(children: Iterable[Child]) -> Html:
    """Return children one behind the other."""
    return Html("".join(map(_written, children)))


def text(value: str, most: int = LONGEST_TEXT) -> Html:
    """Return a text that may come from anyone: cut, escaped, and without characters that control a reader or turn its direction."""
    shown = value if len(value) <= most else f"{value[:most]} … ({len(value) - most:,} characters more)"
    return Html(escape(printable(shown)))


def table(caption: str, head: Sequence[str], rows: Iterable[Html | Sequence[Child]], *, empty: Child = "Nothing yet.") -> Html:
    """Return a table that scrolls where it is too wide; without rows, the sentence `empty`. A row that `table_row` made stays as it is."""
    body = [row if isinstance(row, Html) else table_row(head, row) for row in rows]
    if not body:
        return tag("p", empty, class_="empty")
    heads = tag("thead", tag("tr", [tag("th", name, scope="col", role="columnheader") for name in head], role="row"), role="rowgroup")
    return tag(
        "div",
        tag("table", tag("caption", caption), heads, tag("tbody", body, role="rowgroup"), role="table"),
        class_="wide",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def table_row(head: Sequence[str], cells: Sequence[Child], *, key: str = "") -> Html:
    """Return a row, which a `key` names when the page is renewed.

    Its roles are a table's own: they remain where a narrow screen shows it as a list of named cells.
    """
    named = [tag("td", cell, data_name=name, role="cell") for name, cell in zip(head, cells, strict=True)]
    return tag("tr", named, role="row", data_key=key or None)


def facts(pairs: Iterable[tuple[str, Child]]) -> Html:
    """Return a list of names and values."""
    return tag("dl", [[tag("dt", name), tag("dd", value)] for name, value in pairs], class_="facts")


def form_field(label: str, control: Html) -> Html:
    """Return a form's control with its label."""
    return tag("label", tag("span", label), control)


def fold(summary: Child, *children: Child, key: str = "", opened: bool = False) -> Html:
    """Return what a reader unfolds. With a key, it stays unfolded when the page renews it."""
    return tag("details", tag("summary", summary), *children, data_key=key or None, open=opened)


def _attribute(name: str, value: Attribute) -> str:
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(printable(str(value)), quote=True)}"'


def _written(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, (str, int)):
        return text(str(child))
    return join(child)


_WIDTH, _HEIGHT = 480, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 34, 16, 46
_NAMED, _LONGEST = 120, 250
"""Start and length of the longest bar."""
_TICKS: Final = 4
_LEAST_SPAN: Final = 1e-9
_LETTER: Final = 7.2
"""Width of a letter of a name."""
_LINE: Final = 15
"""Height of a name."""


class Mark(NamedTuple):
    """A point with its intervals."""

    name: str
    across: float
    up: float
    across_range: tuple[float, float] | None = None
    up_range: tuple[float, float] | None = None
    css: str = ""
    """`near`, `far`, `here` or empty: how it is coloured."""


def bars(title: str, values: Mapping[str, float], *, unit: str) -> Html:
    """Return horizontal bars, the longest first."""
    most = max(values.values(), default=0.0) or 1.0
    ordered = sorted(values.items(), key=lambda item: -item[1])
    rows: list[Html] = []
    for number, (name, value) in enumerate(ordered):
        top = number * 28
        rows.append(tag("text", text(name, 16), x=0, y=top + 18))
        rows.append(tag("rect", x=_NAMED, y=top + 4, width=f"{max(2.0, _LONGEST * value / most):.1f}", height=18, rx=3, class_="mark"))
        rows.append(tag("text", f"{value:,.4g}", x=f"{_NAMED + 10 + _LONGEST * value / most:.1f}", y=top + 18, class_="soft"))
    label = f"{title}, in {unit}: " + "; ".join(f"{name} {value:.4g}" for name, value in ordered)
    return _figure(title, tag("svg", rows, viewBox=f"0 0 {_WIDTH} {28 * len(ordered) + 4}", role="img", aria_label=label))


def scatter(
    title: str,
    marks: Sequence[Mark],
    *,
    across: str,
    up: str,
    front: Sequence[tuple[float, float]] = (),
    before: Sequence[tuple[float, float]] = (),
) -> Html:
    """Return points with their intervals. `front`: a line through what nothing beats; `before`: the line that there was."""
    if not marks:
        return tag("p", "There is nothing to draw yet.", class_="empty")
    scale = _Scale(marks, (*front, *before))
    parts = [*scale.axes(across, up)]
    parts += [_line(points, scale, css) for points, css in ((before, "front before"), (front, "front")) if len(points) > 1]
    for mark in marks:
        parts += _drawn(mark, scale)
    parts += _names(marks, scale)
    told = "; ".join(f"{mark.name}: {up} {mark.up:.3g}, {across} {mark.across:.4g}" for mark in marks)
    return _figure(title, tag("svg", parts, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=f"{title}. {told}"))


class _Scale:
    """Turns figures into places of the picture."""

    def __init__(self, marks: Sequence[Mark], points: Sequence[tuple[float, float]]) -> None:
        xs = [*(x for x, _ in points), *(each for mark in marks for each in (mark.across, *(mark.across_range or ())))]
        ys = [*(y for _, y in points), *(each for mark in marks for each in (mark.up, *(mark.up_range or ())))]
        self._xs = _nice(0.0, max(xs) or 1.0)
        self._ys = _nice(min(ys), max(ys))

    def x(self, value: float) -> float:
        low, high = self._xs[0], self._xs[-1]
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self._ys[0], self._ys[-1]
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low)

    def axes(self, across: str, up: str) -> Iterator[Html]:
        bottom = _HEIGHT - _BOTTOM
        for value in self._xs:
            yield tag("line", x1=f"{self.x(value):.1f}", x2=f"{self.x(value):.1f}", y1=_TOP, y2=bottom, class_="grid")
            yield tag("text", f"{value:g}", x=f"{self.x(value):.1f}", y=bottom + 18, text_anchor="middle", class_="soft")
        for value in self._ys:
            yield tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=f"{self.y(value):.1f}", y2=f"{self.y(value):.1f}", class_="grid")
            yield tag("text", f"{value:g}", x=_LEFT - 8, y=f"{self.y(value) + 5:.1f}", text_anchor="end", class_="soft")
        yield tag("text", text(across), x=(_LEFT + _WIDTH - _RIGHT) // 2, y=_HEIGHT - 6, text_anchor="middle")
        middle = (_TOP + bottom) // 2
        yield tag("text", text(up), x=14, y=middle, text_anchor="middle", transform=f"rotate(-90 14 {middle})")


def _nice(low: float, high: float) -> list[float]:
    """Return round values that contain both, in equal steps."""
    span = high - low if high - low > _LEAST_SPAN else 1.0
    rough = span / (_TICKS - 1)
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough)
    first = math.floor(low / step)
    count = max(1, math.ceil(high / step - 1e-9) - first)
    return [round((first + number) * step, 12) for number in range(count + 1)]


def _line(points: Sequence[tuple[float, float]], scale: _Scale, css: str) -> Html:
    path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in sorted(points))
    return tag("polyline", points=path, class_=css)


def _drawn(mark: Mark, scale: _Scale) -> Iterator[Html]:
    x, y = f"{scale.x(mark.across):.1f}", f"{scale.y(mark.up):.1f}"
    css = f"mark {mark.css}".strip()
    if mark.across_range is not None:
        low, high = (f"{scale.x(each):.1f}" for each in mark.across_range)
        yield tag("line", x1=low, x2=high, y1=y, y2=y, class_=css)
    if mark.up_range is not None:
        low, high = (f"{scale.y(each):.1f}" for each in mark.up_range)
        yield tag("line", x1=x, x2=x, y1=low, y2=high, class_=css)
    yield tag("circle", tag("title", text(mark.name)), cx=x, cy=y, r=8 if mark.css == "here" else 5, class_=css)


def _names(marks: Sequence[Mark], scale: _Scale) -> Iterator[Html]:
    """Yield the names, each at the nearest place to its point where it covers no point and no other name."""
    taken = [box for mark in marks for box in _covered(mark, scale)]
    for mark in sorted(marks, key=lambda each: each.up):
        shown = shorten(mark.name, 26)
        wide = _LETTER * len(shown)
        x, y = scale.x(mark.across), scale.y(mark.up)
        places = [(x + dx, y + dy, wide, float(_LINE)) for far in (0, 14, 28, 42, 56) for dx, dy in _around(wide, far)]
        inside = [
            place for place in places if place[0] >= _LEFT and place[0] + wide <= _WIDTH and 0 <= place[1] <= _HEIGHT - _BOTTOM - _LINE
        ]
        box = min(inside or places, key=lambda place: sum(_shared(place, other) for other in taken))
        taken.append(box)
        yield tag("text", text(shown), x=f"{box[0]:.1f}", y=f"{box[1] + 12:.1f}", class_="name")


def _covered(mark: Mark, scale: _Scale) -> Iterator[tuple[float, float, float, float]]:
    """Yield the boxes that a point and its intervals cover."""
    x, y = scale.x(mark.across), scale.y(mark.up)
    yield x - 7, y - 7, 14.0, 14.0
    if mark.across_range is not None:
        low, high = map(scale.x, mark.across_range)
        yield low, y - 2, high - low, 4.0
    if mark.up_range is not None:
        low, high = map(scale.y, mark.up_range)
        yield x - 2, high, 4.0, low - high


def _around(wide: float, far: int) -> Sequence[tuple[float, float]]:
    return (9, -7 - far), (9, -7 + far), (-wide - 9, -7 - far), (-wide - 9, -7 + far), (-wide / 2, -24 - far), (-wide / 2, 9 + far)


def _shared(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> float:
    wide = min(one[0] + one[2], other[0] + other[2]) - max(one[0], other[0])
    high = min(one[1] + one[3], other[1] + other[3]) - max(one[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0


def _figure(title: str, drawn: Html) -> Html:
    return tag("figure", drawn, tag("figcaption", text(title)), class_="chart")
