"""The unit of what is written and synchronised: one write of one device to one item."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from .item import Address, Meta, Tier

VersionVector = Mapping[str, int]
"""By device, the last sequence number of it that is known; all earlier ones are known, too."""


class Dot(NamedTuple):
    """Names a write for ever: the `sequence`-th of a device, counted from 1 without gaps."""

    device: str
    sequence: int


class Stamp(NamedTuple):
    """Orders writes that did not know of each other: by hybrid logical clock, then by device."""

    clock: int
    device: str


@dataclass(frozen=True, slots=True)
class Sibling:
    """A whole value that lost against a write which did not know it. It is kept until somebody decides."""

    dot: Dot
    clock: int
    value: Mapping[str, Any]
    meta: Meta


class Operation(NamedTuple):
    """A write and the whole state of its item after it, so that a write makes all that it knew of its item superfluous.

    It is what version vectors with a dot per write need and no more (Preguiça et al., *Dotted version vectors*, arXiv 1011.5808): an item
    is the set of its *heads*, the writes that no other known write knew of.
    """

    dot: Dot
    clock: int
    """Hybrid logical clock, see `clock.py`."""
    context: VersionVector
    """The writes to this item that this one knew of, and stands in for."""
    address: Address
    value: Mapping[str, Any] | None
    """The whole value; None: the item is deleted."""
    meta: Meta
    stamps: Mapping[str, Stamp] = MappingProxyType({})
    """When each field was last written, where that was not by this write; a field that is here and not in `value` was removed."""
    siblings: tuple[Sibling, ...] = ()
    """Lost values that are not decided on yet."""
    reach: Tier = Tier.DEVICE
    """The widest tier that the item had before: whoever was allowed to have it then hears that it is withdrawn, if nothing else."""
    unseen: tuple[Dot, ...] = ()
    """Writes in `context` that the writer knew as withdrawn only, without their content: this one does not stand in for them. A write that
    names itself is the notice of a withdrawal."""

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.clock, self.dot.device)

    def stamp_of(self, name: str) -> Stamp:
        """When the field was written last, as far as this write knows it."""
        return self.stamps.get(name, self.stamp)

    @property
    def is_withdrawn(self) -> bool:
        """Whether this is what others are told of a write whose content is not for them."""
        return self.dot in self.unseen

    def knew(self, dot: Dot) -> bool:
        """Whether the writer knew of that write, if only that it was withdrawn."""
        return self.context.get(dot.device, 0) >= dot.sequence

    def stands_in_for(self, other: "Operation") -> bool:
        """Whether nothing of `other` is needed any longer. Never both of each other, whatever a hostile device says that it knew."""
        if not self.knew(other.dot) or self.stamp <= other.stamp:
            return False
        is_content_unseen = other.dot in self.unseen and other.value is not None
        return not is_content_unseen and not any(sibling.dot in self.unseen for sibling in other.siblings)


def version_of(heads: Iterable[Operation]) -> str:
    """Names the state of an item, for `if_version`: it changes with every write that the state takes in."""
    return "+".join(map(version_of_one, sorted(heads, key=lambda head: head.stamp)))


def version_of_one(head: Operation) -> str:
    """What `version_of` is for a single head, as nearly all items have."""
    return f"{head.clock:x}@{head.dot.device}"
