"""Effects of tools, and outcomes of tool calls."""

from enum import StrEnum
from typing import Final, Literal

from ...protocols import ToolResult

NOT_RUN: Final = "not run: "
"""Prefix of an error result whose tool was not started."""
UNKNOWN: Final = "outcome unknown: "
"""Prefix of an error result of a call that may or may not have taken effect."""
LOOKED_UP: Final = "[this call was made earlier in this run, and is not made again: this is what it came to]"
"""Last line of the result of an equal earlier call."""


class Effect(StrEnum):
    """The declared effect of a tool on the world. It decides what happens to a call whose outcome is unknown."""

    READ = "read"
    """No effect: the call can be repeated at any time."""
    IDEMPOTENT = "idempotent"
    """A second run of the same call changes nothing more: the call is repeated."""
    AT_MOST_ONCE = "at_most_once"
    """The effect must not happen twice: the call is not repeated, and the model is told that its outcome is unknown."""
    TRANSACTIONAL = "transactional"
    """Writes through `effect_transaction()`, which are committed together with the record of the call, or not at all."""


def outcome_of(result: ToolResult) -> Literal["done", "failed", "not_run", "unknown"]:
    """Return the outcome of the call, by its result."""
    if not result.is_error:
        return "done"
    if result.content.startswith(NOT_RUN):
        return "not_run"
    return "unknown" if result.content.startswith(UNKNOWN) else "failed"
