"""The items that readers get: LangGraph's own class, with provenance."""

from datetime import UTC, datetime
from typing import Any

from langgraph.store.base import SearchItem

from ...protocols.namespaces import ItemAddress
from ...protocols.tiers import Source, Tier
from .engine import Row


class MemoryItem(SearchItem):
    """A stored item with its stamp. A copy: changing it changes nothing in the store."""

    __slots__ = (
        *("version", "user", "agent", "device", "source", "trust", "tier", "subject", "others", "lineage"),
        *("valid_from", "invalid_from", "expires_at", "conflicts", "is_anothers"),
    )

    def __init__(self, row: Row, score: float | None = None, *, is_anothers: bool = False) -> None:
        meta = row.meta
        created_at = datetime.fromtimestamp(meta.created_at, UTC)
        updated_at = datetime.fromtimestamp(row.updated_at, UTC)
        super().__init__(row.address.namespace, row.address.key, row.value, created_at, updated_at, score)
        self.version: str = row.version
        """The version for `if_version`."""
        self.user: str = meta.user
        """The user who owns the item."""
        self.is_anothers: bool = is_anothers
        """True if another user than the reader wrote the item: it is trusted no more than untrusted content."""
        self.agent: str = meta.agent
        """The agent that wrote the item last; empty: the app itself."""
        self.device: str = row.device
        """The device on which the item was written last."""
        self.source: Source = meta.source
        self.trust: float = meta.trust
        self.tier: Tier = meta.tier
        self.subject: str = meta.subject
        self.others: tuple[str, ...] = meta.others
        """Further subjects of the item."""
        self.lineage: tuple[ItemAddress, ...] = meta.lineage
        self.valid_from: datetime | None = _moment(meta.valid_from)
        self.invalid_from: datetime | None = _moment(meta.invalid_from)
        self.expires_at: datetime | None = _moment(row.expires_at)
        self.conflicts: int = row.conflicts
        """Number of whole values that lost against this one and are not resolved; see `MemoryStore.conflicts`."""

    @property
    def address(self) -> ItemAddress:
        return ItemAddress(self.namespace, self.key)

    def dict(self) -> dict[str, Any]:
        """Return the item as plain JSON."""
        moments = {name: moment and moment.isoformat() for name in _MOMENTS for moment in [getattr(self, name)]}
        plain = {name: getattr(self, name) for name in _PLAIN}
        lineage = [[list(address.namespace), address.key] for address in self.lineage]
        return {**super().dict(), **plain, **moments, "others": [*self.others], "lineage": lineage}


_MOMENTS = ("valid_from", "invalid_from", "expires_at")
_PLAIN = ("version", "user", "agent", "device", "source", "trust", "tier", "subject", "conflicts")


def _moment(stamp: float | None) -> datetime | None:
    return None if stamp is None else datetime.fromtimestamp(stamp, UTC)
