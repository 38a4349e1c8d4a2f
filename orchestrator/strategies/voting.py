"""Votes of several samples on an answer, with early stopping (adaptive consistency, arXiv 2305.11860, by confidence, arXiv 2508.15260).

The answer that most samples give is elected. Sampling stops once the remaining votes would hardly change that: the leading answer is
three votes ahead, or two of which the samples are sure, or can no longer be overtaken. Votes weighted by confidence elected no better.
"""

from dataclasses import dataclass
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

_SETTLING_LEAD: Final = 3
"""Votes by which an answer has to lead. Chosen, as the next two, on recorded samples of the shipped near model."""
_SURE_LEAD: Final = 2
"""Votes that are enough if ..."""
_SURE_ODDS: Final = 5.0
"""... the log odds of their confidence lead by so much, in sum as in naive Bayes."""


@dataclass(slots=True)
class _Party:
    """The votes for answers that mean the same."""

    answer: Answer
    first: int
    """The place of its first vote among all votes."""
    votes: int = 0
    odds: float = 0.0


class Ballot:
    """Counts votes.

    Args:
        most: votes that are cast if none is spared.
    """

    def __init__(self, most: int) -> None:
        self.cast = 0
        """Votes so far."""
        self._most = most
        self._parties: list[_Party] = []

    def add(self, answer: Answer, confidence: float | None) -> None:
        """Count a vote. `confidence`: 0 to 1; None: unknown."""
        party = next((party for party in self._parties if mean_same(party.answer, answer)), None)
        if party is None:
            party = _Party(answer, first=self.cast)
            self._parties.append(party)
        party.votes += 1
        party.odds += 0.0 if confidence is None else max(log_odds(confidence), 0.0)
        self.cast += 1

    @property
    def leader(self) -> int:
        """The place of the leading answer's first vote among all votes; of equal ones the earliest leads."""
        return self._leading.first

    @property
    def is_settled(self) -> bool:
        """The leading answer is far enough ahead."""
        leading = self._leading
        rivals = [party for party in self._parties if party is not leading]
        votes = leading.votes - max((party.votes for party in rivals), default=0)
        odds = leading.odds - max((party.odds for party in rivals), default=0.0)
        is_sure = votes >= _SURE_LEAD and odds >= _SURE_ODDS
        return is_sure or votes >= _SETTLING_LEAD or votes > self._most - self.cast

    @property
    def _leading(self) -> _Party:
        return max(self._parties, key=lambda party: party.votes)


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
    ballot, samples = Ballot(task.policy.evidence.votes), [(text, draft.confidence)]
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
