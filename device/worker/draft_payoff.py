"""Decide whether to draft, and how much: the chances that tokens are right, against the cost of longer passes on this machine.

The chances are kept by a token's origin, the source that it was guessed from.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate
from math import inf
from operator import mul
from typing import Final, NamedTuple

_FADING: Final = 0.97
_PRIOR_TRIES: Final = 2.0
"""Tries that the first guess of a chance counts as."""
_MOST_ORIGINS: Final = 4096


class GuessSource(StrEnum):
    """The source that a token was guessed from."""

    SCHEMA = "schema"
    """The grammar: it leaves no choice, or few tools, or a value has to end some time."""
    HISTORY = "history"
    """Past calls of the same tool."""
    PROMPT = "prompt"
    """The conversation."""


class GuessOrigin(NamedTuple):
    """Why a token was drafted; tokens of one origin are right about equally often."""

    source: GuessSource
    about: str
    """The subject: a kind of guess, or the parameter whose value begins or ends."""
    degree: int
    """Length of the match, or of the value."""


FORCED: Final = GuessOrigin(GuessSource.SCHEMA, "", 1)
"""The grammar leaves no choice but how the text is cut into tokens."""
NAME: Final = GuessOrigin(GuessSource.SCHEMA, "", 0)
"""One of the tools' names."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may come next, in order, and the origin of each."""

    tokens: list[int] = field(default_factory=list)
    origins: list[GuessOrigin] = field(default_factory=list)

    def extend(self, other: "Draft") -> None:
        self.tokens.extend(other.tokens)
        self.origins.extend(other.origins)

    def first(self, count: int) -> "Draft":
        return Draft(self.tokens[:count], self.origins[:count])

    @classmethod
    def forced(cls, tokens: Sequence[int]) -> "Draft":
        return cls(list(tokens), [FORCED] * len(tokens))


class PayoffRecords:
    """Recent success rates of drafted tokens, by origin."""

    def __init__(self) -> None:
        self._tries: dict[GuessOrigin, tuple[float, float]] = {}

    def chance(self, origin: GuessOrigin) -> float:
        """Return the chance that a token of this origin is right, given that those in front of it are."""
        right, tries = self._tries.get(origin, (0.0, 0.0))
        return (right + _PRIOR_TRIES * _first_guess(origin)) / (tries + _PRIOR_TRIES)

    def add(self, origin: GuessOrigin, *, right: bool) -> None:
        if len(self._tries) > _MOST_ORIGINS:
            self._tries.clear()
        before, tries = self._tries.get(origin, (0.0, 0.0))
        self._tries[origin] = (before * _FADING + right, tries * _FADING + 1)


def _first_guess(origin: GuessOrigin) -> float:
    if origin == FORCED:
        return 0.98
    if origin.about or origin == NAME:
        return 0.4
    return 0.2 + 0.1 * origin.degree


@dataclass(slots=True)
class SourceCounts:
    """Counts of the drafts of one source."""

    runs: int = 0
    """Runs of neighbouring tokens of this source whose beginning was reached."""
    drafted: int = 0
    accepted: int = 0


class Counts:
    """The counts of each source since the worker started."""

    def __init__(self) -> None:
        self._sources: defaultdict[GuessSource, SourceCounts] = defaultdict(SourceCounts)

    def add(self, draft: Draft, accepted: int) -> None:
        """Count a draft of which so many tokens were right."""
        before: GuessSource | None = None
        for place, origin in enumerate(draft.origins):
            counts = self._sources[origin.source]
            counts.drafted += 1
            counts.accepted += place < accepted
            counts.runs += origin.source is not before and place <= accepted
            before = origin.source

    def as_dict(self) -> dict[str, dict[str, int]]:
        return {source.value: asdict(counts) for source, counts in self._sources.items()}


SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
"""Tokens of a pass for which costs are kept; drafts are cut so that a pass has one of these sizes."""
_CLEARLY: Final = 1.05
_WEIGHT: Final = 1 / 8
_MOST_CHANGE: Final = 2.0
"""A pass that was interrupted by another program tells little: it counts as at most so many times slower than usual."""
_REFRESHED_EVERY: Final = 16
_BASELINE: Final = 3
_LEAST_SECONDS: Final = 0.001
"""Seconds of a pass per token, below which guessing takes longer than computing."""
_FIRST_STAKE: Final = 1.0
_MOST_STAKE: Final = 12.0
"""Passes that drafting may lose at first, and at most. Where a draft of one token costs more than a pass, no draft can pay."""
_SHARE_TO_LOSE: Final = 0.01
_SHORTEST_REST: Final = 64
_LONGEST_REST: Final = 1 << 14


def _update_mean(known: float | None, seconds: float) -> float:
    """Return the running mean."""
    if known is None:
        return seconds
    return known + (min(max(seconds, known / _MOST_CHANGE), known * _MOST_CHANGE) - known) * _WEIGHT


class PassCosts:
    """Seconds of a pass through the model by the number of its tokens, lately."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._added = 0
        self.expected = lru_cache(self._expected)
        """Seconds that a pass of so many tokens will take."""

    def add(self, size: int, seconds: float) -> None:
        """Take note of the seconds of a pass of `size` tokens; sizes outside `SIZES` are not kept."""
        if size in SIZES:
            new = size not in self._seconds
            self._seconds[size] = _update_mean(self._seconds.get(size), seconds)
            self._added += 1
            if new or self._added % _REFRESHED_EVERY == 0:
                self.expected.cache_clear()

    def least_chance(self, size: int, gained: int) -> float:
        """Return the chance of being right below which a token costs more than it brings, whatever else is in the pass."""
        one_more = (self.expected(SIZES[-2]) - self.expected(SIZES[2])) / (SIZES[-2] - SIZES[2])
        return one_more * gained / self.expected(size)

    def _expected(self, size: int) -> float:
        # Interpolate between the measured neighbours.
        measured = sorted(self._seconds)
        at = bisect_left(measured, size)
        if at == len(measured):
            # Half of a pass for one token, about, is reading the weights, which more tokens do not repeat.
            nearest = measured[-1] if measured else 1
            return self._seconds.get(nearest, 1.0) * (1 + size) / (1 + nearest)
        # No pass is slower than a longer one, unless it was disturbed.
        above = min(self._seconds[longer] for longer in measured[at:])
        if at == 0 or measured[at] == size:
            return above
        low, high = measured[at - 1], measured[at]
        below = min(self._seconds[low], above)
        return below + (above - below) * (size - low) / (high - low)

    def best_length(self, size: int, gained: int, chances: Sequence[float], *, most_seconds: float) -> int:
        """Return how many drafted tokens to add to a pass of `size` tokens, of which `gained` are gained anyway; 0 if none pays.

        `chances`: of each token to be right, given that those before it are. `most_seconds`: those that the pass may take.
        """
        expected = [0.0, *accumulate(accumulate(chances, mul))]
        rate, best = _CLEARLY * gained / self.expected(size), 0
        for length in (total - size for total in SIZES if 0 < total - size <= len(chances)):
            if self.expected(size + length) > most_seconds:
                break
            faster = (gained + expected[length]) / self.expected(size + length)
            if faster > rate:
                rate, best = faster, length
        return best


class DraftingTrial:
    """A trial of drafting as a whole, overheads included, for one number of steps at a time.

    Its stake is the seconds that drafting may lose: a share of all passes, and what it has won, within bounds. So long drafts are made only
    once shorter ones were right. Without a stake, drafting rests for longer and longer.
    """

    def __init__(self) -> None:
        self._plain: float | None = None
        self._plain_passes = 0
        self.stake = 0.0
        self._rest = 0
        self._next_rest = _SHORTEST_REST

    def rests(self) -> bool:
        """Return True if the next pass is to be made without drafting; each call counts one pass of the rest."""
        if self._rest:
            self._rest -= 1
            return True
        return False

    @property
    def drafts(self) -> bool:
        """True if the speed without drafts, which drafting has to beat, is known."""
        return self._plain_passes >= _BASELINE

    def add_plain(self, seconds: float, tokens: int) -> None:
        """Count a pass for which nothing was guessed."""
        self._plain = _update_mean(self._plain, seconds / tokens)
        self._plain_passes += 1
        if self._plain_passes == _BASELINE:
            self.stake = max(self.stake, _FIRST_STAKE * self._plain * tokens)
        if self.drafts and self._plain < _LEAST_SECONDS:
            self._rest, self._plain_passes = _LONGEST_REST, 0

    def add_drafted(self, seconds: float, tokens: int) -> None:
        """Count a pass for which a draft was tried."""
        assert self._plain is not None, "nothing is drafted before"
        plain = self._plain * tokens
        seconds = min(seconds, _MOST_CHANGE * plain)
        self.stake = min(self.stake + plain - seconds + _SHARE_TO_LOSE * seconds, max(self.stake, _MOST_STAKE * seconds))
        if self.stake <= 0:
            self._rest, self._plain_passes, self.stake = self._next_rest, 0, 0.0
            self._next_rest = min(2 * self._next_rest, _LONGEST_REST)
        elif self.stake > 2 * _FIRST_STAKE * plain:
            self._next_rest = _SHORTEST_REST


@dataclass(slots=True)
class Pass:
    """One pass through the model, of running steps alone, while it is put together and afterwards."""

    size: int
    """Its tokens so far, those that steps will still add on their own included."""
    gained: int
    """Tokens that steps gain by it: those that were chosen before, and those of drafts that were right."""
    trial: DraftingTrial
    costs: PassCosts
    most_seconds: float = inf
    """Seconds that it may take in the model."""
    drafted: bool = False
    """True if a draft was tried."""

    def end(self, *, model_seconds: float, seconds: float) -> None:
        """Count the pass: its seconds in the model, and all in all."""
        self.costs.add(self.size, model_seconds)
        add = self.trial.add_drafted if self.drafted else self.trial.add_plain
        add(seconds, self.gained)


class Payoff:
    """Decides for each pass."""

    def __init__(self) -> None:
        self.records = PayoffRecords()
        self._costs = PassCosts()
        self._trials: dict[int, DraftingTrial] = {}

    def plan(self, *, size: int, steps: int) -> Pass | None:
        """Return a pass in which so many steps decode `size` tokens; None if it is better made without drafts."""
        trial = self._trials.get(steps)
        if trial is None:
            trial = self._trials[steps] = DraftingTrial()
        if trial.rests():
            return None
        return Pass(size, size, trial, self._costs, self._costs.expected(size) + trial.stake)

    def least_chance(self, pass_: Pass) -> float:
        """Return the chance that all tokens of a draft are right below which the last one is not worth its place."""
        return self._costs.least_chance(pass_.size, pass_.gained)

    def cut(self, draft: Draft, pass_: Pass) -> Draft:
        """Return the part of a draft that pays."""
        chances = [self.records.chance(origin) for origin in draft.origins]
        return draft.first(self._costs.best_length(pass_.size, pass_.gained, chances, most_seconds=pass_.most_seconds))


class Eager(Payoff):
    """Drafts as much as it can in every pass, whatever it costs: for tests, and to count what drafts would come to."""

    def plan(self, *, size: int, steps: int) -> Pass:
        return Pass(size, size, _EndlessTrial(), self._costs)

    def least_chance(self, pass_: Pass) -> float:
        del pass_
        return 0.0

    def cut(self, draft: Draft, pass_: Pass) -> Draft:
        del pass_
        return draft


class _EndlessTrial(DraftingTrial):
    drafts = True

    def add_drafted(self, seconds: float, tokens: int) -> None:
        """Ignore the pass: this trial never ends."""
