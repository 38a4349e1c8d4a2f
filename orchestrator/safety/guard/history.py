"""Provenance of the conversation that a task brings along: its calls are judged as if the run had made them."""

import json
from collections.abc import Mapping

from ....protocols import Message, ToolCall, ToolResult
from ...task.labels import Integrity
from ...task.task import Task
from ...task.tools import Effect, Tool
from ..privacy.starting import label_of_result
from .arguments import doubtful
from .choices import is_keyed, was_made
from .grounds import Grounds


class History:
    """The trusted part of the messages before the task begins."""

    def __init__(self, task: Task, tools: Mapping[str, Tool]) -> None:
        self.trusted: list[str] = []
        """Results of trusted tools without influence of untrusted content, and the arguments of calls made before any of it was read."""
        self.chosen: set[str] = set()
        """Tools that were called before untrusted content was read."""
        self.made: list[Message] = []
        """Messages with those calls."""
        self._grounds = Grounds(task.said)
        self._tools = tools
        self._is_clean = task.label.integrity is Integrity.TRUSTED and task.context is None
        self.is_tainted = False
        """Untrusted content has influenced a call that changes something. Its effects may come back from any tool."""
        self._believed: set[str] = set()
        """Ids of the calls whose results are trusted."""
        for message in task.messages:
            self._read(message)

    def _read(self, message: Message) -> None:
        if self._is_clean and message.tool_calls:
            self.made.append(message)
        for call in message.tool_calls:
            self._note(call, self._tools.get(call.name))
        if message.tool_result is None:
            return
        if label_of_result(message, self._tools).integrity is Integrity.UNTRUSTED:
            self._is_clean = False
        elif self._is_believed(message.tool_result):
            self._trust(message.tool_result.content)

    def _note(self, call: ToolCall, tool: Tool | None) -> None:
        if self._is_clean:
            self.chosen.add(call.name)
            self._trust(json.dumps(call.arguments, ensure_ascii=False))
        if tool is None:
            return
        is_grounded = self._is_clean or not doubtful(call, tool, list(call.arguments), self._grounds)
        if not is_grounded:
            self.is_tainted = self.is_tainted or tool.declared.effect is not Effect.READ
        elif self._is_clean or was_made(call, self.made) or is_keyed(call, tool, self._grounds):
            self._believed.add(call.id)

    def _trust(self, text: str) -> None:
        self.trusted.append(text)
        self._grounds = self._grounds.extended([text])

    def _is_believed(self, result: ToolResult) -> bool:
        """Return whether a result is trusted. An error is not: it may quote a call that was never run."""
        return result.call_id in self._believed and not self.is_tainted and not result.is_error
