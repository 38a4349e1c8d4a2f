"""All kinds of an agent's memory behind one interface: working notes, episodes and facts."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, Self

from ...protocols import VersionConflict
from ...protocols.items import LEAST_TRUST, TRUST, ItemAddress, Namespace, Source, Tier
from ..compression.conversation import TokenCounter, estimated_tokens
from ..task.stores import BUDGET_TOKENS
from ..util.runtime import threaded
from .engine import Change
from .episodic import EpisodicMemory, MemoryTurn
from .in_tasks import Rendered, render
from .ranking import SEMANTIC, TEXT, WORKING, keywords
from .reading import MemoryItem
from .store import MemoryStore
from .writing import ABSENT

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
    """The person or thing that it is about."""
    attribute: str
    """The attribute that it states, such as `diet`."""
    statement: str
    """The fact as a sentence that can be understood alone."""
    since: datetime | None = None
    """None: now."""
    sources: Sequence[ItemAddress] = ()
    """The items that the fact was derived from: it is no more trusted than they are, and goes no further."""
    source: Source | None = None
    """Source of the statement; None: the store's."""
    tier: Tier | None = None
    """Devices that it may travel to; None: the store's tier."""
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


_DAY: Final = 24 * 60.0
"""Minutes after which notes of a run that never ended are gone."""
_PAGE: Final = 1000


class WorkingMemory:
    """The notes of one run, by name. A context manager: they are forgotten at its end.

    Notes are not found by meaning, and recalled text never comes from them.
    """

    def __init__(self, store: MemoryStore, run: str, scope: Namespace = ()) -> None:
        """Keep the notes of a `run` in `store`, below the namespace `scope`."""
        self._store = store
        self._namespace = (*scope, WORKING, run)

    def note(self, name: str, value: Mapping[str, Any]) -> None:
        """Write the `value` of a note, replacing the one of that `name`."""
        self._store.put(self._namespace, name, value, index=False, ttl=_DAY, tier=Tier.DEVICE)

    def add(self, name: str, entries: Sequence[Any], field: str = "entries") -> None:
        """Append `entries` to the list in a `field` of the note called `name`."""
        with suppress(VersionConflict):  # the note is there
            self._store.put(self._namespace, name, {field: []}, index=False, ttl=_DAY, tier=Tier.DEVICE, if_version=ABSENT)
        self._store.append(self._namespace, name, field, entries)

    def get(self, name: str) -> dict[str, Any] | None:
        """Return the value of the note called `name`; None: there is none."""
        item = self._store.get(self._namespace, name)
        return None if item is None else item.value

    def notes(self) -> dict[str, dict[str, Any]]:
        """Return all notes, by name, the last written first."""
        return {item.key: item.value for item in self._store.search(self._namespace, limit=_PAGE)}

    def forget(self) -> None:
        """Forget all notes. They never left the device, so no other device has to be told."""
        while notes := self._store.search(self._namespace, limit=_PAGE):
            with self._store.engine.transaction() as transaction:
                transaction.apply([Change(ItemAddress(note.namespace, note.key), (), None) for note in notes])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.forget()


_MOST_FACTS: Final = 5
_MOST_TURNS: Final = 100


class AgentMemory:
    """The memory of one agent, or of several that share a scope, over a `MemoryStore`.

    Recalled text is data for a prompt. It makes the task private unless all of it is shared (`Rendered.sensitivity`), and anything made
    from it is no more trusted than it is (`Rendered.trust`; pass the items as `lineage` of writes).
    """

    def __init__(self, store: MemoryStore, scope: Namespace = ()) -> None:
        """Keep episodes and facts in `store`, below the namespace `scope`."""
        self._store = store
        self._scope = scope
        self.episodes = EpisodicMemory(store, scope)
        """Sessions of turns."""
        self.facts = SemanticMemory(store, scope)
        """Known facts."""

    def working(self, run: str) -> WorkingMemory:
        """Return the notes of a `run`, which last until it ends."""
        return WorkingMemory(self._store, run, self._scope)

    def remember(self, turn: MemoryTurn, session: str) -> MemoryItem:
        """Keep a `turn` of a `session`; see `EpisodicMemory.remember`."""
        return self.episodes.remember(turn, session)

    aremember = threaded(remember)

    def recall(
        self, question: str, budget_tokens: int = BUDGET_TOKENS, *, limit: int | None = None, count: TokenCounter = estimated_tokens
    ) -> Rendered:
        """Return facts and turns that help with a `question`, `limit` items at most, as quoted text of at most `budget_tokens`, as `count`
        counts them.

        Facts come before turns; if there is no room, the last ones are left out.
        """
        facts = self.facts.found(question, limit=_MOST_FACTS)
        turns = self.episodes.found(question, limit=_MOST_TURNS)
        return render([*facts, *turns][:limit], budget_tokens, count)

    arecall = threaded(recall)
