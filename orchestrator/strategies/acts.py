"""The look at the evidence before a draft calls a tool that may change something."""

from collections.abc import Sequence
from typing import Final

from ...protocols import Side, ToolCall
from ..agents.pool import Team
from ..task.labels import Label
from ..task.sections.routing import FallbackTrigger
from ..task.sections.supervision import Verdict
from ..task.tool_outcomes import Effect
from .context import TaskContext
from .reading import Json, value_of
from .state import label_of
from .turn import Turn

_PLANS: Final = ("plan", "adapt")
"""Roles of calls that drop the steps before them, where a plan comes of them."""


def act_doubt(turn: Turn, calls: Sequence[ToolCall], made: Sequence[Json], team: Team, context: TaskContext) -> str | None:
    """Return why `calls` may not run before another agent was asked; None where they may.

    Calls of tools that are declared `read` always may. Others need a step that has passed the evidence so far, where the draft will have to
    pass it in the end, or where an agent far away may be asked in place of a near one. `made`: all calls of agents so far, with the step of
    `calls`.
    """
    acting = [call.name for call in calls if (tool := context.tools.get(call.name)) and tool.declared.effect is not Effect.READ]
    if not acting:
        return None
    confidence, limit = _confidence(turn, made), turn.task.policy.minimum_confidence
    if confidence is None or confidence >= limit or not (turn.is_judged or _may_ask_far(turn, team, context)):
        return None
    return f"confidence {confidence:.2f} is below {limit:.2f}, so {acting[0]} was not called"


def _may_ask_far(turn: Turn, team: Team, context: TaskContext) -> bool:
    """A later candidate, or the supervisor, is far away, and may be told what the run has seen."""
    if turn.member.side is not Side.NEAR or FallbackTrigger.LOW_CONFIDENCE not in turn.task.policy.fallback.triggers:
        return False
    later = list(turn.decision.candidates[turn.position + 1 :])
    if turn.decision.supervisor is not None and turn.position == 0:
        later.append(turn.decision.supervisor)
    others = [team[name] for name in later if team[name].side is Side.FAR]
    label, opening = label_of(turn.state), value_of(Label, turn.state["opening"])
    privacy = context.privacy
    return any(privacy is None or privacy.may_go_on(other, label, opening) for other in others)


def _confidence(turn: Turn, made: Sequence[Json]) -> float | None:
    """The lowest confidence of the agent's steps; under supervision, of those that no check has covered."""
    assert turn.draft is not None, "an attempt is under way"
    if not turn.is_supervised:
        return turn.draft.confidence
    found: list[float] = []
    has_plan = bool(turn.state["guidance"])
    for call in reversed(made):
        if has_plan and call["role"] in _PLANS and call["error"] is None:
            break
        if call["role"] == "verify" and call["error"] is None and not call["shadow"] and call["verdict"] != Verdict.UNREADABLE:
            break
        if call["role"] == "execute" and call["agent"] == turn.member.name and call["error"] is None and call["confidence"] is not None:
            found.append(call["confidence"])
    return min(found, default=None)
