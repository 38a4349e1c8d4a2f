"""What a step makes of each API's streams, over a real connection."""

import json
from collections.abc import Iterable
from contextlib import suppress
from itertools import repeat

import anyio
import pytest
from http_server import STREAM, Exchange, http_server, sse
from streams import (
    DIALECTS,
    TEXTS,
    WEATHER,
    Chunk,
    agent_at,
    anthropic_block,
    anthropic_call,
    anthropic_end,
    anthropic_events,
    anthropic_start,
    asking,
    gemini_call,
    gemini_chunk,
    openai_call,
    openai_chunk,
    responses_call,
    responses_message,
    responses_stream,
)

from nearfar.cloud import streaming
from nearfar.cloud.openai import OpenAIDialect
from nearfar.protocols import (
    ContentFiltered,
    Finished,
    FinishReason,
    InvalidOutput,
    Message,
    NearfarError,
    StepLost,
    StepReply,
    StepRequest,
    TextDelta,
    ToolCall,
    ToolChoice,
    ToolResult,
    Unavailable,
    Usage,
    complete,
    stream,
)
from nearfar.protocols.confidence import LowestWindow

pytestmark = pytest.mark.anyio
CALLS = {"openai": openai_call('{"ci', 'ty": "Pa', 'ris"}'), "anthropic": anthropic_call('{"ci', 'ty": "Paris"}'), "gemini": gemini_call()}
REFUSAL = responses_message(1, "") | {"content": [{"type": "refusal", "refusal": "I can't help."}]}
CALLS["responses"] = responses_call('{"ci', 'ty": "Pa', 'ris"}')


def failed_response(code: str, message: str) -> dict[str, object]:
    response = {"id": "resp_1", "object": "response", "status": "failed", "error": {"code": code, "message": message}, "output": []}
    return {"type": "response.failed", "sequence_number": 9, "response": response}


async def reply_to(body: str, request: StepRequest, dialect: str | OpenAIDialect = "openai") -> StepReply:
    async def answer(exchange: Exchange) -> None:
        await exchange.stream([body])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, dialect)
        try:
            return await complete(agent, request)
        finally:
            await agent.aclose()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_text_arrives_in_pieces_and_ends_with_usage_and_the_real_model(dialect: str) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.stream([TEXTS[dialect]("Hel", "lo \N{GRINNING FACE}")])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, dialect)
        async with stream(agent, asking()) as events:
            seen = [event async for event in events]
        await agent.aclose()
    assert [event.text for event in seen if isinstance(event, TextDelta)] == ["Hel", "lo \N{GRINNING FACE}"]
    last = seen[-1]
    assert isinstance(last, Finished)
    assert last.reason is FinishReason.STOP
    thought = 2 if dialect == "gemini" else 0
    stored = 2 if dialect == "anthropic" else 0
    assert last.usage == Usage(input_tokens=20, output_tokens=5, cached_tokens=16, cache_write_tokens=stored, reasoning_tokens=thought)
    assert last.model.startswith("model-1-")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_tool_call_is_put_together_and_checked(dialect: str) -> None:
    reply = await reply_to(CALLS[dialect], asking(tools=(WEATHER,)), dialect)
    [call] = reply.tool_calls
    assert (call.name, call.arguments) == ("weather", {"city": "Paris"})
    assert reply.finished.reason is FinishReason.TOOL_CALLS
    assert reply.text == ""


@pytest.mark.parametrize(
    ("dialect", "finish"), [("openai", "length"), ("responses", "max_output_tokens"), ("anthropic", "max_tokens"), ("gemini", "MAX_TOKENS")]
)
async def test_reaching_the_limit_is_reported_as_length(dialect: str, finish: str) -> None:
    body = TEXTS[dialect]("Once upon", finish=finish)
    reply = await reply_to(body, asking(), dialect)
    assert (reply.text, reply.finished.reason) == ("Once upon", FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("openai", TEXTS["openai"]("I", finish="content_filter")),
        ("openai", sse(openai_chunk({"refusal": "I can't help."}), openai_chunk({}, "stop"), "[DONE]")),
        ("responses", TEXTS["responses"]("I", finish="content_filter")),
        ("responses", responses_stream((REFUSAL, ()))),
        ("anthropic", anthropic_events(anthropic_start(), *anthropic_end("refusal"))),
        ("gemini", sse(gemini_chunk(finish="SAFETY"))),
        ("gemini", sse({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}})),
    ],
)
async def test_refusals_and_filters_are_content_filtered(dialect: str, body: str) -> None:
    with pytest.raises(ContentFiltered):
        await reply_to(body, asking(), dialect)


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("anthropic", anthropic_events(anthropic_start(), *anthropic_end("pause_turn"))),
        ("gemini", sse(gemini_chunk(finish="MALFORMED_FUNCTION_CALL"))),
        ("openai", sse(openai_chunk({}, "invented"), "[DONE]")),
        ("openai", sse(openai_chunk({}, "tool_calls"), "[DONE]")),
    ],
)
async def test_endings_that_a_step_cannot_have_are_invalid_output(dialect: str, body: str) -> None:
    with pytest.raises(InvalidOutput):
        await reply_to(body, asking(tools=(WEATHER,)), dialect)


@pytest.mark.parametrize(
    ("dialect", "error", "expected"),
    [
        ("openai", {"error": {"message": "upstream died", "code": 502}}, StepLost),
        ("openai", {"error": {"message": "flagged", "code": "content_filter"}}, ContentFiltered),
        ("anthropic", {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, StepLost),
        ("gemini", {"error": {"code": 503, "status": "UNAVAILABLE", "message": "overloaded"}}, StepLost),
        ("responses", {"type": "error", "code": "server_error", "message": "sorry", "param": None, "sequence_number": 9}, StepLost),
        ("responses", failed_response("server_error", "sorry"), StepLost),
        ("responses", failed_response("rate_limit_exceeded", "slow down"), StepLost),
        ("responses", failed_response("bio_policy", "not this"), ContentFiltered),
    ],
)
async def test_error_object_in_mid_stream_ends_the_step(dialect: str, error: object, expected: type[NearfarError]) -> None:
    whole = TEXTS[dialect]("begun", "rest")
    begun = whole[: whole.index("rest")].rpartition("\n\n")[0] + "\n\n"
    with pytest.raises(expected):
        await reply_to(begun + sse(error), asking(), dialect)


async def test_an_error_before_any_work_costs_nothing() -> None:
    with pytest.raises(Unavailable) as caught:
        await reply_to(sse({"error": {"message": "upstream is away", "code": 502}}), asking())
    assert not isinstance(caught.value, StepLost)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_answer_that_ends_without_a_finish_is_a_step_that_was_lost(dialect: str) -> None:
    whole = TEXTS[dialect]("Hello", "rest")
    with pytest.raises(StepLost):
        await reply_to(whole[: whole.index("rest")].rpartition("\n\n")[0] + "\n\n", asking(), dialect)


async def test_missing_usage_is_estimated_and_never_zero(caplog: pytest.LogCaptureFixture) -> None:
    reply = await reply_to(sse(openai_chunk({"content": "four"}), openai_chunk({}, "stop"), "[DONE]"), asking())
    assert reply.finished.usage.input_tokens > 0
    assert reply.finished.usage.output_tokens == 1
    assert "estimated" in caplog.text


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens": 0, "completion_tokens": 0}, {"prompt_tokens": -4, "completion_tokens": None}])
async def test_usage_that_counts_nothing_is_estimated(usage: dict[str, object]) -> None:
    body = sse(openai_chunk({"content": "hello"}, "stop"), {"choices": [], "usage": usage}, "[DONE]")
    assert (await reply_to(body, asking())).finished.usage.output_tokens > 0


@pytest.mark.parametrize(
    ("usage", "read", "written"),
    [
        ({"prompt_tokens": 20, "completion_tokens": 0}, 20, 2),
        ({"prompt_tokens": 0, "completion_tokens": 7}, 4, 7),
        ({"prompt_tokens": True, "completion_tokens": 7}, 4, 7),
        ({"prompt_tokens": 20, "completion_tokens": 10**15}, 20, 2),
        ({"prompt_tokens": 10**30, "completion_tokens": 7}, 4, 7),
    ],
)
async def test_a_count_that_is_missing_or_absurd_is_estimated_and_the_other_one_kept(
    usage: dict[str, object], read: int, written: int
) -> None:
    body = sse(openai_chunk({"content": "hello"}, "stop"), {"choices": [], "usage": usage}, "[DONE]")
    counted = (await reply_to(body, asking())).finished.usage
    assert (counted.input_tokens, counted.output_tokens) == (read, written)


SAID = {"type": "message", "id": "m-1", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]}
THOUGHT = {"type": "reasoning", "id": "r-1", "summary": [], "encrypted_content": "gAAAA"}
CALLED = {"type": "function_call", "id": "f-1", "call_id": "c-1", "name": "weather", "arguments": '{"city": "Paris"}'}


def proxied(output: list[Chunk], *streamed: Chunk) -> str:
    """A responses stream whose last event lists the items in places of its own."""
    return sse(*streamed, {"type": "response.completed", "response": {"status": "completed", "output": output}})


def in_pieces(place: int) -> list[Chunk]:
    return [{"type": "response.output_text.delta", "output_index": place, "delta": piece} for piece in ("hel", "lo")]


def in_whole(place: int, item: Chunk) -> Chunk:
    return {"type": "response.output_item.done", "output_index": place, "item": item}


@pytest.mark.parametrize(
    "body",
    [
        proxied([THOUGHT, SAID], *in_pieces(0), in_whole(0, SAID)),
        proxied([THOUGHT, SAID], *in_pieces(0), in_whole(1, SAID)),
        proxied([SAID], *in_pieces(1), in_whole(0, THOUGHT), in_whole(1, SAID)),
        proxied([], *in_pieces(0), in_whole(0, SAID)),
        proxied([SAID], in_whole(0, SAID)),
        proxied([THOUGHT, SAID]),
    ],
)
async def test_a_proxy_that_numbers_its_items_in_two_ways_says_nothing_twice(body: str) -> None:
    assert (await reply_to(body, asking(), "responses")).text == "hello"


@pytest.mark.parametrize(
    "body",
    [
        proxied([CALLED], in_whole(0, THOUGHT), in_whole(1, CALLED)),
        proxied([THOUGHT, CALLED], in_whole(0, CALLED)),
        proxied([], in_whole(0, THOUGHT), in_whole(1, CALLED)),
    ],
)
async def test_a_proxy_that_numbers_its_items_in_two_ways_calls_no_tool_twice(body: str) -> None:
    reply = await reply_to(body, asking(tools=(WEATHER,)), "responses")
    assert [(call.id, call.arguments) for call in reply.tool_calls] == [("c-1", {"city": "Paris"})]


async def test_parallel_calls_that_a_server_gives_one_index_are_kept_apart() -> None:
    def piece(identity: str, city: str) -> Chunk:
        call = {"index": 0, "id": identity, "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": city})}}
        return openai_chunk({"tool_calls": [call]})

    body = sse(piece("a", "Paris"), piece("b", "Lima"), openai_chunk({}, "tool_calls"), "[DONE]")
    calls = (await reply_to(body, asking(tools=(WEATHER,)))).tool_calls
    assert [(call.id, call.arguments["city"]) for call in calls] == [("a", "Paris"), ("b", "Lima")]


async def test_of_a_list_of_parts_the_text_is_said() -> None:
    thinks = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    body = sse(
        openai_chunk({"content": [thinks, {"type": "text", "text": "It is "}]}), openai_chunk({"content": "fine."}, "stop"), "[DONE]"
    )
    assert (await reply_to(body, asking())).text == "It is fine."


@pytest.mark.parametrize("last", [{"output_tokens": 5}, {"input_tokens": 0, "cache_read_input_tokens": None, "output_tokens": 5}])
async def test_a_prompt_that_was_counted_at_the_start_is_not_lost_at_the_end(last: Chunk) -> None:
    delta, stop = anthropic_end("end_turn")
    block = anthropic_block(0, {"type": "text", "text": "hi"})
    body = anthropic_events(anthropic_start(), *block, delta | {"usage": last}, stop)
    usage = (await reply_to(body, asking(), "anthropic")).finished.usage
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (20, 16, 5)


async def test_calls_without_index_id_or_pieces_are_understood() -> None:
    whole = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    unnumbered = {"id": "x", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    body = sse(openai_chunk({"tool_calls": [whole]}), openai_chunk({"tool_calls": [unnumbered]}), openai_chunk({}, "stop"))
    reply = await reply_to(body, asking(tools=(WEATHER,)))
    assert [call.arguments["city"] for call in reply.tool_calls] == ["Oslo", "Rome"]
    assert reply.finished.reason is FinishReason.TOOL_CALLS
    assert len({call.id for call in reply.tool_calls}) == 2


async def test_parallel_calls_that_arrive_interleaved_are_kept_apart() -> None:
    def piece(index: int, text: str, name: str | None = None) -> dict[str, object]:
        begin = {"id": f"call_{index}"} if name else {}
        return {"tool_calls": [{"index": index, **begin, "function": {"name": name, "arguments": text}}]}

    deltas = [piece(0, '{"city": ', "weather"), piece(1, '{"city"', "weather"), piece(0, '"Bern"}'), piece(1, ': "Lima"}')]
    reply = await reply_to(sse(*map(openai_chunk, deltas), openai_chunk({}, "tool_calls")), asking(tools=(WEATHER,)))
    assert [(call.id, call.arguments["city"]) for call in reply.tool_calls] == [("call_0", "Bern"), ("call_1", "Lima")]


async def test_call_id_that_the_conversation_already_has_is_replaced() -> None:
    earlier = ToolCall(id="call_a", name="weather", arguments={"city": "Paris"})
    messages = (
        Message.user("?"),
        Message.assistant(tool_calls=(earlier,)),
        Message.tool(ToolResult(call_id="call_a", name="weather", content="dry")),
    )
    reply = await reply_to(openai_call('{"city": "Rome"}'), asking(messages=messages, tools=(WEATHER,)))
    assert reply.tool_calls[0].id != "call_a"


@pytest.mark.parametrize("arguments", ['{"city": 3}', '{"city": "Par', "[1]", '{"town": "Paris"}', '{"city": NaN}', '{"city": "\\ud83d"}'])
async def test_arguments_that_do_not_fit_are_invalid_output(arguments: str) -> None:
    with pytest.raises(InvalidOutput):
        await reply_to(openai_call(arguments), asking(tools=(WEATHER,)))


async def test_unknown_tool_is_invalid_output() -> None:
    with pytest.raises(InvalidOutput):
        await reply_to(openai_call("{}").replace('"weather"', '"delete_all"'), asking(tools=(WEATHER,)))


async def test_call_that_the_limit_cut_off_is_not_made() -> None:
    body = openai_call('{"city": "Par').replace('"finish_reason": "tool_calls"', '"finish_reason": "length"')
    reply = await reply_to(body, asking(tools=(WEATHER,)))
    assert (reply.tool_calls, reply.finished.reason) == ((), FinishReason.LENGTH)


async def test_server_that_ignores_tool_choice_is_found_out() -> None:
    with pytest.raises(InvalidOutput):
        await reply_to(openai_call('{"city": "Rome"}'), asking(tools=(WEATHER,), tool_choice=ToolChoice.NONE))
    with pytest.raises(InvalidOutput):
        await reply_to(TEXTS["openai"]("No."), asking(tools=(WEATHER,), tool_choice=ToolChoice.REQUIRED))


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_output_that_misses_the_schema_is_invalid_output(dialect: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"], "additionalProperties": False}
    reply = await reply_to(TEXTS[dialect]('{"n"', ": 7}"), asking(output_schema=schema), dialect)
    assert json.loads(reply.text) == {"n": 7}
    for wrong in ('{"n": 10}', "seven", "{}"):
        with pytest.raises(InvalidOutput):
            await reply_to(TEXTS[dialect](wrong), asking(output_schema=schema), dialect)


async def test_logprobs_become_the_lowest_window_of_confidence() -> None:
    def token(text: str, logprob: float) -> dict[str, object]:
        chunk = openai_chunk({"content": text})
        chunk["choices"][0]["logprobs"] = {"content": [{"token": text, "logprob": logprob}]}
        return chunk

    body = sse(*(token("a", value) for value in (0.0, -0.1, -4.0, -0.3, -0.4, 0.0, 0.0)), openai_chunk({}, "stop"))
    reply = await reply_to(body, asking(), OpenAIDialect(logprobs=True))
    assert reply.finished.confidence == pytest.approx(2.718281828 ** (-4.8 / 4))


@pytest.mark.parametrize(
    ("logprobs", "confidence"),
    [
        ([float("nan")] * 5, None),
        ([-0.5, float("nan"), -0.5, -0.5, -0.5, -0.5], None),
        ([1e4] * 5, None),
        ([10**400] * 5, None),
        ([1e-6] * 5, 1.0),
        ([float("-inf")] * 5, 0.0),
        ([-(10**400)], 0.0),
    ],
)
def test_logprobs_that_are_none_give_no_false_confidence(logprobs: list[float], confidence: float | None) -> None:
    window = LowestWindow()
    for logprob in logprobs:
        window.add(logprob)
    assert window.value == confidence


async def test_character_split_into_two_escapes_arrives_whole() -> None:
    pieces = [json.dumps(openai_chunk({"content": "X"})).replace("X", escape) for escape in (r"\ud83d", r"\ude00!", r"\ud83d")]
    reply = await reply_to(sse(*pieces, openai_chunk({}, "stop")), asking())
    assert reply.text == "\N{GRINNING FACE}!\N{REPLACEMENT CHARACTER}"


async def test_line_of_a_megabyte_is_read() -> None:
    text = "x" * 2**20
    assert (await reply_to(TEXTS["openai"](text), asking())).text == text


async def test_comments_reasoning_and_unknown_fields_are_skipped() -> None:
    chunk = openai_chunk({"content": "yes", "reasoning_content": "hm", "reasoning": "hm"}, x_extra={"a": 1}, error=None)
    body = ": OPENROUTER PROCESSING\n\nretry: 10\n\n" + sse(chunk, openai_chunk({}, "stop"), "[DONE]")
    assert (await reply_to(body, asking())).text == "yes"


async def test_connections_are_reused() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.stream([TEXTS["openai"]("hi")])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url)
        for _ in range(5):
            await complete(agent, asking())
        await agent.aclose()
        assert (server.connections, len(server.exchanges)) == (1, 5)


async def test_answer_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "LINE_CHARACTERS", 100_000)
    monkeypatch.setattr(streaming, "STEP_BYTES", 300_000)
    piece = "data: " + json.dumps(openai_chunk({"content": "x" * 1000})) + "\n\n"
    for pieces in (repeat("data: " + "x" * 1000), repeat(piece)):

        async def flood(exchange: Exchange, pieces: Iterable[str] = pieces) -> None:
            with suppress(ConnectionError):
                await exchange.stream(pieces)

        async with http_server(flood) as server:
            agent = agent_at(server.base_url)
            with pytest.raises(InvalidOutput, match="does not end"), anyio.fail_after(20):
                await complete(agent, asking())
            await agent.aclose()


async def test_answer_that_calls_more_tools_than_any_model_is_invalid_output() -> None:
    pieces = [
        openai_chunk({"tool_calls": [{"index": number, "id": str(number), "function": {"name": "weather"}}]}) for number in range(300)
    ]
    with pytest.raises(InvalidOutput, match="tools at once"):
        await reply_to(sse(*pieces, "[DONE]"), asking(tools=(WEATHER,)))


@pytest.mark.parametrize("charset", ["utf-8", "base64", "idna", "undefined", "utf-16", "utf-7", "no-such"])
async def test_a_stream_is_utf_8_whatever_charset_the_server_names(charset: str) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.start(200, f"{STREAM}; charset={charset}", {"transfer_encoding": "chunked"})
        await exchange.send(b"\xef\xbb\xbf" + TEXTS["openai"]("grün").encode())
        await exchange.finish()

    async with http_server(answer) as server:
        agent = agent_at(server.base_url)
        assert (await complete(agent, asking())).text == "grün"
        await agent.aclose()


@pytest.mark.parametrize("name", ["\ud800", "a\x1b[2J", "a\nb", "m" * 100_000, 5])
async def test_a_name_that_cannot_be_shown_or_kept_is_no_model(name: object) -> None:
    reply = await reply_to(sse({"model": name, "choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}), asking())
    assert (reply.finished.model, reply.text) == ("model-1", "hi")
