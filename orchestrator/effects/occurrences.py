"""Which of several equal calls one is."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from ...protocols import ToolCall
from ..tools import Effect, Tool
from .canonical import canonical, digest

REPEATABLE: Final = frozenset({Effect.READ, Effect.IDEMPOTENT})
"""What may be run again, so that each later call looks anew."""


class Occurrence(NamedTuple):
    """One call, named by what it does and not by where in the graph it stands."""

    action: str
    """A hash of the tool and its arguments, and of the turn where the tool may be run again: equal calls are one action."""
    ordinal: int
    """Of how many calls of the action it is the last, from 1."""
    turn: int
    """Calls of agents that the task had made by then. It tells a call that is made again from one that is looked up again."""


class Occurrences:
    """Counts the calls of one message behind those that were made since the conversation began.

    An agent that takes over begins a conversation of its own, and the count begins with it: the call that an agent before it has made is
    the first one again, and so the same effect. A second equal call of one conversation is another effect.
    """

    def __init__(self, made: Mapping[str, int], *, turn: int) -> None:
        self.made = dict(made)
        """How many calls of each action there were since the conversation began; those of repeatable tools are not kept."""
        self._turn = turn
        self._looked: dict[str, int] = {}

    def next(self, call: ToolCall, tool: Tool) -> Occurrence:
        """The next call of the message that is to run."""
        repeatable = tool.declared.effect in REPEATABLE
        action = digest(tool.name, _arguments(call, tool), self._turn if repeatable else None)
        counts = self._looked if repeatable else self.made
        counts[action] = counts.get(action, 0) + 1
        return Occurrence(action, counts[action], self._turn)


def _arguments(call: ToolCall, tool: Tool) -> str:
    """As the function gets them, with defaults filled in: two agents may write one thing in two ways."""
    try:
        return canonical(tool.arguments(call))
    except (
        ValidationError,
        PydanticSerializationError,
    ):  # a placeholder stands in them, they are wrong, or the app's own
        return canonical(call.arguments)
