"""Count the part of a store that a principal may see. Engines count the whole store."""

import sys
from typing import Final

import orjson

from .conflicts import conflicts
from .reading import Reader

_BATCH: Final = 500


def visible(reader: Reader) -> dict[str, int]:
    """Return the numbers of items, deleted items and conflicts, and the bytes of values, of what the reader may see."""
    counted = dict.fromkeys(("items", "deleted", "bytes"), 0)
    position = 0
    while found := reader.engine.changes(position, limit=_BATCH):
        position = found[-1].position
        rows = reader.engine.rows([one.address for one in found if not one.is_deleted], reader.selection())
        counted["items"] += len(rows)
        counted["deleted"] += len(reader.known([one.address for one in found if one.is_deleted]))
        counted["bytes"] += sum(len(orjson.dumps(row.value)) for row in rows.values())
    return {**counted, "conflicts": len(conflicts(reader, sys.maxsize, 0))}
