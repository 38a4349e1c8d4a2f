"""The similarity from which each category serves an answer in other words, learned from what was judged."""

from typing import Final

from ..task.sections.cache import CacheConfig
from .budget import Judgement, is_exceeded, learned_threshold
from .database import CacheDatabase

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
            self._known[category] = self._learned(category)
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

    def judgements(self, category: str) -> list[Judgement]:
        """Return the judgements of a category."""
        query = "SELECT similarity, is_same FROM judgements WHERE category = ?"
        with self._database.reading() as connection:
            return [Judgement(similarity, bool(is_same)) for similarity, is_same in connection.execute(query, (category,))]

    def _learned(self, category: str) -> tuple[float | None, float | None]:
        judgements = self.judgements(category)
        settings = self._settings
        usual = learned_threshold(judgements, settings.false_hit_budget)
        if usual is None:
            given = settings.of_category(category).threshold
            usual = None if is_exceeded(judgements, settings.false_hit_budget, given) else given
        lower = None if settings.relaxed_budget is None else learned_threshold(judgements, settings.relaxed_budget)
        return usual, min((each for each in (usual, lower) if each is not None), default=None)
