"""Messages between the agent and its worker process, as frames.

`WorkerOptions` are given on the command line. To the worker: `{"step": id, "request": ..., "timeout": ...}`, `{"cancel": id}` and
`{"statistics": id}`. From the worker: `{"ready": WorkerReady}` or `{"failed": error}` once, then `{"statistics": id, "values": ...}` and
`{"events": [[id, kind, payload], ...], "decoded_tokens": n}`. An event's kind is a `StepEventKind`. `{"log": text, "level": n, "name":
logger}` comes at any time, for the agent's own log, and `{"alive": true}` in every interval of the heartbeat in `liveness`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import JsonValue

from ...protocols import Execution, InternalError, NearfarError
from ...protocols.errors import BY_REASON
from ...protocols.messages import Value
from .frames import Frame

DEFAULT_CONTEXT_TOKENS: Final = 8192
"""Context of a step where the caller names none and the model was trained for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options for loading the model; an engine adds its own."""

    path: str
    context_tokens: int | None
    """Most tokens of one step, prompt and output together; None: what the model was trained for, at most `DEFAULT_CONTEXT_TOKENS`."""
    parallel: int
    """Steps that are decoded at the same time."""
    threads: int | None


class WorkerReady(Value):
    """Facts that the worker knows once the model is loaded."""

    context_tokens: int
    execution: Execution | None = None
    """The engine and processor that really run the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatistics:
    """Counts since the worker process started."""

    process_id: int
    decoded_tokens: int
    """Generated tokens that went through the model."""
    prefilled_tokens: int
    """Prompt tokens that went through the model; those found in the prefix cache do not."""
    decode_calls: int
    """Passes through the model, each over one batch of tokens of any number of steps."""
    widest_batch: int
    """Most steps that advanced in one pass."""
    socket_checks: int
    """Looks at the socket, where cancellations arrive; there is one before every pass."""
    active_steps: int
    queued_steps: int
    drafts: dict[str, dict[str, int]]
    """Drafts of tool calls, by the source of the guess: `runs` of neighbouring tokens, tokens `drafted` and those `accepted`."""


class StepEventKind(StrEnum):
    """The kind of an event of a step."""

    TEXT = "text"
    CALL = "call"
    FINISHED = "finished"
    ERROR = "error"
    CANCELLED = "cancelled"
    """The parent asked for it and listens no more; the event marks the end of the compute."""


def error_to_frame(error: NearfarError) -> Frame:
    """Return the error as data."""
    return {"reason": type(error).__name__, "message": error.message, "hint": error.hint}


def error_from_frame(frame: JsonValue) -> NearfarError:
    """Return the error that `error_to_frame` turned into data."""
    if not isinstance(frame, dict):
        return InternalError(f"the worker sent a malformed error: {frame!r}")
    error = BY_REASON.get(str(frame["reason"]), InternalError)
    return error(str(frame["message"]), hint=str(frame["hint"]))
