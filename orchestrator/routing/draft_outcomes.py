"""Outcomes of drafts that a card has weighed: what a report, or a far agent's own answer, tells of the card's probabilities."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..task.results import Attempt

if TYPE_CHECKING:
    from .traces import LoggedAttempt


@dataclass(frozen=True, slots=True)
class ScoredDraft:
    """A card's probability about a draft or about the far agent, with its outcome."""

    card: str
    """File of the card; empty: the default card."""
    subject: str
    """`drafts_of` the draft's agent, or `escalated_to` the far one."""
    task_class: str
    predicted: float
    score: float


def drafts_of(agent: str) -> str:
    """Return the name under which the outcomes of an agent's judged drafts are learned from."""
    return f"the judged draft of {agent}"


def escalated_to(agent: str) -> str:
    """Return the name under which the outcomes of a far agent on escalated tasks are learned from."""
    return f"the answer of {agent} to an escalated task"


@dataclass(frozen=True, slots=True)
class EscalatedDraft:
    """A draft that was escalated, with the far agent's verdict."""

    card: str
    agent: str
    """Name of the agent that drafted."""
    expected: float
    """Probability that both are right, by the card."""
    confirmed: bool
    """The far agent gave the same answer."""


def escalated_drafts(attempts: Sequence["Attempt | LoggedAttempt"]) -> Iterator[EscalatedDraft]:
    """Yield the drafts of a task on which a far agent's answer is a verdict."""
    for attempt in attempts:
        ruling, weighed = attempt.arbitration, attempt.weighed
        if ruling is not None and weighed is not None:
            yield EscalatedDraft(weighed.card, attempt.agent, weighed.p_draft * weighed.p_far, ruling.confirmed)


def reported_drafts(attempts: Sequence["Attempt | LoggedAttempt"], agent: str, score: float, task_class: str) -> Iterator[ScoredDraft]:
    """Yield what the reported score of a task's answer tells of its drafts. `agent`: who gave the answer.

    A far answer that is right proves a draft wrong that differs from it; of one that is wrong, nothing follows for the draft.
    """
    for attempt in attempts:
        ruling, weighed = attempt.arbitration, attempt.weighed
        if weighed is None:
            continue
        label = partial(ScoredDraft, weighed.card, task_class=task_class)
        if attempt.outcome == "accepted" and attempt.agent == agent:
            yield label(subject=drafts_of(agent), predicted=weighed.p_draft, score=score)
            if ruling is not None and ruling.confirmed:
                yield label(subject=escalated_to(ruling.by), predicted=weighed.p_far, score=score)
        elif attempt.outcome == "rejected":
            yield label(subject=escalated_to(agent), predicted=weighed.p_far, score=score)
            if ruling is not None and (ruling.confirmed or score == 1.0):
                yield label(subject=drafts_of(attempt.agent), predicted=weighed.p_draft, score=score if ruling.confirmed else 0.0)
