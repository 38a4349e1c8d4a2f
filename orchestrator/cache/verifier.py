"""A second look at an answer in other words, by a model on this device, before it is served."""

from collections.abc import Awaitable, Callable
from typing import Final

from ...protocols import Agent, Message, StepRequest, complete

_ASKED: Final = "Do both questions ask for exactly the same, so that one answer fits both? Reply with yes or no."
_LONGEST: Final = 4
"""Tokens of the reply."""
_TIMEOUT: Final = 10.0


class AgentVerifier:
    """Asks an agent whether two questions have one answer. Raises what opening or asking the agent raises."""

    def __init__(self, open_agent: Callable[[], Awaitable[Agent]]) -> None:
        self._open = open_agent

    async def __call__(self, asked: str, stored: str, answer: str) -> bool:
        """Return whether the agent says yes. It is not shown the answer: judging two questions takes less of a small model."""
        messages = (Message.system(_ASKED), Message.user(f"1. {asked}\n2. {stored}"))
        reply = await complete(await self._open(), StepRequest(messages=messages, max_output_tokens=_LONGEST, timeout=_TIMEOUT))
        return reply.text.strip().lower().startswith("yes")
