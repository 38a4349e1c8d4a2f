"""Prompts of the subtasks strategy. The embedded models are trained on exactly these words, so keep both in step.

Instructions stand first and what grows stands last, as in `prompts`. Work is shown as in a transcript: the question, then a line that
starts with `=` for its result.
"""

import json
from collections.abc import Sequence

from ...protocols import JsonSchema, Message
from ...protocols.messages import Value
from ..task.labels import Label

PLAN_SUBTASKS = (
    "Cut the task into subtasks. Reply with JSON only: "
    '{"subtasks": [{"id": "a", "task": "...", "needs": []}, {"id": "b", "task": "...", "needs": ["a"]}]}. '
    "Each task must make sense on its own; a subtask is shown the results of those in its needs and of no others. "
    "Leave needs empty where it can start at once. The last subtask gives the answer. "
    "Do not carry them out. A task that cannot be cut is a single subtask."
)
AGGREGATE = "Answer the task from the results of its subtasks. Where one has failed, answer with what is there and say what is missing."

SUBTASKS_SCHEMA: JsonSchema = {
    "type": "object",
    "properties": {
        "subtasks": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "task": {"type": "string"},
                    "needs": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["id", "task", "needs"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["subtasks"],
    "additionalProperties": False,
}
"""The reply to `plan_subtasks_request`; what a schema cannot say (known needs, no cycle) is checked afterwards."""


class SubtaskResult(Value):
    """The result of a subtask."""

    task: str
    """The subtask's own text."""
    answer: str
    """Its answer, or why there is none."""
    is_failed: bool = False
    label: Label = Label()
    """The label of all that the subtask's agents were told."""


def plan_subtasks_request(task: str, *, maximum_subtasks: int) -> tuple[Message, ...]:
    """Ask for the subtasks of a task."""
    return (Message.system(f"{PLAN_SUBTASKS} At most {maximum_subtasks} subtasks."), Message.user(task))


def with_results(subtask: str, results: Sequence[SubtaskResult]) -> str:
    """Return a subtask's prompt, with the results of those that it needs."""
    return f"{subtask}\n\nResults:\n{_lines(results)}" if results else subtask


def aggregate_request(task: str, results: Sequence[SubtaskResult]) -> tuple[Message, ...]:
    """Ask for the answer to the task from what its subtasks came to."""
    return (Message.system(AGGREGATE), Message.user(f"{task}\n\nResults:\n{_lines(results)}"))


def answer_form(schema: JsonSchema) -> str:
    """Return the text to append to a task whose answer must be JSON: not every agent can be made to keep to a schema."""
    return f"\n\nThe answer must be JSON that is valid against this schema: {json.dumps(schema)}"


def _lines(results: Sequence[SubtaskResult]) -> str:
    return "\n".join(f"{result.task}\n{'= failed: ' if result.is_failed else '= '}{result.answer}" for result in results)
