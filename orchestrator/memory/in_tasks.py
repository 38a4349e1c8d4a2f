"""Use the memory in tasks: put recalled items before a task as quoted data, and write down its result."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...protocols import Message, NearfarError, Sensitivity
from ...protocols.namespaces import ItemAddress
from ...protocols.tiers import Source
from ..task.conversation import last_words
from ..task.labels import Integrity, joined
from ..task.results import Result
from ..task.sections.consolidation import ConsolidationConfig
from ..task.sections.memory import RecallConfig
from ..task.task import Task
from ..task.tools import Tool
from ..util.arguments import as_tuple, require, wrong_type
from .provenance import writing_as
from .recall.episodic import EpisodicMemory
from .recall.turn import Turn, TurnKind
from .recollection import Recollection, label_of_recalled, origin_of, recalled_item
from .relevant import relevant
from .rendering import render

if TYPE_CHECKING:
    from .memory_item import MemoryItem
    from .store import MemoryStore

SCOPE: Final = ("tasks",)
"""The scope below which tasks are written down."""

log = logging.getLogger(__name__)


class TaskMemory:
    """A store as tasks use it.

    `recall` configures which items are put before each task; None: no items. With `remember`, each finished task is written down
    verbatim: the user's words, tool results and model answers, each with its source. A private task stays on this device. A task on
    behalf of another user than the store's recalls that user's and shared items, and is written down as that user's. Agents may call
    `tools` in every task, see `memory_tools`. With `sleep`, a `Hybrid` consolidates the store while it serves no task.
    """

    def __init__(
        self,
        store: "MemoryStore",
        *,
        recall: RecallConfig | None = RecallConfig(),  # noqa: B008 - immutable
        remember: bool = False,
        tools: Sequence[Tool] = (),
        sleep: ConsolidationConfig | None = None,
    ) -> None:
        from .store import MemoryStore

        if not isinstance(store, MemoryStore):
            raise wrong_type("store", store, "a MemoryStore", hint='MemoryStore.open("memory.db") opens one')
        require("recall", recall, RecallConfig, "a RecallConfig or None")
        require("remember", remember, bool, "True or False")
        require("sleep", sleep, ConsolidationConfig, "a ConsolidationConfig or None")
        self.store = store
        self.sleep = sleep
        self._remembers = remember
        self.tools = as_tuple("tools", tools, lambda part: isinstance(part, Tool), "a list of tools", hint="decorate functions with @tool")
        self._recall = recall
        self._episodes = EpisodicMemory(store, SCOPE)

    def recall(self, task: Task, *, may_stay: bool, stays_here: bool) -> Task:
        """Return the task with the items of the memory that are relevant to it. If an item may not leave the device, the task may not
        either.

        A public task that near agents cannot serve (`may_stay` is false) gets only items that may leave the device. If some near agents
        are on other devices of the user (`stays_here` is false), it gets no items of tier `device`. If the store fails, the task
        continues without memory, and its reasons say so. No cache keeps results made from the memory: they would outlive an erasure.
        """
        if self.tools:
            task = task.model_copy(update={"cache": "no-store"})
        if self._recall is None:
            return task
        is_public = task.policy.sensitivity is Sensitivity.PUBLIC
        try:
            found = relevant(self.store.for_user(task.user), last_words(task.messages), self._recall)
        except NearfarError as error:  # the task can do without
            return _with_reasons(task, f"memory: nothing could be recalled: {error.message}")
        is_told = Recollection(Sensitivity.PRIVATE if may_stay else task.policy.sensitivity, (), stays_here=stays_here).may_hear
        allowed = [item for item in found if is_told(item.tier, self._recall)]
        rendered = render(allowed, self._recall.tokens)
        task = _with_reasons(task, *_reasons(rendered.items, withheld=len(found) - len(allowed)))
        if is_public and (kept := [item for item in rendered.items if not self._recall.may_go(item.tier)]):
            tiers = ", ".join(sorted({item.tier.value for item in kept}))
            task = _made_private(task, f"{_items(len(kept))} of the memory that it recalls may not leave the device (tier {tiers})")
        recalled = tuple(map(recalled_item, rendered.items))
        if not recalled:
            return task
        label = task.label.joined(
            joined(label_of_recalled(item, is_private=task.policy.sensitivity is Sensitivity.PRIVATE) for item in recalled)
        )
        return task.model_copy(update={"memory": rendered.text, "recalled": recalled, "cache": "no-store", "label": label})

    def conclude(self, task: Task, result: Result, messages: Sequence[Mapping[str, Any]]) -> Result:
        """Write down the conversation of a finished task; if that fails, the result's reasons say so."""
        return self._write_down(task, result, messages) if self._remembers else result

    def _write_down(self, task: Task, result: Result, messages: Sequence[Mapping[str, Any]]) -> Result:
        lineage = tuple(ItemAddress(item.namespace, item.key) for item in result.recalled)
        session, episodes = task.session or task.idempotency_key, self._episodes
        store = self.store.for_user(task.user)
        if store is not self.store:  # sessions of two users may have one name
            session, episodes = f"{task.user}/{session}", EpisodicMemory(store, SCOPE)
        try:
            for turn in episode(task, messages, result.agent):
                is_users = turn.source is Source.USER
                label = result.label.model_copy(update={"integrity": Integrity.TRUSTED}) if is_users else result.label
                with writing_as(origin_of(label, agent="" if is_users else result.agent, lineage=() if is_users else lineage)):
                    episodes.remember(turn, session)
            episodes.close(session)
        except NearfarError as error:  # its answer is there, and stays
            log.warning("a task could not be written down: %s", type(error).__name__)
            reason = f"memory: the task was not written down: {error.message}"
            return result.model_copy(update={"reasons": (*result.reasons, reason)})
        return result


def episode(task: Task, messages: Sequence[Mapping[str, Any]], agent: str) -> Iterator[Turn]:
    """Yield the turns of a task, each with its source. Tool results may contain untrusted content and count as external."""
    yield Turn(speaker="user", text=last_words(task.messages), source=Source.USER)
    for said in messages[len(task.messages) :]:
        message = Message.model_validate(said)
        if message.tool_result is not None:
            name, text = message.tool_result.name, message.tool_result.content
            yield Turn(speaker=name, text=text, kind=TurnKind.TOOL_RESULT, source=Source.EXTERNAL_TOOL)
        elif message.text.strip():
            yield Turn(speaker=agent, text=message.text, source=Source.MODEL)
        for call in message.tool_calls:
            text = f"{call.name}({json.dumps(call.arguments, ensure_ascii=False)})"
            yield Turn(speaker=agent, text=text, kind=TurnKind.TOOL_CALL, source=Source.MODEL)


def _made_private(task: Task, reason: str) -> Task:
    policy = task.policy.model_copy(update={"sensitivity": Sensitivity.PRIVATE})
    return _with_reasons(task.model_copy(update={"policy": policy}), f"private: {reason}")


def _reasons(items: Sequence["MemoryItem"], *, withheld: int) -> Iterator[str]:
    if items:
        yield f"memory: {_items(len(items))} recalled"
    if withheld:
        yield f"memory: {_items(withheld)} left out, which may not leave the device, since the task may"


def _items(count: int) -> str:
    return f"{count} item{'' if count == 1 else 's'}"


def _with_reasons(task: Task, *reasons: str) -> Task:
    return task.model_copy(update={"reasons": (*task.reasons, *reasons)})
