"""Votes of several samples on an answer, weighted by confidence, with early stopping (after DeepConf, arXiv 2508.15260).

A vote counts the log odds of its confidence, as in naive Bayes. Sampling stops once the leading answer is ahead by odds of 7 to 1: a sure
draft needs no further sample.
"""

from dataclasses import dataclass, field
from typing import Final

from ...protocols import Message, Side, ToolChoice
from ..routing.answers import Answer
from ..routing.looks import log_odds
from ..routing.meaning import mean_same
from ..task import last_words
from ..task.results import Attempt
from ..task.routing_policy import FALLBACK_ERRORS
from .calls import CallLog, TaskRuntime
from .state import TaskState, as_json, value_of
from .turn import AgentTurn
from .verifying import AskedAgent, second_sample_temperature

_SETTLING_LEAD: Final = 2.0
"""Log odds by which an answer has to lead. Chosen on recorded samples of the shipped near model."""
_LEAST_WEIGHT: Final = 0.05
_UNKNOWN_WEIGHT: Final = 1.0
"""Weight of a vote whose confidence is unknown: two that agree settle it."""


@dataclass
class Ballot:
    """Counts the votes for answers that mean the same."""

    votes: list[tuple[Answer, float]] = field(default_factory=list)
    """The first vote for each answer, with the weight of all for it."""
    voters: list[int] = field(default_factory=list)
    """The place of the first vote for each answer among all votes."""
    cast: int = 0
    """Votes so far."""

    def add(self, answer: Answer, confidence: float | None) -> None:
        """Count a vote. `confidence`: 0 to 1; None: unknown."""
        weight = _UNKNOWN_WEIGHT if confidence is None else max(log_odds(confidence), _LEAST_WEIGHT)
        place = next((place for place, (other, _) in enumerate(self.votes) if mean_same(other, answer)), len(self.votes))
        if place == len(self.votes):
            self.votes.append((answer, 0.0))
            self.voters.append(self.cast)
        first, before = self.votes[place]
        self.votes[place] = (first, before + weight)
        self.cast += 1

    @property
    def leader(self) -> int:
        """The place of the leading answer's first vote among all votes; of equal ones the earliest leads."""
        weights = [weight for _, weight in self.votes]
        return self.voters[weights.index(max(weights))]

    @property
    def is_settled(self) -> bool:
        """The leading answer is far enough ahead."""
        first, second = sorted((0.0, 0.0, *(weight for _, weight in self.votes)), reverse=True)[:2]
        return first - second >= _SETTLING_LEAD


async def with_votes(turn: AgentTurn, state: TaskState, runtime: TaskRuntime) -> TaskState:
    """Let further samples of the near agent that drafted vote on its answer, and return the state's update.

    Only an answer in words that was given in one step is voted on, and none that was shown as it was written.
    """
    task, draft = turn.task, turn.draft
    is_one_step = len(state["messages"]) == len(task.messages) + 1
    if turn.handle.side is Side.FAR or task.output_schema is not None or turn.was_shown(runtime):
        return {}
    said = value_of(Message, state["messages"][-1])
    if draft is None or not is_one_step or not said.text.strip() or said.tool_calls:
        return {}
    return await _elected(turn, draft, said.text, CallLog(state, runtime))


async def _elected(turn: AgentTurn, draft: Attempt, text: str, log: CallLog) -> TaskState:
    """Sample until the ballot is settled or all votes are cast. A sample that fails is no vote."""
    task, asked = turn.task, AskedAgent(turn.handle, log, "vote")
    ballot, samples = Ballot(), [(text, draft.confidence)]
    ballot.add(Answer.of_text(text, prompt=last_words(task.messages)), draft.confidence)
    temperature = second_sample_temperature(task.policy.temperature, turn.handle.side, is_again=True)
    for number in range(1, task.policy.evidence.votes):
        if ballot.is_settled:
            break
        try:
            key = f"{turn.position}/vote/{number}"
            reply = await asked.ask(task, task.messages, key, tool_choice=ToolChoice.NONE, temperature=temperature)
        except FALLBACK_ERRORS:  # on record as a failed call
            continue
        if reply.text.strip():
            samples.append((reply.text, reply.finished.confidence))
            ballot.add(Answer.of_text(reply.text, prompt=last_words(task.messages)), reply.finished.confidence)
    voted: TaskState = {"calls": log.as_json}
    if ballot.leader == 0:
        return voted
    elected, confidence = samples[ballot.leader]
    messages = [*turn.state["messages"][:-1], as_json(Message.assistant(elected))]
    return {**voted, "messages": messages, "draft": as_json(draft.model_copy(update={"confidence": confidence}))}
