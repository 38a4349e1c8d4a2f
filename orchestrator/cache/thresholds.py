"""Thresholds of similarity, learned from judged pairs of questions so that the share of false hits stays within its budget; and the
statistics of a cache: lookups, savings, and the measured share of wrong hits in other words."""

import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pydantic import ValidationError

from ...protocols import ConfigError
from ...protocols.steps import Value
from ..task.stores import LEAST_THRESHOLD, CacheConfig
from .database import CacheDatabase
from .guards import objection

if TYPE_CHECKING:
    from . import TextEmbedder


CONFIDENCE: Final = 0.95
"""With which the share of false hits is below the budget, and of the intervals that are reported."""
STEP: Final = 0.01


@dataclass(frozen=True, slots=True)
class JudgedHit:
    """Two questions that no guard tells apart, and whether the answer to one was right for the other."""

    similarity: float
    is_same: bool


@dataclass(frozen=True, slots=True)
class Interval:
    """A share, and the interval that holds the true one with `CONFIDENCE`."""

    false: int
    judged: int

    @property
    def share(self) -> float | None:
        """None where nothing was judged."""
        return self.false / self.judged if self.judged else None

    @property
    def low(self) -> float:
        return lower_bound(self.false, self.judged, (1 + CONFIDENCE) / 2)

    @property
    def high(self) -> float:
        return upper_bound(self.false, self.judged, (1 + CONFIDENCE) / 2)


def learn_threshold(judgements: Sequence[JudgedHit], budget: float) -> float | None:
    """Return the lowest similarity above which the share of false hits is below `budget` with `CONFIDENCE`; None where none is proved to
    be.

    Thresholds are tested from the strictest one that has enough judgements to pass at all, downwards until the first fails: a fixed
    sequence of tests, so that looking at many thresholds does not weaken the confidence in the one chosen (Learn then Test, arXiv
    2110.01052). Each test is the bound of Clopper and Pearson (1934), which needs no assumption but that the pairs were drawn alike.
    """
    found = None
    least = judgements_needed(budget)
    for step in range(round((1 - LEAST_THRESHOLD) / STEP) + 1):
        threshold = round(1 - step * STEP, 6)
        above = [judgement for judgement in judgements if judgement.similarity >= threshold]
        if len(above) < least:
            continue
        if upper_bound(sum(not judgement.is_same for judgement in above), len(above), CONFIDENCE) > budget:
            break
        found = threshold
    return found


def is_exceeded(judgements: Sequence[JudgedHit], budget: float, threshold: float) -> bool:
    """Return whether it is proved that more than `budget` of the hits from `threshold` on are false."""
    above = [judgement for judgement in judgements if judgement.similarity >= threshold]
    return lower_bound(sum(not judgement.is_same for judgement in above), len(above), CONFIDENCE) > budget


def judgements_needed(budget: float) -> int:
    """Judgements without a false one that prove a budget."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log1p(-budget))


def upper_bound(false: int, judged: int, confidence: float) -> float:
    """Return the largest share under which so few false ones among so many would still be seen with a probability of 1 - `confidence`."""
    if false >= judged:
        return 1.0
    return _bisect(lambda share: _at_most(false, judged, share) > 1 - confidence)


def lower_bound(false: int, judged: int, confidence: float) -> float:
    """Return the smallest share under which so many false ones among so many would still be seen with a probability of 1 - `confidence`."""
    return 0.0 if false <= 0 else 1 - upper_bound(judged - false, judged, confidence)


def _bisect(is_below: Callable[[float], bool]) -> float:
    """Return the place between 0 and 1 at which a test that holds at 0 ceases to hold."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return high


def _at_most(count: int, trials: int, share: float) -> float:
    """Return the probability of at most `count` successes (the binomial distribution), summed by logarithms so that no term overflows."""
    if share <= 0.0 or share >= 1.0:
        return float(share <= 0.0)
    odds = math.log(share) - math.log1p(-share)
    term = trials * math.log1p(-share)
    total = 0.0
    for successes in range(count + 1):
        total += math.exp(term)
        term += odds + math.log(trials - successes) - math.log(successes + 1) if successes < trials else 0.0
    return min(total, 1.0)


class QuestionPair(Value):
    """Two questions, and whether the answer to one is right for the other: a line of a file of pairs."""

    asked: str
    stored: str
    is_same: bool


@dataclass(frozen=True, slots=True)
class ThresholdCalibration:
    """The threshold that judged pairs prove for a budget."""

    pairs: int
    stopped: int
    """Pairs that a guard tells apart: they are never served, at any threshold."""
    stopped_same: int
    """Stopped pairs with the same answer: hits that the guards cost."""
    threshold: float | None
    """The lowest that is proved to hold the budget; None where there are too few pairs, or too many are false."""
    false_hits: Interval
    """The false ones among the pairs that pass at that threshold; among all that no guard stops where there is none."""


def judge_pairs(pairs: Iterable[QuestionPair], embedder: "TextEmbedder") -> Iterator[JudgedHit | None]:
    """Yield the judgement of each pair; None where a guard tells its questions apart."""
    for pair in pairs:
        if objection(pair.asked, pair.stored) is None:
            yield JudgedHit(float(embedder.embed(pair.asked) @ embedder.embed(pair.stored)), pair.is_same)
        else:
            yield None


def calibrate_threshold(pairs: Iterable[QuestionPair], judgements: Iterable[JudgedHit | None], budget: float) -> ThresholdCalibration:
    """Compute the calibration from pairs and their judgements."""
    both = list(zip(pairs, judgements, strict=True))
    passed = [judgement for _, judgement in both if judgement is not None]
    stopped = [pair for pair, judgement in both if judgement is None]
    threshold = learn_threshold(passed, budget)
    served = [judgement for judgement in passed if threshold is None or judgement.similarity >= threshold]
    return ThresholdCalibration(
        pairs=len(both),
        stopped=len(stopped),
        stopped_same=sum(pair.is_same for pair in stopped),
        threshold=threshold,
        false_hits=Interval(sum(not judgement.is_same for judgement in served), len(served)),
    )


def read_pairs(path: Path) -> list[QuestionPair]:
    """Return the pairs of a file of JSON lines. Raises `ConfigError` with the line that is none, and `OSError`."""
    pairs = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            pairs.append(QuestionPair.model_validate_json(line))
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(map(str, problem["loc"]))
            hint = 'a line is {"asked": "...", "stored": "...", "is_same": true}'
            raise ConfigError(f"{path}, line {number}: {where}: {problem['msg']}", hint=hint) from error
    return pairs


_KEPT: Final = 5_000
"""Judgements of a category that are learned from: the latest."""


class Thresholds:
    """Thresholds by category. Until enough was judged to prove one, the one of the settings holds; it is withdrawn where it is refuted."""

    def __init__(self, database: CacheDatabase, settings: CacheConfig) -> None:
        self._database = database
        self._settings = settings
        self._known: dict[str, tuple[float | None, float | None]] = {}
        """By category: the usual threshold, and the one under load."""

    def of(self, category: str, *, is_loaded: bool = False) -> float | None:
        """Return the threshold of a category; None where nothing may be served in other words.

        Under load it is the one of the relaxed budget, where enough was judged to prove that one, and never a stricter one.
        """
        if category not in self._known:
            self._known[category] = self._learn(category)
        usual, relaxed = self._known[category]
        return relaxed if is_loaded else usual

    def add(self, category: str, similarity: float, *, was_served: bool, is_same: bool) -> None:
        """Take note of a judgement."""
        with self._database.transaction() as connection:
            row = (category, similarity, was_served, is_same)
            connection.execute("INSERT INTO judgements (category, similarity, served, is_same) VALUES (?, ?, ?, ?)", row)
            older = "SELECT id FROM judgements WHERE category = ? ORDER BY id DESC LIMIT -1 OFFSET ?"
            connection.execute(f"DELETE FROM judgements WHERE id IN ({older})", (category, _KEPT))
        self._known.pop(category, None)

    def judgements(self, category: str) -> list[JudgedHit]:
        """Return the judgements of a category."""
        query = "SELECT similarity, is_same FROM judgements WHERE category = ?"
        with self._database.reading() as connection:
            return [JudgedHit(similarity, bool(is_same)) for similarity, is_same in connection.execute(query, (category,))]

    def _learn(self, category: str) -> tuple[float | None, float | None]:
        judgements = self.judgements(category)
        settings = self._settings
        usual = learn_threshold(judgements, settings.false_hit_budget)
        if usual is None:
            given = settings.of_category(category).threshold
            usual = None if is_exceeded(judgements, settings.false_hit_budget, given) else given
        lower = None if settings.relaxed_budget is None else learn_threshold(judgements, settings.relaxed_budget)
        return usual, min((each for each in (usual, lower) if each is not None), default=None)


Outcome = Literal["exact", "semantic", "shared", "miss"]
"""The answer to the same request, to one in other words, one that was being computed just then, or none."""
PLANS: Final = "plans"
"""The category under which lookups of plans are counted."""

Saved = tuple[int, float, float]
"""Tokens, dollars and seconds."""
NOTHING: Final[Saved] = (0, 0.0, 0.0)

_COUNT: Final = (
    "INSERT INTO lookups (category, outcome, count, tokens, dollars, seconds) VALUES (?, ?, 1, ?, ?, ?) ON CONFLICT (category, outcome)"
    " DO UPDATE SET count = count + 1, tokens = tokens + excluded.tokens, dollars = dollars + excluded.dollars,"
    " seconds = seconds + excluded.seconds"
)


class CategoryStatistics(Value):
    """One category since its file was begun."""

    category: str
    entries: int
    """Answers or plans that are stored now."""
    exact: int = 0
    semantic: int = 0
    shared: int = 0
    misses: int = 0
    saved_tokens: int = 0
    saved_dollars: float = 0.0
    """Dollars saved by answers whose price was known."""
    saved_seconds: float = 0.0
    judged: int = 0
    """Hits in other words that were answered afresh, to see whether both answers say the same."""
    false: int = 0
    """Judged hits whose answers differed."""

    @property
    def lookups(self) -> int:
        return self.exact + self.semantic + self.shared + self.misses

    @property
    def hit_rate(self) -> float | None:
        """None where nothing was looked for."""
        return 1 - self.misses / self.lookups if self.lookups else None

    @property
    def false_hits(self) -> Interval:
        """The share of hits in other words that are wrong, as estimated from those that were judged."""
        return Interval(self.false, self.judged)


def count(connection: sqlite3.Connection, category: str, outcome: Outcome, saved: Saved) -> None:
    """Count a lookup, and what it saved."""
    connection.execute(_COUNT, (category, outcome, *saved))


def statistics(database: CacheDatabase) -> list[CategoryStatistics]:
    """Return the categories, most asked first. Raises `StoreError`."""
    fields: dict[str, dict[str, int | float]] = {}
    with database.reading() as connection:
        for category, outcome, number, tokens, dollars, seconds in connection.execute("SELECT * FROM lookups ORDER BY category, outcome"):
            known = fields.setdefault(category, {})
            known["misses" if outcome == "miss" else outcome] = number
            for name, saved in (("saved_tokens", tokens), ("saved_dollars", dollars), ("saved_seconds", seconds)):
                known[name] = known.get(name, 0) + saved
        for category, entries in connection.execute(_ENTRIES, (PLANS,)):
            fields.setdefault(category, {})["entries"] = entries
        for category, judged, false in connection.execute(_JUDGED):
            fields.setdefault(category, {}).update(judged=judged, false=false)
    found = [CategoryStatistics.model_validate({"category": name, "entries": 0, **known}) for name, known in fields.items()]
    return sorted(found, key=lambda each: (-each.lookups, each.category))


_ENTRIES: Final = "SELECT category, count(*) FROM answers GROUP BY category UNION ALL SELECT ?, count(*) FROM plans HAVING count(*) > 0"
_JUDGED: Final = "SELECT category, count(*), sum(1 - is_same) FROM judgements WHERE served GROUP BY category"
