"""What the conformance tests work with: a clock that they move, embedders that they understand, and replicas to write on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypedDict, Unpack

from langgraph.store.base import TTLConfig

from nearfar import MemoryStore
from nearfar.orchestrator.memory.engine import Engine
from nearfar.orchestrator.memory.merge import heads_of, merge, succeed
from nearfar.orchestrator.memory.operation import Dot, Meta, Operation
from nearfar.orchestrator.memory.reading import SearchMode
from nearfar.orchestrator.memory.vectors import Embedder, change_of
from nearfar.protocols.items import ItemAddress, Tier

MINUTE = 60.0
DAY = 86400.0
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


class StoreOptions(TypedDict, total=False):
    """What a test may want otherwise."""

    embedder: Embedder | None
    fields: Sequence[str]
    user: str
    tier: Tier
    ttl: TTLConfig
    maximum_bytes: int
    mode: SearchMode


class MakeStore(Protocol):
    """Opens one more store of the same database."""

    def __call__(self, **options: Unpack[StoreOptions]) -> MemoryStore: ...


@dataclass
class Clock:
    """Time, in seconds since the epoch, as the tests want it."""

    time: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds


@dataclass
class LetterEmbedder:
    """Texts with the same letters mean the same."""

    name: str = "letters/1"
    width: int = len(LETTERS)
    seen: list[str] = field(default_factory=list)

    def embed_all(self, texts: Sequence[str]) -> list[list[float]]:
        self.seen.extend(texts)
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        counts = Counter(text.casefold())
        return [float(counts[letter]) for letter in LETTERS]


class BrokenEmbedder(LetterEmbedder):
    """Fails as long as it is broken."""

    is_broken = True

    def embed_all(self, texts: Sequence[str]) -> list[list[float]]:
        if self.is_broken:
            raise RuntimeError("no embeddings today")
        return super().embed_all(texts)


def write_elsewhere(engine: Engine, operation: Operation, *, now: float, fields: Sequence[str] = ("$",)) -> None:
    """Let the replica hear of a write of another device."""
    with engine.transaction() as transaction:
        heads = heads_of((*transaction.heads([operation.address]).get(operation.address, ()), operation))
        transaction.apply([change_of(operation.address, heads, now=now, fields=fields)])
        transaction.learn({operation.dot.device: operation.dot.sequence}, operation.clock)


def concurrent(address: ItemAddress, value: dict[str, object] | None, *, device: str, sequence: int, clock: int, meta: Meta) -> Operation:
    """A write of a device that knows of no other write to the item."""
    return succeed((), dot=Dot(device, sequence), clock=clock, address=address, value=value, meta=meta)


def patched_elsewhere(engine: Engine, address: ItemAddress, fields: dict[str, object], *, device: str, clock: int, meta: Meta) -> Operation:
    """A write of a device that knows the item as it is now, and changes some of its fields."""
    with engine.transaction() as transaction:
        heads = transaction.heads([address])[address]
    value = {**(merge(heads).value or {}), **fields}
    return succeed(heads, dot=Dot(device, 1), clock=clock, address=address, value=value, meta=meta, is_total=False)
