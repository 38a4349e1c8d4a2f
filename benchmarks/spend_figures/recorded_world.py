"""Recorded tasks as scripted agents replay them: far's steps, near's proposals at each, and what near proposes behind a wrong one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nearfar import Message, StepRequest, ToolCall, tool
from nearfar.orchestrator.task.tools import Effect, Tool
from nearfar.protocols import Finished, FinishReason, ToolChoice, Usage
from nearfar.protocols.fakes import Reply

from .proposals import Said

_READING: Final = ("search", "open", "find_", "read_")
_OFF: Final = "off"
_ADDED: Final = 30
"""Tokens by which a call and its result lengthen a conversation."""


def tools_of(tasks: Sequence["RecordedTask"]) -> list[Tool]:
    """Return the tools that the tasks call. Those that read tell what is there, and the others say that it is done."""
    names = {name for task in tasks for name in task.tool_names}
    return [_reading(name) if name.startswith(_READING) else _changing(name) for name in sorted(names)]


def _reading(name: str) -> Tool:
    @tool(name=name, effect=Effect.READ, source="internal_tool")
    async def look(at: str) -> str:
        """Look at a place."""
        if at.endswith("failed"):
            raise LookupError(f"there is no {at}")
        return f"seen {at}"

    return look


def _changing(name: str) -> Tool:
    @tool(name=name, effect=Effect.AT_MOST_ONCE, source="internal_tool")
    async def change(at: str) -> str:
        """Change a place."""
        if at.endswith("failed"):
            raise LookupError(f"there is no {at}")
        return f"{name} done"

    return change


@dataclass(frozen=True)
class RecordedTask:
    """One task, of which the models' steps are known. Calls name the step at which they were made, which tells where a request is."""

    steps: Sequence[Mapping[str, Any]]

    @property
    def tool_names(self) -> set[str]:
        """Return the names of all tools that far or near has called."""
        proposals = [said for step in self.steps for said in step["near"]]
        beyond = [said for proposal in proposals for step in proposal[3:] for near in step for said in near]
        return {name for step in self.steps for name in step["far"]} | {name for said in (*proposals, *beyond) for name in said[0]}

    def far(self, request: StepRequest) -> Reply:
        """Return far's step."""
        number, off = self._place(request)
        items = ("It was asked in vain.",) if off else self._far_calls(number)
        reason = _reason(() if off else self.steps[number]["far"])
        return (*items, Finished(reason=reason, usage=self.usage(request), model="far"))

    def usage(self, request: StepRequest) -> Usage:
        """Return the tokens of far's reply. A step off its way has those of the step where near left it, and what near has added."""
        number, off = self._place(request)
        before, written = self.steps[number]["usage"]
        return Usage(input_tokens=before + off * _ADDED, output_tokens=written)

    def _far_calls(self, number: int) -> tuple[str | ToolCall, ...]:
        step = self.steps[number]
        if not step["far"]:
            return ("It is done.",)
        return _calls(step["far"], f"{number}/failed" if step.get("failed") else str(number))

    def near(self, request: StepRequest) -> Reply:
        """Return near's step, or the call that it makes if it has to."""
        number, off = self._place(request)
        said = self._said(number, off)
        place = int(request.tool_choice is ToolChoice.REQUIRED)
        if place >= len(said):
            return "I do not know."
        names, confidence, *judged = said[place]
        if not names:
            items: tuple[str | ToolCall, ...] = ("It is done.",)
        elif judged and judged[0]:
            items = self._far_calls(number)
        else:
            is_last = off >= len(self._beyond(number))
            items = _calls(names, f"{number}/{_OFF}{off}/{'failed' if is_last else ''}")
        return (*items, Finished(reason=_reason(names), usage=Usage(input_tokens=9, output_tokens=9), model="near", confidence=confidence))

    def _said(self, number: int, off: int) -> list[Said]:
        """Return what near has said at a step of far, or `off` steps beyond it."""
        if not off:
            return list(self.steps[number]["near"])
        beyond = self._beyond(number)
        return list(beyond[off - 1]) if off <= len(beyond) else []

    def _beyond(self, number: int) -> list[list[Said]]:
        near = self.steps[number]["near"]
        return list(near[-1][3]) if near and len(near[-1]) > 3 else []

    def _place(self, request: StepRequest) -> tuple[int, int]:
        """Return the step of far that a request stands at, and how many steps beyond a wrong proposal it is."""
        made = [message for message in request.messages if message.tool_calls]
        off = sum(_is_off(message) for message in made)
        return len(made) - off, off


def _is_off(message: Message) -> bool:
    return f"/{_OFF}" in str(message.tool_calls[0].arguments["at"])


def _calls(names: Sequence[str], at: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(id=f"{at}-{place}", name=name, arguments={"at": f"{place}/{at}"}) for place, name in enumerate(names))


def _reason(names: Sequence[str]) -> FinishReason:
    return FinishReason.TOOL_CALLS if names else FinishReason.STOP
