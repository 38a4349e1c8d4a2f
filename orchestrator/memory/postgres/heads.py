"""Encode operations for their table, sealed if they are about a subject."""

from ....protocols import StoreCorrupt
from ..encoding import Sealer, decode, encode, subjects_of
from ..operation import Dot, Operation


def sealed(head: Operation, sealer: Sealer | None, payload: bytes | None = None) -> bytes:
    """Return an operation as it is stored; `payload` is the operation as JSON, if it is at hand."""
    payload = payload or encode(head)
    return payload if sealer is None else sealer.seal(head.dot, subjects_of(head), payload)


def opened(dot: Dot, payload: bytes, sealer: Sealer | None) -> Operation | None:
    """Return a stored operation; None if its key was destroyed, and so it is erased."""
    try:
        plain = payload if sealer is None else sealer.unseal(dot, payload)
        return None if plain is None else decode(dot, plain)
    except ValueError as error:
        raise StoreCorrupt(f"the memory store in Postgres is damaged: {error}", hint="restore the database from a backup") from error
