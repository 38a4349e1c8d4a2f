"""Tools of LangChain as tools that agents may call: the schema is LangChain's, the declarations are ours."""

import sys
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeGuard, Unpack

from pydantic import ValidationError

from ...protocols import ConfigError, ToolCall, ToolResult, ToolSpec
from ...protocols.items import Source, Tier
from .tools import Tool, ToolOptions

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

_CALL_ID: Final = "nearfar call id"
"""Keyword by which a call's id reaches the tool; no argument of a tool has such a name."""


class ForeignTool(Protocol):
    """A tool of LangChain."""

    @property
    def name(self) -> str:
        """Return the name that models call it by."""

    @property
    def description(self) -> str:
        """Return what models are told of it."""

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: ANN401 - as LangChain has it
        """Run one call: `input` is the call, `config` and `kwargs` are LangChain's own."""


def is_langchain_tool(given: object) -> "TypeGuard[BaseTool]":
    """Return whether it is a tool of LangChain, which has been loaded wherever there is one."""
    loaded = sys.modules.get("langchain_core.tools")
    return loaded is not None and isinstance(given, loaded.BaseTool)


class LangChainTool(Tool):
    """A tool of LangChain.

    Unless declared otherwise, a call of it must not happen twice, its results are untrusted, and it shows its arguments to others.
    """

    def __init__(self, given: "BaseTool", **options: Unpack[ToolOptions]) -> None:
        """Make a tool of LangChain's tool `given`; `options` are those of `ToolOptions`.

        Raises `ConfigError` if it needs what only a LangGraph agent can give it, such as the agent's state.
        """
        self._given = given
        self._context = None
        _require_complete(given)
        declared: ToolOptions = {"source": Source.EXTERNAL_TOOL, "sends": Tier.SHARED, **options}
        self._describe(self._call_async if _is_async(given) else self._call, langchain_spec(given, options.get("name")), declared)

    async def _outcome(self, call: ToolCall, keywords: dict[str, object]) -> ToolResult:
        return await super()._outcome(call, {**keywords, _CALL_ID: call.id})

    def _call(self, **keywords: object) -> str:
        return _text(self._given.invoke(self._asked(keywords)))

    async def _call_async(self, **keywords: object) -> str:
        return _text(await self._given.ainvoke(self._asked(keywords)))

    def _asked(self, keywords: dict[str, object]) -> Any:  # noqa: ANN401 - a TypedDict of LangChain's
        """Return a call as LangChain has it."""
        call_id = keywords.pop(_CALL_ID, "direct")
        return {"type": "tool_call", "name": self._given.name, "args": keywords, "id": call_id}


def as_tool(given: object) -> Tool | None:
    """Return a tool of ours or LangChain's as ours; None for anything else."""
    return given if isinstance(given, Tool) else LangChainTool(given) if is_langchain_tool(given) else None


def _is_async(given: "BaseTool") -> bool:
    """Return whether the tool has an asynchronous form of its own."""
    from langchain_core.tools import BaseTool

    if hasattr(given, "coroutine"):
        return given.coroutine is not None
    return type(given)._arun is not BaseTool._arun


def langchain_spec(given: "BaseTool", name: str | None = None) -> ToolSpec:
    """Return a tool of LangChain as models see it. Raises `ConfigError` for a `name`, by default its own, that models cannot use."""
    from langchain_core.utils.function_calling import convert_to_openai_tool

    function = convert_to_openai_tool(given)["function"]
    parameters = {"properties": {}, **function.get("parameters", {}), "type": "object"}
    try:
        return ToolSpec(name=name or given.name, description=given.description, parameters=parameters)
    except ValidationError as error:
        hint = "letters, digits, _ and -, at most 64: tool(given, name=...)"
        raise ConfigError(f"{given.name!r} is no name that models can call a tool by", hint=hint) from error


def _require_complete(given: "BaseTool") -> None:
    from langchain_core.tools import InjectedToolCallId

    shown: Any = given.tool_call_schema
    whole: Any = given.get_input_schema()
    if not hasattr(shown, "model_fields") or not hasattr(whole, "model_fields"):
        return
    for name, field in whole.model_fields.items():
        is_call_id = any(part is InjectedToolCallId or isinstance(part, InjectedToolCallId) for part in field.metadata)
        if name not in shown.model_fields and field.is_required() and not is_call_id:
            hint = "give it to a LangGraph agent that ChatNearfar is the model of"
            raise ConfigError(f"tool {given.name!r} needs {name!r}, which only a LangGraph agent can give it", hint=hint)


def _text(returned: object) -> str:
    """Return what a tool returned as text. Raises `ToolException` for what it says of a failure, and for what is no text."""
    from langchain_core.messages import ToolMessage
    from langchain_core.tools import ToolException

    if not isinstance(returned, ToolMessage):
        raise ToolException(f"the tool returned a {type(returned).__name__}, which only a LangGraph agent can follow")
    parts = [{"type": "text", "text": returned.content}] if isinstance(returned.content, str) else returned.content
    texts = [part if isinstance(part, str) else str(part["text"]) for part in parts if isinstance(part, str) or part.get("type") == "text"]
    if len(texts) < len(parts):
        raise ToolException("the tool returned something other than text")
    if returned.status == "error":
        raise ToolException("".join(texts))
    return "".join(texts)
