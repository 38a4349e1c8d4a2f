"""Statistics of a cache in its file: lookups, savings, and the measured share of wrong hits in other words."""

import sqlite3
from typing import Final, Literal

from ...protocols.messages import Value
from .database import CacheDatabase
from .thresholds import Interval

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
