"""Turns with thoughts, texts and calls in the orders that the providers stream them: read, and sent back, as by the providers' own SDKs.

Each file in `recorded/` names the public source of its order in its first lines.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from http_server import Exchange, http_server
from sdk import Sdk

from nearfar.cloud.anthropic import AnthropicDialect
from nearfar.cloud.dialect import Dialect
from nearfar.cloud.gemini import GeminiDialect
from nearfar.cloud.openai import OpenAIDialect
from nearfar.cloud.provider import ProviderAgent
from nearfar.cloud.responses import ResponsesDialect
from nearfar.protocols import FinishReason, Message, StepReply, StepRequest, ToolResult, ToolSpec, complete
from nearfar.protocols.steps import Sensitivity

pytestmark = pytest.mark.anyio
Body = dict[str, Any]
RECORDED = {path.stem: path for path in sorted((Path(__file__).parent / "recorded").glob("*.sse"))}
APIS: dict[str, tuple[str, str, Dialect]] = {
    "anthropic": ("anthropic", "messages", AnthropicDialect()),
    "responses": ("openai", "responses", ResponsesDialect()),
    "chat": ("openai", "chat", OpenAIDialect()),
    "gemini": ("google-genai", "contents", GeminiDialect()),
}
WEATHER = ToolSpec(name="weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})
QUESTION = Message.user("Weather?")


def stream_of(name: str) -> str:
    """The events of a recording, without its sources."""
    text = RECORDED[name].read_bytes().decode()
    sources, _, events = text.partition("\n\n")
    assert all(line.startswith(":") for line in sources.splitlines())
    assert "https://" in sources
    return events


def chunks_of(name: str) -> list[Body]:
    lines = stream_of(name).splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(chunk) for chunk in data if chunk != "[DONE]"]


async def our_round(name: str) -> tuple[StepReply, Body]:
    """What an agent makes of a recording, and the body in which the tools' results follow."""

    async def answer(exchange: Exchange) -> None:
        await exchange.stream([stream_of(name)])

    async with http_server(answer) as server:
        agent = ProviderAgent(APIS[name.partition("-")[0]][2], "model-1", base_url=server.base_url)
        asked = await complete(agent, asking(QUESTION))
        results = [ToolResult(call_id=call.id, name=call.name, content="sunny") for call in asked.tool_calls]
        await complete(agent, asking(QUESTION, asked.message, *map(Message.tool, results)))
        await agent.aclose()
    body: Body = server.exchanges[1].body
    return asked, body


def asking(*messages: Message) -> StepRequest:
    return StepRequest(messages=messages, tools=(WEATHER,), sensitivity=Sensitivity.PUBLIC)


def said_back(api: str, body: Body) -> list[Any]:
    """All that follows the question, in a form that does not depend on what an API leaves open."""
    match api:
        case "messages":
            return [{**turn, "content": [_without(block, "is_error") for block in turn["content"]]} for turn in body["messages"][1:]]
        case "responses":
            return [_without_nothing(item) for item in body["input"][1:]]
        case "chat":
            return [_chat_message(message) for message in body["messages"][1:]]
        case _:
            return _gemini_parts(body["contents"][1:])


def _without(fields: Body, name: str) -> Body:
    return {key: value for key, value in fields.items() if key != name}


def _without_nothing(fields: Body) -> Body:
    return {key: value for key, value in fields.items() if value is not None}


def _chat_message(message: Body) -> Body:
    calls = [(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message.get("tool_calls") or ()]
    return {"role": message["role"], "content": message["content"], "id": message.get("tool_call_id"), "calls": calls}


def _gemini_parts(turns: list[Body]) -> list[Body]:
    """The parts with their roles; a signature's base64 may come in two alphabets, and plain neighbouring texts are one text."""
    parts: list[Body] = []
    for part in ({"role": turn["role"], **part} for turn in turns for part in turn["parts"]):
        if "thoughtSignature" in part:
            part["thoughtSignature"] = part["thoughtSignature"].replace("-", "+").replace("_", "/")
        if parts and _is_plain(part) and _is_plain(parts[-1]) and _without(part, "text") == _without(parts[-1], "text"):
            parts[-1] = {**parts[-1], "text": parts[-1]["text"] + part["text"]}
        else:
            parts.append(part)
    return [part for part in parts if part.get("text") != "" or "thoughtSignature" in part]


def _is_plain(part: Body) -> bool:
    return "text" in part and "thoughtSignature" not in part


@pytest.mark.parametrize("name", RECORDED)
async def test_a_turn_is_read_and_sent_back_as_by_the_providers_sdk(name: str, sdk_client: Callable[[str], Sdk]) -> None:
    sdk, api, _ = APIS[name.partition("-")[0]]
    (theirs,) = sdk_client(sdk).ask(api, {"stream": stream_of(name), "result": "sunny"})
    asked, body = await our_round(name)
    usage = asked.finished.usage
    assert asked.finished.reason is FinishReason.TOOL_CALLS
    assert asked.text == theirs["text"]
    assert [usage.input_tokens, usage.output_tokens, usage.cached_tokens] == theirs["usage"]
    assert [(call.name, call.arguments) for call in asked.tool_calls] == [(called, given) for _, called, given in theirs["calls"]]
    assert said_back(api, body) == said_back(api, theirs["body"])


@pytest.mark.parametrize("name", [name for name in RECORDED if "interleaved" in name])
async def test_thoughts_that_are_put_first_are_not_what_the_sdk_sends(name: str, sdk_client: Callable[[str], Sdk]) -> None:
    sdk, api, _ = APIS[name.partition("-")[0]]
    (theirs,) = sdk_client(sdk).ask(api, {"stream": stream_of(name), "result": "sunny"})
    _, body = await our_round(name)
    blocks = body["messages"][1]["content"] if api == "messages" else body["input"]
    blocks.sort(key=lambda block: block["type"] not in ("thinking", "reasoning"))
    assert said_back(api, body) != said_back(api, theirs["body"])


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_event_is_one_that_the_providers_sdk_knows(name: str, sdk: Callable[[str], Sdk]) -> None:
    provider, api, _ = APIS[name.partition("-")[0]]
    judge = sdk(provider)
    events = [chunk for chunk in chunks_of(name) if chunk.get("type") != "ping"]  # which SDKs skip
    assert {json.dumps(event): judge.faults(f"{api} event", event) for event in events} == {json.dumps(event): [] for event in events}


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("anthropic", {"type": "content_block_start", "content_block": {"type": "text", "text": ""}}),
        ("responses", {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "a"}),
        ("chat", {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": []}),
        ("gemini", {"candidates": "none"}),
    ],
)
def test_an_event_that_lacks_a_field_is_refused(name: str, event: Body, sdk: Callable[[str], Sdk]) -> None:
    provider, api, _ = APIS[name]
    assert sdk(provider).faults(f"{api} event", event)
