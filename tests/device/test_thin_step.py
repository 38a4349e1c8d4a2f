"""What a phone's worker makes of steps, in front of llama-server's interface."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from http.client import HTTPConnection

import anyio
import pytest
from attached import PIXEL
from http_server import Exchange, http_server, sse
from hypothesis import given
from hypothesis import strategies as st
from thin_phone import LOGPROB, llama_http

from nearfar.device.thin import ChatAnswer, failure, llama_server, read_card, run_step
from nearfar.device.thin.llama_server import LlamaServer
from nearfar.protocols import (
    ConfigError,
    ContextOverflow,
    InvalidOutput,
    InvalidRequest,
    Limits,
    Message,
    NearfarError,
    NotFound,
    RateLimited,
    ScriptedAgent,
    Stalled,
    StepRequest,
    ToolCall,
    ToolResult,
    ToolSpec,
    Unavailable,
    Unsupported,
    WorkerCrashed,
)
from nearfar.protocols.hub_session import registration_from_proto
from nearfar.protocols.testing import eventually
from nearfar.protocols.v1 import agent_pb2 as pb
from nearfar.protocols.v1 import hub_pb2
from nearfar.protocols.wire import card_from_proto, request_to_proto

LOOK = ToolSpec(name="look", parameters={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]})
LOOK_AT = ToolCall(id="call-1", name="look", arguments={"at": "the map"})


def asking(*messages: Message, **fields: object) -> pb.StepRequest:
    return request_to_proto(StepRequest.model_validate({"messages": messages or (Message.user("Hello?"),), **fields}))


async def run(server: LlamaServer, request: pb.StepRequest) -> list[pb.StepEvent]:
    async with aclosing(run_step(server, request, context_tokens=512)) as events:
        return [event async for event in events]


@asynccontextmanager
async def answering(*pieces: str, status: int = 200) -> AsyncIterator[LlamaServer]:
    """A server that streams `pieces` to every request, or answers them as a whole with another status."""

    async def answer(exchange: Exchange) -> None:
        if status == 200:
            await exchange.stream(pieces)
        else:
            await exchange.respond(status, "".join(pieces))

    async with http_server(answer) as server:
        yield LlamaServer(server.base_url.removesuffix("/v1"))


def chunk(**choice: object) -> dict[str, object]:
    return {"model": "m", "choices": [{"index": 0, "delta": {}, **choice}]}


UNKNOWN_TOOL = {"tool_calls": [{"index": 0, "function": {"name": "rm", "arguments": "{}"}}]}
USAGE: dict[str, object] = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}


@pytest.mark.anyio
async def test_text_streams_and_the_last_event_counts_and_weighs_it() -> None:
    async with llama_http(ScriptedAgent([["Good ", "morning."]], model="m")) as phone:
        *texts, last = await run(LlamaServer(phone.url), asking())
    assert [event.text for event in texts] == ["Good ", "morning."]
    assert last.finished.reason == pb.FINISH_REASON_STOP
    assert last.finished.usage.input_tokens == 2
    assert last.finished.confidence == pytest.approx(pow(2.718281828, LOGPROB))
    assert last.finished.performance.decode_tokens_per_second == 20
    assert last.finished.performance.first_token_seconds > 0


@pytest.mark.anyio
async def test_no_folder_of_the_device_is_told_with_the_model() -> None:
    pieces = ({**chunk(finish_reason="stop"), "model": "/home/somebody/models/tiny.gguf"}, USAGE, "[DONE]")
    async with answering(sse(*pieces)) as server:
        *_, last = await run(server, asking())
    assert last.finished.model == "tiny.gguf"


@pytest.mark.anyio
async def test_the_whole_request_reaches_llama_server() -> None:
    conversation = (
        Message.system("Be brief."),
        Message.user("Where?"),
        Message.assistant("", (LOOK_AT,)),
        Message.tool(ToolResult(call_id="call-1", name="look", content="North.")),
    )
    request = asking(*conversation, tools=(LOOK,), temperature=0.5, seed=7, stop=("\n",), max_output_tokens=9, tool_choice="required")
    async with llama_http(ScriptedAgent([LOOK_AT])) as phone:
        await run(LlamaServer(phone.url), request)
    (body,) = phone.bodies
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool"]
    assert body["messages"][2]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at":"the map"}'}
    assert body["messages"][3] == {"role": "tool", "tool_call_id": "call-1", "content": "North."}
    assert body["tools"][0]["function"]["parameters"] == LOOK.parameters
    assert (body["temperature"], body["seed"], body["stop"], body["max_tokens"], body["tool_choice"]) == (0.5, 7, ["\n"], 9, "required")


@pytest.mark.anyio
async def test_an_answer_without_a_limit_ends_with_the_context() -> None:
    async with llama_http(ScriptedAgent(["Yes."])) as phone:
        await run(LlamaServer(phone.url), asking())
    assert phone.bodies[0]["max_tokens"] == 512


@pytest.mark.anyio
async def test_several_calls_of_a_whole_answer_stay_apart_and_their_ids_are_new() -> None:
    answered = Message.tool(ToolResult(call_id="call-1", name="look", content="North."))
    conversation = (Message.user("Where?"), Message.assistant("", (LOOK_AT,)), answered)
    further = ToolCall(id="call-2", name="look", arguments={"at": "the sun"})
    async with llama_http(ScriptedAgent([[LOOK_AT, further]])) as phone:
        first, second, last = await run(LlamaServer(phone.url), asking(*conversation, tools=(LOOK,)))
    assert json.loads(first.tool_call.arguments_json) == {"at": "the map"}
    assert json.loads(second.tool_call.arguments_json) == {"at": "the sun"}
    assert second.tool_call.id == "call-2"
    assert first.tool_call.id not in ("call-1", "call-2", "")
    assert last.finished.reason == pb.FINISH_REASON_TOOL_CALLS
    assert last.finished.HasField("confidence")


@pytest.mark.anyio
async def test_pieces_of_a_streamed_call_are_put_together() -> None:
    def piece(**call: object) -> dict[str, object]:
        return chunk(delta={"tool_calls": [{"index": 0, **call}]})

    pieces = (
        piece(id="a", function={"name": "look", "arguments": '{"at"'}),
        piece(function={"arguments": ': "x"}'}),
        chunk(finish_reason="tool_calls"),
    )
    answer = ChatAnswer(asking(tools=(LOOK,)))
    for each in (*pieces, USAGE):
        answer.feed(each)
    call, _ = answer.events(first_token_seconds=None)
    assert (call.tool_call.id, call.tool_call.name, call.tool_call.arguments_json) == ("a", "look", '{"at": "x"}')


@pytest.mark.anyio
async def test_leaving_a_step_closes_the_connection_so_that_llama_server_stops() -> None:
    agent = ScriptedAgent([["one ", "two ", *["more "] * 1000]], pace=0.001)
    async with llama_http(agent) as phone:
        async with aclosing(run_step(LlamaServer(phone.url), asking(), context_tokens=512)) as events:
            await anext(events)
        with anyio.fail_after(10):
            await eventually(lambda: agent.live_steps == 0)
    assert (agent.cancelled_steps, phone.abandoned) == (1, 1)


@pytest.mark.anyio
async def test_cancelling_a_step_that_waits_for_a_whole_answer_closes_the_connection() -> None:
    started = asyncio.Event()

    async def never(request: StepRequest) -> None:
        started.set()
        await asyncio.Event().wait()

    agent = ScriptedAgent([LOOK_AT], pace=lambda: never(agent.requests[-1]))
    async with llama_http(agent) as phone:
        step = asyncio.create_task(run(LlamaServer(phone.url), asking(tools=(LOOK,))))
        await started.wait()
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        with anyio.fail_after(10):
            await eventually(lambda: agent.live_steps == 0)
    assert phone.abandoned == 1


@pytest.mark.anyio
async def test_a_request_cancelled_as_it_connects_is_not_sent_on_another_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    connected, may_send = threading.Event(), threading.Event()

    class Waiting(HTTPConnection):
        def send(self, data: bytes) -> None:  # type: ignore[override]  # an exchange sends nothing else
            connected.set()
            may_send.wait(10)
            super().send(data)

    monkeypatch.setattr(llama_server, "HTTPConnection", Waiting)
    async with http_server(lambda exchange: exchange.respond(200, "{}")) as phone:
        step = asyncio.create_task(run(LlamaServer(phone.base_url.removesuffix("/v1")), asking()))
        await asyncio.to_thread(connected.wait, 10)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        may_send.set()
        await asyncio.get_running_loop().shutdown_default_executor()
        assert (phone.connections, phone.exchanges) == (1, [])


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fields", "status", "body", "expected"),
    [
        ({}, 400, '{"error": {"type": "exceed_context_size_error", "message": "too long"}}', ContextOverflow),
        ({}, 400, '{"error": {"type": "invalid_request_error", "message": "no"}}', InvalidRequest),
        ({"output_schema": {"type": "object"}}, 400, '{"error": {"message": "unsupported pattern"}}', Unsupported),
        ({"tools": (LOOK,)}, 500, '{"error": {"message": "tools param requires --jinja flag"}}', Unsupported),
        ({}, 401, '{"error": {"message": "Invalid API Key"}}', ConfigError),
        ({}, 404, "Not Found", NotFound),
        ({"tools": (ToolSpec(name="look"),)}, 404, "Not Found", NotFound),
        ({}, 503, '{"error": {"message": "Loading model"}}', Unavailable),
        ({}, 429, "slow down", RateLimited),
    ],
)
async def test_refusals_become_typed_errors(fields: dict[str, object], status: int, body: str, expected: type[NearfarError]) -> None:
    async with answering(body, status=status) as server:
        with pytest.raises(expected):
            await run(server, asking(**fields))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ((sse("no json"),), InvalidOutput),
        ((sse([1, 2]),), InvalidOutput),
        ((sse({"error": {"message": "grammar"}}),), NearfarError),
        ((sse(chunk(delta={"content": "Hal"})),), WorkerCrashed),
        ((sse(chunk(finish_reason="stop"), "[DONE]"),), InvalidOutput),
        ((sse(chunk(finish_reason="bored"), USAGE, "[DONE]"),), InvalidOutput),
        ((sse(chunk(delta=UNKNOWN_TOOL, finish_reason="stop"), USAGE, "[DONE]"),), InvalidOutput),
        (("data: " + "x" * 2_000_000 + "\n\n",), InvalidOutput),
    ],
    ids=["no JSON", "no object", "an error", "a broken stream", "no usage", "an unknown reason", "an unknown tool", "a huge line"],
)
async def test_broken_streams_become_typed_errors(pieces: tuple[str, ...], expected: type[NearfarError]) -> None:
    async with answering(*pieces) as server:
        with pytest.raises(expected):
            await run(server, asking())


@pytest.mark.anyio
async def test_an_answer_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_server, "STEP_BYTES", 1000)
    async with answering(*[sse(chunk(delta={"content": "on and on"}))] * 100) as server:
        with pytest.raises(InvalidOutput, match="1000 bytes"):
            await run(server, asking())


@pytest.mark.anyio
@pytest.mark.parametrize("size", [b"-5", b"F" * 20, b"zzz"])
async def test_sizes_of_chunks_that_cannot_be_are_a_broken_answer(size: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\n{}\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        server = LlamaServer(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        with pytest.raises(WorkerCrashed):
            await server.ask("/health")
        with pytest.raises(WorkerCrashed):
            await run(server, asking())


@pytest.mark.anyio
async def test_a_quick_question_is_not_answered_byte_by_byte_for_ever() -> None:
    async def trickle(exchange: Exchange) -> None:
        await exchange.open_stream()
        while True:
            await exchange.send(" ")
            await asyncio.sleep(0)

    async with http_server(trickle) as server:
        with anyio.fail_after(30), pytest.raises(Stalled):
            await LlamaServer(server.base_url.removesuffix("/v1")).ask("/health", seconds=0.2)


@pytest.mark.anyio
async def test_a_server_that_is_not_there_is_unavailable() -> None:
    async with answering() as server:
        pass
    with pytest.raises(Unavailable, match="no llama-server answers"):
        await run(server, asking())


@pytest.mark.anyio
async def test_adapters_are_refused_before_anything_is_sent() -> None:
    async with llama_http(ScriptedAgent(["Yes."])) as phone:
        with pytest.raises(Unsupported):
            await run(LlamaServer(phone.url), asking(adapter="mine"))
    assert phone.bodies == []


@pytest.mark.anyio
async def test_images_are_refused_before_anything_is_sent() -> None:
    async with llama_http(ScriptedAgent(["Yes."])) as phone:
        with pytest.raises(Unsupported, match="no images"):
            await run(LlamaServer(phone.url), asking(Message.user("What is this?", (PIXEL,))))
    assert phone.bodies == []


@pytest.mark.anyio
async def test_samplers_reach_llama_server_and_log_probabilities_come_back() -> None:
    samplers = {"top_p": 0.5, "top_k": 7, "min_p": 0.25, "presence_penalty": 0.5, "frequency_penalty": -0.5}
    async with llama_http(ScriptedAgent([["Good ", "morning."]])) as phone:
        *_, last = await run(LlamaServer(phone.url), asking(**samplers, top_logprobs=1))
    assert samplers.items() <= phone.bodies[0].items()
    assert [(token.token, token.logprob) for token in last.finished.logprobs] == [("Good ", LOGPROB), ("morning.", LOGPROB)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda values: (
        st.lists(values, max_size=3) | st.dictionaries(st.sampled_from(["choices", "delta", "content", "index", "usage"]), values)
    ),
    max_leaves=8,
)


@given(chunks=st.lists(st.dictionaries(st.sampled_from(["choices", "usage", "model", "timings", "error"]), JSON), max_size=4))
def test_whatever_a_server_sends_is_an_answer_or_a_typed_error(chunks: list[dict[str, object]]) -> None:
    answer = ChatAnswer(asking())
    try:
        for each in chunks:
            answer.feed(each)
        events = list(answer.events(first_token_seconds=None))
    except InvalidOutput:
        return
    assert events[-1].HasField("finished")


def test_half_of_a_character_does_not_break_the_message() -> None:
    answer = ChatAnswer(asking())
    assert pb.StepEvent(text=answer.feed(chunk(delta={"content": "a\ud83d"}))).text == "a\N{REPLACEMENT CHARACTER}"


def test_thoughts_neither_are_text_nor_lower_the_confidence() -> None:
    answer = ChatAnswer(asking())
    unsure = {"content": [{"logprob": -9.0}]}
    assert answer.feed(chunk(delta={"reasoning_content": "Hm."}, logprobs=unsure)) == ""
    answer.feed(chunk(delta={"content": "Yes."}, logprobs={"content": [{"logprob": 0.0}]}, finish_reason="stop"))
    answer.feed(USAGE)
    (last,) = answer.events(first_token_seconds=None)
    assert last.finished.confidence == 1.0


@pytest.mark.anyio
async def test_the_card_says_what_the_server_has_shown() -> None:
    agent = ScriptedAgent(lambda _: "Hello.", model="models/secret-folder/tiny.gguf", limits=Limits(context_tokens=2048))
    async with llama_http(agent, slots=3) as phone:
        card = card_from_proto(await read_card(LlamaServer(phone.url), "phone"))
    assert (card.name, card.model, card.parameters) == ("phone", "tiny.gguf", 1_377_408)
    assert (card.limits.context_tokens, card.limits.concurrency) == (2048, 3)
    claimed = card.capabilities
    assert (claimed.tools, claimed.json_schema, claimed.confidence, claimed.seed, claimed.cancellation) == (True, True, True, False, True)


@pytest.mark.anyio
async def test_a_server_without_jinja_is_not_said_to_take_tools() -> None:
    async with llama_http(ScriptedAgent(lambda _: "Hello."), takes_tools=False) as phone:
        card = await read_card(LlamaServer(phone.url), "phone")
    assert not card.capabilities.tools


@pytest.mark.anyio
async def test_a_server_that_still_loads_is_unavailable() -> None:
    async with llama_http(ScriptedAgent([])) as phone:
        phone.is_loading = True
        with pytest.raises(Unavailable):
            await read_card(LlamaServer(phone.url), "phone")


@asynccontextmanager
async def introducing(properties: str, models: str) -> AsyncIterator[LlamaServer]:
    """A server that says this of itself, and answers as llama-server does otherwise."""
    async with llama_http(ScriptedAgent(lambda _: "Hello.")) as phone:

        async def answer(exchange: Exchange) -> None:
            said = {"/props": properties, "/v1/models": models}
            if exchange.path in said:
                await exchange.respond(200, said[exchange.path])
            else:
                await phone.answer(exchange)

        async with http_server(answer) as server:
            yield LlamaServer(server.base_url.removesuffix("/v1"))


def properties(alias: str = '"tiny"', context: str = "4096", slots: str = "1") -> str:
    """As /props has them. Each value is JSON, so that it can be one that no Python value is."""
    return f'{{"model_alias": {alias}, "default_generation_settings": {{"n_ctx": {context}}}, "total_slots": {slots}}}'


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("alias", "model"),
    [
        (r'"half \ud800"', "half \ufffd"),
        (r'"rings \u0007 and clears \u001b[2J"', "rings  and clears [2J"),
        (f'"{"x" * 1000}"', "x" * 256),
        ('"/"', "other"),
        (r'"\u0000"', "other"),
        ("[7]", "other"),
    ],
    ids=["half a character", "control characters", "long", "no name", "nothing to see", "no text"],
)
async def test_a_hub_takes_the_card_whatever_the_model_is_called(alias: str, model: str) -> None:
    async with introducing(properties(alias), '{"data": [{"id": "other"}]}') as server:
        card = await read_card(server, "phone")
    told = registration_from_proto(hub_pb2.Register(instance="one", agents=[card])).cards
    assert [card.model for card in told] == [model]


@pytest.mark.anyio
@pytest.mark.parametrize("weights", [str(10**30), "true", "-1", "1.5", "null", '"many"'])
async def test_a_number_of_weights_that_cannot_be_is_unknown(weights: str) -> None:
    async with introducing(properties(), f'{{"data": [{{"meta": {{"n_params": {weights}}}}}]}}') as server:
        assert card_from_proto(await read_card(server, "phone")).parameters is None


@pytest.mark.anyio
@pytest.mark.parametrize("counts", [{"context": "true"}, {"slots": "true"}, {"context": str(10**20)}, {"slots": "0"}])
async def test_counts_that_cannot_be_are_no_card(counts: dict[str, str]) -> None:
    async with introducing(properties(**counts), "{}") as server:
        with pytest.raises(InvalidOutput):
            await read_card(server, "phone")


@pytest.mark.anyio
async def test_another_kind_of_server_is_not_taken_for_a_llama_server() -> None:
    async def welcome(exchange: Exchange) -> None:
        await exchange.respond(200, "{}")

    async with http_server(welcome) as server:
        with pytest.raises(InvalidOutput, match="context size"):
            await read_card(LlamaServer(server.base_url.removesuffix("/v1")), "phone")


@pytest.mark.parametrize(
    "url", ["http://192.168.1.2:8080", "https://127.0.0.1:8080", "http://127.0.0.1:8080/v1", "127.0.0.1:8080", "http://[::1"]
)
def test_a_server_elsewhere_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        LlamaServer(url)


def test_a_failure_keeps_class_hint_and_delay() -> None:
    sent = failure(RateLimited("slow", hint="wait", retry_after=2.0))
    assert (sent.reason, sent.message, sent.hint, sent.retry_after) == ("RateLimited", "slow", "wait", 2.0)
