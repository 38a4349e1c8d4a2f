"""Hedging: where an agent takes unusually long, the next one is asked beside it, and whoever is useful first goes on."""

from ...protocols import InvalidOutput, NearfarError, StepReply
from ..agents.pool import Team
from ..agents.racing import Race
from ..routing.costs import RunningEstimates
from ..task.results import Call
from ..task.situation import estimated_tokens
from .calls import CallLog
from .runtime import TaskRuntime
from .state import TaskState, fresh_start
from .turn import Turn


class Hedge:
    """The first step of a task, at which no tool has run yet, and the turn of the agent that may take it over.

    What the two say is nothing that others can see before one of them has won: tools run afterwards, and of the second agent's text
    nothing is shown until then.
    """

    def __init__(self, turn: Turn, other: Turn, *, delay: float, tokens: int) -> None:
        self.other = other
        self.tokens = tokens
        """Of the prompt, about."""
        self.delay = delay
        self.race: Race[tuple[StepReply, TaskState]] = Race(delay, lambda answered: self._is_useful(answered[0]))
        self.problem: NearfarError | None = None
        """Why the first agent lost, where it has failed."""
        self._turn = turn

    def _is_useful(self, reply: StepReply) -> bool:
        if not reply.text.strip() and not reply.tool_calls:
            return False
        try:
            self._turn.check(reply)
        except InvalidOutput:
            return False
        return True

    def taken_over(self, log: CallLog, reply: StepReply, runtime: TaskRuntime) -> TaskState:
        """The state once the other agent has won: the first one's attempt is over, and what the winner said may be shown."""
        lost = call_of(log, self._turn)
        if lost is not None:
            self._turn.count(lost)
        why = f"{self.other.member.name}, which was asked too after {self.delay:.2f} s, was useful first"
        problem = why if self.problem is None else f"{type(self.problem).__name__}: {self.problem}; {why}"
        ended = self._turn.end(self._turn.elapsed(), "failed", problem, runtime)
        self.other.state = {**self.other.state, "attempts": ended["attempts"]}
        self.other.announce(runtime)
        if reply.text:
            self.other.show(reply.text, runtime)
        return ended

    def reason(self, log: CallLog) -> str:
        """What was done and what the loser has cost, for `Result.reasons`."""
        winner, loser = (self.other, self._turn) if self.race.second_won else (self._turn, self.other)
        asked = f"hedged: {self.other.member.name} was asked beside {self._turn.member.name} after {self.delay:.2f} s"
        return f"{asked}; {winner.member.name} goes on, and what {loser.member.name} was asked for cost {_cost(call_of(log, loser))}"


def hedge_of(turn: Turn, team: Team, running: RunningEstimates) -> Hedge | None:
    """How the step under way is hedged; None where it is not.

    Only the first step of a task is: later on tools have run, and another agent would have to start over beside what they did.
    """
    policy, state = turn.task.policy.hedge, turn.state
    assert turn.draft is not None, "an attempt is under way"
    is_first = not (state["attempts"] or state["acted"] or turn.draft.steps or turn.is_supervised)
    if not (policy.enabled and is_first and turn.has_successor):
        return None
    tokens = sum(estimated_tokens(message.text) for message in turn.task.messages)
    seen = running.latency(turn.member.name, tokens)
    other = Turn({**state, **fresh_start(turn.task, position=turn.position + 1)}, team)
    is_possible = other.member.side is not turn.member.side and other.member.health.objection() is None
    if seen is None or seen.count < policy.observations or not is_possible:
        return None
    return Hedge(turn, other, delay=max(seen.p95, policy.least_seconds), tokens=tokens)


def call_of(log: CallLog, turn: Turn) -> Call | None:
    """The latest step of the turn's agent for the task; it may have been asked to sum up besides."""
    return next((call for call in reversed(log.made) if (call.agent, call.role) == (turn.member.name, "execute")), None)


def _cost(call: Call | None) -> str:
    if call is None:
        return "nothing"  # it was stopped, or refused, before it was asked
    return "an unknown amount" if call.dollars is None else f"{call.dollars:f} dollars"
