"""All kinds of an agent's memory behind one interface."""

from typing import Final

from ....protocols.namespaces import Namespace
from ...compression.tokens import TokenCounter, estimated_tokens
from ...task.sections.memory import BUDGET_TOKENS
from ...util.threads import in_thread
from ..memory_item import MemoryItem
from ..rendering import Rendered, render
from ..store import MemoryStore
from .episodic import EpisodicMemory
from .semantic import SemanticMemory
from .turn import Turn
from .working import WorkingMemory

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
