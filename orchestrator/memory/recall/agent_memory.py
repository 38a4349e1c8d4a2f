"""All kinds of an agent's memory behind one interface."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from ....protocols import VersionConflict
from ....protocols.namespaces import ItemAddress, Namespace
from ....protocols.tiers import Tier
from ...compression.conversation import TokenCounter, estimated_tokens
from ...task.stores import BUDGET_TOKENS
from ...util.runtime import in_thread
from ..engine import Change
from ..reading import MemoryItem
from ..rendering import Rendered, render
from ..store import MemoryStore
from ..writing import ABSENT
from .episodic import EpisodicMemory
from .granularity import WORKING
from .semantic import SemanticMemory
from .turn import Turn

_DAY: Final = 24 * 60.0
"""Minutes after which notes of a run that never ended are gone."""
_PAGE: Final = 1000


class WorkingMemory:
    """The notes of one run, by name. A context manager: they are forgotten at its end.

    Notes are not found by meaning, and recalled text never comes from them.
    """

    def __init__(self, store: MemoryStore, run: str, scope: Namespace = ()) -> None:
        self._store = store
        self._namespace = (*scope, WORKING, run)

    def note(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a note, replacing the one of that name."""
        self._store.put(self._namespace, name, value, index=False, ttl=_DAY, tier=Tier.DEVICE)

    def add(self, name: str, entries: Sequence[Any], field: str = "entries") -> None:
        """Append to the list in a field of a note."""
        with suppress(VersionConflict):  # the note is there
            self._store.put(self._namespace, name, {field: []}, index=False, ttl=_DAY, tier=Tier.DEVICE, if_version=ABSENT)
        self._store.append(self._namespace, name, field, entries)

    def get(self, name: str) -> dict[str, Any] | None:
        """Return the value of a note."""
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
        self._store = store
        self._scope = scope
        self.episodes = EpisodicMemory(store, scope)
        """Sessions of turns."""
        self.facts = SemanticMemory(store, scope)
        """Known facts."""

    def working(self, run: str) -> WorkingMemory:
        """Return the notes of a run, which last until it ends."""
        return WorkingMemory(self._store, run, self._scope)

    def remember(self, turn: Turn, session: str) -> MemoryItem:
        """Keep a turn; see `EpisodicMemory.remember`."""
        return self.episodes.remember(turn, session)

    async def aremember(self, turn: Turn, session: str) -> MemoryItem:
        return await in_thread(self.remember, turn, session)

    def recall(
        self, question: str, budget_tokens: int = BUDGET_TOKENS, *, limit: int | None = None, count: TokenCounter = estimated_tokens
    ) -> Rendered:
        """Return facts and turns that help with a question, `limit` items at most, as quoted text within the budget.

        Facts come before turns; if there is no room, the last ones are left out.
        """
        facts = self.facts.found(question, limit=_MOST_FACTS)
        turns = self.episodes.found(question, limit=_MOST_TURNS)
        return render([*facts, *turns][:limit], budget_tokens, count)

    async def arecall(
        self, question: str, budget_tokens: int = BUDGET_TOKENS, *, limit: int | None = None, count: TokenCounter = estimated_tokens
    ) -> Rendered:
        return await in_thread(self.recall, question, budget_tokens, limit=limit, count=count)
