"""What each dialect writes into its requests."""

from typing import Any

import pytest
from http_server import Exchange, http_server
from streams import DIALECTS, KEY, TEXTS, WEATHER, agent_at, anthropic_call, asking, gemini_call

from nearfar.cloud.anthropic import AnthropicDialect
from nearfar.cloud.dialect import Dialect
from nearfar.cloud.gemini import GeminiDialect
from nearfar.cloud.openai import OpenAIDialect
from nearfar.protocols import InvalidRequest, Message, StepRequest, ToolCall, ToolChoice, ToolResult, Unsupported, complete

pytestmark = pytest.mark.anyio
CALL = ToolCall(id="call:1", name="weather", arguments={"city": "Paris"})
SECOND = ToolCall(id="call:2", name="weather", arguments={"city": "Oslo"})
CONVERSATION = (
    Message.system("Be brief."),
    Message.user("Weather?"),
    Message.assistant("Let me look.", (CALL, SECOND)),
    Message.tool(ToolResult(call_id="call:1", name="weather", content="sunny")),
    Message.tool(ToolResult(call_id="call:2", name="weather", content="no such city", is_error=True)),
)
LIMITLESS = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
CLOSED = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}, "required": ["a"], "additionalProperties": False}


def body(dialect: Dialect, request: StepRequest, *, model: str = "model-1", limit: int | None = None) -> dict[str, Any]:
    return dialect.body(request, model, max_output_tokens=limit)


def test_openai_conversation_keeps_its_roles_and_calls() -> None:
    written = body(OpenAIDialect(), asking(messages=CONVERSATION, tools=(WEATHER,)))
    assert [message["role"] for message in written["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    assert written["messages"][2]["tool_calls"][0] == {
        "id": "call:1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
    }
    assert written["messages"][3] == {"role": "tool", "tool_call_id": "call:1", "content": "sunny"}
    assert written["tools"][0]["function"]["parameters"] == WEATHER.parameters
    assert written["tool_choice"] == "auto"


def test_openai_fields_follow_the_endpoint_and_the_model() -> None:
    request = asking(temperature=0.5, seed=7, stop=("END",))
    hosted = body(OpenAIDialect(), request, model="gpt-6.1-sol", limit=100)
    assert hosted["max_completion_tokens"] == 100
    assert "temperature" not in hosted
    assert body(OpenAIDialect(), request, model="gpt-4o")["temperature"] == 0.5
    compatible = body(OpenAIDialect(hosted=False), request, model="qwen", limit=100)
    assert compatible["max_tokens"] == 100
    assert (compatible["temperature"], compatible["seed"], compatible["stop"]) == (0.5, 7, ["END"])
    assert compatible["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(("schema", "strict"), [(LIMITLESS, True), ({"type": "object", "properties": {"a": {}}}, False)])
def test_openai_schema_is_strict_where_the_api_allows_it(schema: dict[str, object], strict: bool) -> None:
    form = body(OpenAIDialect(), asking(output_schema=schema))["response_format"]
    assert form == {"type": "json_schema", "json_schema": {"name": "output", "schema": schema, "strict": strict}}


def test_llama_schema_goes_into_json_object() -> None:
    form = body(OpenAIDialect(json_schema="llama"), asking(output_schema=CLOSED))["response_format"]
    assert form == {"type": "json_object", "schema": CLOSED}


def test_logprobs_are_asked_for_only_when_configured() -> None:
    assert "logprobs" not in body(OpenAIDialect(), asking())
    assert body(OpenAIDialect(logprobs=True), asking())["logprobs"] is True


def test_log_probabilities_with_tools_are_refused_at_a_server_that_sends_none_then() -> None:
    dialect = OpenAIDialect(hosted=False, logprobs=True, logprobs_with_tools=False)
    asked = StepRequest(messages=(Message.user("Hi"),), top_logprobs=3)
    assert body(dialect, asked)["top_logprobs"] == 3
    with pytest.raises(Unsupported, match="in a step with tools"):
        body(dialect, asked.model_copy(update={"tools": (WEATHER,)}))


def test_anthropic_conversation_has_alternating_turns_and_a_top_level_system() -> None:
    written = body(AnthropicDialect(), asking(messages=CONVERSATION, tools=(WEATHER,), stop=("END",)), limit=50)
    assert written["system"] == "Be brief."
    assert [message["role"] for message in written["messages"]] == ["user", "assistant", "user"]
    assert [block["type"] for block in written["messages"][1]["content"]] == ["text", "tool_use", "tool_use"]
    first, second = (block["id"] for block in written["messages"][1]["content"][1:])
    assert written["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": first, "content": "sunny", "is_error": False},
        {"type": "tool_result", "tool_use_id": second, "content": "no such city", "is_error": True},
    ]
    assert (written["max_tokens"], written["stop_sequences"]) == (50, ["END"])
    assert written["tools"] == [{"name": "weather", "description": "Today's weather", "input_schema": WEATHER.parameters}]


def test_anthropic_has_a_limit_even_if_nobody_set_one() -> None:
    assert body(AnthropicDialect(), asking())["max_tokens"] > 0


@pytest.mark.parametrize(
    ("model", "takes"),
    [
        ("claude-3-5-haiku-latest", True),
        ("claude-sonnet-4-20250514", True),
        ("claude-haiku-4-5", True),
        ("claude-sonnet-4-5-20250929", True),
        ("claude-opus-4-7", False),
        ("claude-opus-5-5", False),
        ("claude-sonnet-5", False),
        ("claude-next", False),
    ],
)
def test_temperature_is_sent_only_to_models_that_take_it(model: str, takes: bool) -> None:
    assert ("temperature" in body(AnthropicDialect(), asking(temperature=1.5), model=model)) is takes
    assert body(AnthropicDialect(temperature=True), asking(temperature=1.5), model=model)["temperature"] == 1.0


def test_anthropic_schema_is_closed_and_loses_the_limits_that_the_api_refuses() -> None:
    schema = {
        "type": "object",
        "properties": {"maximum": {"type": "integer", "maximum": 9}, "list": {"type": "array", "items": LIMITLESS, "maxItems": 3}},
        "required": ["maximum"],
    }
    written = body(AnthropicDialect(), asking(output_schema=schema))["output_config"]["format"]["schema"]
    assert written == {
        "type": "object",
        "properties": {
            "maximum": {"type": "integer", "description": '{"maximum": 9}'},
            "list": {"type": "array", "items": LIMITLESS, "description": '{"maxItems": 3}'},
        },
        "required": ["maximum"],
        "additionalProperties": False,
    }


def test_gemini_conversation_joins_parallel_results() -> None:
    request = asking(messages=CONVERSATION, tools=(WEATHER,), seed=7, stop=("END",), output_schema=CLOSED)
    written = body(GeminiDialect(), request, model="gemini-2.5-flash", limit=50)
    assert written["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert [content["role"] for content in written["contents"]] == ["user", "model", "user"]
    assert written["contents"][2]["parts"] == [
        {"functionResponse": {"name": "weather", "response": {"result": "sunny"}}},
        {"functionResponse": {"name": "weather", "response": {"error": "no such city"}}},
    ]
    assert written["generationConfig"] == {
        "maxOutputTokens": 50,
        "seed": 7,
        "stopSequences": ["END"],
        "responseMimeType": "application/json",
        "responseJsonSchema": CLOSED,
    }
    assert "thoughtSignature" not in written["contents"][1]["parts"][1]


def test_gemini_3_gets_a_placeholder_for_calls_of_other_agents() -> None:
    written = body(GeminiDialect(), asking(messages=CONVERSATION), model="gemini-3.5-flash")
    first, second = written["contents"][1]["parts"][1:]
    assert first["thoughtSignature"] == "skip_thought_signature_validator"
    assert "thoughtSignature" not in second


@pytest.mark.parametrize(("dialect", "model"), [("openai", "gpt-4o"), ("anthropic", "claude-haiku-4-5"), ("gemini", "gemini-3.5-flash")])
def test_a_temperature_is_sent_exactly_where_one_is_set(dialect: str, model: str) -> None:
    assert "temperature" not in str(body(DIALECTS[dialect], asking(), model=model))
    assert "'temperature': 0.0" in str(body(DIALECTS[dialect], asking(temperature=0.0), model=model))


@pytest.mark.parametrize(("choice", "expected"), [(ToolChoice.AUTO, 0), (ToolChoice.NONE, 1), (ToolChoice.REQUIRED, 2)])
def test_tool_choice_is_translated(choice: ToolChoice, expected: int) -> None:
    request = asking(tools=(WEATHER,), tool_choice=choice)
    assert body(OpenAIDialect(), request)["tool_choice"] == ("auto", "none", "required")[expected]
    assert body(AnthropicDialect(), request, model="claude-opus-5")["tool_choice"] == {"type": ("auto", "none", "any")[expected]}
    assert body(AnthropicDialect(), request, model="claude-opus-5-5")["tool_choice"] == {"type": ("auto", "none", "auto")[expected]}
    mode = body(GeminiDialect(), request)["toolConfig"]["functionCallingConfig"]["mode"]
    assert mode == ("AUTO", "NONE", "ANY")[expected]


@pytest.mark.parametrize("dialect", ["anthropic", "gemini"])
def test_conversation_of_system_messages_alone_is_refused(dialect: str) -> None:
    with pytest.raises(InvalidRequest):
        body(DIALECTS[dialect], asking(messages=(Message.system("Be brief."),)))


@pytest.mark.parametrize(
    ("dialect", "header", "path"),
    [
        ("openai", ("authorization", f"Bearer {KEY}"), "/v1/chat/completions"),
        ("anthropic", ("x-api-key", KEY), "/v1/messages"),
        ("gemini", ("x-goog-api-key", KEY), "/v1/models/model-1:streamGenerateContent?alt=sse"),
    ],
)
async def test_key_travels_in_a_header_and_never_in_the_address(dialect: str, header: tuple[str, str], path: str) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.stream([TEXTS[dialect]("hi")])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, dialect)
        await complete(agent, asking())
        await agent.aclose()
    [exchange] = server.exchanges
    assert exchange.headers[header[0]] == header[1]
    assert exchange.path == path


async def round_trip(dialect: str, call: str) -> dict[str, Any]:
    """The body of the second step: the one that brings the tool's result."""

    async def answer(exchange: Exchange) -> None:
        await exchange.stream([call if len(server.exchanges) == 1 else TEXTS[dialect]("Sunny.")])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, dialect)
        question = Message.user("Weather in Paris?")
        asked = await complete(agent, asking(messages=(question,), tools=(WEATHER,)))
        result = Message.tool(ToolResult(call_id=asked.tool_calls[0].id, name="weather", content="sunny"))
        await complete(agent, asking(messages=(question, asked.message, result), tools=(WEATHER,)))
        await agent.aclose()
    written: dict[str, Any] = server.exchanges[1].body
    return written


async def test_gemini_gets_its_signature_back_with_the_result() -> None:
    _, call, result = (await round_trip("gemini", gemini_call()))["contents"]
    assert call["parts"][0]["thoughtSignature"] == "c2lnbmVk"
    assert result["parts"][0]["functionResponse"]["id"] == "f-1"


async def test_anthropic_gets_its_thinking_back_with_the_result() -> None:
    _, turn, result = (await round_trip("anthropic", anthropic_call('{"city": "Paris"}')))["messages"]
    assert turn["content"][0] == {"type": "thinking", "thinking": "Which city? Paris.", "signature": "c2lnbmVk"}
    assert turn["content"][1]["id"] == result["content"][0]["tool_use_id"] == "toolu_1"


async def test_gemini_sends_no_other_conversations_call_for_the_same_id() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.stream([gemini_call() if len(server.exchanges) == 1 else TEXTS["gemini"]("Rainy.")])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, "gemini")
        question = Message.user("Weather?")
        await complete(agent, asking(messages=(question,), tools=(WEATHER,)))
        other = ToolCall(id="f-1", name="weather", arguments={"city": "Oslo"})
        result = Message.tool(ToolResult(call_id="f-1", name="weather", content="rain"))
        await complete(agent, asking(messages=(question, Message.assistant(tool_calls=(other,)), result), tools=(WEATHER,)))
        await agent.aclose()
    _, call, _ = server.exchanges[1].body["contents"]
    assert call["parts"][0]["functionCall"]["args"] == {"city": "Oslo"}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_text_ends_at_stop_sequences_beyond_those_that_the_api_takes(dialect: str) -> None:
    stops = tuple(f"<{number}>" for number in range(8))

    async def answer(exchange: Exchange) -> None:
        await exchange.stream([TEXTS[dialect]("one <", "7> two")])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, dialect)
        reply = await complete(agent, asking(stop=stops))
        await agent.aclose()
    body = server.exchanges[0].body
    sent = body.get("stop") or body.get("stop_sequences") or body.get("generationConfig", {}).get("stopSequences") or []
    most = {"openai": 0, "responses": 0, "gemini": 5, "anthropic": 8}[dialect]
    assert sent == list(stops[:most])
    assert reply.text == ("one <7> two" if most == len(stops) else "one ")


def test_chat_completions_get_four_stop_sequences_at_most() -> None:
    assert len(body(OpenAIDialect(), asking(stop=tuple("abcdef")), model="gpt-4o")["stop"]) == 4
    assert OpenAIDialect().unsent_stops(tuple("abcdef"), "gpt-4o") == ("e", "f")


def test_a_call_without_text_has_no_empty_content_in_chat_completions() -> None:
    messages = (Message.user("Weather?"), Message.assistant("", (CALL,)), *CONVERSATION[3:4])
    assert body(OpenAIDialect(), asking(messages=messages))["messages"][1]["content"] is None
