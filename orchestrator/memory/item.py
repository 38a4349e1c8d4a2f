"""The data of an item apart from its value: owner, origin, trust, and the tier that limits where it may go."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

import orjson

from ...protocols.namespaces import ItemAddress, Namespace, within
from ...protocols.tiers import LEAST_TRUST, TRUST, Source, Tier


class Meta(NamedTuple):
    """The stamp on each write, set by the framework and never by a model."""

    user: str = ""
    """The user who owns the item."""
    agent: str = ""
    """The agent that wrote the item; empty: the app itself."""
    source: Source = Source.INTERNAL_TOOL
    trust: float = TRUST[Source.INTERNAL_TOOL]
    """From 0 to 1; never above that of any item in `lineage`."""
    tier: Tier = Tier.DEVICE
    subject: str = ""
    """The person the item is about; all items about a person can be erased at once. Empty: no particular person."""
    lineage: tuple[ItemAddress, ...] = ()
    """The items that it was derived from."""
    created_at: float = 0.0
    """Seconds since the epoch at which the item was created; later writes keep it."""
    valid_from: float | None = None
    """Seconds since the epoch from which on the item is valid; None: always."""
    invalid_from: float | None = None
    """Seconds since the epoch from which on the item is no longer valid; None: it still is."""
    ttl: float | None = None
    """Seconds that the item lives after its last write or refresh; None: for ever."""
    index: tuple[str, ...] | None = None  # type: ignore[assignment]  # tuples have a method of this name, which is not needed here
    """Paths into the value that can be searched; None: those of the store's configuration; empty: the item cannot be searched."""
    others: tuple[str, ...] = ()
    """Further subjects, if the value keeps parts of several writes. Empty unless there is a `subject`."""

    def is_anothers(self, user: str) -> bool:
        """Return whether another user than `user` wrote it; an item without a user is the app's own."""
        return self.user not in ("", user)

    def trust_of(self, user: str) -> float:
        """Return the item's trust for `user`: items that another user shared get no more than untrusted content."""
        return min(self.trust, LEAST_TRUST) if self.is_anothers(user) else self.trust

    @property
    def subjects(self) -> tuple[str, ...]:
        """All subjects of the item."""
        return (self.subject, *self.others) if self.subject else ()


@lru_cache(maxsize=4096)
def address_tag(address: ItemAddress) -> str:
    """Return a digest that stands for an item if its name must not be stored. A guessed name can be checked against it."""
    return sha256(b"nearfar item\0" + orjson.dumps((*address,))).hexdigest()


def all_about(metas: Iterable[Meta]) -> tuple[str, tuple[str, ...]]:
    """Return the subject and the others of a value that has parts of all these, in their order."""
    subject, *others = dict.fromkeys(name for meta in metas for name in meta.subjects) or [""]
    return subject, tuple(others)


@dataclass(frozen=True, slots=True)
class Principal:
    """A reader of the store: items that are not meant for the principal do not exist for it."""

    user: str
    device: str
    prefixes: tuple[Namespace, ...] = ((),)
    """The principal sees items in or below any of these namespaces; `()` is all of them."""
    minimum_trust: float = 0.0

    def sees(self, address: ItemAddress, meta: Meta, device: str) -> bool:
        """Return whether the principal may see an item that `device` wrote."""
        is_believed = meta.trust_of(self.user) >= self.minimum_trust
        return is_believed and self._may_know(meta, device) and any(within(address.namespace, p) for p in self.prefixes)

    @property
    def believes_others(self) -> bool:
        """True if the items that other users shared reach the principal's `minimum_trust`."""
        return self.minimum_trust <= LEAST_TRUST

    def _may_know(self, meta: Meta, device: str) -> bool:
        match meta.tier:
            case Tier.SHARED:
                return True
            case Tier.USER:
                return meta.user == self.user
            case Tier.DEVICE:
                return meta.user == self.user and device == self.device
