"""Chat completions, as OpenAI's own client asks for them and its types describe them."""

from typing import Any

import anyio
import anyio.to_thread
import openai
import pytest
from http_face import ASK, CHAT, TOKEN, events, openai_client, raw_client, served, strictly
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from nearfar import Hybrid, RateLimited, ScriptedAgent, Side, StepRequest, ToolCall, Unavailable, Usage
from nearfar.protocols.fakes import Reply
from nearfar.protocols.steps import Finished, FinishReason

pytestmark = pytest.mark.anyio

LOOK: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look somewhere.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"], "additionalProperties": False},
        "strict": True,
    },
}
ASKED: list[Any] = [{"role": "user", "content": "Look at it."}]


def near(*script: Reply, confidence: float | None = 0.9) -> ScriptedAgent:
    return ScriptedAgent(script, name="near", model="small", confidence=confidence)


def far(*script: Reply) -> ScriptedAgent:
    return ScriptedAgent(script, name="far", side=Side.FAR, model="big")


async def test_the_client_gets_an_answer_with_the_model_that_gave_it() -> None:
    async with Hybrid(near=near("Here."), far=far()) as hybrid, served(hybrid) as server, openai_client(server) as client:
        answer = await client.chat.completions.create(model="nearfar/auto", messages=ASKED)
    assert answer.choices[0].message.content == "Here."
    assert (answer.model, answer.choices[0].finish_reason) == ("small", "stop")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0


async def test_the_synchronous_client_works_from_a_thread() -> None:
    async with Hybrid(near=near("Here.", "Here.")) as hybrid, served(hybrid) as server:

        def ask() -> list[str | None]:
            with openai.OpenAI(base_url=f"{server.address}/v1", api_key=TOKEN) as client:
                whole = client.chat.completions.create(model="nearfar/near", messages=ASKED)
                stream = client.chat.completions.create(model="nearfar/near", messages=ASKED, stream=True)
                return [whole.choices[0].message.content, "".join(chunk.choices[0].delta.content or "" for chunk in stream)]

        assert await anyio.to_thread.run_sync(ask) == ["Here.", "Here."]


async def test_a_whole_answer_is_valid_in_every_field() -> None:
    call = ToolCall(id="call-1", name="look", arguments={"at": "ümlaut"})
    async with Hybrid(near=near(["I look. ", call], "Here.")) as hybrid, served(hybrid) as server, raw_client(server) as client:
        first = strictly(ChatCompletion, (await client.post(CHAT, json={**ASK, "tools": [LOOK]})).json())
        second = strictly(ChatCompletion, (await client.post(CHAT, json=ASK)).json())
    (made,) = first.choices[0].message.tool_calls
    assert (made.id, made.function.name, made.function.arguments) == ("call-1", "look", '{"at":"ümlaut"}')
    assert first.choices[0].finish_reason == "tool_calls"
    assert second.choices[0].message.content == "Here."


@pytest.mark.parametrize("include_usage", [False, True])
async def test_every_chunk_is_valid_and_of_one_completion(include_usage: bool) -> None:
    calls = [ToolCall(id=f"call-{place}", name="look", arguments={"at": str(place)}) for place in range(2)]
    body = {**ASK, "tools": [LOOK], "stream": True, "stream_options": {"include_usage": include_usage}}
    async with Hybrid(near=near(["I ", "look.", *calls])) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(CHAT, json=body)
    *told, done = [data for _, data in events(response.text)]
    chunks = [strictly(ChatCompletionChunk, each) for each in told]
    assert (done, response.headers["content-type"]) == ("[DONE]", "text/event-stream")
    assert {(chunk.id, chunk.model, chunk.created) for chunk in chunks} == {(chunks[0].id, "small", chunks[0].created)}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "I look."
    pieces = [piece for chunk in chunks if chunk.choices for piece in chunk.choices[0].delta.tool_calls or ()]
    assert [(piece.index, piece.id, piece.function.name) for piece in pieces if piece.id] == [(0, "call-0", "look"), (1, "call-1", "look")]
    assert ["".join(piece.function.arguments for piece in pieces if piece.index == index) for index in (0, 1)] == [
        '{"at":"0"}',
        '{"at":"1"}',
    ]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
    assert all(("usage" in each) is include_usage for each in told)
    assert (told[-1]["choices"] == []) is include_usage
    assert [place for place, each in enumerate(told) if "nearfar" in each] == [len(told) - 1]
    if include_usage:
        assert all(chunk.usage is None for chunk in chunks[:-1])
        assert chunks[-1].usage is not None


async def test_the_client_runs_a_loop_of_tools() -> None:
    def answer(request: StepRequest) -> Reply:
        result = request.messages[-1].tool_result
        return ToolCall(id="a", name="look", arguments={"at": "sea"}) if result is None else f"I saw {result.content}."

    async with (
        Hybrid(near=ScriptedAgent(answer, name="near", model="small")) as hybrid,
        served(hybrid) as server,
        openai_client(server) as client,
    ):
        first = (await client.chat.completions.create(model="near", messages=ASKED, tools=[LOOK])).choices[0].message
        assert first.tool_calls
        result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "a ship"}
        messages: list[Any] = [*ASKED, first.to_dict(), result]
        last = await client.chat.completions.create(model="near", messages=messages, tools=[LOOK])
    assert last.choices[0].message.content == "I saw a ship."


class Town(BaseModel):
    name: str
    people: int


async def test_structured_output_is_parsed_by_the_client() -> None:
    async with Hybrid(near=near('{"name": "Ulm", "people": 126000}')) as hybrid, served(hybrid) as server, openai_client(server) as client:
        answer = await client.chat.completions.parse(model="near", messages=ASKED, response_format=Town)
    assert answer.choices[0].message.parsed == Town(name="Ulm", people=126000)


async def test_a_stream_of_structured_output_is_parsed_by_the_client() -> None:
    async with (
        Hybrid(near=near('{"name": "Ulm", "people": 126000}')) as hybrid,
        served(hybrid) as server,
        openai_client(server) as client,
        client.chat.completions.stream(model="near", messages=ASKED, response_format=Town) as stream,
    ):
        answer = await stream.get_final_completion()
    assert answer.choices[0].message.parsed == Town(name="Ulm", people=126000)


async def test_samplers_tools_and_limits_reach_the_agent() -> None:
    asked: list[StepRequest] = []

    def answer(request: StepRequest) -> Reply:
        asked.append(request)
        return "Here."

    samplers = {"temperature": 0.5, "top_p": 0.9, "max_completion_tokens": 7, "seed": 3, "stop": "END", "presence_penalty": 0.25}
    body = {**ASK, **samplers, "frequency_penalty": -0.5, "reasoning_effort": "low", "tools": [LOOK], "tool_choice": "none"}
    async with Hybrid(near=ScriptedAgent(answer, name="near")) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(CHAT, json=body)
    assert response.status_code == 200
    (request,) = asked
    assert (request.temperature, request.top_p, request.max_output_tokens, request.seed, request.stop) == (0.5, 0.9, 7, 3, ("END",))
    assert (request.presence_penalty, request.frequency_penalty, request.effort, request.tool_choice) == (0.25, -0.5, "low", "none")
    assert request.tools[0].name == "look"
    assert "x-nearfar-warnings" not in response.headers


async def test_only_allowed_tools_are_offered() -> None:
    other = {**LOOK, "function": {**LOOK["function"], "name": "buy"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "look"}}]}}
    agent = near(ToolCall(id="a", name="look", arguments={"at": "sea"}))
    async with Hybrid(near=agent) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(CHAT, json={**ASK, "tools": [LOOK, other], "tool_choice": choice})
    assert response.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert [each.name for each in agent.requests[0].tools] == ["look"]
    assert agent.requests[0].tool_choice == "required"


async def test_one_call_at_most_where_parallel_calls_are_off() -> None:
    calls = [ToolCall(id=f"call-{place}", name="look", arguments={"at": str(place)}) for place in range(2)]
    async with Hybrid(near=near(calls)) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(CHAT, json={**ASK, "tools": [LOOK], "parallel_tool_calls": False})
    assert [call["id"] for call in response.json()["choices"][0]["message"]["tool_calls"]] == ["call-0"]


async def test_an_answer_that_is_cut_short_says_so() -> None:
    cut = Finished(
        reason=FinishReason.LENGTH, usage=Usage(input_tokens=4, output_tokens=2, cached_tokens=3, reasoning_tokens=1), model="small"
    )
    async with Hybrid(near=near(["One ", cut])) as hybrid, served(hybrid) as server, raw_client(server) as client:
        body = (await client.post(CHAT, json=ASK)).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 1}


@pytest.mark.parametrize(
    ("field", "value"),
    [("n", 2), ("logprobs", True), ("top_logprobs", 3), ("audio", {"voice": "a"}), ("modalities", ["text", "audio"]), ("functions", [{}])],
)
async def test_what_no_agent_can_do_is_refused_by_its_name(field: str, value: object) -> None:
    async with Hybrid(near=near()) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(CHAT, json={**ASK, field: value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)
    assert response.json()["error"]["code"] == "unsupported_parameter"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": 5}}, "tool_choice.allowed_tools"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": ["Hi"]}, "messages[0]"),
        ({"temperature": 3}, "temperature"),
        ({"stop": [""]}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"reasoning_effort": "some"}, "reasoning_effort"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"model": None}, "model"),
        ({"nearfar": {"mode": "sideways"}}, "nearfar.mode"),
        ({"nearfar": {"limits": {"task": {"dollars": -1}}}}, "nearfar.limits.task.dollars"),
    ],
)
async def test_a_wrong_field_is_named(change: dict[str, object], param: str) -> None:
    async with Hybrid(near=near()) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(CHAT, json={**ASK, **change})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


async def test_unknown_fields_tools_and_roles_become_warnings() -> None:
    messages = [{"role": "critic", "content": "Look.", "mood": "bad"}]
    body = {"model": "near", "messages": messages, "store": True, "user": "me", "tools": [{"type": "custom"}, LOOK], "metadata": {}}
    async with Hybrid(near=near("Here.")) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(CHAT, json={**body, "nearfar": {"colour": "red"}})
    told = [
        "ignored;store",
        "ignored;user",
        "ignored;messages.mood",
        "unknown;role;critic",
        "dropped;tool;custom",
        "ignored;nearfar.colour",
    ]
    assert response.headers["x-nearfar-warnings"].split(", ") == told
    assert response.json()["nearfar"]["warnings"] == told


async def test_roles_and_types_that_are_no_texts_are_no_defects() -> None:
    wrong = {"messages": [{"role": "user", "content": [{"type": ["text"]}]}]}
    async with Hybrid(near=near("Here.")) as hybrid, served(hybrid) as server, raw_client(server) as client:
        replies = [await client.post(path, json={**ASK, **wrong}) for path in (CHAT, "/v1/messages")]
        replies.append(await client.post("/v1/responses", json={"model": "nearfar/auto", "input": wrong["messages"]}))
        replies.append(await client.post(CHAT, json={**ASK, "messages": [{"role": [], "content": "Look."}]}))
    assert [reply.status_code for reply in replies] == [400, 400, 400, 200]


async def test_an_image_that_no_agent_can_read_is_refused() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}, {"type": "text", "text": "What is it?"}]
    audio = [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]
    async with Hybrid(near=near()) as hybrid, served(hybrid) as server, raw_client(server) as client:
        replies = [await client.post(CHAT, json={**ASK, "messages": [{"role": "user", "content": each}]}) for each in (parts, audio)]
    assert [reply.status_code for reply in replies] == [400, 400]
    assert replies[0].json()["error"]["type"] == "invalid_request_error"


async def test_several_system_messages_become_one() -> None:
    agent = near("Here.")
    messages = [{"role": "system", "content": "One."}, {"role": "developer", "content": [{"type": "text", "text": "Two."}]}, *ASKED]
    async with Hybrid(near=agent) as hybrid, served(hybrid) as server, raw_client(server) as client:
        await client.post(CHAT, json={**ASK, "messages": messages})
    assert [(message.role, message.text) for message in agent.requests[0].messages] == [
        ("system", "One.\n\nTwo."),
        ("user", "Look at it."),
    ]


async def test_results_of_calls_that_were_never_made_are_refused() -> None:
    messages: list[Any] = [*ASKED, {"role": "tool", "tool_call_id": "none", "content": "a ship"}]
    async with Hybrid(near=near()) as hybrid, served(hybrid) as server, openai_client(server) as client:
        with pytest.raises(openai.BadRequestError, match="names no call"):
            await client.chat.completions.create(model="near", messages=messages)


async def test_the_client_tries_again_when_that_may_help_and_else_does_not() -> None:
    busy, lost = RateLimited("slow down", retry_after=0.01), Unavailable("gone")
    policy: dict[str, Any] = {"fallback": {"triggers": []}}
    async with (
        Hybrid(near=near(busy, "Here."), policy=policy) as hybrid,
        served(hybrid) as server,
        openai_client(server, max_retries=1) as client,
    ):
        assert (await client.chat.completions.create(model="near", messages=ASKED)).choices[0].message.content == "Here."
    agent = near(lost)
    async with Hybrid(near=agent) as hybrid, served(hybrid) as server, openai_client(server, max_retries=5) as client:
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nobody", messages=ASKED)
        with pytest.raises(openai.InternalServerError) as raised:
            await client.with_options(max_retries=0).chat.completions.create(model="near", messages=ASKED)
    assert (raised.value.status_code, raised.value.response.headers["x-should-retry"]) == (503, "true")
    assert len(agent.requests) == 1
