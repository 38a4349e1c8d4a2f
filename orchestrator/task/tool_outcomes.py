"""Words about calls of tools: the effect that a tool has, and what came of a call."""

from enum import StrEnum
from typing import Final, Literal

from ...protocols import ToolResult

NOT_RUN: Final = "not run: "
"""Beginning of an error result whose tool was not started."""
UNKNOWN: Final = "outcome unknown: "
"""Beginning of an error result of a call that may or may not have gone through."""
LOOKED_UP: Final = "[this call was made earlier in this run, and is not made again: this is what it came to]"
"""Last line of the result of an equal call."""


class Effect(StrEnum):
    """The effect of a tool on the world. It says what may be done about a call whose outcome is unknown."""

    READ = "read"
    """Nothing: it may be run again at any time."""
    IDEMPOTENT = "idempotent"
    """What a second run of the same call would find done already: it is run again."""
    AT_MOST_ONCE = "at_most_once"
    """Something that must not happen twice: the model is told that nobody knows."""
    TRANSACTIONAL = "transactional"
    """What it writes through `effect_transaction()`, which is kept together with the record of the call, or not at all."""


def outcome_of(result: ToolResult) -> Literal["done", "failed", "not_run", "unknown"]:
    """Return what came of the call, by its result."""
    if not result.is_error:
        return "done"
    if result.content.startswith(NOT_RUN):
        return "not_run"
    return "unknown" if result.content.startswith(UNKNOWN) else "failed"
