"""A trace for a reader: rows with agent, side, reason, duration and cost, and a page of them that loads nothing and runs no script.

Untrusted content may be among it, so control characters for terminals, and those that turn the reading direction, are written out.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from html import escape
from typing import Final, Literal

from ...protocols import Message, Side
from ..task import call_text, transcript
from ..task.events import (
    ApprovalAsked,
    AttemptEnded,
    AttemptStarted,
    Navigated,
    RoleStarted,
    Routed,
    SubtaskEnded,
    SubtasksPlanned,
    SupervisorSpoke,
)
from ..task.labels import Label
from ..task.results import Call, JudgedProposal, SideUsage, Speculation
from ..task.tools import Effect
from ..util.text import canonical, in_one_form, page, printable, shorten, table
from . import AgentStepped, AnyEntry, EntriesLost, Happened, Labelled, RunBegan, RunEnded, ToolRan

_WORD: Final = re.compile(r"\w+")
Kind = Literal["run", "decision", "attempt", "step", "tool", "label"]


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One row."""

    kind: Kind
    title: str
    scope: str = ""
    side: Side | None = None
    text: str = ""
    """The full text of a reply or decision."""
    asked: str = ""
    """New messages in the request of a step."""
    began: float = 0.0
    """Seconds since the run began, without the time in which no process worked on it."""
    seconds: float = 0.0
    call: Call | None = None
    label: Label | None = None
    is_bad: bool = False
    """It failed, or was rejected."""
    ends: bool = False
    """It ends an attempt."""

    @property
    def figures(self) -> tuple[str, ...]:
        """Return the known costs: seconds, tokens, dollars, joules, confidence."""
        call = self.call
        if call is None:
            return (f"{self.seconds:.2f} s",) if self.kind == "tool" else ()
        energy = call.energy
        figures = [f"{call.seconds:.2f} s", f"{call.usage.input_tokens}+{call.usage.output_tokens} tokens", dollars_text(call.dollars)]
        figures += [f"{energy.joules:.3g} J {energy.source}"] if energy.joules and call.side is Side.NEAR else []
        figures += [f"confidence {call.confidence:.2f}"] if call.confidence is not None else []
        figures += ["from the cache"] if call.saved is not None else []
        return tuple(figures)


def rows_of(entries: Sequence[AnyEntry]) -> list[TraceRow]:
    """Return the rows of a trace, in order."""
    rows: list[TraceRow] = []
    offset = end = 0.0
    for entry in entries:
        if isinstance(entry, RunBegan):
            offset = end
        end = max(end, offset + entry.at)
        began = offset + entry.at
        rows += [_harmless(replace(row, scope=entry.scope, began=began - row.seconds)) for row in _rows(entry, is_first=not rows)]
    return rows


@dataclass(frozen=True, slots=True)
class LookUps:
    """The look-ups of a run: calls of tools that only read."""

    made: int
    redundant: int
    """Equal to an earlier one but for case, spaces and closing marks, with no call in between that may change something."""
    unnecessary: int
    """Others whose result has no new word that a later call or the answer holds."""

    def __str__(self) -> str:
        return f"{self.made} look-ups, {self.redundant / self.made:.0%} redundant, {self.unnecessary / self.made:.0%} unnecessary"


def look_ups_of(entries: Sequence[AnyEntry]) -> LookUps | None:
    """Return the look-ups of a trace that have not failed; None if there are none."""
    known = _words(message.text for entry in entries if isinstance(entry, RunBegan) for message in entry.task.messages)
    last_use = {word: place for place, entry in enumerate(entries) for word in _words(_used(entry))}
    seen: set[str] = set()
    made = redundant = unnecessary = 0
    for place, entry in enumerate(entries):
        if not isinstance(entry, ToolRan) or entry.result.is_error:
            continue
        if entry.effect is not Effect.READ:
            seen.clear()
            continue
        key = canonical((entry.call.name, in_one_form(entry.call.arguments)))
        news = _words([entry.result.content]) - known
        made += 1
        redundant += key in seen
        unnecessary += key not in seen and all(last_use.get(word, 0) <= place for word in news)
        seen.add(key)
        known |= news
    return LookUps(made, redundant, unnecessary) if made else None


def _used(entry: AnyEntry) -> Iterator[str]:
    """Yield the texts of an entry that may hold a word from an earlier result."""
    if isinstance(entry, ToolRan):
        yield canonical(entry.call.arguments)
    elif isinstance(entry, RunEnded):
        yield entry.text


def _words(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in _WORD.findall(text.casefold())}


def dollars_text(dollars: Decimal | None) -> str:
    return "price unknown" if dollars is None else f"${dollars:.6f}".rstrip("0").rstrip(".")


def label_text(label: Label) -> str:
    """Return a label's tier, integrity and origins."""
    because = f" ({', '.join(label.origins)})" if label.origins else ""
    return printable(f"{label.tier}, {label.integrity}{because}")


def _harmless(row: TraceRow) -> TraceRow:
    return replace(row, title=printable(row.title), scope=printable(row.scope), text=printable(row.text), asked=printable(row.asked))


def _rows(entry: AnyEntry, *, is_first: bool) -> Iterator[TraceRow]:
    match entry:
        case RunBegan():
            prompt = next((message.text for message in reversed(entry.task.messages) if message.role == "user"), "")
            way = f"role {entry.task.role}" if entry.task.role else f"strategy {entry.task.policy.strategy}"
            title = f"begun, {way}" if is_first else "resumed by another process, or again"
            yield TraceRow("run", title, text=prompt if is_first else "")
        case AgentStepped():
            yield _step(entry)
        case ToolRan():
            title = f"{call_text(entry.call)}"
            yield TraceRow("tool", title, text=entry.result.content, seconds=entry.seconds, label=entry.label, is_bad=entry.result.is_error)
        case Labelled():
            yield TraceRow("label", label_text(entry.label), label=entry.label)
        case Happened():
            yield _event(entry)
        case RunEnded():
            if entry.speculation is not None:
                yield _ahead(entry.speculation)
            who = f" by {entry.agent}" if entry.agent else ""
            why = f"{entry.error}: {entry.text}" if entry.error else entry.text
            yield TraceRow("run", f"{entry.outcome}{who}", text=why, side=entry.side, is_bad=entry.outcome == "failed", label=entry.label)
        case EntriesLost():
            yield TraceRow("run", f"{entry.count} entries of this trace could not be kept", is_bad=True)


def _ahead(told: Speculation) -> TraceRow:
    """Return the row of what near has proposed ahead of far."""
    title = f"near ran ahead: {told.confirmed} of {len(told.judged)} judged proposals confirmed, {told.proposed} made"
    figures = f"far calls began {told.saved_seconds:.2f} s early; in vain: {dollars_text(told.wasted_dollars)}"
    return TraceRow("decision", title, text="\n".join([figures, *map(_judged, told.judged)]))


def _judged(proposal: JudgedProposal) -> str:
    sure = "" if proposal.confidence is None else f", near's confidence {proposal.confidence:.3f}"
    instead = ", in place of an answer" if proposal.is_instead else ""
    return f"{'confirmed' if proposal.confirmed else 'not confirmed'}{sure}{instead}"


def _step(entry: AgentStepped) -> TraceRow:
    call = entry.call
    verdict = f", {call.verdict}{' in shadow' if call.shadow else ''} ({call.trigger})" if call.verdict is not None else ""
    failed = f", {call.error}" if call.error is not None else ""
    return TraceRow(
        "step",
        f"{call.agent} {call.role}{verdict}{failed}",
        side=call.side,
        text=transcript([entry.reply]),
        asked=_request(entry),
        seconds=call.seconds,
        call=call,
        label=entry.label,
        is_bad=call.error is not None,
    )


def _request(entry: AgentStepped) -> str:
    before = f"[{entry.kept} messages as before]\n" if entry.kept else ""
    reserved = f"\n[reserved: {entry.reserved_tokens} tokens]" if entry.reserved_tokens else ""
    return before + "\n".join(f"{message.role}: {_said(message)}" for message in entry.messages) + reserved


def _said(message: Message) -> str:
    return message.text if message.role in ("system", "user") else transcript([message])


def _event(entry: Happened) -> TraceRow:
    match entry.event:
        case RoleStarted() as event:
            handed = f", handed the task by {event.by}" if event.by else ""
            return TraceRow("decision", f"role {event.role} begins{handed}", text=event.task)
        case Routed(decision=decision):
            return TraceRow("decision", f"route: {', then '.join(decision.candidates)}", text="\n".join(decision.reasons))
        case AttemptStarted() as event:
            return TraceRow("attempt", f"{event.agent} ({event.model}) begins", side=event.side)
        case AttemptEnded(attempt=attempt):
            is_bad = attempt.outcome != "accepted"
            return TraceRow(
                "attempt", f"{attempt.agent} {attempt.outcome}", side=attempt.side, text=attempt.reason, is_bad=is_bad, ends=True
            )
        case SupervisorSpoke() as event:
            said = (
                "plans"
                if event.verdict is None
                else f"says {event.verdict}{', in shadow' if event.shadow else ''}, asked by {event.trigger}"
            )
            return TraceRow("decision", f"{event.agent} {said}", text=event.text)
        case Navigated() as event:
            return TraceRow("decision", f"navigator: {event.move}", text="" if event.probability == 1 else "by chance")
        case SubtasksPlanned() as event:
            return TraceRow(
                "decision", f"{len(event.subtasks)} subtasks", text="\n".join(f"{each.id}: {each.task}" for each in event.subtasks)
            )
        case SubtaskEnded() as event:
            return TraceRow("decision", f"subtask {event.id} {event.outcome}", text=event.answer, is_bad=event.outcome != "done")
        case ApprovalAsked() as event:
            asked = "\n".join(f"{call_text(request.call)}: {request.reason}" for request in event.requests)
            return TraceRow("decision", "approval is asked for", text=asked)


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


def _head(run: str, rows: Sequence[TraceRow]) -> Iterator[str]:
    first, last = rows[0], rows[-1]
    yield f"<h1>{escape(shorten(first.text, 120) or run)}</h1>"
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


def _row(row: TraceRow, end: float) -> str:
    css = " ".join(filter(None, ("row", _class(row), "bad" if row.is_bad else "")))
    left, width = (100 * value / end if end else 0.0 for value in (row.began, row.seconds))
    place = f'<span class="bar"><i style="left: min({left:.2f}%, 100% - 3px); width: {width:.2f}%"></i></span>'
    scope = f"{row.scope}: " if row.scope else ""
    what = f'<span class="what">{escape(scope + row.title)}</span>'
    figures = " &middot; ".join(map(escape, row.figures)) or escape(shorten(row.text, 60))
    summary = f'<summary>{what}{place}<span class="cost">{figures}</span></summary>'
    return f'<details class="{css}">{summary}{"".join(_details(row))}</details>'


def _details(row: TraceRow) -> Iterator[str]:
    if row.asked:
        yield f"<p>asked</p><pre>{escape(row.asked)}</pre>"
    if row.text:
        yield f"<p>{'replied' if row.kind == 'step' else 'said'}</p><pre>{escape(row.text)}</pre>"
    if row.label is not None:
        yield f"<p>label: {escape(label_text(row.label))}</p>"
    yield f"<p>{row.began:.3f} s after the run began</p>"


def _class(row: TraceRow) -> str:
    """Return the CSS class of a row, by which it is coloured and filtered. The beginning and the end of the run are always shown."""
    if row.kind in ("step", "attempt") and row.side is not None:
        return row.side.value
    return row.kind if row.kind in _FILTERS else "run"
