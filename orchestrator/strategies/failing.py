"""The end of attempts that went wrong: who takes over, what stands in their place, and a second try after an unusable reply."""

import logging

from ...protocols import (
    BudgetExceeded,
    InvalidOutput,
    Message,
    NearfarError,
    NoSuchModel,
    ProviderAuthError,
    QuotaExceeded,
    RequestRefused,
)
from ..task import read_output
from .calls import TaskRuntime
from .state import Json, TaskState, as_json, label_of, outcomes_of
from .tool_calls import done_note
from .turn import AgentTurn

logger = logging.getLogger(__name__)


def give_up(turn: AgentTurn, error: NearfarError, runtime: TaskRuntime, *, is_final: bool = False) -> TaskState:
    """End the attempt as failed; the next agent takes over, else a draft rejected earlier, else what was said when a budget ended.

    Raises the error where there is none of them. `is_final`: no other agent is to try.
    """
    turn.draft = (turn.draft or turn.attempt(None)).model_copy(update={"error": type(error).__name__})
    problem = f"{type(error).__name__}: {error}"
    standby = None if turn.is_committed(runtime) else turn.state["standby"]
    is_last = is_final or not turn.has_successor
    if is_last and standby is None and isinstance(error, BudgetExceeded) and (said := _said(turn)):
        return {**turn.end(turn.elapsed(), "accepted", f"{problem}; what was said until then stands", runtime), "messages": said}
    ended = turn.end(turn.elapsed(), "failed", problem, runtime)
    if not is_last:
        return ended
    if standby is not None:
        place = turn.state["standby_attempt"]
        attempts = [*ended["attempts"][:place], _reinstated(ended["attempts"][place], turn.handle.name), *ended["attempts"][place + 1 :]]
        return {**ended, "messages": standby, "attempts": attempts}
    for attempt in turn.state["attempts"]:
        error.add_note(f"before that, {attempt['agent']} {attempt['outcome']}: {attempt['reason']}")
    if done := done_note(outcomes_of(turn.state), label_of(turn.state), may_read=True):
        error.add_note(done)
    raise error


def correct(turn: AgentTurn, error: InvalidOutput) -> TaskState:
    """Show the agent its reply and what was wrong with it; it may try once more."""
    draft = turn.elapsed()
    if not turn.is_counted:
        draft = draft.model_copy(update={"steps": draft.steps + 1})
    message = Message.user(f"Your last reply could not be used: {error.message}. Reply again.")
    said = [as_json(Message.assistant(error.text))] if error.text.strip() else []
    return {"messages": [*turn.state["messages"], *said, as_json(message)], "draft": as_json(draft), "corrected": True}


def _said(turn: AgentTurn) -> list[Json]:
    """Return the conversation up to the agent's last words if they can be an answer; else an empty list."""
    messages = turn.state["messages"]
    spoken = [place for place, message in enumerate(messages) if message["role"] == "assistant" and message["text"].strip()]
    if not spoken or spoken[-1] < len(turn.task.messages):
        return []
    text = messages[spoken[-1]]["text"]
    try:
        if turn.task.output_schema is not None:
            read_output(text, turn.task.output_schema, turn.output_model)
    except InvalidOutput:
        return []
    return [*messages[: spoken[-1]], as_json(Message.assistant(text))]


def _reinstated(attempt: Json, failed: str) -> Json:
    """Return a rejected attempt as the accepted one."""
    return {**attempt, "outcome": "accepted", "reason": f"{attempt['reason']}, but {failed} failed, so the draft stands"}


_STANDING = (NoSuchModel, ProviderAuthError, QuotaExceeded, RequestRefused)


def warn_of_refusal(agent: str, error: NearfarError, *, role: str = "execute") -> tuple[str, ...]:
    """Log a warning where `error` is a refusal that waiting does not mend; returns the line for `Result.reasons`, or nothing."""
    if not isinstance(error, _STANDING):
        return ()
    line = f"{agent} was refused in the role {role!r}: {type(error).__name__}: {error}"
    logger.warning("%s", line)
    return (line,)
