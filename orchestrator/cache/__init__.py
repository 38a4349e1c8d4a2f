"""Caches in front of agents: answers that were given before, and plans that worked before. Off unless `[cache]` turns them on.

`AnswerCache` finds an answer by the same request or by another wording of its question.
"""

import logging
import random
import re
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Protocol

from ...protocols import AgentCard, ConfigError, StepReply, StepRequest, StoreError
from ..routing.answers import agree
from ..task import TaskScope
from ..task.stores import LEAST_THRESHOLD, CacheConfig, CategoryRules
from ..util.embedding import NAME
from ..util.settings import require, require_callable, require_methods, wrong_type
from .admission import category_of, exact_key, objection_to_reply, partition_key, question_of
from .database import CacheDatabase, StoredAnswer, clear, clearings, read_stored, reply_json
from .guards import objection
from .thresholds import NOTHING, Outcome, Thresholds, count

if TYPE_CHECKING:
    from ..util.embedding import Vector

logger = logging.getLogger(__name__)

_PARTITIONS: Final = 64
"""Held in memory; those that were not asked for longest are read again from the file."""
_INSERT: Final = (
    "INSERT OR REPLACE INTO answers (key, partition, category, question, vector, reply, seconds, dollars, expires, used)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_CANDIDATES: Final = 8
"""Nearest questions that the guards look at."""
_LEAST_SIMILARITY: Final = 0.6
"""Least similarity of a candidate; a pair below is not even judged."""
_SAME_ANSWER: Final = 0.9
"""Cosine similarity from which two answers are taken to say the same."""
_NUMBERS: Final = re.compile(r"\d+")
_WRONG: Final = 0.5
"""A score below says that a task went wrong."""
_TASKS: Final = 1_000
"""Tasks whose answers can be removed if they turn out to be wrong: the latest."""
_SLACK: Final = 100
"""A full category is cut to its quota less a part of that size, so that the next answers find room."""
_UNCOUNTED: Final = 100
"""Answers of a category that are stored without counting, at most: other processes store too."""
_SWEEP: Final = 60.0
"""Seconds between two looks for what has expired."""


class TextEmbedder(Protocol):
    """Makes unit vectors of texts."""

    def embed(self, text: str) -> "Vector": ...


@dataclass(frozen=True, slots=True)
class Lookup:
    """The result of looking up one request, and all that is needed to store its answer."""

    key: str
    partition: str
    category: str
    rules: CategoryRules
    task: str
    """The task that asks."""
    question: str | None
    """By which it may be found in other words; None where it may not."""
    vector: "Vector | None" = None
    outcome: Outcome = "miss"
    answer: StoredAnswer | None = None
    """The answer that may be served; None where there is none, and where a hit is to be computed afresh."""
    candidate: StoredAnswer | None = None
    """The nearest answer in other words that no guard objects to, served or not."""
    similarity: float = 0.0
    """The similarity of the candidate's question."""
    is_shadow: bool = False
    """It is to be answered afresh, to see whether the candidate says the same."""
    clearings: int = 0
    """How often the cache had been emptied by then."""


class AnswerCache:
    """Answers in one file. Calls may come from any thread and block on the file: do not call it in the event loop.

    Raises `StoreError` where the file cannot be used; the caller continues without the cache.

    Args:
        settings: the `[cache]` section.
        embedder: compares questions by meaning; None: the one that ships with nearfar, loaded when it is first needed.
        embedder_name: names the embedder and its version, since vectors of different embedders cannot be compared.
        now: the time in seconds, for expiry.
        chance: uniform between 0 and 1, for the choice of hits that are computed afresh.
    """

    def __init__(
        self,
        settings: CacheConfig,
        *,
        embedder: TextEmbedder | None = None,
        embedder_name: str = NAME,
        now: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        if not isinstance(settings, CacheConfig):
            raise wrong_type("settings", settings, "a CacheConfig", hint='AnswerCache(CacheConfig(path="answers.db"))')
        require_methods("embedder", embedder, ("embed",), "an object with embed(text)")
        require("embedder_name", embedder_name, str, "a text")
        require_callable("now", now, "a function that returns seconds")
        require_callable("chance", chance, "a function that returns a number between 0 and 1")
        for key, value in settings.low_thresholds.items():
            logger.warning(
                "[cache] %s = %g lets the guards alone stand between two questions; %g or more is advised", key, value, LEAST_THRESHOLD
            )
        self.settings = settings
        self.database = CacheDatabase(settings.file)
        self.thresholds = Thresholds(self.database, settings)
        self._embedder = embedder
        self._embedder_name = embedder_name
        self._can_embed = settings.semantic
        self._neighbours = Neighbours()
        self._now = now
        self._chance = chance
        self._swept = float("-inf")
        self._room: dict[str, int] = {}
        """By category, the answers that may be stored before it has to be counted again."""
        self._given: OrderedDict[str, list[int]] = OrderedDict()
        """By task, the answers that it was given or that it stored."""

    def category(self, request: StepRequest, scope: TaskScope) -> str:
        """Return the category of a request's question."""
        return category_of(request.messages[-1].text, task_class=scope.task_class, named=self.settings.categories)

    def look(self, request: StepRequest, card: AgentCard, scope: TaskScope, *, is_loaded: bool = False) -> Lookup:
        """Look for an answer to the same request, else for one to the same question in other words.

        Args:
            request: the request of the step.
            card: the card of the agent that would answer.
            scope: the user, session and policy of the task.
            is_loaded: the agent is overloaded, and the relaxed budget applies.
        """
        asked = self._describe(request, card, scope)
        if not asked.rules.cacheable:
            return asked
        self._sweep()
        with self.database.reading() as connection:
            asked = replace(asked, clearings=clearings(connection))
            exact = read_stored(connection, "key = ? AND expires > ?", (asked.key, self._now()))
        if exact is not None:
            return replace(asked, outcome="exact", answer=exact)
        return self._semantic(asked, is_loaded=is_loaded)

    def keep(self, lookup: Lookup, reply: StepReply, *, seconds: float, dollars: Decimal | None) -> bool:
        """Store an answer; False where it is none that may be stored, or the cache was emptied while it was computed."""
        if not lookup.rules.cacheable or objection_to_reply(reply, minimum_confidence=self.settings.minimum_confidence) is not None:
            return False
        vector = lookup.vector
        if vector is None and lookup.question is not None:
            vector = self._embed(lookup.question)
        now = self._now()
        row = (
            *(lookup.key, lookup.partition, lookup.category, None if vector is None else lookup.question),
            *(None if vector is None else vector.tobytes(), reply_json(reply), seconds, None if dollars is None else float(dollars)),
            *(now + lookup.rules.time_to_live, now),
        )
        with self.database.transaction() as connection:
            if clearings(connection) != lookup.clearings:
                return False
            self._note(lookup.task, connection.execute(_INSERT, row).lastrowid)
            self._evict(connection, lookup.category, lookup.rules.entries)
        return True

    def count(self, category: str, outcome: Outcome) -> None:
        """Count a lookup in a `category` whose `outcome` is that nothing was found to serve, or that a running computation was shared."""
        with self.database.transaction() as connection:
            count(connection, category, outcome, NOTHING)

    def use(self, lookup: Lookup, answer: StoredAnswer) -> None:
        """Count a lookup whose answer is served, and what that saves."""
        saved = (answer.finished.usage.total_tokens, float(answer.dollars or 0), answer.seconds)
        with self.database.transaction() as connection:
            count(connection, lookup.category, lookup.outcome, saved)
            connection.execute("UPDATE answers SET used = ? WHERE id = ?", (self._now(), answer.id))
            self._note(lookup.task, answer.id)

    def report(self, task: str, score: float) -> None:
        """Take note how well the run `task` went, as a `score` of 0 to 1: the answers that it was given or stored are removed where it went
        wrong.

        Of those that are long past nothing is known any more. A file that fails is logged.
        """
        if score >= _WRONG or task not in self._given:
            return
        try:
            with self.database.transaction() as connection:
                for identifier in self._given.pop(task):
                    connection.execute("DELETE FROM answers WHERE id = ?", (identifier,))
                self._neighbours.forget()
        except StoreError as error:
            logger.warning("the answers of a task that went wrong stay in the cache: %s", error)

    def record_judgement(self, lookup: Lookup, *, is_same: bool) -> None:
        """Take note whether a candidate's answer would have been right, and learn from it."""
        assert lookup.candidate is not None, "there was one to judge"
        self.thresholds.add(lookup.category, lookup.similarity, was_served=lookup.outcome == "semantic", is_same=is_same)

    def says_same(self, fresh: str, stored: str) -> bool:
        """Return whether two answers, a `fresh` and a `stored` one, say the same, as far as that can be told without a model's judgement.

        They do if they are equal but for form, or close in meaning with the same numbers. Paraphrases may be taken for different, which
        makes thresholds stricter than necessary.
        """
        if agree(fresh, stored):
            return True
        if _NUMBERS.findall(fresh) != _NUMBERS.findall(stored):
            return False
        mine, other = self._embed(fresh), self._embed(stored)
        return mine is not None and other is not None and float(mine @ other) >= _SAME_ANSWER

    def clear(self) -> int:
        """Remove all answers and plans, also from the log; returns how many there were. What was counted and judged stays."""
        with self.database.transaction() as connection:
            removed = clear(connection)
            self._neighbours.forget()
        self.database.rewrite()
        return removed

    def close(self) -> None:
        """Close the file."""
        self.database.close()

    def _describe(self, request: StepRequest, card: AgentCard, scope: TaskScope) -> Lookup:
        question = question_of(request)
        category = self.category(request, scope)
        rules = self.settings.of_category(category)
        return Lookup(
            key=exact_key(request, card, scope),
            partition=partition_key(request, card, scope, embedder=self._embedder_name),
            category=category,
            rules=rules,
            task=scope.task,
            question=question if rules.semantic and self._can_embed else None,
        )

    def _semantic(self, asked: Lookup, *, is_loaded: bool) -> Lookup:
        if asked.question is None or not self._has_any(asked.partition):
            return asked
        vector = self._embed(asked.question)
        if vector is None:
            return replace(asked, question=None)
        asked = replace(asked, vector=vector)
        found = self._candidate(asked)
        if found is None:
            return asked
        candidate, similarity = found
        threshold = self.thresholds.of(asked.category, is_loaded=is_loaded)
        asked = replace(asked, candidate=candidate, similarity=similarity, is_shadow=self._chance() < self.settings.shadow_share)
        if threshold is None or similarity < threshold:
            return asked
        return replace(asked, outcome="semantic", answer=None if asked.is_shadow else candidate)

    def _candidate(self, asked: Lookup) -> tuple[StoredAnswer, float] | None:
        """Return the nearest answer whose question no guard tells from the asked one."""
        question, vector = asked.question, asked.vector
        if question is None or vector is None:
            return None
        with self.database.reading() as connection:
            for identifier, similarity in self._neighbours.nearest(connection, asked.partition, vector, most=_CANDIDATES):
                if similarity < _LEAST_SIMILARITY:
                    return None
                stored = read_stored(connection, "id = ? AND expires > ?", (identifier, self._now()))
                if stored is None:
                    self._neighbours.drop(asked.partition)
                elif stored.question is not None and objection(question, stored.question) is None:
                    return stored, similarity
        return None

    def _has_any(self, partition: str) -> bool:
        """Return whether a partition has vectors. If not, the question need not be embedded."""
        with self.database.reading() as connection:
            found = connection.execute("SELECT 1 FROM answers WHERE partition = ? AND vector IS NOT NULL LIMIT 1", (partition,)).fetchone()
        return found is not None

    def _embed(self, question: str) -> "Vector | None":
        """Return the question's vector. If embeddings are not installed, return None, and find exact hits only from then on."""
        if self._embedder is None:
            try:
                from ..util.embedding import MiniLmEmbedder

                self._embedder = MiniLmEmbedder()
            except ConfigError as error:
                logger.warning("answers are found by the same words alone: %s", error)
                self._can_embed = False
                return None
        return self._embedder.embed(question)

    def _sweep(self) -> None:
        """Remove what has expired, now and then."""
        now = self._now()
        if now - self._swept < _SWEEP:
            return
        self._swept = now
        with self.database.transaction() as connection:
            removed = connection.execute("DELETE FROM answers WHERE expires <= ?", (now,)).rowcount
            if removed:
                self._neighbours.forget()
        if removed:
            self.database.scrub()

    def _note(self, task: str, answer: int | None) -> None:
        if task and answer is not None:
            self._given.setdefault(task, []).append(answer)
            if len(self._given) > _TASKS:
                self._given.popitem(last=False)

    def _evict(self, connection: sqlite3.Connection, category: str, entries: int) -> None:
        """Hold a category's quota. To count takes long where there are many, so it is not done for each answer."""
        room = self._room.get(category, 0)
        if room > 0:
            self._room[category] = room - 1
            return
        (count,) = connection.execute("SELECT count(*) FROM answers WHERE category = ?", (category,)).fetchone()
        if count > entries:
            query = "DELETE FROM answers WHERE id IN (SELECT id FROM answers WHERE category = ? ORDER BY used, id LIMIT ?)"
            count -= connection.execute(query, (category, count - entries + entries // _SLACK)).rowcount
        self._room[category] = min(entries - count, _UNCOUNTED)


class _Partition:
    """The vectors of one partition, in a matrix that grows by doubling."""

    def __init__(self, width: int) -> None:
        import numpy

        self.ids: list[int] = []
        self._rows = numpy.empty((16, width), dtype=numpy.float32)

    @property
    def matrix(self) -> "Vector":
        return self._rows[: len(self.ids)]

    def add(self, identifier: int, vector: "Vector") -> None:
        import numpy

        if len(self.ids) == len(self._rows):
            self._rows = numpy.concatenate([self._rows, numpy.empty_like(self._rows)])
        self._rows[len(self.ids)] = vector
        self.ids.append(identifier)


class Neighbours:
    """Finds the stored questions nearest to one. Not for use from several threads at a time."""

    def __init__(self) -> None:
        self._partitions: OrderedDict[str, _Partition] = OrderedDict()

    def nearest(self, connection: sqlite3.Connection, partition: str, vector: "Vector", *, most: int) -> list[tuple[int, float]]:
        """Ids and cosine similarities of the nearest unit vectors, nearest first. An answer may have been removed since."""
        import numpy

        held = self._refresh(connection, partition, len(vector))
        similarities = held.matrix @ vector
        if len(similarities) > most:
            places = numpy.argpartition(-similarities, most)[:most]
        else:
            places = numpy.arange(len(similarities))
        ordered = places[numpy.argsort(-similarities[places], kind="stable")]
        return [(held.ids[place], float(similarities[place])) for place in ordered]

    def forget(self) -> None:
        """Drop everything from memory."""
        self._partitions.clear()

    def drop(self, partition: str) -> None:
        """Read a partition again when it is next asked for, since answers of it were removed."""
        self._partitions.pop(partition, None)

    def _refresh(self, connection: sqlite3.Connection, partition: str, width: int) -> _Partition:
        import numpy

        held = self._partitions.setdefault(partition, _Partition(width))
        self._partitions.move_to_end(partition)
        if len(self._partitions) > _PARTITIONS:
            self._partitions.popitem(last=False)
        last = held.ids[-1] if held.ids else 0
        query = "SELECT id, vector FROM answers WHERE partition = ? AND id > ? AND vector IS NOT NULL ORDER BY id"
        for identifier, blob in connection.execute(query, (partition, last)):
            vector = numpy.frombuffer(blob, dtype=numpy.float32)
            if len(vector) == width:
                held.add(identifier, vector)
        return held
