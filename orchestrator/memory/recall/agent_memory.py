"""What an agent remembers, in one place."""

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

    What is recalled is data for a prompt. It makes the task private unless all of it is for everybody (`Rendered.sensitivity`), and what
    is made of it is no more to be trusted than it is (`Rendered.trust`, and the items as `lineage` of what is written).
    """

    def __init__(self, store: MemoryStore, scope: Namespace = ()) -> None:
        self._store = store
        self._scope = scope
        self.episodes = EpisodicMemory(store, scope)
        """What happened."""
        self.facts = SemanticMemory(store, scope)
        """What is known."""

    def working(self, run: str) -> WorkingMemory:
        """What a run notes down for itself, until it ends."""
        return WorkingMemory(self._store, run, self._scope)

    def remember(self, turn: Turn, session: str) -> MemoryItem:
        """Keep a turn; see `EpisodicMemory.remember`."""
        return self.episodes.remember(turn, session)

    async def aremember(self, turn: Turn, session: str) -> MemoryItem:
        return await in_thread(self.remember, turn, session)

    def recall(
        self, question: str, budget_tokens: int = BUDGET_TOKENS, *, limit: int | None = None, count: TokenCounter = estimated_tokens
    ) -> Rendered:
        """What is known and what happened that helps with a question, `limit` items at most, as quoted text within the budget.

        Facts come before turns; what there is no room for is left out from the end.
        """
        facts = self.facts.found(question, limit=_MOST_FACTS)
        turns = self.episodes.found(question, limit=_MOST_TURNS)
        return render([*facts, *turns][:limit], budget_tokens, count)

    async def arecall(
        self, question: str, budget_tokens: int = BUDGET_TOKENS, *, limit: int | None = None, count: TokenCounter = estimated_tokens
    ) -> Rendered:
        return await in_thread(self.recall, question, budget_tokens, limit=limit, count=count)
