"""Number equal calls: tell a repeated call from a second, intended one."""

from collections.abc import Mapping
from typing import Final, NamedTuple, TypedDict

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from ....protocols import ToolCall, ToolResult
from ...task.tools import Effect, Tool, outcome_of
from ...util.json_text import canonical, digest

REPEATABLE: Final = frozenset({Effect.READ, Effect.IDEMPOTENT})
"""Effects that a resumed run may run again although there is a result."""


class Made(TypedDict):
    """Counts the calls of one action since the conversation began."""

    count: int
    unsettled: list[int]
    """Ordinals of calls that an equal call would retry."""


_NONE_MADE: Final[Made] = {"count": 0, "unsettled": []}


class Occurrence(NamedTuple):
    """One call, named by its action and not by its place in the graph."""

    action: str
    """A hash of the tool and its arguments, and of the turn where the tool only reads: equal calls are one action."""
    ordinal: int
    """Number of the call among those of its action, from 1."""
    turn: int
    """Calls of agents that the task had made by then. It tells a repeated call from a looked up one."""

    def key(self, task: str) -> str:
        """Return the effect's key in a task without a ledger. `task`: names the task."""
        return digest(task, self.action, self.ordinal)


class Occurrences:
    """Numbers the calls of one message, after those made since the conversation began.

    An agent that takes over begins a conversation and a count of its own: a call that an agent before it has made is the first one
    again, and
    so the same effect. A second equal call in one conversation is another effect, unless it retries the first one: that one's outcome is
    unknown, or it failed and its tool is idempotent.
    """

    def __init__(self, made: Mapping[str, Made], *, turn: int) -> None:
        self.made = dict(made)
        """By action: the calls since the conversation began; those of tools that only read are not kept."""
        self.turn = turn
        """Calls of agents that the task had made before this message."""
        self._looked: dict[str, Made] = {}

    def next(self, call: ToolCall, tool: Tool) -> Occurrence:
        """Return the occurrence of the message's next call to run."""
        only_reads = tool.declared.effect is Effect.READ
        action = digest(tool.name, _arguments(call, tool), self.turn if only_reads else None)
        calls = self._looked if only_reads else self.made
        known = calls.get(action, _NONE_MADE)
        if known["unsettled"]:
            first, *rest = known["unsettled"]
            calls[action] = {**known, "unsettled": rest}
            return Occurrence(action, first, self.turn)
        calls[action] = {**known, "count": known["count"] + 1}
        return Occurrence(action, known["count"] + 1, self.turn)

    def settle(self, occurrence: Occurrence, tool: Tool, result: ToolResult) -> None:
        """Record the outcome of a call."""
        outcome, effect = outcome_of(result), tool.declared.effect
        if (outcome == "unknown" and effect is not Effect.READ) or (outcome == "failed" and effect is Effect.IDEMPOTENT):
            known = self.made[occurrence.action]
            self.made[occurrence.action] = {**known, "unsettled": sorted([*known["unsettled"], occurrence.ordinal])}


def _arguments(call: ToolCall, tool: Tool) -> str:
    """Return the arguments as the function gets them, with defaults filled in: two agents may write the same call in two ways."""
    try:
        return canonical(tool.arguments(call))
    except (
        ValidationError,
        PydanticSerializationError,
    ):  # a placeholder stands in them, they are wrong, or the app's own
        return canonical(call.arguments)
