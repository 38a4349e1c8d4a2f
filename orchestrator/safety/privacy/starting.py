"""The label of what a run begins with, before any agent has acted."""

from collections.abc import Iterator, Mapping

from ....protocols import Message, Sensitivity
from ...memory.item import TRUST, Source, Tier
from ...task.labels import OF_CONTEXT, Integrity, Label, joined
from ...task.task import RecalledItem, Task
from ...task.tools import Tool

THE_TASK = "the task"
"""Origin of what is private because the policy says so of the task."""
_BELIEVED = TRUST[Source.MODEL]
"""From this trust on, what an item of the memory says may be acted upon."""


def starting_label(task: Task, tools: Mapping[str, Tool]) -> Label:
    """Of the task's messages, its context, and what went into it.

    A task is private by its policy. What tools returned earlier in its conversation is labelled as they are declared; whatever comes from
    a tool that nobody knows here, and a context, may have been written by strangers.
    """
    return joined(_labels(task, tools))


def label_of_recalled(item: RecalledItem, *, is_private: bool) -> Label:
    """Of an item of the memory. A task that is public is told only what may leave the device, whatever its tier."""
    is_believed = item.trust >= _BELIEVED
    tier = item.tier if is_private else Tier.SHARED
    whose = f" of user {item.user}" if item.user else ""
    is_plain = is_believed and tier is Tier.SHARED
    return Label(
        tier=tier,
        integrity=Integrity.TRUSTED if is_believed else Integrity.UNTRUSTED,
        origins=() if is_plain else (f"memory {'/'.join((*item.namespace, item.key))}{whose}",),
    )


def _labels(task: Task, tools: Mapping[str, Tool]) -> Iterator[Label]:
    yield task.label
    if task.policy.sensitivity is Sensitivity.PRIVATE:
        yield Label(tier=Tier.USER, origins=(THE_TASK,))
    if task.context is not None:
        yield OF_CONTEXT
    yield from (label_of_result(message, tools) for message in task.messages if message.tool_result is not None)


def label_of_result(message: Message, tools: Mapping[str, Tool]) -> Label:
    """Of a tool's message in a conversation that somebody brought along."""
    assert message.tool_result is not None, "the caller has looked"
    name = message.tool_result.name
    tool = tools.get(name)
    if tool is None:
        return Label(integrity=Integrity.UNTRUSTED, origins=(f"tool {name}",))
    return tool.label_of(message.tool_result)
