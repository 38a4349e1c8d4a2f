"""`ChatNearfar`: a `Hybrid` as a chat model of LangChain and LangGraph."""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from operator import itemgetter
from typing import Any, Final, Literal

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, BaseRunManager, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput, ModelProfile
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.messages.tool import ToolCall as LangChainCall
from langchain_core.messages.tool import tool_call, tool_call_chunk
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import BaseModel, Field

from ...protocols import InvalidRequest, JsonSchema, NearfarError, Sensitivity, Side, ToolCall, Usage
from ..agents import AgentHandle
from ..hybrid.hybrid import Hybrid
from ..task import STATE, Sampling
from ..task.events import Turn, TurnEvent
from ..task.tools import Tool
from ..util.text import tokens_at_most

PROVIDER: Final = "nearfar"
"""Name of the provider in LangChain's metadata."""


def to_message(turn: Turn) -> AIMessage:
    """Return the message of a turn."""
    return AIMessage(
        content=turn.text,
        tool_calls=[_call(call) for call in turn.calls],
        usage_metadata=_usage(turn.usage),
        response_metadata=_facts(turn),
        additional_kwargs=_state(turn),
    )


class Pieces:
    """The pieces of one streamed message, whose calls are numbered."""

    def __init__(self) -> None:
        self._calls = 0

    def chunk(self, event: TurnEvent) -> AIMessageChunk:
        """Return the piece that an event brings. The last one carries the usage and the metadata."""
        if event.type == "text":
            return AIMessageChunk(content=event.text)
        if event.type == "call":
            self._calls += 1
            arguments = json.dumps(event.call.arguments, ensure_ascii=False)
            piece = tool_call_chunk(name=event.call.name, args=arguments, id=event.call.id, index=self._calls - 1)
            return AIMessageChunk(content="", tool_call_chunks=[piece])
        turn = event.turn
        return AIMessageChunk(
            content="",
            usage_metadata=_usage(turn.usage),
            response_metadata=_facts(turn),
            additional_kwargs=_state(turn),
            chunk_position="last",
        )


def _facts(turn: Turn) -> dict[str, Any]:
    """Return the facts of a turn that LangChain keeps with its message. None: unknown."""
    return {
        "model_name": turn.model,
        "model_provider": PROVIDER,
        "finish_reason": str(turn.finish_reason),
        "run": turn.id,
        "agent": turn.agent,
        "side": str(turn.side),
        "attempts": len(turn.result.attempts),
        "confidence": turn.confidence,
        "dollars": None if turn.dollars is None else float(turn.dollars),
        "saved_dollars": None if turn.saved is None else float(turn.saved),
    }


def _call(call: ToolCall) -> LangChainCall:
    return tool_call(name=call.name, args=dict(call.arguments), id=call.id)


def _usage(usage: Usage) -> UsageMetadata:
    return UsageMetadata(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.total_tokens,
        input_token_details=InputTokenDetails(cache_read=usage.cached_tokens, cache_creation=usage.cache_write_tokens),
        output_token_details=OutputTokenDetails(reasoning=usage.reasoning_tokens),
    )


def _state(turn: Turn) -> dict[str, Any]:
    """Return the provider's state of a turn where LangChain keeps it until the conversation is sent again."""
    state = turn.message.state
    return {} if state is None else {STATE: state.model_dump(mode="json")}


def to_function(given: Mapping[str, Any] | type | Callable[..., Any] | BaseTool) -> dict[str, Any]:
    """Return a tool in OpenAI's form. Raises `InvalidRequest` for a tool that a provider runs itself, and for what is no tool."""
    if isinstance(given, Tool):
        return {"type": "function", "function": given.spec.model_dump(mode="json")}
    try:
        tool = convert_to_openai_tool(dict(given) if isinstance(given, Mapping) else given)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{given!r:.80} is no tool: {error}", hint="a function, a pydantic model, or a tool of LangChain") from error
    if tool.get("type") != "function" or "function" not in tool:
        hint = "give a function, a pydantic model, or a tool of LangChain"
        raise InvalidRequest(f"{tool.get('type')!r} is a tool that one provider runs itself", hint=hint)
    return tool


def to_choice(given: str | bool | Mapping[str, Any] | None) -> str:
    """Return a tool choice of LangChain or OpenAI as a turn takes it: `auto`, `none`, `required` or a tool's name."""
    if given is None:
        return "auto"
    if isinstance(given, bool):
        return "required" if given else "none"
    if isinstance(given, str):
        return {"any": "required"}.get(given, given)
    function = given.get("function", given)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InvalidRequest(f"{given!r:.80} is no tool choice", hint='"auto", "none", "any", or the name of a tool')
    return name


def to_schema(response_format: object) -> JsonSchema | type | None:
    """Return the JSON Schema of a response format of OpenAI's, or the pydantic model that stands in its place; None: a text."""
    if isinstance(response_format, type):
        return response_format
    match response_format:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "object"}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return schema
    raise InvalidRequest(f"{response_format!r:.80} is no response format", hint='{"type": "json_schema", "json_schema": {"schema": {...}}}')


_UNNAMED: Final = "auto"
"""Name in LangChain's traces of a model that the router chooses."""
_RENAMED: Final = {"model": "agent", "parallel_tool_calls": "parallel_calls", "reasoning_effort": "effort"}
_SAMPLING: Final = {"max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens"}
_ALWAYS: Final = frozenset({"stream", "strict"})
"""Arguments that change nothing: turns can always be streamed, and arguments of calls always fit their schemas."""


class ChatNearfar(BaseChatModel):
    """A chat model each of whose answers is one routed turn of a `Hybrid`: its policy, privacy, budgets and evidence hold.

    Calls of tools that are bound to the model are returned to the caller; the `Hybrid`'s own tools run inside the turn. Messages carry
    `usage_metadata`, and in `response_metadata` the model that answered, its side, the run, the dollars and the confidence. Sync and async
    methods may be mixed. Tracers and caches that the app has registered with LangChain see what the model sees.

    Calls take LangChain's arguments (`stop`, `model`, `max_tokens`, `temperature`, ...) and the options of `Hybrid.turn`; raise what
    `Hybrid.turn` raises, and `InvalidRequest` for a part of a message that no agent can be given.
    """

    hybrid: Hybrid = Field(exclude=True, repr=False)
    """Serves the turns. It stays the caller's to close."""
    model: str = ""
    """Name of the only agent that may answer; empty: the router chooses."""
    temperature: float | None = None
    """From 0 to 2; None: each agent's own default."""
    max_tokens: int | None = None
    """Most tokens of one answer."""
    seed: int | None = None
    """Makes sampling repeatable, where the agent can."""
    stop: list[str] | None = None
    """Texts that end an answer."""
    timeout: float | None = None
    """Seconds for a whole turn, over all attempts."""
    options: dict[str, Any] = Field(default_factory=dict, exclude=True)
    """Further options of each turn, as `Hybrid.turn` takes them: `sensitivity`, `mode`, `strategy`, `session`, ..."""

    @property
    def _llm_type(self) -> str:
        return PROVIDER

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {**self.model_dump(include={"model", "temperature", "max_tokens", "seed", "stop", "timeout"}), "options": str(self.options)}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:  # noqa: ANN401 - LangChain's signature
        params = super()._get_ls_params(stop=stop or self.stop, **kwargs)
        params["ls_provider"] = PROVIDER
        params["ls_model_name"] = params.get("ls_model_name") or _UNNAMED
        return params

    def _resolve_model_profile(self) -> ModelProfile:
        cards = [each.card for each in self._candidates()]
        claimed = [card.capabilities for card in cards if card is not None]
        windows = [card.limits.context_tokens for card in cards if card is not None and card.limits.context_tokens is not None]
        profile = ModelProfile(text_inputs=True, text_outputs=True, tool_calling=True, tool_choice=True, structured_output=True)
        profile["image_inputs"] = any(each.images for each in claimed)
        profile["pdf_inputs"] = any(each.files for each in claimed)
        return {**profile, "max_input_tokens": max(windows)} if windows and len(windows) == len(cards) else profile

    def _candidates(self) -> list[AgentHandle]:
        """Return the agents that may answer."""
        sensitivity = self.options.get("sensitivity", self.hybrid.policy.sensitivity)
        is_private = sensitivity == Sensitivity.PRIVATE
        pool = [each for each in self.hybrid.pool if self.model in ("", each.name)]
        return [each for each in pool if each.side is Side.NEAR or not is_private]

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,  # noqa: ANN401 - LangChain's signature
    ) -> ChatResult:
        asked = self._asked(stop, run_manager, kwargs)
        return _result(self.hybrid.blocking.run(lambda: self.hybrid.turn(messages, **asked)))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,  # noqa: ANN401 - LangChain's signature
    ) -> ChatResult:
        asked = self._asked(stop, run_manager, kwargs)
        return _result(await self.hybrid.blocking.reach(lambda: self.hybrid.turn(messages, **asked)))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,  # noqa: ANN401 - LangChain's signature
    ) -> Iterator[ChatGenerationChunk]:
        pieces, asked = Pieces(), self._asked(stop, run_manager, kwargs)
        with closing(self.hybrid.blocking.stream(lambda: self.hybrid.stream_turn(messages, **asked))) as events:
            for event in events:
                yield ChatGenerationChunk(message=pieces.chunk(event))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,  # noqa: ANN401 - LangChain's signature
    ) -> AsyncIterator[ChatGenerationChunk]:
        pieces, asked = Pieces(), self._asked(stop, run_manager, kwargs)
        async with aclosing(self.hybrid.blocking.reach_stream(lambda: self.hybrid.stream_turn(messages, **asked))) as events:
            async for event in events:
                yield ChatGenerationChunk(message=pieces.chunk(event))

    def _asked(self, stop: list[str] | None, manager: BaseRunManager | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of `Hybrid.turn` for one call of the model. What the call says stands above what the model says."""
        called = {_RENAMED.get(name, name): value for name, value in given.items() if name not in _ALWAYS}
        sampling = {"temperature": self.temperature, "max_output_tokens": self.max_tokens, "seed": self.seed, "stop": stop or self.stop}
        for options in (self.options, called):
            sampling |= dict(options.get("sampling") or {})
        for name in [name for name in called if _SAMPLING.get(name, name) in Sampling.model_fields]:
            sampling[_SAMPLING.get(name, name)] = called.pop(name)
        asked = {"agent": self.model, "timeout": self.timeout, "session": _thread(manager), **self.options, **called}
        if "response_format" in asked:
            asked["output"] = to_schema(asked.pop("response_format"))
        asked["tools"] = [to_function(tool) for tool in asked.get("tools") or ()]
        asked["tool_choice"] = to_choice(asked.get("tool_choice"))
        asked["sampling"] = {name: value for name, value in sampling.items() if value is not None}
        return {name: value for name, value in asked.items() if value is not None and value != ""}

    def get_num_tokens(self, text: str) -> int:
        """Return an estimate of the tokens of a `text`, rather too many than too few."""
        return tokens_at_most(text)

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        """Return the tokens of a prompt: by the tokenizer of the near model that would begin the turn, else estimated message by message.

        In the event loop of its `Hybrid`, which it would stop, and for messages that are no prompt it estimates, too.

        Args:
            messages: the prompt.
            tools: those that the caller runs, as `bind_tools` takes them; an estimate leaves them out.
        """
        asked = self._asked(None, None, {} if tools is None else {"tools": tools})
        try:
            exact = self.hybrid.blocking.run(lambda: self.hybrid.count_turn_tokens(messages, **asked))
        except NearfarError:
            exact = None
        return super().get_num_tokens_from_messages(messages) if exact is None else exact

    def bind_tools(
        self,
        tools: Sequence[Mapping[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | Mapping[str, Any] | None = None,
        **kwargs: Any,  # noqa: ANN401 - LangChain's signature
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return the model with tools that the caller runs.

        Args:
            tools: functions, pydantic models, LangChain's tools, Nearfar's, or mappings in the form of a provider.
            tool_choice: `auto`, `none`, `any` (or `required`, or True), or the name of the tool that must be called.
            kwargs: further arguments of each call.

        Raises `InvalidRequest` for a tool that a provider runs itself, such as a web search.
        """
        choice = {} if tool_choice is None else {"tool_choice": to_choice(tool_choice)}
        return self.bind(tools=[to_function(tool) for tool in tools], **choice, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        method: Literal["json_schema", "function_calling", "json_mode"] = "json_schema",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,  # noqa: ANN401 - LangChain's signature
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """Return the model with answers that are JSON: objects of a pydantic model, or mappings that fit another `schema`.

        Args:
            schema: a pydantic model, a `TypedDict`, a JSON Schema, or a function in OpenAI's form.
            method: `json_schema` asks for an answer that fits, and so does `json_mode`; `function_calling` for a call of a tool whose
                arguments do.
            include_raw: return a mapping with the message (`raw`), the object (`parsed`) and what keeps it from being one
                (`parsing_error`).
            strict: LangChain's; answers and arguments always fit.
            kwargs: further arguments of each call.
        """
        if method == "function_calling":
            return super().with_structured_output(schema, include_raw=include_raw, strict=strict, **kwargs)
        output = convert_to_json_schema(schema)
        told = {"kwargs": {"method": method, "strict": strict}, "schema": output}
        model = self.bind(output=output, ls_structured_output_format=told, **kwargs)
        parser: Runnable[Any, Any] = JsonOutputParser()
        if isinstance(schema, type) and is_basemodel_subclass(schema):
            parser = PydanticOutputParser[Any](pydantic_object=schema)
        return RunnableMap(raw=model) | _parsed_or_not(parser) if include_raw else model | parser


def _parsed_or_not(parser: Runnable[Any, Any]) -> Runnable[Any, dict[str, Any]]:
    """Return a step that adds to a message what it parses to, or the error."""
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    return parsed.with_fallbacks([RunnablePassthrough.assign(parsed=lambda _: None)], exception_key="parsing_error")


def _result(turn: Turn) -> ChatResult:
    message = to_message(turn)
    return ChatResult(generations=[ChatGeneration(message=message)], llm_output={"model_name": turn.model})


def _thread(manager: BaseRunManager | None) -> str | None:
    """Return the session of a model that a LangGraph node calls: its thread and node, so that a tool loop stays with its agent."""
    told = {} if manager is None else manager.metadata
    thread = told.get("thread_id")
    return None if thread is None else f"{thread}/{told.get('langgraph_node', '')}"
