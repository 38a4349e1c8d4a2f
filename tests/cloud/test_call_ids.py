"""Results of tools go back under the ids of their calls, whatever ids the provider, a proxy or another agent gave."""

import json
import re
from typing import Any

import pytest
from http_server import Exchange, http_server, sse
from hypothesis import given
from hypothesis import strategies as st
from step_requests import Parted, anthropic_parts, chat_parts, requests, responses_parts
from streams import (
    TEXTS,
    WEATHER,
    agent_at,
    anthropic_block,
    anthropic_end,
    anthropic_events,
    anthropic_start,
    asking,
    openai_chunk,
    responses_function,
)
from streams import responses_stream as responses_events

from nearfar.cloud.anthropic import AnthropicDialect
from nearfar.cloud.dialect import Dialect
from nearfar.cloud.openai import OpenAIDialect
from nearfar.cloud.responses import ResponsesDialect
from nearfar.protocols import Message, StepRequest, ToolCall, ToolResult, complete

LONG = "call_1__thought__" + "c2ln/mVk+=" * 20
"""The id by which LiteLLM remembers a signature of Gemini's, which has to come back unchanged."""
Turn = tuple[list[str], list[str]]
"""The ids of a turn's calls, and those of the results after it."""


def paired(items: list[tuple[str, str]]) -> list[Turn]:
    """Turns from ids of calls and results in their order."""
    turns: list[Turn] = []
    for kind, identity in items:
        if kind == "call":
            if not turns or turns[-1][1]:
                turns.append(([], []))
            turns[-1][0].append(identity)
        else:
            turns[-1][1].append(identity)
    return turns


def chat_ids(body: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        pair
        for message in body["messages"]
        for pair in [("call", call["id"]) for call in message.get("tool_calls", ())]
        + ([("result", message["tool_call_id"])] if message["role"] == "tool" else [])
    ]


def responses_ids(body: dict[str, Any]) -> list[tuple[str, str]]:
    kinds = {"function_call": "call", "function_call_output": "result"}
    return [(kinds[item["type"]], item["call_id"]) for item in body["input"] if item["type"] in kinds]


def anthropic_ids(body: dict[str, Any]) -> list[tuple[str, str]]:
    kinds = {"tool_use": ("call", "id"), "tool_result": ("result", "tool_use_id")}
    blocks = [block for message in body["messages"] for block in message["content"] if block["type"] in kinds]
    return [(kinds[block["type"]][0], block[kinds[block["type"]][1]]) for block in blocks]


READERS = {"chat": chat_ids, "responses": responses_ids, "messages": anthropic_ids}
SPOKEN: dict[str, Dialect] = {"chat": OpenAIDialect(), "responses": ResponsesDialect(), "messages": AnthropicDialect()}
PARTED: dict[str, Parted] = {"chat": chat_parts, "responses": responses_parts, "messages": anthropic_parts}
ALIKE = st.sampled_from(["a:1", "a_1", "a.1", "a" * 41, "a" * 65, "a" * 66])
"""Ids that an API refuses, and others that come close to what is made of them."""


@pytest.mark.parametrize("kind", READERS)
def test_each_result_has_the_id_of_its_call_and_no_two_calls_of_a_turn_share_one(kind: str) -> None:
    dialect = SPOKEN[kind]

    @given(requests(PARTED[kind], ids=ALIKE))
    def holds(request: StepRequest) -> None:
        for calls, results in paired(READERS[kind](dialect.body(request, "model-1", max_output_tokens=None))):
            assert calls == results
            assert len(set(calls)) == len(calls)

    holds()


def test_ids_of_other_agents_become_such_as_the_api_takes() -> None:
    result = Message.tool(ToolResult(call_id=LONG, name="weather", content="sunny"))
    request = asking(messages=(Message.user("Weather?"), Message.assistant("", (ToolCall(id=LONG, name="weather"),)), result))
    anthropic = AnthropicDialect().body(request, "claude-opus-5-5", max_output_tokens=9)
    responses = ResponsesDialect().body(request, "gpt-6", max_output_tokens=None)
    chat = OpenAIDialect().body(request, "gpt-4o", max_output_tokens=None)
    compatible = OpenAIDialect(hosted=False).body(request, "qwen3", max_output_tokens=None)
    assert all(re.fullmatch("[a-zA-Z0-9_-]+", name) for _, name in anthropic_ids(anthropic))
    assert all(len(name) <= 64 for _, name in responses_ids(responses))
    assert all(len(name) <= 40 for _, name in chat_ids(chat))
    assert chat_ids(compatible) == [("call", LONG), ("result", LONG)]


def anthropic_stream(identity: str, **fields: object) -> str:
    call = {"type": "tool_use", "id": identity, "name": "weather", "input": {}, **fields}
    block = anthropic_block(0, call, {"type": "input_json_delta", "partial_json": '{"city":"Oslo"}'})
    return anthropic_events(anthropic_start(), *block, *anthropic_end("tool_use"))


def chat_stream(identity: str, **fields: object) -> str:
    call = {"index": 0, "id": identity, "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}, **fields}
    return sse(openai_chunk({"role": "assistant", "tool_calls": [call]}), openai_chunk({}, "tool_calls"), "[DONE]")


def responses_stream(identity: str, **fields: object) -> str:
    arguments = '{"city":"Oslo"}'
    return responses_events((responses_function(1, arguments) | {"call_id": identity, **fields}, [arguments]))


@pytest.mark.anyio
@pytest.mark.parametrize("fields", [{}, {"provider_specific_fields": {"signature": "c2lnbmVk"}}], ids=["id", "field"])
@pytest.mark.parametrize("dialect", ["openai", "responses", "anthropic"])
async def test_what_a_proxy_hides_in_a_call_comes_back_to_it(dialect: str, fields: dict[str, object]) -> None:
    written = {"anthropic": anthropic_stream, "responses": responses_stream, "openai": chat_stream}[dialect]
    identity = "call_1" if fields else LONG

    async def answer(exchange: Exchange) -> None:
        await exchange.stream([written(identity, **fields) if len(server.exchanges) == 1 else TEXTS[dialect]("Sunny.")])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, OpenAIDialect(hosted=False) if dialect == "openai" else dialect)
        asked = await complete(agent, asking(tools=(WEATHER,)))
        result = Message.tool(ToolResult(call_id=asked.tool_calls[0].id, name="weather", content="sunny"))
        await complete(agent, asking(messages=(Message.user("hello"), asked.message, result), tools=(WEATHER,)))
        await agent.aclose()
    body = server.exchanges[1].body
    read = {"anthropic": anthropic_ids, "responses": responses_ids, "openai": chat_ids}[dialect]
    assert read(body) == [("call", identity), ("result", identity)]
    assert all(json.dumps(value) in json.dumps(body) for value in fields.values())
