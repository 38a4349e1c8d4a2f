"""Verify a draft: find the part of it that plain decoding would have written."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ..sampling import NearTie
from ..sequences import common_prefix


class Choose(Protocol):
    """Lets a step choose what to compute next, from the logits behind so many tokens of the draft; see `Generation.advance`."""

    def __call__(self, offset: int, tolerance: float) -> list[int]: ...


class Verdict(NamedTuple):
    """The result of a pass that held a draft."""

    kept: int
    """Cells of the draft that stay in the cache; negative if as many of those in front of it have to be computed again."""
    queue: list[int]
    """Cells to compute next."""
    undecided: bool
    """True if the choice after them was too close to be made from a pass of several tokens; it has to be made from `queue` alone."""


def verify(fed: list[int], drafted: list[int], choose: Callable[[int], list[int]]) -> Verdict:
    """Let a step choose for as long as it chooses what was drafted. `fed` are the cells in front of the draft."""
    kept, last = 0, fed
    while True:
        try:
            chosen = choose(kept)
        except NearTie:
            return Verdict(kept - len(last), last, undecided=True)
        if not chosen or drafted[kept : kept + len(chosen)] != chosen:
            same = common_prefix(drafted[kept:], chosen)
            return Verdict(kept + same, chosen[same:], undecided=False)
        kept, last = kept + len(chosen), chosen
