"""Exploration: now and then another agent than the best one known, to learn about it, within bounds and with its cost on record."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from threading import Lock

from ...protocols import ConfigError
from ...protocols.messages import Value


@dataclass(frozen=True, slots=True)
class Prospect:
    """An agent that the task may have."""

    agent: str
    utility: float
    """Predicted."""
    deviation: float
    """Standard deviation of the utility: that of the probability times what success is worth."""


class ExplorationReport(Value):
    """The cost of exploration so far."""

    decisions: int
    explored: int
    """Decisions for another agent than the best one known."""
    utility_given_up: float
    """Sum over these of the predicted utility of the best one less that of the one chosen."""
    dollars: float
    """Spent on them, as far as known."""


class Explorer:
    """Chooses among agents, mostly the best one known. Calls may come from any thread.

    Args:
        explore_share: largest share of decisions, at any time, that may be for another agent than the best one; 0 never explores.
        seed: of the draws; None: another one each time.

    Raises `ConfigError` for a share outside 0 to 1.
    """

    def __init__(self, explore_share: float = 0.0, *, seed: int | None = None) -> None:
        if not 0 <= explore_share <= 1:
            raise ConfigError(f"explore_share lies between 0 and 1, not at {explore_share}", hint="0.02 explores with one task in fifty")
        self._share = explore_share
        self._random = Random(seed)
        self._decisions = 0
        self._explored = 0
        self._given_up = 0.0
        self._dollars = 0.0
        self._lock = Lock()

    def choose(self, prospects: Sequence[Prospect], *, best: str | None = None) -> Prospect:
        """Return the best prospect or, when exploration is due, the one that is best in one draw from the beliefs: Thompson sampling
        (arXiv 1111.1797).

        Args:
            prospects: at least one, all of which the task may have; of equals the first counts as the best.
            best: the agent that would serve without exploration; None: the one with the highest utility.
        """
        named = (prospect for prospect in prospects if prospect.agent == best)
        known = next(named, None) or max(prospects, key=lambda prospect: prospect.utility)
        with self._lock:
            self._decisions += 1
            chosen = max(prospects, key=self._drawn) if self._explored + 1 <= self._share * self._decisions else known
            if chosen is not known:
                self._explored += 1
                self._given_up += max(known.utility - chosen.utility, 0.0)
        return chosen

    def paid(self, dollars: float) -> None:
        """Record what a task has cost that was explored with."""
        with self._lock:
            self._dollars += dollars

    @property
    def report(self) -> ExplorationReport:
        """The cost so far."""
        with self._lock:
            return ExplorationReport(
                decisions=self._decisions, explored=self._explored, utility_given_up=self._given_up, dollars=self._dollars
            )

    def _drawn(self, prospect: Prospect) -> float:
        return self._random.gauss(prospect.utility, prospect.deviation)
