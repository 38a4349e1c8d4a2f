"""What the tests of the cache share: requests, agents that count, and a cache whose clock and chance the test holds."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nearfar.orchestrator.cache import AnswerCache
from nearfar.orchestrator.task.stores import CacheConfig
from nearfar.orchestrator.util.embedding import MiniLmEmbedder
from nearfar.protocols import Message, Prices, StepRequest
from nearfar.protocols.steps import Sensitivity

if TYPE_CHECKING:
    from nearfar.orchestrator.util.embedding import Vector

PRICES: Final = Prices(input=Decimal(1_000), output=Decimal(2_000), source="made up", as_of=date(2026, 1, 1))
STRENGTH: Final = "How can I become physically strong?"
SAME_STRENGTH: Final = "How do I become physically strong?"


@cache
def embedder() -> MiniLmEmbedder:
    """The real one, loaded once for all tests."""
    return MiniLmEmbedder()


class CountingEmbedder:
    """The real one, which counts."""

    def __init__(self) -> None:
        self.embedded = 0

    def embed(self, text: str) -> "Vector":
        self.embedded += 1
        return embedder().embed(text)


@dataclass
class World:
    """The clock and the chance of a cache."""

    time: float = 1_000.0
    chance: float = 1.0
    """Below the shadow share, a question is answered afresh."""
    embedder: CountingEmbedder = field(default_factory=CountingEmbedder)

    @contextmanager
    def cache(self, path: Path, **settings: object) -> Iterator[AnswerCache]:
        chosen = CacheConfig.model_validate({"path": path, **settings})
        opened = AnswerCache(chosen, embedder=self.embedder, now=lambda: self.time, chance=lambda: self.chance)
        try:
            yield opened
        finally:
            opened.close()


def ask(prompt: str, **fields: object) -> StepRequest:
    """A public request with one user message, or with `messages`."""
    defaults: Mapping[str, object] = {"messages": (Message.user(prompt),), "sensitivity": Sensitivity.PUBLIC}
    return StepRequest.model_validate({**defaults, **fields})
