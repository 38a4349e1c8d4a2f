"""The interface of an engine: a model with its vocabulary, a context that decodes batches of tokens, and the sequences of its cache.

The sequences of the key-value cache are assigned to steps, and the prefixes in them are kept for the next steps to reuse.

A token's entry in the cache depends on the LoRA adapter that it went through (Hu et al. 2021, arXiv 2106.09685), so entries of one adapter
must not be taken for those of another. A *cell* is therefore the token's id with the number of its adapter above it: prefixes that are
equal as cells are equal in the cache. Number 0 is the model itself, and its cells are the plain ids.

Only the worker process imports this module.
"""

from collections import abc
from collections.abc import Callable
from collections.abc import Sequence as Cells
from dataclasses import dataclass, field
from hashlib import shake_128
from typing import Final, Protocol, TypeAlias

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

from ...protocols import Attachment, StepRequest

Logits: TypeAlias = NDArray[np.float32]
Mask: TypeAlias = NDArray[np.bool_]


class Vocabulary(Protocol):
    """Between text and token ids."""

    size: int
    ends: frozenset[int]
    """Tokens that end the output."""

    @property
    def start(self) -> int | None:
        """The token that a prompt begins with, if this model wants one."""

    @property
    def start_text(self) -> str: ...

    @property
    def end_text(self) -> str: ...

    @property
    def control_texts(self) -> frozenset[str]:
        """Texts that the tokenizer would turn into control tokens."""

    @property
    def longest_token(self) -> int:
        """Bytes of the longest text that one token can stand for."""

    @property
    def puts_blank_in_front(self) -> bool:
        """True if the tokenizer puts a blank in front of the first word of a text, as SentencePiece does."""

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of `text`, in which the texts of control tokens count as those tokens. No start token is added."""

    def tokenize_inside(self, text: str) -> list[int]:
        """Tokenize text that follows other text: without the blank that SentencePiece puts in front of the first word."""

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token stands for in text; none for control tokens, except the markers of reasoning."""

    def guidance_tokenizer(self) -> LLTokenizer:
        """Return this vocabulary as llguidance's tokenizer."""


class Model(Protocol):
    """A loaded model."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def chat_template(self) -> str | None: ...


class TokenBatch(Protocol):
    """The tokens of one pass through the model."""

    capacity: int
    size: int

    def clear(self) -> None: ...

    def add(self, tokens: Cells[int], *, position: int, sequence: int, last: bool) -> int:
        """Append tokens of one sequence; returns the index of the last one, whose logits are computed if it is the `last` of its step."""


class CacheMemory(Protocol):
    """The cache's own operations."""

    def forget(self, sequence: int, start: int) -> bool:
        """Drop the cells from position `start` on; False if what remains cannot be continued."""

    def share(self, source: int, target: int, end: int) -> bool:
        """Let `target` use the cells of `source` up to position `end`, exclusive; False if this engine's sequences share nothing."""


class CacheContext(CacheMemory, Protocol):
    """The key-value cache of all sequences, and the pass through the model that fills it."""

    cells: int
    """Tokens that the cache holds, over all sequences."""

    @property
    def adapters(self) -> abc.Sequence[str]:
        """Names of the adapters that were loaded with the model; they are numbered from 1."""

    @property
    def batch(self) -> TokenBatch: ...

    def use_adapter(self, number: int) -> None:
        """Let the passes from now on go through an adapter; 0: through the model as it is. Raises `ModelError` if that fails."""

    def decode(self) -> bool:
        """Run the batch through the model; False if the cache has no room for it. Raises `ModelError` if the pass fails."""

    def logits(self, index: int) -> Logits:
        """Return the logits at one position of the decoded batch, valid until the next `decode`."""


_KEPT_IN_PLACE: Final = 0.75
"""Share of an idle sequence that a prompt must repeat to take it over; below that, the prefix is shared and the rest stays reusable."""


@dataclass(slots=True)
class Sequence:
    """One sequence of the cache."""

    identifier: int
    cells: list[int] = field(default_factory=list)
    """Contents of the cache: tokens, each with its adapter."""
    reserved: int = 0
    """Cells that its step may come to need; 0 while it is idle."""
    last_used: int = 0


class Sequences:
    """Hands out sequences, each with as much of the prompt already in it as some sequence can give.

    Cells are counted as if no two sequences shared any, so that a step that was let in never runs out of them.
    """

    def __init__(self, memory: CacheMemory, *, count: int, cells: int) -> None:
        self._memory = memory
        self._cells = cells
        self._all = [Sequence(identifier) for identifier in range(count)]
        self._clock = 0

    @property
    def count(self) -> int:
        return len(self._all)

    @property
    def has_idle(self) -> bool:
        return not all(sequence.reserved for sequence in self._all)

    def claim(self, prompt: Cells[int], *, reserve: int, kept: abc.Collection[int] = ()) -> Sequence | None:
        """Reserve a sequence that holds a beginning of `prompt`, all but its last cell at most, and is none of those that are `kept` for
        others; None if all sequences or cells are taken."""
        idle = [sequence for sequence in self._all if not sequence.reserved and sequence.identifier not in kept]
        if not idle or sum(sequence.reserved for sequence in self._all) + reserve > self._cells:
            return None
        source = max(self._all, key=lambda sequence: common_prefix(sequence.cells, prompt))
        shared = min(common_prefix(source.cells, prompt), len(prompt) - 1)
        target = self._target(idle, source, shared)
        target.reserved = reserve
        self._fill(target, source, shared)
        self._make_room()
        return target

    def release(self, sequence: Sequence) -> None:
        """Give a sequence back; what it holds stays for reuse until the room is needed."""
        self._clock += 1
        sequence.reserved, sequence.last_used = 0, self._clock

    def forget_idle(self) -> None:
        """Drop everything that is only kept for reuse."""
        for sequence in self._all:
            if not sequence.reserved:
                self._clear(sequence)

    def reset(self) -> None:
        """Drop everything, after the cache's content has become uncertain."""
        for sequence in self._all:
            self._clear(sequence)

    def _target(self, idle: list[Sequence], source: Sequence, shared: int) -> Sequence:
        if source in idle and shared >= _KEPT_IN_PLACE * len(source.cells):
            return source
        others = [sequence for sequence in idle if sequence is not source] or idle
        return min(others, key=lambda sequence: sequence.last_used)

    def _fill(self, target: Sequence, source: Sequence, shared: int) -> None:
        if target is not source:
            self._clear(target)
            if not shared or not self._memory.share(source.identifier, target.identifier, shared):
                return
        target.cells = source.cells[:shared]
        if not self._memory.forget(target.identifier, shared):
            self._clear(target)

    def _make_room(self) -> None:
        taken = sum(sequence.reserved for sequence in self._all)
        for sequence in sorted(self._all, key=lambda sequence: sequence.last_used, reverse=True):
            if not sequence.reserved:
                taken += len(sequence.cells)
                if taken > self._cells:
                    self._clear(sequence)

    def _clear(self, sequence: Sequence) -> None:
        self._memory.forget(sequence.identifier, 0)
        sequence.cells = []


def common_prefix(first: Cells[int], second: Cells[int]) -> int:
    """Return the number of cells that both begin with."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


_TOKEN_BITS: Final = 32
_TOKEN: Final = (1 << _TOKEN_BITS) - 1
_IMAGE: Final = 1 << (_TOKEN_BITS - 1)
"""Marks a cell that holds a part of an image: no token's id is as large."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True, kw_only=True)
class ImagePart:
    """An image, or a slice of it, that a model with a projector reads in one piece."""

    positions: int
    """Positions that it takes in a sequence."""
    tokens: int
    """Entries that it takes in the cache: more than positions where a model knows rows and columns."""
    decode: Callable[[int, int], bool]
    """Encode it and run it through the model, at a position of a sequence; False if the cache has no room. Raises `ModelError`."""

    def cells(self, digest: bytes) -> list[int]:
        """Return its cells, by the digest of the image and the number of the part: equal images are equal as cells."""
        names = np.frombuffer(shake_128(digest).digest(4 * self.positions), dtype=np.uint32)
        return [_IMAGE | int(name) for name in names & np.uint32(_IMAGE - 1)]


class ImageReader(Protocol):
    """Turns images into parts of a prompt, for models that read images."""

    def read(self, image: Attachment) -> abc.Sequence[list[int] | ImagePart]:
        """Return tokens that stand around the image, and the parts of the image itself. Raises a `NearfarError` if it cannot be read."""


def is_image(cell: int) -> bool:
    """Return True for a cell that holds a part of an image."""
    return bool(cell & _IMAGE)


def cells(tokens: Cells[int], adapter: int) -> list[int]:
    """Return tokens as the cells that they leave in the cache under one adapter."""
    mark = adapter << _TOKEN_BITS
    return [mark | token for token in tokens] if mark else list(tokens)


def tokens_of(cells_: Cells[int]) -> Cells[int]:
    """Return the tokens of cells that have one adapter."""
    return [cell & _TOKEN for cell in cells_] if adapter_of(cells_) else cells_


def adapter_of(cells_: Cells[int]) -> int:
    """Return the adapter of the first cell."""
    return cells_[0] >> _TOKEN_BITS


def run(cells_: Cells[int]) -> int:
    """Return the number of tokens at the beginning that have one adapter, up to the next image."""
    begin = cells_[0] // _IMAGE  # the adapter, and whether it is an image
    return next((index for index, cell in enumerate(cells_) if cell // _IMAGE != begin), len(cells_))


@dataclass(frozen=True, slots=True)
class Outfit:
    """The adapters of one step: one for tool calls, from the opener to the closer, and one for everything else."""

    text: int
    call: int

    def prompt(self, tokens: list[int], opener: Cells[int], closer: Cells[int]) -> list[int]:
        """Return the cells of a prompt, in which earlier calls count as calls."""
        marked = cells(tokens, self.text)
        if self.call == self.text:
            return marked
        for start, end in _calls(tokens, opener, closer):
            marked[start:end] = cells(tokens[start:end], self.call)
        return marked

    def output(self, tokens: Cells[int], *, in_call: bool) -> list[int]:
        """Return the cells of generated tokens."""
        return cells(tokens, self.call if in_call else self.text)


class Adapters:
    """The adapters of a worker, numbered from 1 in the order of their names."""

    def __init__(self, names: Cells[str]) -> None:
        self._numbers: dict[str | None, int] = {name: number for number, name in enumerate(names, start=1)}

    def outfit(self, request: StepRequest) -> Outfit:
        """Return the adapters that a request asks for; the agent has checked that they were loaded."""
        text = self._numbers[request.adapter] if request.adapter else 0
        return Outfit(text, self._numbers[request.call_adapter] if request.call_adapter else text)


def _calls(tokens: list[int], opener: Cells[int], closer: Cells[int]) -> list[tuple[int, int]]:
    """Find the calls that are closed again. Each runs from the last token of the opener to the end of the closer, as they are generated."""
    found = []
    start = _end_of(opener, tokens, 0)
    while start is not None and (end := _end_of(closer, tokens, start)) is not None:
        found.append((start - 1, end))
        start = _end_of(opener, tokens, end)
    return found


def _end_of(marker: Cells[int], tokens: list[int], start: int) -> int | None:
    """Return the position after the first `marker` that begins at `start` or later."""
    places = (at for at in range(start, len(tokens)) if tokens[at] == marker[0])
    return next((at + len(marker) for at in places if tuple(tokens[at : at + len(marker)]) == tuple(marker)), None)
