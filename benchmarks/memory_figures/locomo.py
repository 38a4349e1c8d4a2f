"""Evidence recall on LoCoMo: of the turns that answer a question, how many are among those that are recalled for it."""

import re
import sqlite3
import statistics
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from nearfar.orchestrator.memory.recall.agent_memory import AgentMemory
from nearfar.orchestrator.memory.store import MemoryStore

from .locomo_data import CATEGORIES, Conversation, Question, conversations

LIMIT: Final = 10
_QUICK_SESSIONS: Final = 8
_BARS: Final = ("locomo_recall_at_10", "locomo_recall_at_10_multi_hop", "tokens_per_query")
_TUNED_ON: Final = frozenset({"conv-26", "conv-30"})
"""Conversations that weights were chosen on."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one way of searching found for a question."""

    recall: float
    """Share of the turns with the answer that are among what was found."""
    tokens: int = 0
    """Of the text that a model is given, with all that is around the turns."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found for one question."""

    conversation: str
    category: str
    at_10: Found
    in_budget: Found
    """However many turns the default budget has room for."""
    fts5: Found
    """Ten turns by plain FTS5."""
    milliseconds: float
    """That recalling ten turns took, with the embedding of the question."""


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """From a few sessions of one conversation only, if `quick`."""
    found = [one.beginning(_QUICK_SESSIONS) for one in conversations(data)[:1]] if quick else conversations(data)
    if not found:
        return dict.fromkeys(_BARS) | {"locomo_missing": f"no memory/locomo*.json.gz in {data}"}
    outcomes = [outcome for conversation in found for outcome in _outcomes(conversation)]
    return {
        "locomo_conversations": len(found),
        "locomo_sessions": sum(len(one.sessions) for one in found),
        "locomo_questions": len(outcomes),
        **_recalls("locomo_recall_at_10", [(one, one.at_10) for one in outcomes]),
        "tokens_per_query": statistics.mean(one.at_10.tokens for one in outcomes),
        **_recalls("locomo_recall_in_budget", [(one, one.in_budget) for one in outcomes]),
        "tokens_per_query_in_budget": statistics.mean(one.in_budget.tokens for one in outcomes),
        **_recalls("locomo_fts5_recall_at_10", [(one, one.fts5) for one in outcomes]),
        "locomo_recall_ms_p50": statistics.median(one.milliseconds for one in outcomes),
    }


def _recalls(name: str, found: Sequence[tuple[Outcome, Found]]) -> dict[str, float]:
    """Means over questions: of all, of each category, and of conversations that nothing was chosen on."""
    groups = {"": list(found)} | {
        f"_{category}": [pair for pair in found if pair[0].category == category] for category in CATEGORIES.values()
    }
    groups["_held_out"] = [pair for pair in found if pair[0].conversation not in _TUNED_ON]
    return {f"{name}{suffix}": statistics.mean(one.recall for _, one in pairs) for suffix, pairs in groups.items() if pairs}


def _outcomes(conversation: Conversation) -> Iterator[Outcome]:
    with TemporaryDirectory() as folder, MemoryStore.open(Path(folder) / "memory.db") as store, _words(conversation) as words:
        memory = AgentMemory(store)
        names = remember(memory, conversation)
        for question in conversation.questions:
            started = time.perf_counter()
            ten = memory.recall(question.text, limit=LIMIT)
            milliseconds = (time.perf_counter() - started) * 1000
            ten_found, all_found = (
                Found(recall(question, {names[item.key] for item in one.items}), one.tokens) for one in (ten, memory.recall(question.text))
            )
            fts5 = Found(recall(question, _plain(words, question)))
            yield Outcome(conversation.name, question.category, ten_found, all_found, fts5, milliseconds)


def remember(memory: AgentMemory, conversation: Conversation) -> dict[str, str]:
    """Let the memory go through the conversation; the names of the turns, by key."""
    names: dict[str, str] = {}
    for session, turns in conversation.sessions.items():
        names |= {memory.remember(turn, session).key: name for name, turn in turns.items()}
        memory.episodes.close(session)
    return names


def recall(question: Question, found: AbstractSet[str]) -> float:
    """Share of the turns with the answer that are among those that were found."""
    return len(question.evidence & found) / len(question.evidence)


@contextmanager
def _words(conversation: Conversation) -> Iterator[sqlite3.Connection]:
    """Plain FTS5: a table of the same texts, with English stemming."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE VIRTUAL TABLE turns USING fts5(name UNINDEXED, text, tokenize='porter unicode61')")
        said = ((name, f"{turn.speaker}: {turn.text}") for turns in conversation.sessions.values() for name, turn in turns.items())
        connection.executemany("INSERT INTO turns VALUES (?, ?)", said)
        yield connection


def _plain(words: sqlite3.Connection, question: Question) -> set[str]:
    query = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", question.text))
    found = words.execute("SELECT name FROM turns WHERE turns MATCH ? ORDER BY rank LIMIT ?", (query, LIMIT))
    return {name for (name,) in found}
