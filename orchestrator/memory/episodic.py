"""Episodic memory: turns of sessions, kept verbatim and in order, and found by meaning."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

from langgraph.store.base import GetOp

from ...protocols import InvalidRequest, NotFound, VersionConflict
from ...protocols.items import TIERS, ItemAddress, Namespace, Source, Tier
from .ranking import (
    EPISODIC,
    INDEX,
    SEARCHABLE,
    TEXT,
    Granularity,
    Ranking,
    Said,
    Span,
    TurnMatches,
    episodic,
    keywords,
    rank_turns,
    relevance,
    span,
    turn_key,
)
from .reading import Matches, MemoryItem, Query, Reader, SearchMode, when
from .writing import ABSENT

if TYPE_CHECKING:
    from .basic_store import BasicStore
    from .engine import Vector
    from .store import MemoryStore


_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_SHORTEST: Final = 16
"""The least characters of a sentence that gets a passage of its own."""
_MOST_SENTENCES: Final = 8
"""The most sentences with passages of their own; a longer text is one passage, which the store cuts for the embedder."""
_CONTEXT: Final = 400
"""Characters of the previous turn, from its end."""
_CANDIDATES: Final = 100
"""Hits of each search, by words and by meaning, that are ranked. Twice as many gain nothing."""
_PIECES: Final = 5
"""Number of best pieces of each granularity above the turn, all of whose turns are candidates."""
_WIDEST: Final = 64
"""The most turns of such a piece."""


class TurnKind(StrEnum):
    """The kind of event that a turn records."""

    MESSAGE = "message"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    OUTCOME = "outcome"
    """The outcome of a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTurn:
    """Something that was said, called, returned or achieved."""

    speaker: str
    """The person who said it, or the tool that returned it."""
    text: str
    """The words that were said."""
    kind: TurnKind = TurnKind.MESSAGE
    """A message, a tool call, or a tool result."""
    at: datetime | None = None
    """None: now."""
    source: Source | None = None
    """The source of the turn; None: that of the writer that the store is bound to."""
    tier: Tier | None = None
    """The tier of the turn; None: the tier of writes now."""
    subject: str | None = None
    """The person it is about; None: the subject of the running task."""

    def value(self, session: str, at: datetime, before: str | None) -> dict[str, Any]:
        """Return the stored value of a turn of a `session`, said `at` this moment. `before` is the line of the previous turn, if both may
        be found by it."""
        return {
            "session": session,
            "kind": self.kind.value,
            "speaker": self.speaker,
            "at": at.isoformat(),
            TEXT: self.text,
            SEARCHABLE: passages(self.speaker, self.text, before),
        }


def line(speaker: str, text: str) -> str:
    """Return a turn as readers see it, with its speaker: most questions name one."""
    return f"{speaker}: {text}"


def passages(speaker: str, text: str, before: str | None) -> list[str]:
    """Return the passages by which a turn is found.

    The first is the turn after the previous one, since an answer shares words with its question. The others are its sentences, since a
    turn may say several things.
    """
    own = line(speaker, text)
    sentences = [sentence for sentence in _SENTENCE_END.split(text) if len(sentence) >= _SHORTEST]
    if len(sentences) > _MOST_SENTENCES:
        sentences = []
    return [own if before is None else f"{before[-_CONTEXT:]}\n{own}", *(line(speaker, sentence) for sentence in sentences or [text])]


_SIMILAR: Final = 0.45
"""Cosine similarity of a turn with the mean of its topic's turns, below which it begins another one."""
_FEWEST: Final = 2
"""The fewest turns of a topic, unless privacy or the end of a session cut it."""
_MOST: Final = 8
_LONGEST: Final = 2400
"""Characters of a topic, about 600 tokens."""


@dataclass(slots=True)
class Topic:
    """Consecutive turns about one topic, so far."""

    span: Span
    about: tuple[Tier, str]
    """Tier and subject of all its turns: a turn that differs begins another topic."""
    lines: list[str] = field(default_factory=list)
    vectors: "list[Vector]" = field(default_factory=list)

    def continues(self, line: str, vector: "Vector | None", about: tuple[Tier, str]) -> bool:
        """Return whether a further turn belongs to the topic."""
        if about != self.about or len(self.lines) >= _MOST or sum(map(len, self.lines)) + len(line) > _LONGEST:
            return False
        if len(self.lines) < _FEWEST or vector is None or not self.vectors:
            return True
        mean = sum(self.vectors[1:], self.vectors[0])
        length = math.sqrt(mean @ mean)
        return length > 0 and bool(mean @ vector >= _SIMILAR * length)

    def add(self, line: str, vector: "Vector | None") -> None:
        """Add the next turn."""
        self.span = Span(self.span.session, self.span.first, self.span.first + len(self.lines))
        self.lines.append(line)
        if vector is not None:
            self.vectors.append(vector)


_ALL: Final = 1_000_000
"""More turns than any session has, and than `find` ranks."""
_RECENT: Final = 32
"""Number of recently written turns among which the last one of a session is searched: an earlier one may have been changed since."""


@dataclass(slots=True)
class _Session:
    """A session that is being remembered."""

    following: int = 0
    """Number of the next turn."""
    last: MemoryItem | None = None
    """The turn before the next one."""
    topic: Topic | None = None
    """The turns that are in no segment yet."""


class EpisodicMemory:
    """Sessions of turns. Calls may come from any thread.

    A session is written by one device at a time; if two write the same one, the store keeps both versions as conflicts.
    """

    def __init__(self, store: "MemoryStore", scope: Namespace = ()) -> None:
        self._store = store
        self._scope = scope
        self._turns = episodic(scope, Granularity.TURN)
        self._segments = episodic(scope, Granularity.SEGMENT)
        self._sessions: dict[str, _Session] = {}
        self._lock = RLock()

    def remember(self, turn: MemoryTurn, session: str) -> MemoryItem:
        """Keep a turn after the last one of the session, and return its item.

        The turn can be found at once; together with its neighbours once their topic has ended.
        """
        with self._lock:
            state = self._sessions.get(session) or self._resumed(session)
            self._sessions[session] = state
            item = self._put(turn, session, state)
            self._follow_topic(session, state, item)
            state.last, state.following = item, _number(item) + 1
            return item

    def close(self, session: str) -> None:
        """End or pause a session: from now on, its last topic can be found as a whole."""
        with self._lock:
            state = self._sessions.pop(session, None)
            if state is not None and state.topic is not None:
                self._keep_segment(state.topic)

    def turns(self, session: str) -> list[MemoryItem]:
        """Return all turns of a session in order."""
        return sorted(self._of_session(self._turns, session), key=lambda item: item.key)

    def found(self, question: str, *, limit: int) -> list[MemoryItem]:
        """Return the turns that answer a question best, the best first. A turn's `score` means nothing beyond this order."""
        return find(self._store, self._scope, question, limit=limit)

    def forget(self, session: str, number: int) -> None:
        """Delete a turn, and everything that repeats its words: segments, summaries, and the passages of the next turn.

        It is a deletion like any other, and other devices are told of it. Use `MemoryStore.erase` to remove data from all files.
        """
        with self._lock:
            self.close(session)
            following = self._store.get(self._turns, turn_key(session, number + 1))
            if following is not None:
                alone = passages(following.value["speaker"], following.value[TEXT], None)
                self._store.patch(following.namespace, following.key, {SEARCHABLE: alone})
            for granularity in Granularity:
                for item in self._of_session(episodic(self._scope, granularity), session):
                    about = span(item.key)
                    if about is not None and about.first <= number <= about.last:
                        self._store.delete(item.namespace, item.key)

    def _resumed(self, session: str) -> _Session:
        """Return the state of a session that another process began, or this one closed."""
        recent = self._of_session(self._turns, session, limit=_RECENT)
        last = max(recent, key=lambda item: item.key, default=None)
        while last is not None and (following := self._store.get(self._turns, turn_key(session, _number(last) + 1))):
            last = following
        return _Session() if last is None else _Session(_number(last) + 1, last)

    def _of_session(self, namespace: Namespace, session: str, *, limit: int = _ALL) -> list[MemoryItem]:
        """Return the session's items, the last written first, out of `limit` items whose key begins with its name."""
        found = self._store.search(namespace, key_prefix=f"{session}:", limit=limit)
        return [item for item in found if (about := span(item.key)) is not None and about.session == session]

    def _put(self, turn: MemoryTurn, session: str, state: _Session) -> MemoryItem:
        store = self._store if turn.source is None else self._store.bound(source=turn.source)
        at = turn.at or datetime.now(UTC)
        value = turn.value(session, at, self._line_before(turn, state.last))
        while True:
            key = turn_key(session, state.following)
            try:
                store.put(self._turns, key, value, index=INDEX, tier=turn.tier, subject=turn.subject, if_version=ABSENT)
                break
            except VersionConflict:  # another process writes the same session: this turn comes behind its last one
                state.following += 1
        item = store.get(self._turns, key)
        if item is None:
            raise NotFound(f"turn {key!r} was deleted while it was written", hint="remember it again")
        return item

    def _line_before(self, turn: MemoryTurn, last: MemoryItem | None) -> str | None:
        """Return the line of the turn before, if all who may see this turn may see it, too, and it is erased with this one."""
        origin = self._store.origin
        tier, subject = turn.tier or origin.tier or Tier.DEVICE, origin.subject if turn.subject is None else turn.subject
        if last is None or TIERS.index(last.tier) < TIERS.index(tier) or last.subject != (subject or ""):
            return None
        return line(last.value["speaker"], last.value[TEXT])

    def _follow_topic(self, session: str, state: _Session, item: MemoryItem) -> None:
        text, about = line(item.value["speaker"], item.value[TEXT]), (item.tier, item.subject)
        vector = self._store.meaning(text)
        follows = state.topic is not None and state.topic.span.last + 1 == _number(item)
        if state.topic is not None and not (follows and state.topic.continues(text, vector, about)):
            self._keep_segment(state.topic)
            state.topic = None
        if state.topic is None:
            state.topic = Topic(Span(session, _number(item), _number(item)), about)
        state.topic.add(text, vector)

    def _keep_segment(self, topic: Topic) -> None:
        """Store a segment; the store makes it as private as its turns, and no more trusted."""
        turns = [ItemAddress(self._turns, key) for key in topic.span.turns]
        value = {"session": topic.span.session, TEXT: "\n".join(topic.lines)}
        tier, subject = topic.about
        self._store.bound(lineage=turns).put(self._segments, topic.span.key, value, index=[TEXT], tier=tier, subject=subject)


def _number(item: MemoryItem) -> int:
    about = span(item.key)
    if about is None:
        raise InvalidRequest(f"item {item.key!r} is no turn", hint="keep only turns in this namespace")
    return about.first


def find(store: "BasicStore", scope: Namespace, question: str, *, limit: int) -> list[MemoryItem]:
    """Return the turns that answer a question best, the best first. A turn's `score` means nothing beyond this order."""
    places = [episodic(scope, granularity) for granularity in Granularity]
    answers = store.matches(places, keywords=keywords(question), text=question, limit=_CANDIDATES)
    found = {granularity: _by_key(answer) for granularity, answer in zip(Granularity, answers, strict=True)}
    turns = {address.key: item for address, item in answers[0].items.items()} | _turns_of_pieces(store, scope, found)
    said = {key: Said(str(item.value.get("speaker", "")), str(item.value.get(TEXT, "")), when(item).date()) for key, item in turns.items()}
    best = rank_turns(question, found, said)[:limit]
    for key, score in best:
        turns[key].score = score
    return [turns[key] for key, _ in best]


def _by_key(found: Matches) -> TurnMatches:
    keyword, semantic = ({address.key: score for address, score in scores.items()} for scores in (found.keyword, found.semantic))
    return TurnMatches(keyword, semantic)


def _turns_of_pieces(store: "BasicStore", scope: Namespace, found: Mapping[Granularity, TurnMatches]) -> dict[str, MemoryItem]:
    """Return turns of the best pieces, without those that were found themselves."""
    of_turns = found[Granularity.TURN]
    pieces = (_best_of(matches) for granularity, matches in found.items() if granularity is not Granularity.TURN)
    keys = {turn for best in pieces for key in best for turn in _turns(key)} - of_turns.keyword.keys() - of_turns.semantic.keys()
    place = episodic(scope, Granularity.TURN)
    items = store.batch([GetOp(place, key, refresh_ttl=False) for key in sorted(keys)])
    return {item.key: item for item in items if isinstance(item, MemoryItem)}


def _best_of(matches: TurnMatches) -> list[str]:
    relevances = relevance(*matches)
    return sorted(relevances, key=lambda key: -relevances[key])[:_PIECES]


def _turns(key: str) -> Iterable[str]:
    about = span(key)
    return () if about is None or about.last - about.first >= _WIDEST else about.turns


def ranks_turns(query: Query) -> bool:
    """Return whether a search asks for turns by words and meaning, without conditions that only the engine can evaluate."""
    is_plain = not query.conditions and not query.key_prefix and query.ranking == Ranking() and query.mode is SearchMode.HYBRID
    return is_plain and query.prefix[-2:] == (EPISODIC, Granularity.TURN.value) and bool(query.text and query.text.strip())


def search_turns(store: "BasicStore", reader: Reader, query: Query, *, refresh: bool) -> list[MemoryItem]:
    """Return a page of turns: first those that recall ranks, then all others that the engine finds.

    The first ones do not depend on the page, so pages fit together.
    """
    end = query.offset + query.limit
    best = find(store, query.prefix[:-2], query.text or "", limit=_ALL)
    ordered = [(item.address, item.score) for item in best]
    if len(ordered) < end:
        least, known = best[-1].score if best else None, {item.address for item in best}
        others = reader.search(replace(query, offset=0, limit=end), refresh=False)
        ordered += [(item.address, least) for item in others if item.address not in known]
    page = dict(ordered[query.offset : end])
    items = reader.get(list(page), list(page) if refresh else [])
    for item in (found := [item for item in items if item is not None]):
        item.score = page[item.address]
    return found
