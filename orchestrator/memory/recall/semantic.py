"""Semantic memory: facts, one per attribute, with the time from which they are valid."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from ....protocols.namespaces import ItemAddress, Namespace
from ....protocols.tiers import LEAST_TRUST, TRUST, Source, Tier
from ..reading import MemoryItem
from ..store import MemoryStore
from .granularity import SEMANTIC, TEXT
from .question import keywords

_INDEX: Final = [TEXT]
_SIMILAR: Final = 0.4
"""The least cosine similarity of a fact that is related to a question. Embeddings of unrelated sentences seldom come so close."""
_CANDIDATES: Final = 50


CLAIM: Final = "claim"
"""The namespace below that of facts: statements by less trusted sources that contradict a fact."""


class Learned(StrEnum):
    """The result of learning a fact."""

    NOTHING = "nothing"
    """The fact was known already."""
    FACT = "fact"
    """The fact is the present one."""
    CLAIM = "claim"
    """A more trusted source says something else, so the fact is kept as a claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One known fact. There is one fact per attribute of a thing at a time."""

    about: str
    attribute: str
    statement: str
    """The fact as a sentence that can be understood alone."""
    since: datetime | None = None
    """None: now."""
    sources: Sequence[ItemAddress] = ()
    """The items that the fact was derived from: it is no more trusted than they are, and goes no further."""
    source: Source | None = None
    tier: Tier | None = None
    subject: str | None = None
    """The person it is about, with whom it is erased; None: the subject of the running task."""

    @property
    def key(self) -> str:
        return f"{self.about.casefold()}/{self.attribute.casefold()}"


class SemanticMemory:
    """Known facts. A fact that contradicts an earlier one supersedes it; the earlier one stays in `history`.

    A less trusted fact does not supersede: otherwise untrusted content could change what a user said. It is kept as a claim.
    """

    def __init__(self, store: MemoryStore, scope: Namespace = ()) -> None:
        self._store = store
        self._namespace = (*scope, SEMANTIC)

    def learn(self, fact: Fact) -> Learned:
        """Keep a fact, and return what became of it."""
        known = self.fact(fact.about, fact.attribute)
        if known is not None and known.value[TEXT] == fact.statement:
            return Learned.NOTHING
        store = self._store.bound(source=fact.source, lineage=fact.sources)
        value = {"about": fact.about, "attribute": fact.attribute, TEXT: fact.statement}
        if known is not None and self._trust(store, fact) < known.trust:
            store.put((*self._namespace, CLAIM), fact.key, value, index=_INDEX, tier=fact.tier, subject=fact.subject)
            return Learned.CLAIM
        write = store.put if known is None else store.supersede
        write(self._namespace, fact.key, value, index=_INDEX, valid_from=fact.since, tier=fact.tier, subject=fact.subject)
        return Learned.FACT

    def fact(self, about: str, attribute: str) -> MemoryItem | None:
        """Return the present fact about an attribute."""
        return self._store.get(self._namespace, Fact(about=about, attribute=attribute, statement="").key)

    def facts(self, about: str) -> list[MemoryItem]:
        """Return all present facts about a person or a thing, the last learned first."""
        return self._store.search(self._namespace, key_prefix=f"{about.casefold()}/", limit=1000)

    def history(self, about: str, attribute: str) -> list[MemoryItem]:
        """Return all facts that were ever known of an attribute, as `MemoryStore.history` does."""
        return self._store.history(self._namespace, Fact(about=about, attribute=attribute, statement="").key)

    def found(self, question: str, *, limit: int) -> list[MemoryItem]:
        """Return the facts that are related to a question, the best first; there may be none."""
        (matches,) = self._store.matches([self._namespace], keywords=keywords(question), text=question, limit=_CANDIDATES)
        scores = matches.semantic or matches.keyword
        fitting = [address for address, score in scores.items() if not matches.semantic or score >= _SIMILAR]
        return [matches.items[address] for address in fitting[:limit]]

    def _trust(self, store: MemoryStore, fact: Fact) -> float:
        """Return the trust of a write through a store that is bound to the fact's sources."""
        sources = [self._store.get(*address) for address in fact.sources]
        own = TRUST[store.origin.source or Source.INTERNAL_TOOL]
        return min((own, *(LEAST_TRUST if item is None else item.trust for item in sources)))
