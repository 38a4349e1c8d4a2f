"""How often the near agent proposes the step that far takes, and when it pays to ask far ahead; and what tools say that change something.

A proposal's odds are learned from counts: of all proposals of its kind, of those that near was as sure of, and of these in the same class
of tasks. Each group starts from the one around it (Beta distributions whose prior is the wider group's mean).
"""

from collections import Counter
from collections.abc import Sequence
from math import log10, prod
from typing import Final

from ...protocols import Side
from ..task.results import JudgedProposal, ToolOutcome
from .costs import Group, nested

_PRIOR: Final = {False: 0.8, True: 0.3}
"""Shares of proposals that far is expected to confirm before any was judged: of calls that near proposes by itself, and of those that it is
made to propose in place of an answer. They are about those of the shipped models."""
_WEIGHT: Final = 2.0
"""Proposals that the expectation from the wider group counts for."""
_SHARE: Final = 0.2
"""Weight of the latest step in the mean duration of steps."""
_USUAL: Final = {Side.NEAR: 0.1, Side.FAR: 1.0}
"""Seconds of a step before any was seen."""
_LEAST_DOUBT: Final = 2e-4
_LONGEST: Final = 200
"""Characters of a result that may be guessed."""
_KEPT: Final = 1024
"""Tools, each of one user, whose last results are remembered."""


class AgreementRates:
    """Counts of judged proposals and durations of steps, from which the odds and the price of asking ahead follow."""

    def __init__(self) -> None:
        self._judged: Counter[Group] = Counter()
        self._confirmed: Counter[Group] = Counter()
        self._seconds = dict(_USUAL)
        self._said: dict[tuple[str, str], tuple[ToolOutcome, bool]] = {}
        """By user and tool: the last call, and whether its result is the usual one."""

    def odds(self, proposals: Sequence[JudgedProposal]) -> float:
        """Return the odds that far confirms all of these, whatever they say of themselves."""
        return prod(map(self._rate, proposals))

    def _rate(self, proposal: JudgedProposal) -> float:
        rate = _PRIOR[proposal.is_instead]
        for group in _groups(proposal):
            rate = (self._confirmed[group] + _WEIGHT * rate) / (self._judged[group] + _WEIGHT)
        return rate

    def learn(self, proposal: JudgedProposal) -> None:
        """Count a proposal that far has judged."""
        for group in _groups(proposal):
            self._judged[group] += 1
            self._confirmed[group] += proposal.confirmed

    def time(self, side: Side, seconds: float) -> None:
        """Note how long one step of a side took, in seconds."""
        self._seconds[side] += _SHARE * (seconds - self._seconds[side])

    def least_odds(self, thrift: float) -> float:
        """Return the odds at which a further far call pays.

        With odds P it saves far's step less near's, and with 1 - P it is wasted: `(1 - thrift) P (1 - a/t) >= thrift (1 - P)`, solved for
        P. More than 1: it never pays.
        """
        saved = (1 - thrift) * (1 - self._seconds[Side.NEAR] / self._seconds[Side.FAR])
        return thrift / (thrift + saved) if saved > 0 else 2.0

    def note_results(self, user: str, outcomes: Sequence[ToolOutcome]) -> None:
        """Remember what the tools of a user have said last."""
        for outcome in outcomes:
            key = user, outcome.call.name
            last, was_usual = self._said.pop(key, (outcome, False))
            is_usual = last.result == outcome.result and (was_usual or last.call.arguments != outcome.call.arguments)
            if outcome.outcome == "done" and len(outcome.result) <= _LONGEST:
                self._said[key] = outcome, is_usual
        while len(self._said) > _KEPT:
            del self._said[next(iter(self._said))]

    def usual_result(self, user: str, tool: str) -> str | None:
        """Return the text that the last two calls of a user's tool have returned, with different arguments; None: they differ."""
        last, is_usual = self._said.get((user, tool), (None, False))
        return last.result if last is not None and is_usual else None


def _groups(proposal: JudgedProposal) -> tuple[Group, ...]:
    """Return the nested groups that a proposal is in, the widest first."""
    grades = 1 if proposal.is_instead else 2
    doubts = "/".join(_doubt(each, grades) for each in (proposal.confidence, proposal.answer_confidence))
    return nested(("instead" if proposal.is_instead else "call", doubts, proposal.task_class))[1:]


def _doubt(confidence: float | None, grades: int) -> str:
    """Return the number of powers of ten, or of parts of them, by which an agent's doubt is below 1."""
    return "" if confidence is None else str(int(-grades * log10(max(1 - confidence, _LEAST_DOUBT))))
