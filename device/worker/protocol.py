"""Messages between the agent and its worker process: length-prefixed JSON frames on a private socket, and the heartbeat.

`WorkerOptions` are given on the command line. To the worker: `{"step": id, "request": ..., "timeout": ...}`, `{"cancel": id}`,
`{"statistics": id}` and `{"count": id, "request": ...}`. From the worker: `{"ready": WorkerReady}` or `{"failed": error}` once, then
`{"answer": id, "values": ...}` or `{"answer": id, "error": ...}`, and `{"events": [[id, kind, payload], ...], "decoded_tokens": n}`.
An event's kind is a `StepEventKind`. `{"log": text, "level": n, "name": logger}` comes at any time, for the agent's own log, and
`{"alive": true}` in every interval of the heartbeat `BEAT`.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

import anyio
from pydantic import JsonValue

from ...protocols import Execution, InternalError, NearfarError
from ...protocols.errors import BY_REASON
from ...protocols.limits import Heartbeat, Pulse
from ...protocols.steps import Value

Frame: TypeAlias = dict[str, JsonValue]

_LENGTH: Final = struct.Struct("<I")
_MOST_BYTES: Final = 1 << 28
"""Most bytes of one frame: far more than the longest prompt."""


def encode(frame: Frame) -> bytes:
    """Return the bytes of one frame."""
    body = json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


class FrameDecoder:
    """Cuts a stream of bytes, received in pieces of any size, into frames."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield every frame that `data` completes. Raises `ValueError` for what is none."""
        self._received += data
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            if length > _MOST_BYTES:
                raise ValueError(f"a frame of {length} bytes is too long")
            end = _LENGTH.size + length
            if len(self._received) < end:
                return
            frame = json.loads(self._received[_LENGTH.size : end])
            del self._received[:end]
            yield frame


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


BEAT: Final = Heartbeat(interval=1.0, silence_limit=3.0)
"""The interval of a worker's heartbeats, and the silence after which its parent looks at it."""


class Liveness:
    """Tells a worker that stands still from one that is too busy to send its beats.

    A thread of the worker sends them. It needs Python's interpreter lock, which llama.cpp's bindings release and onnxruntime-genai holds
    for a whole pass of the model. So a silent process is looked at before it is given up: one that computes, or waits for a disk and is
    woken by it, is alive.
    """

    def __init__(self, process_id: int, heartbeat: Heartbeat = BEAT) -> None:
        self._process_id = process_id
        self._pulse = Pulse(heartbeat)
        self._look_seconds = heartbeat.interval

    def heard(self) -> None:
        """Take note that something came from the worker."""
        self._pulse.heard()

    async def until_still(self) -> None:
        """Return when the worker has been silent for its heartbeat's limit, and after that did nothing for another interval."""
        while True:
            await self._pulse.run(_listen)
            before = _activity(self._process_id)
            await anyio.sleep(self._look_seconds)
            if self._pulse.is_silent and _activity(self._process_id) == before:
                return
            self._pulse.heard()


async def _listen() -> None:
    """Send nothing: the parent has no beats of its own, since a worker ends with its parent by their pipe."""


def _activity(process_id: int) -> tuple[float, ...] | None:
    """Return numbers that grow while a process runs: seconds of CPU time, and switches of its main thread. None: the process is gone."""
    import psutil

    try:
        process = psutil.Process(process_id)
        return (*process.cpu_times()[:2], *process.num_ctx_switches())
    except psutil.Error:
        return None
