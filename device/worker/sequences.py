"""Assign the sequences of the key-value cache to steps, and keep the prefixes in them for the next steps to reuse."""

from collections.abc import Sequence as Cells
from dataclasses import dataclass, field
from typing import Final, Protocol

_KEPT_IN_PLACE: Final = 0.75
"""Share of an idle sequence that a prompt must repeat to take it over; below that, the prefix is shared and the rest stays reusable."""


class Memory(Protocol):
    """The cache's own operations."""

    def forget(self, sequence: int, start: int) -> bool:
        """Drop the cells from position `start` on; False if what remains cannot be continued."""

    def share(self, source: int, target: int, end: int) -> bool:
        """Let `target` use the cells of `source` up to position `end`, exclusive; False if this engine's sequences share nothing."""


@dataclass(slots=True)
class Sequence:
    """One sequence of the cache."""

    identifier: int
    cells: list[int] = field(default_factory=list)
    """Contents of the cache: tokens, each with its adapter; see `adapters`."""
    reserved: int = 0
    """Cells that its step may come to need; 0 while it is idle."""
    last_used: int = 0


class Sequences:
    """Hands out sequences, each with as much of the prompt already in it as some sequence can give.

    Cells are counted as if no two sequences shared any, so that a step that was let in never runs out of them.
    """

    def __init__(self, memory: Memory, *, count: int, cells: int) -> None:
        self._memory = memory
        self._cells = cells
        self._all = [Sequence(identifier) for identifier in range(count)]
        self._clock = 0

    def claim(self, prompt: Cells[int], *, reserve: int) -> Sequence | None:
        """Reserve a sequence that holds a beginning of `prompt`, all but its last cell at most; None if all sequences or cells are
        taken."""
        idle = [sequence for sequence in self._all if not sequence.reserved]
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
        if not source.reserved and shared >= _KEPT_IN_PLACE * len(source.cells):
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
