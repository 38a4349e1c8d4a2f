"""Find a far agent's own messages in a conversation that goes back to it: nothing in them is redacted.

An agent learns nothing from its own words. If a private value among them were replaced, it would learn which of its guesses is right.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from ....protocols import Message, Side, StepReply
from ...agents.pool import AgentHandle
from .texts import texts_of

_EXECUTOR: Final = "execute"


class OwnWords:
    """Messages that the far agents of one run have written.

    Args:
        begun: number of messages of the task, which the conversation begins with.
    """

    def __init__(self, begun: int) -> None:
        self._begun = begun
        self._written: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
        """Texts of each message, by agent."""

    def add(self, member: AgentHandle, reply: StepReply) -> None:
        """Record a reply."""
        if member.side is Side.FAR:
            self._written[member.name].add(tuple(texts_of([reply.message])))

    def positions(self, member: AgentHandle, messages: Sequence[Message], role: str) -> frozenset[int]:
        """Return the positions of the agent's own messages in a conversation.

        An executor has written all since the user's last message, even if that was in another process.
        """
        since = len(messages) - len(list(takewhile(lambda message: message.role != "user", reversed(messages))))
        begin = max(since, self._begun) if role == _EXECUTOR else len(messages)
        written = self._written[member.name]
        said = ((position, message) for position, message in enumerate(messages) if message.role == "assistant")
        return frozenset(position for position, message in said if position >= begin or tuple(texts_of([message])) in written)
