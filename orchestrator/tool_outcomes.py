"""How a tool's result says what came of its call."""

from typing import Final, Literal

from ..protocols import ToolResult

NOT_RUN: Final = "not run: "
"""Beginning of an error result whose tool was not started."""
UNKNOWN: Final = "outcome unknown: "
"""Beginning of an error result of a call that may or may not have gone through."""


def outcome_of(result: ToolResult) -> Literal["done", "failed", "not_run", "unknown"]:
    """Return what came of the call, by its result."""
    if not result.is_error:
        return "done"
    if result.content.startswith(NOT_RUN):
        return "not_run"
    return "unknown" if result.content.startswith(UNKNOWN) else "failed"
