"""Episodic memory: turns of sessions, kept verbatim and in order, and found by meaning."""

import math
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

from ...protocols import InvalidRequest, NotFound, VersionConflict
from ...protocols.items import TIERS, ItemAddress, Namespace, Source, Tier
from .ranking import INDEX, SEARCHABLE, TEXT, Granularity, Span, episodic, span, turn_key
from .reading import MemoryItem
from .retrieval import find
from .store import MemoryStore
from .writing import ABSENT

if TYPE_CHECKING:
    from .engine import Vector


_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_SHORTEST: Final = 16
"""The least characters of a sentence that gets a passage of its own."""
_MOST_SENTENCES: Final = 8
"""The most sentences with passages of their own; a longer text is one passage, which the store cuts for the embedder."""
_CONTEXT: Final = 400
"""Characters of the previous turn, from its end."""


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
"""More turns than any session has."""
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

    def __init__(self, store: MemoryStore, scope: Namespace = ()) -> None:
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
