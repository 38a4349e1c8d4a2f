"""Which LoRA adapter each token goes through (Hu et al. 2021, arXiv 2106.09685), and how the cache remembers it.

What a token leaves in the key-value cache depends on the adapter that it went through, so that cells of one adapter must not be taken for
those of another. A *cell* is therefore the token's id with the number of its adapter above it: prefixes that are equal as cells are equal
in the cache. Number 0 is the model itself, and its cells are the plain ids.

Only the worker process imports this module.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...protocols import StepRequest

_TOKEN_BITS: Final = 32
_TOKEN: Final = (1 << _TOKEN_BITS) - 1


def cells(tokens: Sequence[int], adapter: int) -> list[int]:
    """Return tokens as the cells that they leave in the cache under one adapter."""
    mark = adapter << _TOKEN_BITS
    return [mark | token for token in tokens] if mark else list(tokens)


def tokens_of(cells_: Sequence[int]) -> Sequence[int]:
    """Return the tokens of cells that have one adapter."""
    return [cell & _TOKEN for cell in cells_] if adapter_of(cells_) else cells_


def adapter_of(cells_: Sequence[int]) -> int:
    """Return the adapter of the first cell."""
    return cells_[0] >> _TOKEN_BITS


def run(cells_: Sequence[int]) -> int:
    """Return the number of cells at the beginning that have one adapter."""
    adapter = adapter_of(cells_)
    return next((index for index, cell in enumerate(cells_) if cell >> _TOKEN_BITS != adapter), len(cells_))


@dataclass(frozen=True, slots=True)
class Outfit:
    """The adapters of one step: one for tool calls, from the opener to the closer, and one for everything else."""

    text: int
    call: int

    def prompt(self, tokens: list[int], opener: Sequence[int], closer: Sequence[int]) -> list[int]:
        """Return the cells of a prompt, in which earlier calls count as calls."""
        marked = cells(tokens, self.text)
        if self.call == self.text:
            return marked
        for start, end in _calls(tokens, opener, closer):
            marked[start:end] = cells(tokens[start:end], self.call)
        return marked

    def output(self, tokens: Sequence[int], *, in_call: bool) -> list[int]:
        """Return the cells of generated tokens."""
        return cells(tokens, self.call if in_call else self.text)


class Adapters:
    """The adapters of a worker, numbered from 1 in the order of their names."""

    def __init__(self, names: Sequence[str]) -> None:
        self._numbers: dict[str | None, int] = {name: number for number, name in enumerate(names, start=1)}

    def outfit(self, request: StepRequest) -> Outfit:
        """Return the adapters that a request asks for; the agent has checked that they were loaded."""
        text = self._numbers[request.adapter] if request.adapter else 0
        return Outfit(text, self._numbers[request.call_adapter] if request.call_adapter else text)


def _calls(tokens: list[int], opener: Sequence[int], closer: Sequence[int]) -> list[tuple[int, int]]:
    """Find the calls that are closed again. Each runs from the last token of the opener to the end of the closer, as they are generated."""
    found = []
    start = _end_of(opener, tokens, 0)
    while start is not None and (end := _end_of(closer, tokens, start)) is not None:
        found.append((start - 1, end))
        start = _end_of(opener, tokens, end)
    return found


def _end_of(marker: Sequence[int], tokens: list[int], start: int) -> int | None:
    """Return the position after the first `marker` that begins at `start` or later."""
    places = (at for at in range(start, len(tokens)) if tokens[at] == marker[0])
    return next((at + len(marker) for at in places if tuple(tokens[at : at + len(marker)]) == tuple(marker)), None)
