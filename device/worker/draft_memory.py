"""The calls that an agent made, from which its next ones are drafted; with a folder, they survive the worker.

They are private data: on this device, in a file that only its user can read, each call with the sensitivity of its request. A public
request is drafted from public calls alone, so that its speed tells nothing about private ones.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final, Literal
from uuid import uuid4

from pydantic import Field, ValidationError

from ...protocols import Sensitivity
from ...protocols.steps import ToolName, Value
from .engine import Vocabulary

LONGEST_MATCH: Final = 7
"""Tokens, or characters, beyond which a match is as good as a longer one."""
MOST_FOLLOWING: Final = 48
"""Characters of the conversation that a match suggests."""
TOKENS_PER_TOOL: Final = 4096
_TOOLS: Final = 64
_FILE_BYTES: Final = 1 << 20
_PROBED: Final = 1024

logger = logging.getLogger(__name__)


def as_text(tokens: Iterable[int]) -> str:
    """Return token ids as characters, so that looking for a run of tokens is a search for a substring."""
    return "".join(map(chr, tokens))


@dataclass(frozen=True, slots=True)
class Match:
    """The continuation of an earlier text that equals the present one."""

    length: int
    """Length of the equal part, at most `LONGEST_MATCH`."""
    following: str


class KeptCall(Value):
    """A call that a model wrote, at most its last `TOKENS_PER_TOOL` tokens."""

    version: Literal[1] = 1
    tool: ToolName
    after: str | None
    """The tool that was called before it in its conversation."""
    on_new_line: bool
    """It began on a line of its own."""
    sensitivity: Sensitivity
    tokens: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1, max_length=TOKENS_PER_TOOL)


class CallMemory:
    """The calls that requests of one sensitivity may be drafted from, by tool; bounded."""

    def __init__(self) -> None:
        self._calls: dict[str, str] = {}
        self._successors: dict[str | None, Counter[str]] = {}
        self.on_new_line = False
        """True if the last call began on a line of its own."""

    def add(self, call: KeptCall) -> None:
        """Remember a call."""
        known = self._calls.pop(call.tool, "")
        self._calls[call.tool] = (known + as_text(call.tokens))[-TOKENS_PER_TOOL:]
        if len(self._calls) > _TOOLS:
            oldest = next(iter(self._calls))
            del self._calls[oldest]
            self._successors.pop(oldest, None)
        self._successors.setdefault(call.after, Counter())[call.tool] += 1
        self.on_new_line = call.on_new_line

    def by_likelihood(self, tools: Iterable[str], *, after: str | None) -> list[str]:
        """Return the tools, those first that were called most often after that one."""
        counts = self._successors.get(after, Counter())
        return sorted(tools, key=lambda tool: -counts[tool])

    def find(self, tool: str, context: str) -> Match | None:
        """Find how a call of the tool went on after the longest end of `context` that it held. All texts are as `as_text` writes them."""
        calls = self._calls.get(tool, "")
        for length in range(min(LONGEST_MATCH, len(context)), 0, -1):
            at = calls.rfind(context[-length:], 0, len(calls) - 1)
            if at >= 0:
                return Match(length, calls[at + length : at + length + MOST_FOLLOWING])
        return None


class CallMemories:
    """The memory of each sensitivity, and the file that the calls are kept in."""

    def __init__(self, file: "CallFile | None" = None) -> None:
        self._file = file
        self._memories = _empty()
        for call in () if file is None else file.read():
            self._remember(call)

    def of(self, sensitivity: Sensitivity) -> CallMemory:
        """Return the memory that a request of this sensitivity may be drafted from."""
        return self._memories[sensitivity]

    def add(self, call: KeptCall) -> None:
        """Remember a call, and keep it. If the file was erased, the calls in it are forgotten, too."""
        if self._file is not None and not self._file.append(call):
            self._memories = _empty()
        self._remember(call)

    def _remember(self, call: KeptCall) -> None:
        for sensitivity, memory in self._memories.items():
            if sensitivity in (Sensitivity.PRIVATE, call.sensitivity):
                memory.add(call)


def _empty() -> dict[Sensitivity, CallMemory]:
    return {sensitivity: CallMemory() for sensitivity in Sensitivity}


class CallFile:
    """A file with a line for each call, the newest last; bounded, and appended to with one write for each call.

    It is named after the vocabulary, since tokens mean nothing in another one. If it cannot be read or written, a warning says so, and the
    calls are remembered until the worker ends, as they are without a file.
    """

    def __init__(self, folder: Path, vocabulary: Vocabulary) -> None:
        self._path = folder / f"{_fingerprint(vocabulary)}.jsonl"
        self._vocabulary_size = vocabulary.size
        self._handle: int | None = None
        """The file, open so that its removal shows; None: it was not there."""
        self._is_usable = True

    def read(self) -> list[KeptCall]:
        """Return the calls that were kept; lines that are damaged or of another version are left out."""
        try:
            self._handle = _opened(self._path, os.O_APPEND)
            start = max(os.fstat(self._handle).st_size - _FILE_BYTES, 0)
            lines = list(filter(None, os.pread(self._handle, _FILE_BYTES, start).split(b"\n")))
        except FileNotFoundError:
            return []
        except OSError as error:
            self._give_up(error)
            return []
        calls = [call for line in lines if (call := self._parse(line)) is not None]
        if len(calls) < len(lines):
            logger.warning("%d of %d calls in %s cannot be read, and are left out", len(lines) - len(calls), len(lines), self._path)
        return calls

    def append(self, call: KeptCall) -> bool:
        """Keep a call; False if another process has erased the file, or shortened it, since the last one."""
        if not self._is_usable:
            return True
        try:
            is_erased = self._handle is not None and _is_removed(self._handle)
            if self._handle is None or is_erased:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._keep_open(_opened(self._path, os.O_APPEND | os.O_CREAT))
            assert self._handle is not None, "it was opened"
            # A line break in front, too: a line that another worker left unfinished then ends.
            os.write(self._handle, b"\n" + call.model_dump_json().encode() + b"\n")
            if os.fstat(self._handle).st_size > _FILE_BYTES:
                self._shorten(self._handle)
        except OSError as error:
            self._give_up(error)
            return True
        return not is_erased

    def _shorten(self, handle: int) -> None:
        """Keep the newer half, unless all of it was erased meanwhile."""
        size = os.fstat(handle).st_size
        lines = os.pread(handle, size, size - _FILE_BYTES // 2).split(b"\n")[1:]
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}-{uuid4().hex}")
        shorter = _opened(temporary, os.O_APPEND | os.O_CREAT | os.O_EXCL)
        os.write(shorter, b"\n".join(lines) + b"\n")
        if _is_removed(handle):
            temporary.unlink(missing_ok=True)
            os.close(shorter)
        else:
            temporary.replace(self._path)
            self._keep_open(shorter)

    def _keep_open(self, handle: int) -> None:
        if self._handle is not None:
            os.close(self._handle)
        self._handle = handle

    def _parse(self, line: bytes) -> KeptCall | None:
        try:
            call = KeptCall.model_validate_json(line)
        except ValidationError:
            return None
        return call if max(call.tokens) < self._vocabulary_size else None

    def _give_up(self, error: OSError) -> None:
        self._is_usable = False
        logger.warning("calls are not kept: %s", error)


def _opened(path: Path, mode: int) -> int:
    """Open a file that only its user can read from now on, and no other file in its name. Raises `OSError`."""
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | mode, 0o600)
    try:
        os.fchmod(handle, 0o600)  # it may come from a backup, or an earlier umask
    except OSError:
        os.close(handle)
        raise
    return handle


def _is_removed(handle: int) -> bool:
    return os.fstat(handle).st_nlink == 0


def _fingerprint(vocabulary: Vocabulary) -> str:
    """Name a vocabulary by its size and some of its pieces."""
    pieces = (vocabulary.piece(token) for token in range(0, vocabulary.size, max(vocabulary.size // _PROBED, 1)))
    return sha256(repr((vocabulary.size, list(pieces))).encode()).hexdigest()[:32]
