"""Anthropic's Messages API, as its own client asks for it and its types describe it."""

from typing import Any

import anthropic
import anyio.to_thread
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from attached import PIXEL
from http_face import TOKEN, events, raw_client, served, strictly
from llama_engine import needs_llama
from pydantic import TypeAdapter

from nearfar import Capabilities, Hybrid, RateLimited, ScriptedAgent, Side, StepRequest, ToolCall, Unavailable, Usage
from nearfar.orchestrator.serve import HttpServer
from nearfar.orchestrator.util.text import tokens_at_most
from nearfar.protocols.fakes import Reply
from nearfar.protocols.steps import Finished, FinishReason

pytestmark = pytest.mark.anyio

PATH = "/v1/messages"
ASKED: list[Any] = [{"role": "user", "content": "Look at it."}]
ASK: dict[str, Any] = {"model": "nearfar/auto", "max_tokens": 100, "messages": ASKED}
LOOK: Any = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}
OPEN: Any = {
    "name": "open",
    "description": "Open a section of a passage.",
    "input_schema": {
        "type": "object",
        "properties": {"title": {"type": "string"}, "section": {"type": "string"}},
        "required": ["title", "section"],
    },
}
"""A tool that the model which ships with nearfar knows."""
CALL = ToolCall(id="toolu_7", name="look", arguments={"at": "ümlaut"})
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def near(*script: Reply, confidence: float | None = 0.9) -> ScriptedAgent:
    return ScriptedAgent(script, name="near", model="small", confidence=confidence)


def answers(request: StepRequest) -> Reply:
    """Call the tool once, and then tell what it said."""
    results = [message.tool_result for message in request.messages if message.tool_result is not None]
    return f"{'Sadly' if results[-1].is_error else 'It is'} {results[-1].content}." if results else CALL


def client_of(server: HttpServer, **options: Any) -> Any:  # noqa: ANN401 - the client, which types narrower than it takes
    return anthropic.AsyncAnthropic(base_url=server.address, api_key=TOKEN, **options)


def known_events(text: str) -> list[Any]:
    """Return the events of a stream, each named by its type and valid in every field."""
    found = events(text)
    for name, data in found:
        assert name == data["type"]
        strictly(type(EVENT.validate_python(data)), data)
    return [EVENT.validate_python(data) for _, data in found]


async def test_the_client_gets_a_message_with_the_model_that_wrote_it() -> None:
    async with Hybrid(near=near("Here.")) as hybrid, served(hybrid) as server, client_of(server) as client:
        message = await client.messages.create(**ASK, system="Be brief.")
    assert (message.content[0].text, message.model, message.stop_reason) == ("Here.", "small", "end_turn")


async def test_the_synchronous_client_streams_from_a_thread() -> None:
    async with Hybrid(near=near("Here.")) as hybrid, served(hybrid) as server:

        def ask() -> str:
            with (
                anthropic.Anthropic(base_url=server.address, auth_token=TOKEN, api_key=None) as client,
                client.messages.stream(**ASK) as stream,
            ):
                return "".join(stream.text_stream)

        assert await anyio.to_thread.run_sync(ask) == "Here."


async def test_a_whole_message_is_valid_in_every_field() -> None:
    async with Hybrid(near=near(["I look. ", CALL])) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(PATH, json={**ASK, "tools": [LOOK]}, headers={"anthropic-version": "2023-06-01"})
    message = strictly(Message, {name: value for name, value in response.json().items() if name != "nearfar"})
    text, use = message.content
    assert (text.text, use.id, use.name, use.input) == ("I look. ", "toolu_7", "look", {"at": "ümlaut"})
    assert (message.stop_reason, response.json()["nearfar"]["model"]) == ("tool_use", "small")
    assert response.json()["content"][0] == {"type": "text", "text": "I look. "}, "the AI SDK refuses citations that are null"


async def test_the_events_of_a_message_come_in_order_and_are_valid() -> None:
    body = {**ASK, "tools": [LOOK], "stream": True}
    async with Hybrid(near=near(["I ", "look.", CALL])) as hybrid, served(hybrid) as server, raw_client(server) as client:
        found = known_events((await client.post(f"{PATH}?beta=true", json=body)).text)
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    text = [*block[:2], *block[1:]] if sum(event.type == "content_block_delta" for event in found) == 3 else block
    assert [event.type for event in found] == ["message_start", *text, *block, "message_delta", "message_stop"]
    assert found[0].message.model == "small"
    assert [event.index for event in found if hasattr(event, "index")] == sorted(event.index for event in found if hasattr(event, "index"))


@pytest.mark.parametrize(("is_error", "said"), [(False, "It is cold."), (True, "Sadly cold.")])
async def test_a_tool_loop_goes_to_its_end(is_error: bool, said: str) -> None:
    async with Hybrid(near=ScriptedAgent(answers)) as hybrid, served(hybrid) as server, client_of(server) as client:
        first = await client.messages.create(**ASK, tools=[LOOK])
        result = {
            "type": "tool_result",
            "tool_use_id": first.content[0].id,
            "content": [{"type": "text", "text": "cold"}],
            "is_error": is_error,
        }
        turns = [*ASKED, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        second = await client.messages.create(**{**ASK, "messages": turns}, tools=[LOOK])
    assert second.content[0].text == said


async def test_instructions_come_from_blocks_and_from_messages_of_the_system() -> None:
    heard: list[str] = []

    def note(request: StepRequest) -> Reply:
        heard.extend(message.text for message in request.messages)
        return "ok"

    system = [{"type": "text", "text": "One.", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "Two."}]
    body = {**ASK, "system": system, "messages": [*ASKED, {"role": "system", "content": "Three."}], "thinking": {"type": "adaptive"}}
    async with Hybrid(near=ScriptedAgent(note)) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(PATH, json={**body, "context_management": {}, "output_config": {"effort": "high"}})
    assert response.status_code == 200
    assert "One.\n\nTwo." in heard[0]
    assert any("Three." in text for text in heard)


async def test_thoughts_are_dropped_in_silence_and_unknown_blocks_are_named() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    turns = [*ASKED, {"role": "assistant", "content": [thought, {"type": "text", "text": "Well."}]}, {"role": "user", "content": "Go on."}]
    turns[0] = {"role": "user", "content": [{"type": "text", "text": "Look."}, {"type": "search_result", "x": 1}]}
    body = {**ASK, "messages": turns, "tools": [{"type": "web_search_20250305", "name": "web_search"}], "wild": 1}
    body["system"] = [{"type": "text", "text": "Be brief."}, {"type": "image", "source": {}}]
    async with Hybrid(near=near("ok")) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(PATH, json=body)
    told = set(response.headers["x-nearfar-warnings"].split(", "))
    assert told == {"dropped;block;search_result", "dropped;block;image", "dropped;tool;web_search_20250305", "ignored;wild"}


async def test_a_cut_message_says_so() -> None:
    cut: Reply = ["Here", Finished(reason=FinishReason.LENGTH, usage=Usage(output_tokens=1), model="small")]
    async with Hybrid(near=near(cut)) as hybrid, served(hybrid) as server, client_of(server) as client:
        assert (await client.messages.create(**ASK)).stop_reason == "max_tokens"


async def test_errors_have_the_form_and_status_of_anthropic() -> None:
    script = (RateLimited("slow down", retry_after=0.01), Unavailable("gone"))
    async with Hybrid(near=near(*script)) as hybrid, served(hybrid) as server, client_of(server, max_retries=0) as client:
        with pytest.raises(anthropic.RateLimitError):
            await client.messages.create(**ASK)
        with pytest.raises(anthropic.APIStatusError) as caught:
            await client.messages.create(**ASK)
    body: Any = caught.value.body
    assert (caught.value.status_code, body["error"]["type"]) == (529, "overloaded_error")
    assert caught.value.request_id == body["request_id"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": [{"role": "king", "content": "Hi."}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"tools": [{"description": "no name"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "tool", "name": "fly"}}, "tool_choice.name"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"system": 5}, "system"),
    ],
)
async def test_a_wrong_field_is_named(change: dict[str, Any], param: str) -> None:
    async with Hybrid(near=near("Here.")) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(PATH, json={**ASK, **change})
    assert (response.status_code, param in response.json()["error"]["message"]) == (400, True)


async def test_the_choice_of_tools_reaches_the_agent() -> None:
    seen: list[tuple[str, list[str]]] = []

    def note(request: StepRequest) -> Reply:
        seen.append((request.tool_choice, [tool.name for tool in request.tools]))
        return ToolCall(id="c", name=request.tools[0].name, arguments={}) if request.tool_choice == "required" else "ok"

    both = [LOOK, {**LOOK, "name": "leap"}]
    async with Hybrid(near=ScriptedAgent(note)) as hybrid, served(hybrid) as server, client_of(server) as client:
        for choice in ({"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "leap"}, {"type": "none"}):
            await client.messages.create(**ASK, tools=both, tool_choice=choice)
    assert seen == [("auto", ["look", "leap"]), ("required", ["look", "leap"]), ("required", ["leap"]), ("none", ["look", "leap"])]


async def test_tokens_are_counted_with_system_and_tools() -> None:
    async with Hybrid(near=near()) as hybrid, served(hybrid) as server, client_of(server) as client:
        counts = []
        for more in ({}, {"system": "Be brief."}, {"system": "Be brief.", "tools": [LOOK]}):
            counted = await client.messages.count_tokens(model="nearfar/auto", messages=ASKED, **more)
            counts.append(counted.input_tokens)
    assert 0 < counts[0] < counts[1] < counts[2]


@pytest.mark.parametrize(("sequences", "end"), [(["moss", "sea"], ("stop_sequence", "sea")), (["moss"], ("end_turn", None))])
async def test_the_sequence_that_ended_a_message_is_told(sequences: list[str], end: tuple[str, str | None]) -> None:
    script = near("By the sea.", "By the sea.")
    async with Hybrid(near=script) as hybrid, served(hybrid) as server, client_of(server) as client:
        message = await client.messages.create(**ASK, stop_sequences=sequences)
        async with client.messages.stream(**ASK, stop_sequences=sequences) as stream:
            streamed = await stream.get_final_message()
    assert {(each.stop_reason, each.stop_sequence) for each in (message, streamed)} == {end}
    assert message.content[0].text == ("By the " if end[1] else "By the sea.")


@needs_llama
@pytest.mark.parametrize("more", [{}, {"system": "Be brief."}, {"tools": [OPEN]}, {"tools": [OPEN], "tool_choice": {"type": "none"}}])
async def test_the_count_of_a_near_model_is_the_one_that_its_answer_tells(more: dict[str, Any]) -> None:
    async with Hybrid(near="near") as hybrid, served(hybrid) as server, client_of(server) as client:
        counted = await client.messages.count_tokens(model="nearfar/auto", messages=ASKED, **more)
        used = (await client.messages.create(**ASK, **more)).usage
    assert counted.nearfar["count"] == "exact"
    assert counted.input_tokens == used.input_tokens + used.cache_read_input_tokens


@needs_llama
async def test_the_count_is_an_estimate_for_a_far_agent_and_for_what_the_near_one_cannot_read() -> None:
    far = ScriptedAgent([], name="far", side=Side.FAR, model="big")
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL.base64}}
    async with Hybrid(near="near", far=far) as hybrid, served(hybrid) as server, client_of(server) as client:
        counts = [
            await client.messages.with_raw_response.count_tokens(model=model, messages=asked)
            for model, asked in (("nearfar/near", ASKED), ("nearfar/far", ASKED), ("nearfar/near", [{"role": "user", "content": [image]}]))
        ]
    assert [count.headers["x-nearfar-count"] for count in counts] == ["exact", "estimated", "estimated"]
    assert (await counts[0].parse()).input_tokens < (await counts[1].parse()).input_tokens


async def test_nothing_of_a_rejected_draft_is_streamed() -> None:
    far = ScriptedAgent(["far says"], name="far", side=Side.FAR, model="big")
    async with Hybrid(near=near("near says", confidence=0.1), far=far) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(PATH, json={**ASK, "stream": True})
    assert "near says" not in response.text
    assert known_events(response.text)[0].message.model == "big"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The quick brown fox jumps over the lazy dog near the river bank.", 14),
        ("def add(first: int, second: int) -> int:\n    return first + second\n", 20),
        ('{"name": "look", "arguments": {"at": "Oslo", "depth": 3}}', 22),
        ("今天天气很好，我们去公园散步吧。", 20),
        ("Привет, как дела сегодня?", 13),
        ("2026-11-26 18:27:11.123456", 15),
        ("aGVsbG8gd29ybGQgdGhpcyBpcyBiYXNlNjQ=" * 5, 131),
    ],
)
def test_the_count_is_not_below_that_of_large_models_tokenizers(text: str, tokens: int) -> None:
    """`tokens`: of the text in cl100k_base (tiktoken 0.14) or the tokenizer that Anthropic published with Claude 2, whichever has more."""
    assert tokens <= tokens_at_most(text) <= 2 * tokens


async def test_a_tool_may_show_an_image_and_the_conversation_goes_on() -> None:
    sees = ScriptedAgent(
        lambda request: CALL if request.messages[-1].role == "user" else f"{request.messages[-1].attachments[0].media_type}: seen",
        capabilities=Capabilities(images=True, tools=True),
    )
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL.base64}}
    async with Hybrid(near=sees) as hybrid, served(hybrid) as server, client_of(server) as client:
        first = await client.messages.create(**ASK, tools=[LOOK])
        result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": [{"type": "text", "text": "a.png"}, image]}
        turns = [*ASKED, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        second = await client.messages.create(**{**ASK, "messages": turns}, tools=[LOOK])
        assert second.content[0].text == "image/png: seen"
        again = [*turns, {"role": "assistant", "content": second.content}, {"role": "user", "content": "And now?"}]
        assert (await client.messages.create(**{**ASK, "messages": again}, tools=[LOOK])).stop_reason == "tool_use"


async def test_a_tools_image_that_no_agent_reads_is_refused() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL.base64}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [image]}
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]}
    body = {**ASK, "messages": [*ASKED, called, {"role": "user", "content": [result]}], "tools": [LOOK]}
    async with Hybrid(near=near("blind")) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(PATH, json=body)
    assert response.status_code == 400
    assert "lacks images" in response.json()["error"]["message"]
