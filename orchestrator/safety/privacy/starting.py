"""The label that a run begins with, before any agent has acted."""

from collections.abc import Iterator, Mapping

from ....protocols import Message, Sensitivity
from ....protocols.tiers import Tier
from ...task.labels import OF_CONTEXT, Integrity, Label, join_labels
from ...task.task import Task
from ...task.tools import Tool

THE_TASK = "the task"
"""Origin of a label that is private because the policy says so of the task."""


def starting_label(task: Task, tools: Mapping[str, Tool]) -> Label:
    """Return the label of the task's messages, its context, and its other inputs.

    A task is private by its policy. Tool results in its conversation are labelled as their tools are declared. Results of unknown tools,
    and
    the context, are untrusted content.
    """
    return join_labels(_labels(task, tools))


def _labels(task: Task, tools: Mapping[str, Tool]) -> Iterator[Label]:
    yield task.label
    if task.policy.sensitivity is Sensitivity.PRIVATE:
        yield Label(tier=Tier.USER, origins=(THE_TASK,))
    if task.context is not None:
        yield OF_CONTEXT
    yield from (label_of_result(message, tools) for message in task.messages if message.tool_result is not None)


def label_of_result(message: Message, tools: Mapping[str, Tool]) -> Label:
    """Return the label of a tool's message in the conversation that a task brings along."""
    assert message.tool_result is not None, "the caller has looked"
    name = message.tool_result.name
    tool = tools.get(name)
    if tool is None:
        return Label(integrity=Integrity.UNTRUSTED, origins=(f"tool {name}",))
    return tool.label_of(message.tool_result)
