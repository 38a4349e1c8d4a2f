"""Read the earlier values of superseded items."""

import re
from collections.abc import Iterator
from itertools import count
from typing import Final

from ...protocols.namespaces import ItemAddress
from .engine import Row
from .memory_item import MemoryItem
from .reading import Reader
from .writing import ARCHIVE_MARK

_VERSION: Final = re.compile(r"[0-9a-f]+@[^@+]+(\+[0-9a-f]+@[^@+]+)*")
_BATCH: Final = 200


def history(reader: Reader, address: ItemAddress) -> list[MemoryItem]:
    """Return the present and the earlier values of an item, the newest first."""
    past = sorted(_archived(reader, address), key=lambda row: (row.meta.invalid_from or 0, row.address.key), reverse=True)
    present = reader.get([address], [])[0]
    return [*([] if present is None else [present]), *map(MemoryItem, past)]


def _archived(reader: Reader, address: ItemAddress) -> Iterator[Row]:
    begin = address.key + ARCHIVE_MARK
    selection = reader.selection(address.namespace, key_prefix=begin)
    for offset in count(0, _BATCH):
        rows = reader.engine.select(selection, limit=_BATCH, offset=offset)
        # Other items may have a key that begins the same.
        yield from (row for row in rows if row.address.namespace == address.namespace and _VERSION.fullmatch(row.address.key, len(begin)))
        if len(rows) < _BATCH:
            return
