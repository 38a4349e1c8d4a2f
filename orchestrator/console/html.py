"""Build HTML in which every text is escaped: only what this module made is taken as it is."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final, TypeAlias

from ..util.text import printable

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


def field(label: str, control: Html) -> Html:
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
