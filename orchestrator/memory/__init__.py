"""What agents on all devices of a user remember: items that are private by construction, searchable, and kept in step between devices."""

from typing import TYPE_CHECKING

from ...protocols.lazy import lazy_names

if TYPE_CHECKING:
    from .fusion import Ranking
    from .item import Address, Principal, Source, Tier
    from .memory_item import MemoryItem
    from .provenance import Origin, writing_as
    from .reading import Mode
    from .store import MemoryStore
    from .vectors import Embedder

__all__ = [
    "Address",
    "Embedder",
    "MemoryItem",
    "MemoryStore",
    "Mode",
    "Origin",
    "Principal",
    "Ranking",
    "Source",
    "Tier",
    "writing_as",
]

__getattr__ = lazy_names(
    __name__,
    {
        "Address": "item",
        "Embedder": "vectors",
        "MemoryItem": "memory_item",
        "MemoryStore": "store",
        "Mode": "reading",
        "Origin": "provenance",
        "Principal": "item",
        "Ranking": "fusion",
        "Source": "item",
        "Tier": "item",
        "writing_as": "provenance",
    },
)
