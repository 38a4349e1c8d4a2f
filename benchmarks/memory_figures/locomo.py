"""Evidence recall on LoCoMo: of the turns that answer a question, how many are among those that are recalled for it.

Every figure names the call that it is of:

    locomo_recall_at_10       AgentMemory.recall(question, limit=10)
    locomo_recall_in_budget   AgentMemory.recall(question): as many turns as 1,200 tokens have room for
    locomo_task               a task of `Hybrid(memory=store)`, with the bar of `RecallConfig` and its 1,200 tokens
    locomo_tool               the tool `recall` of `memory_tools`, with the same
    locomo_search_turns       MemoryStore.search(("episodic", "turn"), query=question, limit=10)
    locomo_search             MemoryStore.search((), query=question, limit=10) over turns that were put as plain items
    locomo_fts5_recall_at_10  ten of the same plain items by SQLite's FTS5

`..._held_out` is of the conversations on which nothing was chosen.
"""

import json
import re
import sqlite3
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from langgraph.store.base import PutOp

from nearfar.orchestrator.compression.conversation import estimated_tokens
from nearfar.orchestrator.memory.agent_memory import AgentMemory
from nearfar.orchestrator.memory.episodic import MemoryTurn, line
from nearfar.orchestrator.memory.in_tasks import TaskMemory, memory_tools
from nearfar.orchestrator.memory.ranking import Granularity, episodic
from nearfar.orchestrator.memory.store import MemoryStore
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.tools import Tool
from nearfar.orchestrator.util.text import escape_text
from nearfar.protocols import Message
from nearfar.protocols.items import Tier

from .locomo_data import CATEGORIES, Conversation, Question, conversations

LIMIT: Final = 10
_QUICK_SESSIONS: Final = 8
_BARS: Final = ("locomo_recall_at_10", "locomo_recall_at_10_multi_hop", "locomo_task", "locomo_search", "tokens_per_query")
_TUNED_ON: Final = frozenset({"conv-26", "conv-30", "conv-41"})
"""Conversations that weights were chosen on."""
_TURNS: Final = episodic((), Granularity.TURN)


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
    found: Mapping[str, Found]
    """By the name of the figure."""
    milliseconds: float
    """That recalling ten turns took, with the embedding of the question."""


@dataclass(frozen=True, slots=True)
class _Doors:
    """The ways to what was said in one conversation."""

    conversation: Conversation
    memory: AgentMemory
    names: Mapping[str, str]
    """Of the turns, by key."""
    store: MemoryStore
    task: TaskMemory
    tool: Tool
    plain: MemoryStore
    words: sqlite3.Connection


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """From a few sessions of one conversation only, if `quick`."""
    found = [one.beginning(_QUICK_SESSIONS) for one in conversations(data)[:1]] if quick else conversations(data)
    if not found:
        return dict.fromkeys(_BARS) | {"locomo_missing": f"no memory/locomo*.json.gz in {data}"}
    outcomes = [outcome for conversation in found for outcome in _outcomes(conversation)]
    recalls = [_recalls(name, [(one, one.found[name]) for one in outcomes]) for name in outcomes[0].found]
    tokens = {name: statistics.mean(one.found[name].tokens for one in outcomes) for name in outcomes[0].found}
    return {
        "locomo_conversations": len(found),
        "locomo_sessions": sum(len(one.sessions) for one in found),
        "locomo_questions": len(outcomes),
        **{name: recall for group in recalls for name, recall in group.items()},
        "tokens_per_query": tokens["locomo_recall_at_10"],
        "tokens_per_query_in_budget": tokens["locomo_recall_in_budget"],
        "tokens_per_task": tokens["locomo_task"],
        "tokens_per_tool_call": tokens["locomo_tool"],
        "locomo_recall_ms_p50": statistics.median(one.milliseconds for one in outcomes),
    }


def _recalls(name: str, found: Sequence[tuple[Outcome, Found]]) -> dict[str, float]:
    """Means over questions, of all and of each category; and the same of conversations that nothing was chosen on."""
    held_out = [pair for pair in found if pair[0].conversation not in _TUNED_ON]
    means: dict[str, float] = {}
    for split, pairs in (("", found), ("_held_out", held_out)):
        groups = {"": list(pairs)} | {f"_{one}": [pair for pair in pairs if pair[0].category == one] for one in CATEGORIES.values()}
        means |= {
            f"{name}{group}{split}": statistics.mean(one.recall for _, one in of_group) for group, of_group in groups.items() if of_group
        }
    return means


def _outcomes(conversation: Conversation) -> Iterator[Outcome]:
    with _opened(conversation) as doors:
        for question in conversation.questions:
            started = time.perf_counter()
            doors.memory.recall(question.text, limit=LIMIT)
            milliseconds = (time.perf_counter() - started) * 1000
            yield Outcome(conversation.name, question.category, _found(doors, question), milliseconds)


def _found(doors: _Doors, question: Question) -> dict[str, Found]:
    def of(keys: Iterable[str], tokens: int = 0) -> Found:
        return Found(recall(question, {doors.names.get(key, key) for key in keys}), tokens)

    ten, budget = doors.memory.recall(question.text, limit=LIMIT), doors.memory.recall(question.text)
    task = doors.task.recall(Task(messages=(Message(role="user", text=question.text),)), may_stay=True, stays_here=True)
    told = str(doors.tool(question.text))
    turns = doors.store.search(_TURNS, query=question.text, limit=LIMIT)
    plain = doors.plain.search((), query=question.text, limit=LIMIT)
    return {
        "locomo_recall_at_10": of((item.key for item in ten.items), ten.tokens),
        "locomo_recall_in_budget": of((item.key for item in budget.items), budget.tokens),
        "locomo_task": of((item.key for item in task.recalled), estimated_tokens(task.memory or "")),
        "locomo_tool": of(_quoted(doors.conversation, told), estimated_tokens(told)),
        "locomo_search_turns": of(item.key for item in turns),
        "locomo_search": of(item.key for item in plain),
        "locomo_fts5_recall_at_10": of(_plain(doors.words, question)),
    }


def _quoted(conversation: Conversation, told: str) -> Iterator[str]:
    """The names of the turns that a text quotes: all that the tool says is text."""
    for name, turn in _said(conversation):
        if escape_text(json.dumps(line(turn.speaker, turn.text), ensure_ascii=False)) in told:
            yield name


def _said(conversation: Conversation) -> Iterator[tuple[str, MemoryTurn]]:
    for turns in conversation.sessions.values():
        yield from turns.items()


@contextmanager
def _opened(conversation: Conversation) -> Iterator[_Doors]:
    """Stores that know the conversation. All of it may leave the device, or the tool would tell nothing outside of a task."""
    with TemporaryDirectory() as name, _words(conversation) as words:
        folder = Path(name)
        with MemoryStore.open(folder / "memory.db", tier=Tier.SHARED) as store, MemoryStore.open(folder / "plain.db") as plain:
            memory = AgentMemory(store)
            names = remember(memory, conversation)
            plain.batch([PutOp(("turns",), name, {"text": line(turn.speaker, turn.text)}) for name, turn in _said(conversation)])
            yield _Doors(conversation, memory, names, store, TaskMemory(store), memory_tools(store)[1], plain, words)


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
        said = ((name, line(turn.speaker, turn.text)) for name, turn in _said(conversation))
        connection.executemany("INSERT INTO turns VALUES (?, ?)", said)
        yield connection


def _plain(words: sqlite3.Connection, question: Question) -> set[str]:
    query = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", question.text))
    found = words.execute("SELECT name FROM turns WHERE turns MATCH ? ORDER BY rank LIMIT ?", (query, LIMIT))
    return {name for (name,) in found}
