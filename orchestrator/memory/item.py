"""What the store keeps of an item beside its value: whose it is, where it came from, and how far it may go."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

import orjson

from ...protocols.namespaces import ItemAddress, Namespace, within
from ...protocols.tiers import LEAST_TRUST, TRUST, Source, Tier


class Meta(NamedTuple):
    """What is stamped on each write, by the framework and never by a model."""

    user: str = ""
    """Whose item it is."""
    agent: str = ""
    """Who wrote it; empty: the app itself."""
    source: Source = Source.INTERNAL_TOOL
    trust: float = TRUST[Source.INTERNAL_TOOL]
    """From 0 to 1; never above that of any item in `lineage`."""
    tier: Tier = Tier.DEVICE
    subject: str = ""
    """Whom the item is about; all items about somebody can be erased at once. Empty: nobody in particular."""
    lineage: tuple[ItemAddress, ...] = ()
    """The items that it was derived from."""
    created_at: float = 0.0
    """Of the item, in seconds since the epoch; later writes keep it."""
    valid_from: float | None = None
    """Seconds since the epoch from which on the item is true; None: always."""
    invalid_from: float | None = None
    """Seconds since the epoch from which on it is true no longer; None: it still is."""
    ttl: float | None = None
    """Seconds that the item lives after its last write or refresh; None: for ever."""
    index: tuple[str, ...] | None = None  # type: ignore[assignment]  # tuples have a method of this name, which nobody wants here
    """Paths into the value that can be searched; None: those of the store's configuration; empty: it cannot be searched."""
    others: tuple[str, ...] = ()
    """Whom it is about as well, where it keeps parts of several writes. Nobody unless there is a `subject`."""

    def is_anothers(self, user: str) -> bool:
        """Return whether another user than `user` wrote it; what has no user is the app's own."""
        return self.user not in ("", user)

    def trust_of(self, user: str) -> float:
        """Return how far `user` believes it: what another user shared, as little as what strangers wrote."""
        return min(self.trust, LEAST_TRUST) if self.is_anothers(user) else self.trust

    @property
    def subjects(self) -> tuple[str, ...]:
        """All whom it is about."""
        return (self.subject, *self.others) if self.subject else ()


@lru_cache(maxsize=4096)
def address_tag(address: ItemAddress) -> str:
    """Stands for an item where its name must not be. Whoever guesses the name can check the guess."""
    return sha256(b"nearfar item\0" + orjson.dumps((*address,))).hexdigest()


def all_about(metas: Iterable[Meta]) -> tuple[str, tuple[str, ...]]:
    """The subject and the others of a value that has parts of all these, in their order."""
    subject, *others = dict.fromkeys(name for meta in metas for name in meta.subjects) or [""]
    return subject, tuple(others)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who looks at the store: what is not meant for them does not exist for them."""

    user: str
    device: str
    prefixes: tuple[Namespace, ...] = ((),)
    """They see what is in or below any of these namespaces; `()` is all of them."""
    minimum_trust: float = 0.0

    def sees(self, address: ItemAddress, meta: Meta, device: str) -> bool:
        """Whether an item that `device` wrote is meant for them."""
        is_believed = meta.trust_of(self.user) >= self.minimum_trust
        return is_believed and self._may_know(meta, device) and any(within(address.namespace, p) for p in self.prefixes)

    @property
    def believes_others(self) -> bool:
        """What other users shared is believed enough, where it is believed as what strangers wrote."""
        return self.minimum_trust <= LEAST_TRUST

    def _may_know(self, meta: Meta, device: str) -> bool:
        match meta.tier:
            case Tier.SHARED:
                return True
            case Tier.USER:
                return meta.user == self.user
            case Tier.DEVICE:
                return meta.user == self.user and device == self.device
