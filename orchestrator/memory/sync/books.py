"""The synchronisation state of a replica, among the settings of its engine."""

import secrets
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from itertools import groupby
from typing import Final, NamedTuple

import orjson

from ....protocols import StoreCorrupt
from ..engine import Transaction
from .messages import Peer, SharedFacts, decode_facts, encode_facts

_FACTS: Final = "sync facts"
_LOG: Final = "sync log"
_RESTORED: Final = "sync restored"
_ERASING: Final = "sync erasing"
_TOLD: Final = "sync told"
_CHUNK: Final = 4096
"""Number of a device's writes whose arrival is kept together, one bit each."""


class Told(NamedTuple):
    """The part of the replica's own log that was sent to peers."""

    position: int = 0
    """No peer has more of the log. A peer with more got it from another copy of this store."""
    sequence: int = 0
    """Number of the replica's last write before: every copy that was made since has the same up to here."""


def facts(transaction: Transaction) -> SharedFacts:
    """Return everything that the replica knows apart from the items."""
    kept = transaction.setting(_FACTS)
    try:
        return _decoded(kept) if kept else SharedFacts()
    except ValueError as error:
        raise StoreCorrupt("the replica's list of erasures is damaged", hint="run nearfar memory recover") from error


@lru_cache(maxsize=16)
def _decoded(kept: str) -> SharedFacts:
    return decode_facts(kept.encode())


def erasures(transaction: Transaction) -> str:
    """Return a digest of all known erasures, empty if there are none. It changes whenever there is more to forget."""
    known = facts(transaction).erasures
    # Without the boundaries, which change nothing here.
    parts = [(id, {tag: dict(vector) for tag, vector in one.overwritten.items()}) for id, one in sorted(known.items())]
    return sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest() if parts else ""


def keep_facts(transaction: Transaction, known: SharedFacts) -> None:
    transaction.set(_FACTS, encode_facts(known).decode())


def log(transaction: Transaction) -> str:
    """Return the name of the replica's log, in which its positions count."""
    name = transaction.setting(_LOG)
    if name is None:
        name = _new_name()
        transaction.set(_LOG, name)
    return name


def told(transaction: Transaction) -> Told:
    kept = transaction.setting(_TOLD)
    return Told() if kept is None else Told(*orjson.loads(kept))


def keep_told(transaction: Transaction, now: Told) -> None:
    """Store the position in the log, before peers are sent it."""
    transaction.set(_TOLD, orjson.dumps(tuple(now)).decode())


def note_restored(transaction: Transaction, sequence: int) -> None:
    """Record up to which number the replica has its own writes, as a restored copy: peers may have other writes after it."""
    transaction.set(_RESTORED, str(sequence))
    transaction.set(_LOG, _new_name())  # positions are no longer what they were to peers
    keep_told(transaction, Told(0, sequence))


def had(transaction: Transaction, own: str) -> dict[str, int]:
    """Return the version vector, without writes of its own that the replica has lost."""
    restored = transaction.setting(_RESTORED)
    known = transaction.known()
    return known if restored is None else {**known, own: int(restored)}


def position(transaction: Transaction, peer: Peer, log: str) -> int:
    """Return the position up to which the replica has a peer's log."""
    return int(transaction.setting(_place(peer, log)) or 0)


def keep_position(transaction: Transaction, peer: Peer, log: str, position: int) -> None:
    transaction.set(_place(peer, log), str(position))


def _new_name() -> str:
    return secrets.token_hex(8)


def _place(peer: Peer, log: str) -> str:
    # A sender picks other operations out of its log for another user.
    return f"sync position {log} {peer.is_relay:d} {peer.user}"


def introducer(transaction: Transaction, device: str) -> str | None:
    """Return the credential with which a device came first."""
    return transaction.setting(f"sync device {device}")


def introduce(transaction: Transaction, device: str, credential: str) -> None:
    transaction.set(f"sync device {device}", credential)
    transaction.set(f"sync credential {credential}", orjson.dumps([*introduced(transaction, credential), device]).decode())


def introduced(transaction: Transaction, credential: str) -> list[str]:
    """Return all devices that came with a credential."""
    kept = transaction.setting(f"sync credential {credential}")
    return [] if kept is None else [str(device) for device in orjson.loads(kept)]


def note_arrivals(transaction: Transaction, sequences: Mapping[str, Iterable[int]]) -> None:
    """Record which writes of others, by device, have ever arrived with their content."""
    for device, numbers in sequences.items():
        for chunk, some in groupby(sorted(numbers), key=lambda number: number // _CHUNK):
            bits = _arrivals(transaction, device, chunk)
            for number in some:
                bits |= 1 << number % _CHUNK
            transaction.set(_chunk(device, chunk), f"{bits:x}")


def holes(transaction: Transaction, device: str) -> Iterator[tuple[int, int]]:
    """Yield the first and last number of each run of a device's writes that the replica counts and that never arrived."""
    open_first = open_last = 0
    for first, last in _missing(transaction, device):
        if open_first and first == open_last + 1:
            open_last = last
            continue
        if open_first:
            yield open_first, open_last
        open_first, open_last = first, last
    if open_first:
        yield open_first, open_last


def runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield first and last of each run of numbers without a gap; the numbers come in order."""
    for _, run in groupby(enumerate(numbers), key=lambda one: one[1] - one[0]):
        first, *rest = (number for _, number in run)
        yield first, rest[-1] if rest else first


def _missing(transaction: Transaction, device: str) -> Iterator[tuple[int, int]]:
    """Yield runs of missing numbers, each within one chunk. A chunk of which nothing arrived is one run: a hub may claim billions of
    writes."""
    last = transaction.known().get(device, 0)
    for chunk in range(last // _CHUNK + 1):
        bits = _arrivals(transaction, device, chunk)
        numbers = range(max(1, chunk * _CHUNK), min(last + 1, (chunk + 1) * _CHUNK))
        if not numbers:
            continue
        if bits == 0:
            yield numbers[0], numbers[-1]
        else:
            yield from runs(number for number in numbers if not bits >> (number % _CHUNK) & 1)


def _arrivals(transaction: Transaction, device: str, chunk: int) -> int:
    return int(transaction.setting(_chunk(device, chunk)) or "0", 16)


def _chunk(device: str, chunk: int) -> str:
    return f"sync arrivals {device} {chunk}"


def pending_keys(transaction: Transaction) -> list[bytes] | None:
    """Return the keys that an erasure has still to destroy before the files are scrubbed; None if no erasure is under way."""
    kept = transaction.setting(_ERASING)
    return None if kept is None else [bytes.fromhex(id) for id in orjson.loads(kept)]


def keep_pending_keys(transaction: Transaction, ids: Iterable[bytes] | None) -> None:
    transaction.set(_ERASING, None if ids is None else orjson.dumps([id.hex() for id in ids]).decode())
