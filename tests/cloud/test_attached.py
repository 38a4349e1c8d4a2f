"""Images and documents reach each API in its own words, and only models that read them get any."""

from typing import Any

import pytest
from attached import PAGE, PIXEL
from http_server import Exchange, http_server
from near_servers import FakeServer, running
from streams import DIALECTS, TEXTS, agent_at, asking

from nearfar.cloud.anthropic import AnthropicDialect
from nearfar.cloud.config import ProviderConfig
from nearfar.cloud.dialect import Dialect
from nearfar.cloud.gemini import GeminiDialect
from nearfar.cloud.near_server import NearServerConfig
from nearfar.cloud.openai import OpenAIDialect
from nearfar.cloud.responses import ResponsesDialect
from nearfar.cloud.server_trials import open_near_server
from nearfar.protocols import Attachment, Message, ToolCall, ToolResult, Unsupported, complete

pytestmark = pytest.mark.anyio

ASKED = Message.user("First \ufffc then", (PIXEL, PAGE))


def body(dialect: Dialect, message: Message = ASKED) -> dict[str, Any]:
    return dialect.body(asking(messages=(message,)), "model-1", max_output_tokens=None)


def test_chat_completions_get_parts_in_their_order() -> None:
    assert body(OpenAIDialect(images=True, files=True))["messages"][0]["content"] == [
        {"type": "text", "text": "First "},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL.base64}"}},
        {"type": "text", "text": " then"},
        {"type": "file", "file": {"filename": "bill.pdf", "file_data": f"data:application/pdf;base64,{PAGE.base64}"}},
    ]


def test_responses_get_parts_in_their_order() -> None:
    assert body(ResponsesDialect())["input"][0]["content"] == [
        {"type": "input_text", "text": "First "},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL.base64}"},
        {"type": "input_text", "text": " then"},
        {"type": "input_file", "filename": "bill.pdf", "file_data": f"data:application/pdf;base64,{PAGE.base64}"},
    ]


def test_anthropic_gets_blocks_in_their_order() -> None:
    assert body(AnthropicDialect())["messages"][0]["content"] == [
        {"type": "text", "text": "First "},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL.base64}},
        {"type": "text", "text": " then"},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PAGE.base64}},
    ]


def test_gemini_gets_parts_in_their_order() -> None:
    assert body(GeminiDialect())["contents"][0]["parts"] == [
        {"text": "First "},
        {"inlineData": {"mimeType": "image/png", "data": PIXEL.base64}},
        {"text": " then"},
        {"inlineData": {"mimeType": "application/pdf", "data": PAGE.base64}},
    ]


CALLS = tuple(ToolCall(id=f"call_{name}", name=name, arguments={}) for name in ("look", "list"))
SHOWN = (
    Message.user("Look."),
    Message.assistant(tool_calls=CALLS),
    Message.tool(ToolResult(call_id="call_look", name="look", content="Here \ufffc it is"), (PIXEL,)),
    Message.tool(ToolResult(call_id="call_list", name="list", content="nothing")),
    Message.user("Well?"),
)
"""The first of two tools shows an image."""


def conversation(dialect: Dialect, *messages: Message) -> dict[str, Any]:
    return dialect.body(asking(messages=messages), "model-1", max_output_tokens=None)


def test_chat_completions_get_a_tools_image_behind_all_results() -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL.base64}"}}]}
    messages = conversation(OpenAIDialect(images=True), *SHOWN)["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant", "tool", "tool", "user", "user"]
    assert (messages[2]["content"], messages[4]) == ("Here [shown below] it is", image)
    assert conversation(OpenAIDialect(images=True), *SHOWN[:3])["messages"][3] == image


def test_responses_get_a_tools_image_inside_its_output() -> None:
    assert conversation(ResponsesDialect(), *SHOWN)["input"][3]["output"] == [
        {"type": "input_text", "text": "Here "},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL.base64}"},
        {"type": "input_text", "text": " it is"},
    ]


def test_anthropic_gets_a_tools_image_inside_its_result() -> None:
    results = conversation(AnthropicDialect(), *SHOWN)["messages"][2]["content"]
    assert results[0]["content"] == [
        {"type": "text", "text": "Here "},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL.base64}},
        {"type": "text", "text": " it is"},
    ]
    assert results[1]["content"] == "nothing"


def test_gemini_gets_a_tools_image_behind_all_results() -> None:
    parts = conversation(GeminiDialect(), *SHOWN)["contents"][2]["parts"]
    assert [next(iter(part)) for part in parts] == ["functionResponse", "functionResponse", "inlineData", "text"]
    assert parts[0]["functionResponse"]["response"] == {"result": "Here [shown below] it is"}


@pytest.mark.parametrize("dialect", [OpenAIDialect(images=True), ResponsesDialect(), AnthropicDialect(), GeminiDialect()])
def test_a_message_of_an_image_alone_has_no_empty_text(dialect: Dialect) -> None:
    written = str(body(dialect, Message.user("", (PIXEL,))))
    assert PIXEL.base64 in written
    assert "'text': ''" not in written


@pytest.mark.parametrize(
    ("fields", "images", "files"),
    [
        ({"provider": "openai", "model": "gpt-5.5"}, True, True),
        ({"provider": "openai", "model": "gpt-9-luna"}, True, True),
        ({"provider": "openai", "model": "gpt-3.5-turbo"}, False, False),
        ({"provider": "openai", "model": "gpt-4"}, False, False),
        ({"provider": "openai", "model": "gpt-4-turbo"}, True, True),
        ({"provider": "openai", "model": "o3-mini"}, False, False),
        ({"provider": "openai", "model": "qwen3-4b", "base_url": "http://127.0.0.1:1/v1"}, False, False),
        ({"provider": "openai", "model": "qwen3-vl", "base_url": "http://127.0.0.1:1/v1", "images": True}, True, False),
        ({"provider": "openai", "model": "openai/gpt-4o", "base_url": "https://openrouter.ai/api/v1"}, True, False),
        ({"provider": "anthropic", "model": "claude-opus-4-8"}, True, True),
        ({"provider": "anthropic", "model": "claude-2.1"}, False, False),
        ({"provider": "gemini", "model": "gemini-3-pro"}, True, True),
        ({"provider": "gemini", "model": "gemini-3-pro", "images": False}, False, False),
    ],
)
def test_a_model_reads_images_by_its_name_or_its_configuration(fields: dict[str, Any], images: bool, files: bool) -> None:
    config = ProviderConfig(**fields)
    assert (config.reads_images, config.reads_files) == (images, files)


@pytest.mark.parametrize("dialect", ["openai", "responses", "gemini"])
async def test_an_uncounted_image_is_estimated_by_its_tokens_and_not_by_its_bytes(dialect: str) -> None:
    spoken = OpenAIDialect(images=True) if dialect == "openai" else DIALECTS[dialect]
    large = Attachment(media_type="image/png", data=PIXEL.data + bytes(100_000))

    async def answer(exchange: Exchange) -> None:
        await exchange.stream([TEXTS[dialect]("A pixel.", read=0, written=0)])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, spoken)
        reply = await complete(agent, asking(messages=(Message.user("What is this?", (large,)),)))
        await agent.aclose()
    assert 1200 < reply.finished.usage.input_tokens < 1300


@pytest.mark.parametrize("program", ["llama-server", "ollama", "lmstudio"])
@pytest.mark.parametrize("sees", [True, False])
async def test_a_near_server_says_whether_its_model_reads_images(program: str, sees: bool) -> None:
    asked = Message.user("What is this?", (PIXEL,))
    fake = FakeServer(program, sees=sees)
    async with running(fake) as server:
        agent = await open_near_server(NearServerConfig(provider="openai", base_url=server.base_url), name="near")
        assert agent.card.capabilities.images is sees
        if sees:
            await complete(agent, asking(messages=(asked,)))
            assert fake.bodies[-1]["messages"][0]["content"][1]["type"] == "image_url"
        else:
            with pytest.raises(Unsupported, match="cannot read images"):
                await complete(agent, asking(messages=(asked,)))
        await agent.aclose()
