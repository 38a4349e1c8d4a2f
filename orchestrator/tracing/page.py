"""A trace as an HTML page: a timeline by side, with request, reply and cost of each step. It loads nothing and runs no script."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from ...protocols import Side
from ..task.results import SideUsage
from ..util.escaping import page, printable, table
from .entries import AgentStepped, AnyEntry
from .rows import Row, dollars_text, label_text, rows_of

_FILTERS: Final = ("near", "far", "tool", "decision", "label")
_STYLE: Final = """
:root { --near: #2a9d8f; --far: #e07a2f; --tool: #6c8ebf; --decision: #9a7bb0; --label: #b5179e }
.filters { position: sticky; top: 0; background: Canvas; padding: .5rem 0; display: flex; flex-wrap: wrap; gap: .2rem 1rem; z-index: 1 }
.filters label { white-space: nowrap } .filters i { display: inline-block; width: .8em; height: .8em; border-radius: 2px }
.rows { border-top: 1px solid var(--line) }
.row { border-bottom: 1px solid var(--line); padding: .25rem 0 }
.row > summary { display: grid; grid-template-columns: 18rem 1fr 15rem; gap: .1rem .8rem; align-items: center }
.row > summary { cursor: pointer; list-style: none }
.row > summary::-webkit-details-marker { display: none }
.what { overflow: hidden; text-overflow: ellipsis; white-space: nowrap }
.row[open] .what { white-space: normal }
.bar { position: relative; height: .9rem; background: #8881; border-radius: 2px }
.bar i { position: absolute; top: 0; bottom: 0; min-width: 3px; border-radius: 2px; background: var(--decision) }
.cost { color: var(--soft); font-size: .85rem; text-align: right; font-variant-numeric: tabular-nums }
.row pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0 .6rem; padding: .5rem .7rem; background: #8881 }
.row p { margin: .3rem 0; color: var(--soft) }
.near i { background: var(--near) } .far i { background: var(--far) } .tool i { background: var(--tool) }
.label i { background: var(--label) } .bad .what { color: #c1121f; font-weight: 600 }
@media (prefers-color-scheme: dark) { .bad .what { color: #ff6b6b } }
@media (max-width: 48rem) {
  .row > summary { grid-template-columns: 1fr } .cost { text-align: left } .what { white-space: normal }
}
""" + "\n".join(f"body:has(#show-{name}:not(:checked)) .row.{name} {{ display: none }}" for name in _FILTERS)


def trace_page(run: str, entries: Sequence[AnyEntry]) -> str:
    """Return the page of a run."""
    run, rows = printable(run), rows_of(entries)
    end = max((row.began + row.seconds for row in rows), default=0.0)
    parts = [*_head(run, rows), _costs(entries), _filters(), '<div class="rows">', *(_row(row, end) for row in rows), "</div>"]
    return page(f"Run {run}", "\n".join(parts), style=_STYLE)


def _head(run: str, rows: Sequence[Row]) -> Iterator[str]:
    first, last = rows[0], rows[-1]
    yield f"<h1>{escape(_line(first.text, 120) or run)}</h1>"
    outcome = last.title if last.kind == "run" and len(rows) > 1 else "not ended"
    css = "wrong" if last.is_bad else "note"
    yield f'<p class="note">Run {escape(run)}, {escape(first.title)}.</p>'
    yield f'<p><strong class="{css}">{escape(outcome)}</strong>: {escape(last.text) if last is not first else ""}</p>'
    if last.label is not None:
        yield f'<p class="note">All that its agents were told: {escape(label_text(last.label))}.</p>'


def _costs(entries: Sequence[AnyEntry]) -> str:
    lines = []
    calls = [entry.call for entry in entries if isinstance(entry, AgentStepped)]
    for side in Side:
        spent = SideUsage()
        for call in calls:
            spent = spent.plus(call) if call.side is side else spent
        seconds = sum(call.seconds for call in calls if call.side is side)
        energy = spent.energy
        joules = "unknown" if energy.joules is None else f"{energy.joules:.3g} {energy.source}"
        tokens = (f"{spent.usage.input_tokens:,}", f"{spent.usage.output_tokens:,}")
        lines.append([side.value, f"{spent.steps}", f"{seconds:.2f}", *tokens, dollars_text(spent.dollars), joules if spent.steps else "0"])
    return f'<div class="wide">{table(["side", "steps", "seconds", "tokens in", "tokens out", "dollars", "joules"], lines)}</div>'


def _filters() -> str:
    boxes = (
        f'<label class="{name}"><input type="checkbox" id="show-{name}" checked> <i style="background: var(--{name})"></i> {name}</label>'
        for name in _FILTERS
    )
    return f'<div class="filters" role="group" aria-label="Shown">{"".join(boxes)}</div>'


def _row(row: Row, end: float) -> str:
    css = " ".join(filter(None, ("row", _class(row), "bad" if row.is_bad else "")))
    left, width = (100 * value / end if end else 0.0 for value in (row.began, row.seconds))
    place = f'<span class="bar"><i style="left: min({left:.2f}%, 100% - 3px); width: {width:.2f}%"></i></span>'
    scope = f"{row.scope}: " if row.scope else ""
    what = f'<span class="what">{escape(scope + row.title)}</span>'
    figures = " &middot; ".join(map(escape, row.figures)) or escape(_line(row.text, 60))
    summary = f'<summary>{what}{place}<span class="cost">{figures}</span></summary>'
    return f'<details class="{css}">{summary}{"".join(_details(row))}</details>'


def _details(row: Row) -> Iterator[str]:
    if row.asked:
        yield f"<p>asked</p><pre>{escape(row.asked)}</pre>"
    if row.text:
        yield f"<p>{'replied' if row.kind == 'step' else 'said'}</p><pre>{escape(row.text)}</pre>"
    if row.label is not None:
        yield f"<p>label: {escape(label_text(row.label))}</p>"
    yield f"<p>{row.began:.3f} s after the run began</p>"


def _class(row: Row) -> str:
    """Return the CSS class of a row, by which it is coloured and filtered. The beginning and the end of the run are always shown."""
    if row.kind in ("step", "attempt") and row.side is not None:
        return row.side.value
    return row.kind if row.kind in _FILTERS else "run"


def _line(text: str, most: int) -> str:
    words = " ".join(text.split())
    return words if len(words) <= most else f"{words[: most - 1]}\u2026"
