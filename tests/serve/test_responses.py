"""OpenAI's Responses API, as its own client asks for it, its types describe it, and Open Responses tests it."""

from base64 import b64encode
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx
import openai
import pytest
from attached import png
from http_face import OTHER, TOKEN, events, openai_client, raw_client, served, strictly
from llama_engine import needs_llama
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from nearfar import Capabilities, Hybrid, RateLimited, ScriptedAgent, Side, StepRequest, ToolCall, Unavailable, Usage, tool
from nearfar.protocols.fakes import Reply
from nearfar.protocols.steps import Finished, FinishReason

pytestmark = pytest.mark.anyio

PATH = "/v1/responses"
ASK: dict[str, Any] = {"model": "nearfar/auto", "input": "Look at it."}
USER: list[Any] = [{"role": "user", "content": "And now?"}]
PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}}
LOOK = {"type": "function", "name": "look", "description": "Look.", "parameters": PARAMETERS}
CALL = ToolCall(id="call_7", name="look", arguments={"at": "ümlaut"})
OPEN_RESPONSES = {
    "id",
    "object",
    "created_at",
    "completed_at",
    "status",
    "incomplete_details",
    "model",
    "previous_response_id",
    "instructions",
    "output",
    "error",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "temperature",
    "reasoning",
    "user",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
}
EXTRA = {"nearfar", "presence_penalty", "frequency_penalty", "store"}
"""Fields that Open Responses demands and OpenAI's types do not know, and our own."""
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PNG = b64encode(png(2, 2)).decode()
READS_IMAGES = Capabilities(images=True)


def near(*script: Reply, confidence: float | None = 0.9) -> ScriptedAgent:
    return ScriptedAgent(script, name="near", model="small", confidence=confidence)


def answers(request: StepRequest) -> Reply:
    """Call the tool once, and then tell what it said."""
    results = [message.tool_result.content for message in request.messages if message.tool_result is not None]
    return f"It is {results[-1]}." if results else CALL


def known_response(data: dict[str, Any]) -> Any:  # noqa: ANN401 - a `Response`, whose output has one of thirty types
    """Return a response object that has all fields of Open Responses and no others but ours."""
    assert set(data) - {"nearfar"} >= OPEN_RESPONSES
    return strictly(Response, {name: value for name, value in data.items() if name not in EXTRA})


def known_events(text: str) -> list[Any]:
    """Return the events of a stream, each named by its type, numbered without gaps, and valid in every field."""
    *told, (_, done) = events(text)
    assert done == "[DONE]"
    for number, (name, data) in enumerate(told):
        assert (name, data["sequence_number"]) == (data["type"], number)
        if "response" in data:
            known_response(data["response"])
        else:
            strictly(type(EVENT.validate_python(data)), data)
    return [EVENT.validate_python(data) for _, data in told]


async def test_the_client_gets_a_text_with_the_model_that_gave_it() -> None:
    async with Hybrid(near=near("Here.")) as hybrid, served(hybrid) as server, openai_client(server) as client:
        response = await client.responses.create(**ASK, instructions="Be brief.")
    assert (response.output_text, response.model, response.status) == ("Here.", "small", "completed")
    assert response.usage is not None
    assert response.usage.total_tokens > 0


async def test_the_synchronous_client_works_from_a_thread() -> None:
    async with Hybrid(near=near("Here.", "There.")) as hybrid, served(hybrid) as server:

        def ask() -> list[str]:
            with openai.OpenAI(base_url=f"{server.address}/v1", api_key=TOKEN) as client:
                whole = client.responses.create(**ASK)
                with client.responses.stream(**ASK) as stream:
                    return [whole.output_text, stream.get_final_response().output_text]

        assert await anyio.to_thread.run_sync(ask) == ["Here.", "There."]


async def test_a_whole_response_is_valid_in_every_field() -> None:
    async with Hybrid(near=near(["I look. ", CALL])) as hybrid, served(hybrid) as server, raw_client(server) as client:
        data = (await client.post(PATH, json={**ASK, "tools": [LOOK], "metadata": {"a": "b"}, "temperature": 0.5})).json()
    response = known_response(data)
    said, made = response.output
    assert (said.id[:4], made.id[:3], response.id[:5]) == ("msg_", "fc_", "resp_")
    assert (made.call_id, made.name, made.arguments) == ("call_7", "look", '{"at": "ümlaut"}')
    assert (response.metadata, response.temperature, data["nearfar"]["model"]) == ({"a": "b"}, 0.5, "small")


async def test_the_events_of_a_text_come_in_order_and_are_valid() -> None:
    async with Hybrid(near=near(["I ", "look."])) as hybrid, served(hybrid) as server, raw_client(server) as client:
        found = known_events((await client.post(PATH, json={**ASK, "stream": True})).text)
    assert [event.type.removeprefix("response.") for event in found] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert {event.response.model for event in found if hasattr(event, "response")} == {"small"}


async def test_the_events_of_a_call_come_in_order_and_are_valid() -> None:
    body = {**ASK, "tools": [LOOK], "stream": True}
    async with Hybrid(near=near([CALL])) as hybrid, served(hybrid) as server, raw_client(server) as client:
        found = known_events((await client.post(PATH, json=body)).text)
    kinds = [event.type.removeprefix("response.") for event in found[2:]]
    of_arguments = ["function_call_arguments.delta", "function_call_arguments.done"]
    assert kinds == ["output_item.added", *of_arguments, "output_item.done", "completed"]


async def test_a_tool_loop_goes_to_its_end_with_the_items_of_the_response() -> None:
    async with Hybrid(near=ScriptedAgent(answers)) as hybrid, served(hybrid) as server, openai_client(server) as client:
        first = await client.responses.create(**ASK, tools=[LOOK], store=False)
        result = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "cold"}
        items = [{"role": "user", "content": "Look at it."}, *(item.model_dump(exclude_none=True) for item in first.output), result]
        second = await client.responses.create(model="nearfar/auto", input=items, tools=[LOOK], store=False)
    assert second.output_text == "It is cold."


async def test_a_response_continues_the_one_before_it() -> None:
    async with Hybrid(near=ScriptedAgent(answers)) as hybrid, served(hybrid) as server, openai_client(server) as client:
        first = await client.responses.create(**ASK, tools=[LOOK])
        result = {"type": "function_call_output", "call_id": "call_7", "output": "cold"}
        second = await client.responses.create(model="nearfar/auto", previous_response_id=first.id, input=[result], tools=[LOOK])
    assert (second.output_text, second.previous_response_id) == ("It is cold.", first.id)


async def test_what_continues_a_private_response_is_private() -> None:
    far = ScriptedAgent(lambda _: "from far", name="far", side=Side.FAR)
    private = {"nearfar": {"sensitivity": "private"}}
    async with Hybrid(near=near("One.", "Two."), far=far) as hybrid, served(hybrid) as server, openai_client(server) as client:
        first = await client.responses.create(**ASK, extra_body=private)
        second = await client.responses.create(model="nearfar/near", input="And now?", previous_response_id=first.id)
        with pytest.raises(openai.APIStatusError):
            await client.responses.create(model="nearfar/far", input="And now?", previous_response_id=second.id)
        assert (await client.responses.create(model="nearfar/far", input="And now?")).output_text == "from far"
    assert len(far.requests) == 1


@pytest.mark.parametrize("session", [{}, {"x-nearfar-session": "another"}])
async def test_what_continues_private_results_of_own_tools_is_private(session: dict[str, str]) -> None:
    @tool(effect="read", source="document", returns="device")
    def diary() -> str:
        """Read the diary."""
        return "the blue door"

    far = ScriptedAgent(lambda _: "from far", name="far", side=Side.FAR)
    reads = near([ToolCall(id="1", name="diary", arguments={})], "It is the blue door.")
    async with Hybrid(near=reads, far=far, tools=[diary]) as hybrid, served(hybrid) as server, openai_client(server) as client:
        first = await client.responses.create(model="near", input="Read the diary.")
        with pytest.raises(openai.PermissionDeniedError):
            await client.responses.create(model="far", input="And now?", previous_response_id=first.id, extra_headers=session)
    assert (first.output_text, far.requests) == ("It is the blue door.", [])


@pytest.mark.parametrize("session", [{}, {"x-nearfar-session": "ana"}])
async def test_a_continued_response_stays_with_its_agent(session: dict[str, str]) -> None:
    far = ScriptedAgent(answers, name="far", side=Side.FAR, model="big")
    async with Hybrid(near=near("Mine."), far=far) as hybrid, served(hybrid) as server, openai_client(server) as client:
        first = await client.responses.create(model="far", input="Look at it.", tools=[LOOK], extra_headers=session)
        result = {"type": "function_call_output", "call_id": "call_7", "output": "cold"}
        second = await client.responses.create(model="nearfar/auto", previous_response_id=first.id, input=[result], tools=[LOOK])
    assert (second.output_text, second.model) == ("It is cold.", "big")


async def test_a_reference_stands_for_the_item_of_a_kept_response_also_when_it_is_continued(tmp_path: Path) -> None:
    heard: list[list[str]] = []

    def note(request: StepRequest) -> Reply:
        heard.append([message.text for message in request.messages if message.role != "system"])
        return "One."

    async with Hybrid(near=ScriptedAgent(note), records=tmp_path) as hybrid, served(hybrid) as server, openai_client(server) as client:
        first = await client.responses.create(**ASK)
        items = [
            {"role": "user", "content": "Look."},
            {"type": "item_reference", "id": first.output[0].id},
            {"role": "user", "content": "?"},
        ]
        second = await client.responses.create(model="nearfar/auto", input=items)
        await client.responses.delete(first.id)
        await client.responses.create(model="nearfar/auto", input="And?", previous_response_id=second.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="nearfar/auto", input=items)
    assert heard[1:] == [["Look.", "One.", "?"], ["Look.", "One.", "?", "One.", "And?"]]


async def test_a_reference_to_an_item_of_another_caller_is_not_found() -> None:
    async with AsyncExitStack() as stack:
        hybrid = await stack.enter_async_context(Hybrid(near=near("One.")))
        server = await stack.enter_async_context(served(hybrid))
        client, other = [await stack.enter_async_context(openai_client(server, token=token)) for token in (TOKEN, OTHER)]
        made = await client.responses.create(**ASK)
        for name in (made.output[0].id, "msg_", "rs_1_2"):
            with pytest.raises(openai.NotFoundError):
                await other.responses.create(model="nearfar/auto", input=[{"type": "item_reference", "id": name}, *USER])


async def test_what_refers_to_a_private_response_is_private() -> None:
    far = ScriptedAgent(lambda _: "from far", name="far", side=Side.FAR)
    async with Hybrid(near=near("One."), far=far) as hybrid, served(hybrid) as server, openai_client(server) as client:
        first = await client.responses.create(**ASK, extra_body={"nearfar": {"sensitivity": "private"}})
        items = [{"type": "item_reference", "id": first.output[0].id}, *USER]
        with pytest.raises(openai.APIStatusError):
            await client.responses.create(model="nearfar/far", input=items)
    assert not far.requests


async def test_a_wrong_item_is_named_by_its_place_in_the_input_of_its_own_request() -> None:
    async with Hybrid(near=near("One.")) as hybrid, served(hybrid) as server, openai_client(server) as client:
        first = await client.responses.create(**ASK)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="nearfar/auto", input=[{"role": "king"}], previous_response_id=first.id)
    assert caught.value.param == "input[0].role"


async def test_a_response_repeats_the_format_of_its_text_also_where_only_the_verbosity_is_asked_for() -> None:
    async with Hybrid(near=near("One.")) as hybrid, served(hybrid) as server, openai_client(server) as client:
        made = await client.responses.create(**ASK, text={"verbosity": "low"}, reasoning={"effort": "low"})
    assert (made.text.format.type, made.text.verbosity, made.reasoning.effort) == ("text", "low", "low")


async def test_the_items_of_a_long_input_are_listed_page_by_page() -> None:
    items = [{"role": "user", "content": f"{place}"} for place in range(45)]
    async with Hybrid(near=near("ok")) as hybrid, served(hybrid) as server, openai_client(server) as client:
        made = await client.responses.create(model="nearfar/auto", input=items)
        listed = [item.content async for item in client.responses.input_items.list(made.id, order="asc")]
        with pytest.raises(openai.BadRequestError):
            await client.responses.input_items.list(made.id, extra_query={"limit": "9" * 5000})
    assert listed == [f"{place}" for place in range(45)]


async def test_instructions_are_not_those_of_the_response_before() -> None:
    heard: list[str] = []

    def note(request: StepRequest) -> Reply:
        heard.append(request.messages[0].text)
        return "ok"

    async with Hybrid(near=ScriptedAgent(note)) as hybrid, served(hybrid) as server, openai_client(server) as client:
        first = await client.responses.create(**ASK, instructions="Sing.")
        await client.responses.create(**ASK, previous_response_id=first.id, instructions="Dance.")
    assert ["Sing." in heard[0], "Sing." in heard[1], "Dance." in heard[1]] == [True, False, True]


async def test_a_kept_response_is_read_listed_and_deleted_by_its_owner_alone(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        hybrid = await stack.enter_async_context(Hybrid(near=near("Here."), records=tmp_path))
        server = await stack.enter_async_context(served(hybrid))
        client, other = [await stack.enter_async_context(openai_client(server, token=token)) for token in (TOKEN, OTHER)]
        made = await client.responses.create(**ASK)
        with pytest.raises(openai.NotFoundError):
            await other.responses.retrieve(made.id)
        assert (await client.responses.retrieve(made.id)).output_text == "Here."
        assert [item.role async for item in client.responses.input_items.list(made.id)] == ["user"]
        with pytest.raises(openai.BadRequestError):
            await client.responses.cancel(made.id)
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)


async def test_forgetting_a_run_forgets_its_response(tmp_path: Path) -> None:
    async with Hybrid(near=near("Here."), records=tmp_path) as hybrid, served(hybrid) as server, openai_client(server) as client:
        made = await client.responses.create(**ASK)
        await anyio.to_thread.run_sync(hybrid.runs.forget_all, [made.id.removeprefix("resp_")])
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)


async def test_a_response_that_is_not_stored_cannot_be_continued() -> None:
    async with Hybrid(near=near("Here.")) as hybrid, served(hybrid) as server, openai_client(server) as client:
        made = await client.responses.create(**ASK, store=False)
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(**ASK, previous_response_id=made.id)


async def test_the_client_parses_an_answer_into_its_model() -> None:
    class Place(BaseModel):
        town: str

    async with Hybrid(near=near('{"town": "Oslo"}')) as hybrid, served(hybrid) as server, openai_client(server) as client:
        response = await client.responses.parse(model="nearfar/auto", input="Where?", text_format=Place)
    assert response.output_parsed == Place(town="Oslo")


async def test_a_cut_answer_is_incomplete() -> None:
    cut: Reply = ["Here", Finished(reason=FinishReason.LENGTH, usage=Usage(output_tokens=1), model="small")]
    async with Hybrid(near=near(cut)) as hybrid, served(hybrid) as server, openai_client(server) as client:
        response = await client.responses.create(**ASK, max_output_tokens=1)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[-1].status == "incomplete"


async def test_allowed_tools_leave_out_all_others() -> None:
    seen: list[list[str]] = []

    def note(request: StepRequest) -> Reply:
        seen.append([tool.name for tool in request.tools])
        return "ok"

    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}, {"type": "web_search"}]}
    async with Hybrid(near=ScriptedAgent(note)) as hybrid, served(hybrid) as server, openai_client(server) as client:
        await client.responses.create(**ASK, tools=[LOOK, {**LOOK, "name": "leap"}], tool_choice=choice)
    assert seen == [["look"]]


async def test_unknown_tools_items_and_fields_are_named_and_break_nothing() -> None:
    items = [{"type": "reasoning", "summary": [], "encrypted_content": "x"}, {"type": "computer_call"}, {"role": "user", "content": "Hi."}]
    body = {"model": "nearfar/auto", "input": items, "tools": [{"type": "web_search"}, {"type": "namespace"}], "wild": 1}
    async with Hybrid(near=near("Hello.")) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(PATH, json={**body, "include": ["reasoning.encrypted_content"], "client_metadata": {"a": "b"}})
    assert response.status_code == 200
    warnings = response.headers["x-nearfar-warnings"].split(", ")
    assert set(warnings) == {
        "dropped;tool;web_search",
        "dropped;tool;namespace",
        "dropped;item;computer_call",
        "ignored;wild",
        "ignored;include",
    }


async def test_an_image_reaches_an_agent_that_reads_images_and_no_other() -> None:
    parts = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}]
    body = {"model": "nearfar/auto", "input": [{"role": "user", "content": parts}]}
    sees = ScriptedAgent(lambda request: f"{len(request.messages[-1].attachments)} image", capabilities=READS_IMAGES)
    async with Hybrid(near=sees) as hybrid, served(hybrid) as server, raw_client(server) as client:
        assert (await client.post(PATH, json=body)).json()["output"][0]["content"][0]["text"] == "1 image"
    async with Hybrid(near=near("blind")) as hybrid, served(hybrid) as server, raw_client(server) as client:
        assert (await client.post(PATH, json=body)).status_code == 400


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": 7}, "input"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "look", "arguments": "no"}]}, "input[0].arguments"),
        ({"input": [{"role": "king", "content": "Hi."}]}, "input[0].role"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "function", "name": "fly"}}, "tool_choice"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"temperature": "hot"}, "temperature"),
        ({"metadata": 5}, "metadata"),
        ({"store": "no"}, "store"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [5]}}, "tools[0]"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "poem"}}}, "text.format.type"),
    ],
)
async def test_a_wrong_field_is_named(change: dict[str, Any], param: str) -> None:
    agent = near("Here.")
    async with Hybrid(near=agent) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(PATH, json={**ASK, **change})
    assert (response.status_code, response.json()["error"]["param"], agent.requests) == (400, param, [])


async def test_a_failure_behind_the_head_is_an_event() -> None:
    async with Hybrid(near=near(["I ", Unavailable("gone")])) as hybrid, served(hybrid) as server, raw_client(server) as client:
        *_, error, failed = known_events((await client.post(PATH, json={**ASK, "stream": True})).text)
    assert (error.type, failed.type, failed.response.status) == ("error", "response.failed", "failed")


async def test_a_failure_before_the_head_is_an_error() -> None:
    busy = near(RateLimited("slow down", retry_after=0.01))
    async with Hybrid(near=busy) as hybrid, served(hybrid) as server, openai_client(server, max_retries=0) as client:
        with pytest.raises(openai.RateLimitError):
            await client.responses.create(**ASK)


async def test_input_tokens_are_counted_with_instructions_and_tools() -> None:
    async def counted(client: httpx.AsyncClient, **more: object) -> int:
        response = await client.post(f"{PATH}/input_tokens", json={**ASK, **more})
        assert response.json()["object"] == "response.input_tokens"
        assert response.json()["nearfar"]["count"] == response.headers["x-nearfar-count"] == "estimated"
        return int(response.json()["input_tokens"])

    async with Hybrid(near=near()) as hybrid, served(hybrid) as server, raw_client(server) as client:
        plain = await counted(client)
        assert 0 < plain < await counted(client, instructions="Be brief.") < await counted(client, instructions="Be brief.", tools=[LOOK])


@needs_llama
async def test_the_count_of_a_near_model_is_the_one_that_its_response_tells() -> None:
    async with Hybrid(near="near") as hybrid, served(hybrid) as server, raw_client(server) as client:
        first = (await client.post(PATH, json=ASK)).json()
        continued = {**ASK, "previous_response_id": first["id"], "instructions": "Be brief."}
        counted = (await client.post(f"{PATH}/input_tokens", json=continued)).json()
        used = (await client.post(PATH, json=continued)).json()["usage"]
    assert (counted["nearfar"]["count"], counted["input_tokens"]) == ("exact", used["input_tokens"])


async def test_nothing_of_a_rejected_draft_is_streamed() -> None:
    far = ScriptedAgent(["far says"], name="far", side=Side.FAR, model="big")
    async with Hybrid(near=near("near says", confidence=0.1), far=far) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(PATH, json={**ASK, "stream": True})
    assert "near says" not in response.text
    assert known_events(response.text)[-1].response.model == "big"


async def test_the_output_of_a_function_may_show_an_image() -> None:
    output = [{"type": "input_text", "text": "a.png:"}, {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}]
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    items = [{"role": "user", "content": "Look."}, call, {"type": "function_call_output", "call_id": "c", "output": output}]
    sees = ScriptedAgent(lambda request: f"{len(request.messages[-1].attachments)} image", capabilities=READS_IMAGES)
    async with Hybrid(near=sees) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(PATH, json={"model": "nearfar/auto", "input": items})
    assert response.json()["output"][0]["content"][0]["text"] == "1 image"
