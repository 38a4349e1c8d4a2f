"""Arbitration: the far agent's answer to an escalated task is a verdict on the draft.

Where the far agent gives the same answer, the draft ships, and both count as right. Where it does not, one of them is wrong. With p and q,
the probabilities of a right draft and of a right far answer, the draft is wrong because the far answer is right with probability
q (1 - p) / (1 - p q); that is the weight of its label, and p (1 - q) / (1 - p q) that of the far answer's. They are
on record for `nearfar policy train`, marked as what they are, and a report takes their place.
"""

from functools import partial
from typing import Final

from ...protocols import Side
from ..routing.answers import Answer, agree
from ..task import Task, last_words
from ..task.decisions import AnswerSource, Arbitration
from ..task.events import AttemptEnded
from ..task.results import Attempt
from .calls import TaskRuntime, emit
from .state import TaskState, as_json, value_of
from .turn import AgentTurn

_LEAST_DIFFERENCE: Final = 1e-9
_MARKED: Final = (AnswerSource.FIELD, AnswerSource.BOXED, AnswerSource.ANSWER_LINE, AnswerSource.CHOICE)
"""Parts of a text that say of themselves that they are the answer."""


def end_arbitrated(turn: AgentTurn, answer: Attempt, runtime: TaskRuntime) -> TaskState:
    """Accept an answer that follows another agent's; where it confirms the draft that was escalated, the draft ships in its place.

    The far agent's own answer stands where its user has seen some of it, or where it has called tools.
    """
    attempts = [value_of(Attempt, attempt) for attempt in turn.state["attempts"]]
    ruling = arbitration_of(attempts[-1], answer, turn.task)
    if ruling is None:
        return turn.end(answer, "accepted", "the answer stands", runtime)
    draft = attempts[-1].model_copy(update={"arbitration": ruling})
    standby = turn.state["standby"]
    if standby is None or not ruling.confirmed or turn.was_shown(runtime) or _has_called(turn):
        reason = f"the answer stands; it {'confirms' if ruling.confirmed else 'differs from'} the draft of {draft.agent}"
        ended = turn.end(answer, "accepted", reason, runtime)
        return {**ended, "attempts": [*turn.state["attempts"][:-1], as_json(draft), ended["attempts"][-1]]}
    reason = f"{draft.reason}, but {answer.agent} gives the same answer, so the draft ships"
    draft = draft.model_copy(update={"outcome": "accepted", "reason": reason})
    ended = turn.end(answer, "accepted", f"it confirms the draft of {draft.agent}, which ships", runtime)
    emit(runtime, AttemptEnded(attempt=draft))
    return {**ended, "attempts": [*turn.state["attempts"][:-1], as_json(draft), ended["attempts"][-1]], "messages": standby}


def arbitration_of(draft: Attempt, answer: Attempt, task: Task) -> Arbitration | None:
    """Return the verdict of an answer on the draft before it; None where no card has weighed the draft, or it was not escalated.

    Texts that differ confirm each other by answers that both have marked, such as by `\\boxed{}` or a field of the schema: the last number
    of two reports may be the same by chance.
    """
    weighed = draft.weighed
    if weighed is None or draft.outcome != "rejected" or not (draft.answer or "").strip() or answer.side is not Side.FAR:
        return None
    confirms = partial(_confirms, answer.answer, task)
    confirmed = confirms(draft.answer)
    p = weighed.p_draft if draft.p_right is None else draft.p_right
    q = weighed.p_far if draft.p_far is None else draft.p_far
    draft_weight, far_weight = label_weights(p, q, confirmed=confirmed)
    return Arbitration(
        by=answer.agent,
        confirmed=confirmed,
        draft_weight=draft_weight,
        far_weight=far_weight,
        opinions={agent: confirms(opinion) for agent, opinion in draft.opinions.items()},
    )


def _confirms(answer: str | None, task: Task, other: str | None) -> bool:
    """Return whether an answer says the same as another one."""
    if agree(answer, other):
        return True
    first, second = (Answer.of_text(text, prompt=last_words(task.messages), schema=task.output_schema) for text in (answer, other))
    return first.agrees(second) and all(each.found is not None and each.found.source in _MARKED for each in (first, second))


def label_weights(p_draft: float, p_far: float, *, confirmed: bool) -> tuple[float, float]:
    """Return the weights of the labels of the draft and of the far answer; `p_draft`, `p_far`: probabilities that they are right."""
    differ = 1 - p_draft * p_far
    if confirmed or differ < _LEAST_DIFFERENCE:
        return 1.0, 1.0
    return p_far * (1 - p_draft) / differ, p_draft * (1 - p_far) / differ


def _has_called(turn: AgentTurn) -> bool:
    """Return whether the agent has called tools in the attempt under way."""
    return any(message["tool_calls"] for message in turn.state["messages"][len(turn.task.messages) :])
