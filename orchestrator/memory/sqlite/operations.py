"""Where the heads of items are kept, which are what is synchronised."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeGuard

from ...sqlite.connections import Connection
from ..encoding import Sealer, decode, encode, subjects_of
from ..item import Address
from ..operation import Dot, Operation
from .columns import pack, payload_of, unpack
from .errors import damaged

_OF_ITEM: Final = "SELECT position, device, sequence, payload FROM operations WHERE item = ? ORDER BY position"


Heads = dict[int, Operation | None]
"""Of an item, by position; None: it was erased, and nobody has its key any more."""


class State(NamedTuple):
    """What an item's heads are, and are to be."""

    item: int
    present: Heads
    heads: Sequence[Operation]


class OperationTable:
    """With a sealer, operations about somebody are written so that they cannot be read without the key of whom they are about."""

    def __init__(self, sealer: Sealer | None) -> None:
        self._sealer = sealer

    def encode(self, operation: Operation) -> bytes:
        payload = encode(operation)
        if self._sealer is not None:
            payload = self._sealer.seal(operation.dot, subjects_of(operation), payload)
        return pack(operation.address, payload)

    def decode(self, address: Address, dot: Dot, packed: bytes) -> Operation | None:
        """As in `Heads`."""
        return self._opened(dot, unpack(address, packed))

    def decode_alone(self, dot: Dot, packed: bytes) -> Operation | None:
        """The same where nobody knows for certain of which item it is: it says so itself."""
        operation = self._opened(dot, payload_of(packed))
        if operation is not None:
            unpack(operation.address, packed)
        return operation

    def _opened(self, dot: Dot, payload: bytes) -> Operation | None:
        try:
            unsealed = payload if self._sealer is None else self._sealer.unseal(dot, payload)
            return None if unsealed is None else decode(dot, unsealed)
        except ValueError as error:
            raise damaged(str(error)) from error

    def of_item(self, connection: Connection, address: Address, item: int) -> Heads:
        found = connection.execute(_OF_ITEM, (item,)).fetchall()
        return {position: self.decode(address, Dot(device, sequence), packed) for position, device, sequence, packed in found}

    def replace(self, connection: Connection, states: Iterable[State], next_position: Callable[[], int]) -> None:
        """What of an item's heads is present already, and the same, keeps its position."""
        left: list[tuple[int]] = []
        kept: list[tuple[bytes, int]] = []
        added: list[tuple[object, ...]] = []
        for item, present, heads in states:
            left += ((position,) for position, head in present.items() if head not in heads)
            kept += ((self.encode(head), position) for position, head in present.items() if head in heads and self._seals(head))
            new = heads if not present else [head for head in heads if head not in present.values()]
            added += ((next_position(), item, *head.dot, self.encode(head)) for head in new)
        connection.executemany("DELETE FROM operations WHERE position = ?", left)
        # Sealed anew: the key that they were sealed with may be one that is destroyed next.
        connection.executemany("UPDATE operations SET payload = ? WHERE position = ?", kept)
        connection.executemany("INSERT INTO operations VALUES (?, ?, ?, ?, ?)", added)

    def _seals(self, head: Operation | None) -> TypeGuard[Operation]:
        return head is not None and self._sealer is not None and bool(subjects_of(head))
