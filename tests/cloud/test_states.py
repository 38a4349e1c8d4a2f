"""A turn goes back to its provider as it came: reasoning, signatures and order unchanged, wherever text and calls still match."""

import json
from contextlib import aclosing
from typing import Any

import pytest
from http_server import Exchange, http_server, sse
from streams import (
    TEXTS,
    WEATHER,
    agent_at,
    anthropic_block,
    anthropic_end,
    anthropic_events,
    anthropic_start,
    asking,
    gemini_chunk,
    responses_function,
    responses_message,
    responses_reasoning,
    responses_stream,
)

from nearfar import Hybrid, tool
from nearfar.orchestrator.task.policy import Policy
from nearfar.protocols import Message, ProviderState, RequestRefused, Sensitivity, StepReply, ToolResult, complete

pytestmark = pytest.mark.anyio
QUESTION = Message.user("Weather in Paris?")
PARIS = '{"city": "Paris"}'


def thinking(text: str, signature: str) -> list[dict[str, Any]]:
    return [{"type": "thinking_delta", "thinking": text}, {"type": "signature_delta", "signature": signature}]


ANTHROPIC: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "Where?", "signature": "c2lnMQ=="},
    {"type": "text", "text": "Let me "},
    {"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"},
    {"type": "text", "text": "look."},
    {"type": "thinking", "thinking": "There.", "signature": "c2lnMg=="},
    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}},
]
RESPONSES: list[dict[str, Any]] = [
    responses_reasoning(0),
    responses_message(1, "Let me ", phase="commentary"),
    responses_reasoning(2),
    responses_message(3, "look."),
    responses_function(4, PARIS),
]
GEMINI: list[dict[str, Any]] = [
    {"text": "Let me ", "thoughtSignature": "c2lnMQ=="},
    {"text": "look."},
    {"functionCall": {"name": "weather", "args": {"city": "Paris"}, "id": "f-1"}, "thoughtSignature": "c2lnMg=="},
]


def anthropic_stream() -> str:
    empty = {"type": "thinking", "thinking": "", "signature": ""}
    blocks = [
        *anthropic_block(0, empty, *thinking("Where?", "c2lnMQ==")),
        *anthropic_block(1, {"type": "text", "text": "", "citations": None}, {"type": "text_delta", "text": "Let me "}),
        *anthropic_block(2, {"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"}),
        *anthropic_block(3, {"type": "text", "text": ""}, {"type": "text_delta", "text": "lo"}, {"type": "text_delta", "text": "ok."}),
        *anthropic_block(4, empty, *thinking("There.", "c2lnMg==")),
        *anthropic_block(
            5,
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}},
            *({"type": "input_json_delta", "partial_json": piece} for piece in ('{"city"', ': "Paris"}')),
        ),
    ]
    return anthropic_events(anthropic_start(), *blocks, *anthropic_end("tool_use"))


def gemini_stream() -> str:
    signed, _, call = GEMINI
    return sse(gemini_chunk(signed), gemini_chunk({"text": "lo"}), gemini_chunk({"text": "ok."}), gemini_chunk(call, finish="STOP"))


STREAMS = {
    "responses": responses_stream(*zip(RESPONSES, ((), ["Let me "], (), ["lo", "ok."], [PARIS]), strict=True)),
    "anthropic": anthropic_stream(),
    "gemini": gemini_stream(),
}
PARTS = {"responses": RESPONSES, "anthropic": ANTHROPIC, "gemini": GEMINI}


def turn_in(dialect: str, body: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The assistant's turn in the request's body, and the result after it."""
    match dialect:
        case "responses":
            return body["input"][1:-1], body["input"][-1]
        case "anthropic":
            return body["messages"][1]["content"], body["messages"][2]["content"][0]
        case _:
            return body["contents"][1]["parts"], body["contents"][2]["parts"][0]["functionResponse"]


def with_result(asked: StepReply, answer: Message) -> tuple[Message, ...]:
    return QUESTION, answer, Message.tool(ToolResult(call_id=asked.tool_calls[0].id, name="weather", content="sunny"))


async def second_body(dialect: str, change: dict[str, object] | None = None) -> dict[str, Any]:
    """The body of the step that brings the tool's result, after the assistant's message was changed."""

    async def answer(exchange: Exchange) -> None:
        await exchange.stream([STREAMS[dialect] if len(server.exchanges) == 1 else TEXTS[dialect]("Sunny.")])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, dialect)
        asked = await complete(agent, asking(messages=(QUESTION,), tools=(WEATHER,)))
        assert asked.text == "Let me look."
        kept = Message.model_validate_json(asked.message.model_dump_json())  # as a durable run keeps it
        await agent.aclose()
        agent = agent_at(server.base_url, dialect)  # of another process
        await complete(agent, asking(messages=with_result(asked, kept.model_copy(update=change or {})), tools=(WEATHER,)))
        await agent.aclose()
    body: dict[str, Any] = server.exchanges[1].body
    return body


@pytest.mark.parametrize("dialect", STREAMS)
async def test_a_turn_goes_back_whole_and_in_its_order(dialect: str) -> None:
    turn, result = turn_in(dialect, await second_body(dialect))
    assert turn == PARTS[dialect]
    assert {"responses": "call_id", "anthropic": "tool_use_id", "gemini": "id"}[dialect] in result


@pytest.mark.parametrize("dialect", STREAMS)
@pytest.mark.parametrize("change", [{"text": "Let me [REDACTED]."}, {"state": None}], ids=["other words", "no state"])
async def test_a_turn_that_says_something_else_goes_back_without_thoughts(dialect: str, change: dict[str, object]) -> None:
    turn, _ = turn_in(dialect, await second_body(dialect, change))
    sent = str(turn)
    assert str(change.get("text", "Let me look.")) in sent
    assert not any(mark in sent for mark in ("gAAAA", "c2ln", "ZW5j"))


@pytest.mark.parametrize("dialect", STREAMS)
@pytest.mark.parametrize("field", ["provider", "model"])
async def test_nobody_gets_the_thoughts_of_another_model_or_address(dialect: str, field: str) -> None:
    state = ProviderState(provider="p", model="m", parts=tuple(PARTS[dialect]))
    seen: list[str] = []

    async def answer(exchange: Exchange) -> None:
        seen.append(str(exchange.body))
        await exchange.stream([TEXTS[dialect]("Sunny.")])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, dialect)
        own = state.model_copy(update={"provider": f"{dialect} {server.base_url}", "model": "model-1", field: "another"})
        await complete(agent, asking(messages=(QUESTION, Message.assistant("Let me look.", state=own), Message.user("And?"))))
        await agent.aclose()
    assert not any(mark in seen[0] for mark in ("gAAAA", "c2ln", "ZW5j"))


@pytest.mark.parametrize(
    ("dialect", "complaint"),
    [
        ("responses", "The encrypted content gAAA...0== could not be verified."),
        ("anthropic", "messages.1.content.0: Invalid `signature` in `thinking` block"),
        ("gemini", "Thought signature is not valid."),
    ],
)
async def test_thoughts_that_the_provider_cannot_read_any_more_are_left_out(dialect: str, complaint: str) -> None:
    async def answer(exchange: Exchange) -> None:
        match len(server.exchanges):
            case 1:
                await exchange.stream([STREAMS[dialect]])
            case 2:
                await exchange.respond(400, json.dumps({"error": {"code": 400, "type": "invalid_request_error", "message": complaint}}))
            case _:
                await exchange.stream([TEXTS[dialect]("Sunny.")])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, dialect)
        asked = await complete(agent, asking(messages=(QUESTION,), tools=(WEATHER,)))
        messages = with_result(asked, asked.message)
        assert (await complete(agent, asking(messages=messages, tools=(WEATHER,)))).text == "Sunny."
        await agent.aclose()
    assert "c2ln" not in str(server.exchanges[2].body)
    assert "gAAAA" not in str(server.exchanges[2].body)


async def test_a_complaint_of_another_signature_leaves_the_thoughts_where_they_are() -> None:
    async def answer(exchange: Exchange) -> None:
        if len(server.exchanges) == 1:
            await exchange.stream([STREAMS["anthropic"]])
        else:
            told = {"type": "invalid_request_error", "message": "tools.0: the function's signature has no type"}
            await exchange.respond(400, json.dumps({"error": told}))

    async with http_server(answer) as server, aclosing(agent_at(server.base_url, "anthropic")) as agent:
        asked = await complete(agent, asking(messages=(QUESTION,), tools=(WEATHER,)))
        with pytest.raises(RequestRefused):
            await complete(agent, asking(messages=with_result(asked, asked.message), tools=(WEATHER,)))
    assert len(server.exchanges) == 2


async def test_a_run_with_tools_carries_its_reasoning_along() -> None:
    @tool
    def weather(city: str) -> str:
        """Today's weather."""
        return f"sunny in {city}"

    async def answer(exchange: Exchange) -> None:
        await exchange.stream([STREAMS["responses"] if len(server.exchanges) == 1 else TEXTS["responses"]("Sunny.")])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, "responses")
        async with Hybrid(far=agent, tools=[weather], policy=Policy(sensitivity=Sensitivity.PUBLIC)) as hybrid:
            assert (await hybrid.run("Weather in Paris?")).text == "Sunny."
        await agent.aclose()
    first, second = (exchange.body for exchange in server.exchanges)
    assert second["input"] == [
        *first["input"],
        *RESPONSES,
        {"type": "function_call_output", "call_id": "call_4", "output": "sunny in Paris"},
    ]


async def test_any_other_refusal_of_a_turn_is_told_at_once() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.respond(400, '{"error": {"type": "invalid_request_error", "message": "stop: too many"}}')

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, "responses")
        with pytest.raises(RequestRefused, match="too many"):
            await complete(agent, asking())
        await agent.aclose()
    assert len(server.exchanges) == 1
