"""The table of items' heads, which are the data that is synchronised."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from ....protocols.namespaces import ItemAddress
from ...storage.sqlite import Connection
from ..encoding import Sealer, Subject, decode, encode, subjects_of
from ..engine import Change, Logged
from ..operation import Dot, Operation
from .rows import damaged, insert, pack, payload_of, unpack

_OF_ITEM: Final = "SELECT position, device, sequence, payload FROM operations WHERE item = ? ORDER BY position"

Heads = dict[int, Operation | None]
"""The heads of an item, by position; None: the head was erased, and its key destroyed."""


class State(NamedTuple):
    """The stored state of an item, and the change to make."""

    item: int
    seed: int
    """Seed of the item's address, see `columns.seed_of`."""
    present: Heads
    change: Change


class OperationTable:
    """Stores operations. With a sealer, those about a subject cannot be read without the subject's key."""

    def __init__(self, sealer: Sealer | None) -> None:
        self._sealer = sealer

    def decode(self, address: ItemAddress, dot: Dot, packed: bytes) -> Operation | None:
        """Return a stored operation; None as in `Heads`."""
        logged = self.logged(address, dot, 0, packed)
        return None if logged is None else logged.operation

    def decode_alone(self, dot: Dot, packed: bytes) -> Operation | None:
        """Return a stored operation whose item is not known for certain: the operation names it itself."""
        logged = self._opened(dot, 0, payload_of(packed))
        if logged is None:
            return None
        unpack(logged.operation.address, packed)
        return logged.operation

    def logged(self, address: ItemAddress, dot: Dot, position: int, packed: bytes) -> Logged | None:
        """Return a stored operation with its unsealed payload; None as in `Heads`."""
        return self._opened(dot, position, unpack(address, packed))

    def of_item(self, connection: Connection, address: ItemAddress, item: int) -> Heads:
        found = connection.execute(_OF_ITEM, (item,)).fetchall()
        return {position: self.decode(address, Dot(device, sequence), packed) for position, device, sequence, packed in found}

    def replace(self, connection: Connection, states: Iterable[State], next_position: Callable[[], int]) -> None:
        """Replace the heads of items. A head that is stored already keeps its position."""
        left: list[tuple[int]] = []
        kept: list[tuple[bytes, int]] = []
        added: list[tuple[int, int, str, int, bytearray]] = []
        for item, seed, present, change in states:
            heads = change.heads
            for position, head in present.items():
                if head not in heads:
                    left.append((position,))
                elif head is not None and self._subjects(head):
                    kept.append((self._packed(head, seed), position))
            for head in heads:
                if not present or head not in present.values():
                    added.append((next_position(), item, *head.dot, bytearray(self._packed(head, seed, change.payload))))
        if left:
            connection.executemany("DELETE FROM operations WHERE position = ?", left)
        if kept:  # sealed again: their key may be one that is destroyed next
            connection.executemany("UPDATE operations SET payload = ? WHERE position = ?", kept)
        insert(connection, "operations (position, item, device, sequence, payload)", added)

    def _packed(self, head: Operation, seed: int, payload: bytes | None = None) -> bytes:
        payload = payload or encode(head)
        subjects = self._subjects(head)
        if self._sealer is not None and subjects:
            payload = self._sealer.seal(head.dot, subjects, payload)
        return pack(seed, payload)

    def _subjects(self, head: Operation) -> frozenset[Subject]:
        """Return the subjects with whose keys an operation is sealed."""
        return frozenset() if self._sealer is None else subjects_of(head)

    def _opened(self, dot: Dot, position: int, payload: bytes) -> Logged | None:
        try:
            unsealed = payload if self._sealer is None else self._sealer.unseal(dot, payload)
            return None if unsealed is None else Logged(position, decode(dot, unsealed), unsealed)
        except ValueError as error:
            raise damaged(str(error)) from error
