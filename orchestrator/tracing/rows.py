"""A trace as rows for a reader: agent, side, reason, duration and cost.

Untrusted content may be among it, so control characters for terminals, and those that turn the reading direction, are written out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from ...protocols import Message, Side
from ..task.events import ApprovalAsked, AttemptEnded, AttemptStarted, Routed, SubtaskEnded, SubtasksPlanned, SupervisorSpoke
from ..task.labels import Label
from ..task.results import Call
from ..task.task import call_text, transcript
from ..util.escaping import printable
from .entries import AgentStepped, AnyEntry, EntriesLost, Happened, Labelled, RunBegan, RunEnded, ToolRan

Kind = Literal["run", "decision", "attempt", "step", "tool", "label"]


@dataclass(frozen=True, slots=True)
class Row:
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


def rows_of(entries: Sequence[AnyEntry]) -> list[Row]:
    """Return the rows of a trace, in order."""
    rows: list[Row] = []
    offset = end = 0.0
    for entry in entries:
        if isinstance(entry, RunBegan):
            offset = end
        end = max(end, offset + entry.at)
        began = offset + entry.at
        rows += [_harmless(replace(row, scope=entry.scope, began=began - row.seconds)) for row in _rows(entry, is_first=not rows)]
    return rows


def dollars_text(dollars: Decimal | None) -> str:
    return "price unknown" if dollars is None else f"${dollars:.6f}".rstrip("0").rstrip(".")


def label_text(label: Label) -> str:
    """Return a label's tier, integrity and origins."""
    because = f" ({', '.join(label.origins)})" if label.origins else ""
    return printable(f"{label.tier}, {label.integrity}{because}")


def _harmless(row: Row) -> Row:
    return replace(row, title=printable(row.title), scope=printable(row.scope), text=printable(row.text), asked=printable(row.asked))


def _rows(entry: AnyEntry, *, is_first: bool) -> Iterator[Row]:
    match entry:
        case RunBegan():
            prompt = next((message.text for message in reversed(entry.task.messages) if message.role == "user"), "")
            title = f"begun, strategy {entry.task.policy.strategy}" if is_first else "resumed by another process, or again"
            yield Row("run", title, text=prompt if is_first else "")
        case AgentStepped():
            yield _step(entry)
        case ToolRan():
            title = f"{call_text(entry.call)}"
            yield Row("tool", title, text=entry.result.content, seconds=entry.seconds, label=entry.label, is_bad=entry.result.is_error)
        case Labelled():
            yield Row("label", label_text(entry.label), label=entry.label)
        case Happened():
            yield _event(entry)
        case RunEnded():
            who = f" by {entry.agent}" if entry.agent else ""
            why = f"{entry.error}: {entry.text}" if entry.error else entry.text
            yield Row("run", f"{entry.outcome}{who}", text=why, side=entry.side, is_bad=entry.outcome == "failed", label=entry.label)
        case EntriesLost():
            yield Row("run", f"{entry.count} entries of this trace could not be kept", is_bad=True)


def _step(entry: AgentStepped) -> Row:
    call = entry.call
    verdict = f", {call.verdict}{' in shadow' if call.shadow else ''} ({call.trigger})" if call.verdict is not None else ""
    failed = f", {call.error}" if call.error is not None else ""
    return Row(
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


def _event(entry: Happened) -> Row:
    match entry.event:
        case Routed(decision=decision):
            return Row("decision", f"route: {', then '.join(decision.candidates)}", text="\n".join(decision.reasons))
        case AttemptStarted() as event:
            return Row("attempt", f"{event.agent} ({event.model}) begins", side=event.side)
        case AttemptEnded(attempt=attempt):
            is_bad = attempt.outcome != "accepted"
            return Row("attempt", f"{attempt.agent} {attempt.outcome}", side=attempt.side, text=attempt.reason, is_bad=is_bad, ends=True)
        case SupervisorSpoke() as event:
            said = (
                "plans"
                if event.verdict is None
                else f"says {event.verdict}{', in shadow' if event.shadow else ''}, asked by {event.trigger}"
            )
            return Row("decision", f"{event.agent} {said}", text=event.text)
        case SubtasksPlanned() as event:
            return Row("decision", f"{len(event.subtasks)} subtasks", text="\n".join(f"{each.id}: {each.task}" for each in event.subtasks))
        case SubtaskEnded() as event:
            return Row("decision", f"subtask {event.id} {event.outcome}", text=event.answer, is_bad=event.outcome != "done")
        case ApprovalAsked() as event:
            asked = "\n".join(f"{call_text(request.call)}: {request.reason}" for request in event.requests)
            return Row("decision", "approval is asked for", text=asked)
