"""What two replicas tell each other. `wire.py` gives it the form of protobuf."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..operation import Dot, VersionVector
from .facts import Facts
from .keys import SubjectKey

SCHEMA: Final = 3
"""Of operations, facts and what they mean. Replicas of different schemas do not synchronise."""


@dataclass(frozen=True, slots=True)
class Hello:
    """How a replica introduces itself."""

    device: str
    now: float
    """Its clock, in seconds since the epoch."""
    known: VersionVector
    facts: Facts
    log: str
    """Names its log, in which positions count."""
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class Request:
    """Where a replica wants to go on."""

    known: VersionVector
    log: str
    """Which log `position` counts in; another one than the sender's: begin anew."""
    position: int
    """Behind this position of the sender's log."""
    takes_all: bool
    """The sender is its hub: it takes what the sender has of other users, too."""


class SealedOperation(NamedTuple):
    """An operation as it travels: encoded, and sealed if it is about somebody."""

    dot: Dot
    payload: bytes


class Range(NamedTuple):
    """Writes of a device that are not for the receiver: `first` to `last`."""

    device: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A piece of the sender's log, from behind one position up to another."""

    log: str
    """Names the sender's log; it gets another name when the sender was put back from a copy."""
    start: int
    end: int
    operations: Sequence[SealedOperation] = ()
    holes: tuple[Range, ...] = ()
    keys: tuple[SubjectKey, ...] = ()
    """That the sealed operations need. Whoever keeps batches must not keep these with them."""
    facts: Facts | None = None
    """What the sender knows beside the items, where that is more than it has said before."""
    known: VersionVector | None = None
    """In the last batch: what the receiver knows when it has all batches."""


class Received(NamedTuple):
    """What came of a batch."""

    operations: int = 0
    """That were new."""
    holes: int = 0
    refused: int = 0
    """At addresses that are private to somebody else."""
    conflicts: int = 0
    """Items with siblings afterwards that had fewer before."""
