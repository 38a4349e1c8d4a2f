"""The messages between two replicas. `wire.py` converts them to protobuf."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..operation import Dot, VersionVector
from .facts import Facts
from .keys import SubjectKey

SCHEMA: Final = 3
"""Version of operations, facts and their meaning. Replicas of different schemas do not synchronise."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The introduction of a replica."""

    device: str
    now: float
    """The replica's clock, in seconds since the epoch."""
    known: VersionVector
    facts: Facts
    log: str
    """Name of its log, in which positions count."""
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class Request:
    """The position from which a replica wants to continue."""

    known: VersionVector
    log: str
    """The log in which `position` counts; if it is not the sender's, the sender starts at its beginning."""
    position: int
    """A position in the sender's log, after which to continue."""
    takes_all: bool
    """True: the sender's hub asks, which takes other users' items, too."""


class SealedOperation(NamedTuple):
    """An operation as it travels: encoded, and sealed if it is about a subject."""

    dot: Dot
    payload: bytes


class Range(NamedTuple):
    """Writes of a device that are not for the receiver: `first` to `last`."""

    device: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A part of the sender's log, from after one position up to another."""

    log: str
    """Name of the sender's log; it changes if the sender was restored from a copy."""
    start: int
    end: int
    operations: Sequence[SealedOperation] = ()
    holes: tuple[Range, ...] = ()
    keys: tuple[SubjectKey, ...] = ()
    """Keys of the sealed operations. Never store them together with the batch."""
    facts: Facts | None = None
    """The sender's facts apart from the items, if there are more than it has sent before."""
    known: VersionVector | None = None
    """In the last batch: the version vector of the receiver when it has all batches."""


class Received(NamedTuple):
    """The result of receiving a batch."""

    operations: int = 0
    """Number of new operations."""
    holes: int = 0
    refused: int = 0
    """Number of operations at addresses that are private to another user."""
    conflicts: int = 0
    """Number of items that have siblings afterwards and had fewer before."""
