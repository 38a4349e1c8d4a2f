"""What the store keeps of an item beside its value: whose it is, where it came from, and how far it may go."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple

import orjson

Namespace = tuple[str, ...]


class Address(NamedTuple):
    """Where an item is."""

    namespace: Namespace
    key: str


class Tier(StrEnum):
    """How far an item may go. The order is that of `TIERS`."""

    DEVICE = "device"
    """It never leaves the device that wrote it."""
    USER = "user"
    """To devices of the same user, and to the hub that connects them."""
    SHARED = "shared"
    """To whoever synchronises with the store."""


TIERS: Final = (Tier.DEVICE, Tier.USER, Tier.SHARED)
"""From the strictest on."""


class Source(StrEnum):
    """Who said what an item says."""

    USER = "user"
    INTERNAL_TOOL = "internal_tool"
    """The app's own code and tools."""
    MODEL = "model"
    DOCUMENT = "document"
    EXTERNAL_TOOL = "external_tool"
    """A tool that brings in what strangers wrote: the web, mail."""


TRUST: Final = {Source.USER: 1.0, Source.INTERNAL_TOOL: 0.8, Source.MODEL: 0.6, Source.DOCUMENT: 0.4, Source.EXTERNAL_TOOL: 0.2}
"""How far what comes from a source is believed, from 0 to 1, where nothing else is known."""
LEAST_TRUST: Final = min(TRUST.values())
"""How far strangers are believed, and what other users share."""


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
    lineage: tuple[Address, ...] = ()
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
def address_tag(address: Address) -> str:
    """Stands for an item where its name must not be. Whoever guesses the name can check the guess."""
    return sha256(b"nearfar item\0" + orjson.dumps((*address,))).hexdigest()


def all_about(metas: Iterable[Meta]) -> tuple[str, tuple[str, ...]]:
    """The subject and the others of a value that has parts of all these, in their order."""
    subject, *others = dict.fromkeys(name for meta in metas for name in meta.subjects) or [""]
    return subject, tuple(others)


def strictest(tiers: Iterable[Tier]) -> Tier:
    """The tier that goes least far; of none, the strictest of all."""
    return min(tiers, key=TIERS.index, default=Tier.DEVICE)


def widest(tiers: Iterable[Tier]) -> Tier:
    """The tier that goes furthest; of none, the strictest of all."""
    return max(tiers, key=TIERS.index, default=Tier.DEVICE)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who looks at the store: what is not meant for them does not exist for them."""

    user: str
    device: str
    prefixes: tuple[Namespace, ...] = ((),)
    """They see what is in or below any of these namespaces; `()` is all of them."""
    minimum_trust: float = 0.0

    def sees(self, address: Address, meta: Meta, device: str) -> bool:
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


def within(namespace: Namespace, prefix: Namespace) -> bool:
    """Whether `namespace` is `prefix` or lies below it."""
    return namespace[: len(prefix)] == prefix
