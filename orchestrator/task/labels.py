"""Information-flow labels: how far a text may go, and whether it is trusted. The runtime sets and joins them; no model influences them."""

from collections.abc import Iterable
from enum import StrEnum
from functools import reduce
from typing import Final

from ...protocols import Sensitivity
from ...protocols.messages import Value
from ...protocols.tiers import TIERS, Tier, strictest


class Integrity(StrEnum):
    """Trust in the authors of a text."""

    UNTRUSTED = "untrusted"
    """Others may have written it: it is data, whatever it claims to be."""
    TRUSTED = "trusted"
    """The user or the app's own code wrote it."""


class Label(Value):
    """An information-flow label of a text, or of all that a run has seen. `Label()` (shared, trusted) is the identity of `joined`.

    Confidentiality decides on which side a text is worked on, integrity which tools may run because of it (Denning 1976, "A lattice
    model of
    secure information flow"; Biba 1977).
    """

    tier: Tier = Tier.SHARED
    """Privacy tier: how far the text may go."""
    integrity: Integrity = Integrity.TRUSTED
    origins: tuple[str, ...] = ()
    """Sources that made it more private or less trusted: `tool read_mail`, `memory notes/7`, `the task`."""
    is_disturbed: bool = False
    """Untrusted content may have caused a tool call that changes what other tools return."""

    def joined(self, other: "Label") -> "Label":
        """Return the label of what is made of both: as private as the more private one, and trusted only if both are."""
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
        """Return the origins as agents, errors and records are told them: names of items of the memory may be private themselves."""
        return tuple(dict.fromkeys("the memory" if origin.startswith("memory ") else origin for origin in self.origins))

    @property
    def sensitivity(self) -> Sensitivity:
        """Return the sensitivity that agents are told: private, unless the text may go everywhere."""
        return Sensitivity.PUBLIC if self.tier is Tier.SHARED else Sensitivity.PRIVATE


OPEN: Final = Label()
"""The label of a text that may go everywhere and that only the user and the app have written."""

OF_CONTEXT: Final = Label(integrity=Integrity.UNTRUSTED, origins=("the context",))
"""The label of a document that a task is about: untrusted content."""


def joined(labels: Iterable[Label]) -> Label:
    """Return the label of what is made of all these."""
    return reduce(Label.joined, labels, OPEN)


def may_go(tier: Tier, reach: Tier) -> bool:
    """Return whether data of this tier may go as far as `reach`: `device` is here alone, `shared` is anywhere."""
    return TIERS.index(tier) >= TIERS.index(reach)
