"""Project the heads of an item to the row that readers see. It is the same on every device, so that only heads are synchronised."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...protocols.namespaces import ItemAddress
from .clock import seconds
from .engine import Change, Row
from .indexing import texts_of
from .merge import merge
from .operation import Operation

if TYPE_CHECKING:
    from .engine import Vector


def change_of(
    address: ItemAddress,
    heads: Sequence[Operation],
    *,
    now: float,
    fields: Sequence[str],
    vectors: "Mapping[str, Vector] | None" = None,
    payload: bytes | None = None,
) -> Change:
    """Return the change that puts an item into the state of `heads`, one or more.

    `fields` are the paths that are searched if the item has none of its own. `vectors` are those of texts, as far as they are made.
    `payload` is as in `Change`.
    """
    state = merge(heads)
    conflicts = len(state.siblings)
    if state.value is None:
        return Change(address, tuple(heads), None, conflicts=conflicts, payload=payload)
    meta = state.meta
    expires_at = None if meta.ttl is None else now + meta.ttl
    row = Row(address, state.value, meta, state.version, state.device, seconds(state.clock), expires_at, conflicts)
    texts = texts_of(state.value, fields if meta.index is None else meta.index)
    made = [vectors.get(text) for text in texts] if vectors else []
    complete = [vector for vector in made if vector is not None]
    return Change(address, tuple(heads), row, texts, complete if len(complete) == len(texts) else None, conflicts, payload)
