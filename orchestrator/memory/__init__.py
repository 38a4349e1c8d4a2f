"""What agents on all devices of a user remember: items that are private by construction, searchable, and kept in step between devices."""

from typing import TYPE_CHECKING

from ...protocols.lazy import lazy_names

if TYPE_CHECKING:
    from ...protocols.namespaces import ItemAddress
    from ...protocols.tiers import Source, Tier
    from .changes import MemoryChange
    from .conflicts import Conflict, LostValue
    from .fusion import Ranking
    from .item import Principal
    from .memory_item import MemoryItem
    from .provenance import Origin, writing_as
    from .reading import SearchMode
    from .recall.agent_memory import AgentMemory
    from .recall.semantic import Fact
    from .recall.turn import Turn
    from .rendering import Rendered, render
    from .store import MemoryStore
    from .transfer import Imported
    from .vectors import Embedder

__all__ = [
    "ItemAddress",
    "AgentMemory",
    "Conflict",
    "Embedder",
    "Fact",
    "Imported",
    "LostValue",
    "MemoryChange",
    "MemoryItem",
    "MemoryStore",
    "SearchMode",
    "Origin",
    "Principal",
    "Ranking",
    "Rendered",
    "Source",
    "Tier",
    "Turn",
    "render",
    "writing_as",
]

__getattr__ = lazy_names(
    __name__,
    {
        "ItemAddress": "item",
        "AgentMemory": "recall.agent_memory",
        "Conflict": "conflicts",
        "Embedder": "vectors",
        "Fact": "recall.semantic",
        "Imported": "transfer",
        "LostValue": "conflicts",
        "MemoryChange": "changes",
        "MemoryItem": "memory_item",
        "MemoryStore": "store",
        "SearchMode": "reading",
        "Origin": "provenance",
        "Principal": "item",
        "Ranking": "fusion",
        "Rendered": "rendering",
        "Source": "item",
        "Tier": "item",
        "Turn": "recall.turn",
        "render": "rendering",
        "writing_as": "provenance",
    },
)
