"""Content and tools in the forms of others: messages of OpenAI, Anthropic and LangChain, and LangChain's tools."""

import sys
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeGuard, Unpack
from urllib.parse import unquote_to_bytes

from pydantic import ValidationError

from ...protocols import Attachment, ConfigError, InvalidRequest, ToolCall, ToolResult, ToolSpec, Unsupported
from ...protocols.attachments import ATTACHMENT_MARK
from ...protocols.items import Source, Tier
from .tools import Tool, ToolOptions

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

Content = tuple[str, tuple[Attachment, ...]]
"""The text of a message, with marks at the places of its attachments, and the attachments."""
_TEXTS: Final = ("text", "input_text", "output_text")
_ATTACHED: Final = ("image_url", "input_image", "image", "file", "input_file", "document", "text-plain", "media")
_NESTED: Final = ("image_url", "file", "source")
"""Keys under which the data may stand in an object of their own."""
_DATA: Final = ("image_url", "url", "file_data", "data", "base64", "text", "file_url", "file_id", "file_uri")
"""Keys of the data, or of a link to it."""
_HINT: Final = '{"type": "text", "text": "..."} or {"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}'
_LINK_HINT: Final = "send its bytes, as a data: URL or as base64: nearfar fetches nothing"
_CALL_ID: Final = "nearfar call id"
"""Keyword by which a call's id reaches the tool; no argument of a tool has such a name."""


def read_content(content: object, where: str) -> Content:
    """Return the text and the attachments of a content: a string, or a list of parts.

    `where` names it in errors. Raises `InvalidRequest` for what is malformed, and `Unsupported` for a link and for a kind of file that no
    agent reads.
    """
    if content is None or isinstance(content, str):
        return content or "", ()
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidRequest(f"{where} must be text, not {type(content).__name__}", hint=_HINT)
    parts = [_part(part, f"{where}[{place}]") for place, part in enumerate(content)]
    attachments = tuple(part for part in parts if isinstance(part, Attachment))
    if not attachments:
        return "".join(map(str, parts)), ()
    marked = (ATTACHMENT_MARK if isinstance(part, Attachment) else part.replace(ATTACHMENT_MARK, "") for part in parts)
    return "".join(marked).rstrip(ATTACHMENT_MARK), attachments


def _part(part: object, where: str) -> str | Attachment:
    if isinstance(part, (str, Attachment)):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if isinstance(part, Mapping) and kind in _TEXTS and isinstance(text := part.get("text"), str):
        return text
    if not isinstance(part, Mapping) or kind not in _ATTACHED:
        raise InvalidRequest(f"{where} is {kind!r}, and agents read texts, images and documents alone", hint=_HINT)
    return _file(part, where)


def _file(part: Mapping[Any, Any], where: str) -> str | Attachment:
    """Return a document of plain text as text, which every agent can read, and any other one as an attachment."""
    body = {**part, **next((part[key] for key in _NESTED if isinstance(part.get(key), Mapping)), {})}
    name = str(body.get("filename") or body.get("name") or body.get("title") or "")
    media_type = str(body.get("media_type") or body.get("mime_type") or "")
    data = next((body[key] for key in _DATA if isinstance(body.get(key), (str, bytes))), None)
    if data is None:
        raise InvalidRequest(f"{where} holds no data", hint=_LINK_HINT)
    if part.get("type") == "text-plain" or body.get("type") == "text":
        return _named(str(data), name)
    if isinstance(data, str):
        media_type, data = _decoded(data, media_type, where)
    if media_type.startswith("text/") or media_type == "application/json":
        return _named(_as_text(data, where), name)
    try:
        return Attachment.of(data, media_type=media_type, name=name)
    except (InvalidRequest, Unsupported) as error:
        raise type(error)(f"{where}: {error.message}", hint=error.hint) from None


def _decoded(data: str, media_type: str, where: str) -> tuple[str, bytes]:
    """Return the media type and the bytes of a `data:` URL or of base64 text."""
    head, is_url, body = data.partition(",")
    try:
        if not (is_url and head.lower().startswith("data:")):
            return media_type, b64decode("".join(data.split()), validate=True)
        named, *options = head[len("data:") :].lower().split(";")
        return named, b64decode("".join(body.split()), validate=True) if "base64" in options else unquote_to_bytes(body)
    except (NotBase64, ValueError):
        is_link = "://" in data[:20] or not data.strip()
    if is_link:
        raise Unsupported(f"{where} is a link", hint=_LINK_HINT)
    raise InvalidRequest(f"{where} is neither a data: URL nor base64", hint=_LINK_HINT)


def _as_text(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{where} is text in another encoding than UTF-8", hint="convert it to UTF-8") from None


def _named(text: str, name: str) -> str:
    """Return the text of a file, set off from the texts around it."""
    return f"\n\n{name or 'File'}:\n{text}\n\n"


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
