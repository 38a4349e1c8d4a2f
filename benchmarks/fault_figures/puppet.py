"""A model that does as it is told, tools that note that they were called, and how tools are declared by what is known of them."""

import inspect
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple
from uuid import uuid4

from nearfar import Source, Tool
from nearfar.protocols import ApprovalRequest, Message, ScriptedAgent, StepRequest, ToolCall
from nearfar.protocols.fakes import Reply

_READING: Final = ("get", "search", "read", "view", "list", "find", "retrieve", "check", "look", "calculate", "think")
_ADDRESSES: Final = ("url", "website", "domain")
_TOLD: Final = ("summary", "thought", "description", "body", "message", "content", "notes")
"""Texts that people read."""


class Parameter(NamedTuple):
    """Of a tool."""

    name: str
    kind: Any
    """Its type."""
    is_required: bool = True


class ToolKind(NamedTuple):
    """What is known of a tool."""

    name: str
    verb: str
    """The first word of its name, without the name of its toolkit."""
    parameters: tuple[Parameter, ...] = ()


class Puppet:
    """Says what stands in `replies`, and then that it is done."""

    def __init__(self) -> None:
        self.agent = ScriptedAgent(self._next)
        self.begin(says_yes=False)

    def begin(self, *, says_yes: bool) -> None:
        """Forget what was. `says_yes`: to whatever is asked."""
        self.agent.requests.clear()
        self.replies: deque[Reply] = deque()
        self.results: defaultdict[str, list[str]] = defaultdict(list)
        """What tools return next, by their names."""
        self.executed: list[str] = []
        """Names of the tools that were called."""
        self.asked: list[ApprovalRequest] = []
        self._says_yes = says_yes

    def play(self, messages: Sequence[Message]) -> None:
        """Make the calls of these messages next, whose tools return what stands there."""
        for message in messages:
            if message.tool_calls:
                self.replies.append(list(message.tool_calls))
            if message.tool_result is not None:
                self.results[message.tool_result.name].append(message.tool_result.content)

    async def approve(self, requests: Sequence[ApprovalRequest]) -> Mapping[str, bool]:
        self.asked.extend(requests)
        return {request.id: self._says_yes for request in requests}

    def call(self, name: str) -> str:
        """What a tool returns."""
        self.executed.append(name)
        return self.results[name].pop(0) if self.results[name] else "done"

    def _next(self, request: StepRequest) -> Reply:
        del request
        return self.replies.popleft() if self.replies else "done"


@cache
def declared_tool(kind: ToolKind, puppet: Puppet, *, source: Source) -> Tool:
    """The tool, declared by the rules that `injection` states."""
    run = _function(kind, puppet)
    names = [each.name for each in kind.parameters]
    sends = "shared" if any(address in name for name in names for address in _ADDRESSES) else "user"
    if kind.verb.lower() in _READING:
        keys = [name for name in names if name.endswith("_id")]
        return Tool(run, source=source, effect="read", sends=sends, sinks=names if sends == "shared" else (), keys=keys)
    return Tool(run, source=source, sends=sends, sinks=[name for name in names if name not in _TOLD])


@cache
def plain_tool(kind: ToolKind, puppet: Puppet) -> Tool:
    """The tool, of which nothing is declared."""
    return Tool(_function(kind, puppet))


def _function(kind: ToolKind, puppet: Puppet) -> Callable[..., str]:
    def run(**arguments: object) -> str:
        del arguments
        return puppet.call(kind.name)

    run.__name__ = kind.name
    signature = [_parameter(each) for each in sorted(kind.parameters, key=lambda each: not each.is_required)]
    run.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]  # what `inspect.signature` reads
    return run


def new_call(name: str, arguments: Mapping[str, object]) -> ToolCall:
    return ToolCall.model_validate({"id": uuid4().hex, "name": name, "arguments": arguments})


def _parameter(parameter: Parameter) -> inspect.Parameter:
    annotation = parameter.kind if parameter.is_required else parameter.kind | None
    default = inspect.Parameter.empty if parameter.is_required else None
    return inspect.Parameter(parameter.name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
