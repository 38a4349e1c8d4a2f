"""`PlanCache`: plans that worked, without what their tasks named, for later tasks of the same intent (Agentic Plan Caching, arXiv
2506.14852). An answer seldom fits two tasks of agents; a plan often does."""

import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import anyio.to_thread

from ...protocols import StoreError
from ..task import scope_of
from ..task.modes import Strategy
from ..task.stores import CacheConfig
from ..util.text import fingerprint
from .database import CacheDatabase, clearings
from .guards import Canonical
from .thresholds import NOTHING, PLANS, Saved, count

if TYPE_CHECKING:
    from ..task import Task

logger = logging.getLogger(__name__)

_SPECIFIC: Final = re.compile(
    r"\"[^\"\n]+\"|\u201c[^\u201d\n]+\u201d|\u00ab[^\u00bb\n]+\u00bb|(?<!\w)'[^'\n]+'(?!\w)"
    r"|\b(?:https?://|www\.)\S+|\b[\w.+-]+@[\w-]+\.[\w.]+"
    r"|\d+(?:[.,:/-]\d+)*"
    r"|(?<![.!?:\n]\s)(?<=\s)[^\W\d_a-z]\w*(?:[ -][^\W\d_a-z]\w*)*"
)
"""Quotations, addresses, numbers and dates, and names: words with a capital inside of a sentence."""
_NUMBERING: Final = re.compile(r"^\s*(?:\d+[.)]|[-*])\s*", re.MULTILINE)
_SLOT: Final = "\u27e8{}\u27e9"
_GAP: Final = "\u27e8\u27e9"
_PLACED: Final = re.compile(rf"(?:\b(?:in|on|at) )?{_GAP}")
"""A gap with the preposition that a date or a place takes with it."""
_ANY_SLOT: Final = re.compile("\u27e8(\\d+)\u27e9")


@dataclass(frozen=True, slots=True)
class TaskIntent:
    """A task in two parts."""

    words: tuple[str, ...]
    """The words that carry meaning, sorted; equal for tasks of one intent."""
    specifics: tuple[str, ...]
    """The names, numbers, dates and quotations of the task, in its order, each once."""

    @classmethod
    def of(cls, task: str) -> Self:
        """Take a task apart."""
        specifics = tuple(dict.fromkeys(found[0] for found in _SPECIFIC.finditer(task) if _is_specific(found[0])))
        gaps = _SPECIFIC.sub(lambda found: _GAP if _is_specific(found[0]) else found[0], task)
        rest = Canonical.of(_PLACED.sub(" ", gaps))
        return cls(tuple(sorted(" ".join(rest.words).split())), specifics)

    def template(self, plan: str) -> str:
        """Return the plan with slots in place of what the task names."""
        return "\n".join(self._template_line(line) for line in plan.split("\n"))

    def _template_line(self, line: str) -> str:
        numbering = _NUMBERING.match(line)
        start = 0 if numbering is None else numbering.end()
        body = line[start:]
        for place in sorted(range(len(self.specifics)), key=lambda each: -len(self.specifics[each])):
            bare = _bare(self.specifics[place])
            body = re.sub(rf"(?<!\w){re.escape(bare)}(?!\w)", _SLOT.format(place), body)
        return line[:start] + body

    def fill(self, template: str) -> str:
        """Return the plan for this task. A slot that it has nothing for is left open."""
        return _ANY_SLOT.sub(lambda slot: self._name_at(int(slot[1]), slot[0]), template)

    def _name_at(self, place: int, slot: str) -> str:
        return _bare(self.specifics[place]) if place < len(self.specifics) else slot


def _bare(specific: str) -> str:
    return specific.strip("\"'\u201c\u201d\u00ab\u00bb")


def _is_specific(found: str) -> bool:
    """Return whether a match of `_SPECIFIC` is a name, and not `I` or a word of a script without capitals."""
    return not found[0].isalpha() or (found[0].isupper() and found != "I") or _kind(found) == "address"


def is_complete(plan: str) -> bool:
    """Return whether no slot of a plan is open."""
    return _ANY_SLOT.search(plan) is None


def with_open_slots(plan: str) -> str:
    """Return a plan for a model to read, with open slots in the form that plans of `pevr` use for unknown values."""
    return _ANY_SLOT.sub("<...>", plan)


def kinds_of(specifics: Sequence[str]) -> tuple[str, ...]:
    """Return the kind of each specific: a number, a quotation, an address or a name."""
    return tuple(_kind(specific) for specific in specifics)


def _kind(specific: str) -> str:
    if specific[0].isdigit():
        return "number"
    if specific[0] in "\"'\u201c\u00ab":
        return "quotation"
    return "address" if "@" in specific or "/" in specific else "name"


def draft_objection(task: str, plan: str) -> str | None:
    """Return the reason to distrust a plan for a task, or None: it repeats itself, or does not name all that the task names."""
    steps = _NUMBERING.sub("", plan).split("\n")
    places = range(len(steps))
    if any(steps[at : at + size] == steps[at + size : at + 2 * size] for size in places[1:] for at in places):
        return "it repeats itself"
    named = [_bare(specific) for specific in TaskIntent.of(task).specifics]
    missing = [name for name in named if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", plan) is None]
    if not named:
        return "the task names nothing that it could be held against"
    return f"it does not name {', '.join(missing)}" if missing else None


@dataclass(frozen=True, slots=True)
class RecalledPlan:
    """A plan of an earlier task, as far as it could be fitted to this one."""

    plan: str
    is_complete: bool
    """False: a model has to fit it to what this task names."""


class PlanCache:
    """Plans in the file of a cache. A file that fails is passed over with a warning: the plan is made as without it."""

    def __init__(self, database: CacheDatabase, settings: CacheConfig, *, now: Callable[[], float] = time.time) -> None:
        self._database = database
        self._settings = settings
        self._now = now

    async def recall(self, task: "Task", tools: Iterable[str]) -> RecalledPlan | None:
        """Return the plan of an earlier task that wanted the same; None where there is none, or the task asks for no-store."""
        intent = TaskIntent.of(_text(task))
        if task.cache == "no-store" or not intent.words:
            return None
        stored = await self._try_cache(lambda: self._find(intent_key(task, intent, tools)))
        if stored is None:
            return None
        template, named = stored
        if kinds_of(intent.specifics) != named:
            return RecalledPlan(with_open_slots(template), is_complete=False)
        plan = intent.fill(template)
        return RecalledPlan(with_open_slots(plan), is_complete=is_complete(plan))

    async def clearings(self) -> int | None:
        """Return how often the cache has been emptied; None where its file fails."""
        found: int | None = await self._try_cache(self._clearings)
        return found

    async def conclude(self, task: "Task", tools: Iterable[str], state: Mapping[str, Any] | None, *, since: int | None) -> None:
        """Learn from a task that has ended: keep the plan that it went well by, and drop the stored one where it did not.

        `state` is the final one of its graph; None where the task failed. `since` is what `clearings` was when it began: what was made
        before the cache was emptied is not kept.
        """
        intent = TaskIntent.of(_text(task))
        if task.policy.strategy not in (Strategy.PEVR, Strategy.SUBTASKS) or task.cache == "no-store" or not intent.words:
            return
        key = intent_key(task, intent, tools)
        plan = None if state is None else _plan_of(task.policy.strategy, state)
        if state is None or not _went_well(state):
            await self._try_cache(lambda: self._drop(key))
        elif plan is not None:
            took = _planning_cost([call for call in state["calls"] if call["role"] == "plan"])
            await self._try_cache(lambda: self._confirm(key) if took is None else self._keep(key, intent, plan, took, since))

    def _clearings(self) -> int:
        with self._database.reading() as connection:
            return clearings(connection)

    def _find(self, key: str) -> tuple[str, tuple[str, ...]] | None:
        with self._database.reading() as connection:
            row = connection.execute("SELECT plan FROM plans WHERE key = ? AND expires > ?", (key, self._now())).fetchone()
        if row is None:
            return None
        stored = json.loads(row[0])
        return stored["template"], tuple(stored["kinds"])

    def _confirm(self, key: str) -> None:
        """Count a task that went well by a stored plan, and the saved cost of planning."""
        with self._database.transaction() as connection:
            saved = connection.execute("SELECT tokens, dollars, seconds FROM plans WHERE key = ?", (key,)).fetchone()
            count(connection, PLANS, "exact", saved or NOTHING)
            connection.execute("UPDATE plans SET used = ? WHERE key = ?", (self._now(), key))

    def _keep(self, key: str, intent: TaskIntent, plan: str, took: Saved, since: int | None) -> None:
        stored = json.dumps({"template": intent.template(plan), "kinds": kinds_of(intent.specifics)})
        now = self._now()
        with self._database.transaction() as connection:
            count(connection, PLANS, "miss", NOTHING)
            if clearings(connection) != since:
                return
            row = (key, stored, *took, now + self._settings.time_to_live, now)
            connection.execute("INSERT OR REPLACE INTO plans VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            connection.execute("DELETE FROM plans WHERE expires <= ?", (now,))
            oldest = "SELECT key FROM plans ORDER BY used DESC LIMIT -1 OFFSET ?"
            connection.execute(f"DELETE FROM plans WHERE key IN ({oldest})", (self._settings.entries,))

    def _drop(self, key: str) -> None:
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM plans WHERE key = ?", (key,))

    async def _try_cache(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the work gives
        try:
            return await anyio.to_thread.run_sync(work)
        except StoreError as error:
            logger.warning("plans are made without the cache: %s", error)
            return None


def _text(task: "Task") -> str:
    return task.messages[-1].text


def intent_key(task: "Task", intent: TaskIntent, tools: Iterable[str]) -> str:
    """Return the hash of what tasks must share to share a plan or a prior: intent, user, policy, privacy, tools, and all earlier turns."""
    scope = scope_of(task)
    earlier = [message.model_dump(mode="json", exclude={"state"}) for message in task.messages[:-1]]
    return fingerprint([[*intent.words], scope.user, scope.policy, scope.task_class, [*sorted(tools)], [*earlier], task.output_schema])


def _went_well(state: Mapping[str, Any]) -> bool:
    """Return whether the first agent's answer was accepted, and no supervisor intervened."""
    intervened = any(call["verdict"] == "intervene" and not call["shadow"] for call in state["calls"])
    return not intervened and all(attempt["outcome"] == "accepted" for attempt in state["attempts"])


def _planning_cost(calls: Sequence[Mapping[str, Any]]) -> Saved | None:
    """Return what planning has cost; None where no agent was asked for a plan."""
    if not calls:
        return None
    tokens = sum(call["usage"]["input_tokens"] + call["usage"]["output_tokens"] for call in calls)
    return tokens, sum(float(call["dollars"] or 0) for call in calls), sum(call["seconds"] for call in calls)


def _plan_of(strategy: Strategy, state: Mapping[str, Any]) -> str | None:
    """Return the plan that the task was served by; None if there was none."""
    if strategy is Strategy.PEVR:
        return state.get("guidance") or None
    plan = (state.get("subtasks") or {}).get("plan")
    return None if plan is None else json.dumps(plan, ensure_ascii=False, indent=1)
