"""Labels: how far a text may go, and whether what it says may be acted upon. The runtime sets and joins them; no model has a say in it."""

from collections.abc import Iterable
from enum import StrEnum
from functools import reduce
from typing import Final

from ...protocols import Sensitivity
from ...protocols.messages import Value
from ...protocols.tiers import TIERS, Tier, strictest


class Integrity(StrEnum):
    """Who may have had a hand in a text."""

    UNTRUSTED = "untrusted"
    """Strangers: what it says is data, whatever it claims to be."""
    TRUSTED = "trusted"
    """The user, and the app's own code."""


class Label(Value):
    """Of a text, or of all that a run has seen. The zero of joining is public and trusted.

    Confidentiality decides on which side a text is worked on, integrity which tools may run on its word (Denning 1976, "A lattice model of
    secure information flow"; Biba 1977).
    """

    tier: Tier = Tier.SHARED
    """How far it may go."""
    integrity: Integrity = Integrity.TRUSTED
    origins: tuple[str, ...] = ()
    """What made it more private or less trusted: `tool read_mail`, `memory notes/7`, `the task`."""
    is_disturbed: bool = False
    """Strangers may have had a tool change what others return, by a call that nobody had chosen."""

    def joined(self, other: "Label") -> "Label":
        """Of what is made of both: as private as the more private one, and trusted only where both are."""
        if self.covers(other):
            return self
        if other.covers(self) and other.origins[: len(self.origins)] == self.origins:
            return other
        trusted = self.integrity is other.integrity is Integrity.TRUSTED
        return Label(
            tier=strictest((self.tier, other.tier)),
            integrity=Integrity.TRUSTED if trusted else Integrity.UNTRUSTED,
            origins=tuple(dict.fromkeys((*self.origins, *other.origins))),
            is_disturbed=self.is_disturbed or other.is_disturbed,
        )

    def covers(self, other: "Label") -> bool:
        """Return True if joining with `other` changes nothing: it is no more private, no less trusted, and of no further origin."""
        return (
            self is other
            or (TIERS.index(self.tier) <= TIERS.index(other.tier))
            and (self.integrity is Integrity.UNTRUSTED or other.integrity is Integrity.TRUSTED)
            and (self.is_disturbed or not other.is_disturbed)
            and (not other.origins or all(origin in self.origins for origin in other.origins))
        )

    @property
    def told_origins(self) -> tuple[str, ...]:
        """The origins as agents, errors and records are told them: names of items of the memory may be private themselves."""
        return tuple(dict.fromkeys("the memory" if origin.startswith("memory ") else origin for origin in self.origins))

    @property
    def sensitivity(self) -> Sensitivity:
        """As agents are told it: what may not go everywhere stays on the near side."""
        return Sensitivity.PUBLIC if self.tier is Tier.SHARED else Sensitivity.PRIVATE


OPEN: Final = Label()
"""The label of what anybody may read and what nobody but the user and the app has written."""

OF_CONTEXT: Final = Label(integrity=Integrity.UNTRUSTED, origins=("the context",))
"""Of a document that a task is about: anybody may have written it."""


def joined(labels: Iterable[Label]) -> Label:
    """The label of what is made of all these."""
    return reduce(Label.joined, labels, OPEN)


def may_go(tier: Tier, reach: Tier) -> bool:
    """Whether what has this tier may go as far as that: `device` is here alone, `shared` is anywhere."""
    return TIERS.index(tier) >= TIERS.index(reach)
