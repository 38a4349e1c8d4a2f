"""AG-UI: every event is one of the protocol's own types, and they come in the order that it demands."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
from ag_ui.core import Event
from pydantic import BaseModel, TypeAdapter

from nearfar import Hybrid, InvalidRequest, Policy, ScriptedAgent, Sensitivity, Side, ToolCall, tool
from nearfar.orchestrator.serve.agui import AgUiEvent, AgUiRequest, serve_agui

pytestmark = pytest.mark.anyio
EVENTS: TypeAdapter[Any] = TypeAdapter(Event)
PAINT = {"name": "paint", "description": "Paint the page.", "parameters": {"type": "object", "properties": {"color": {"type": "string"}}}}
PAID: list[int] = []


@tool
def look(place: str) -> str:
    """Look at a place."""
    return "small"


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    PAID.append(amount)
    return "paid"


def call(name: str, number: int = 1, **arguments: Any) -> ToolCall:  # noqa: ANN401 - any JSON value
    return ToolCall(id=f"call_{number}", name=name, arguments=arguments)


def asked(*messages: dict[str, Any], run: str = "r1", **more: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of the request
    prompt = messages or ({"id": "m1", "role": "user", "content": "How is Orb?"},)
    return {"threadId": "t1", "runId": run, "messages": list(prompt), "tools": [], "context": [], "state": {}, "forwardedProps": {}, **more}


async def events_of(hybrid: Hybrid, body: dict[str, Any], *, user: str = "ana", **options: Any) -> list[AgUiEvent]:  # noqa: ANN401 - a turn's
    """The events of a request, each checked, as JSON brings them."""
    request = AgUiRequest.parse(body)
    given: Any = {"user": user, **options}
    sent = [event async for event in serve_agui(hybrid, request, request.options(given))]
    found = [json.loads(json.dumps(event)) for event in sent]
    for event in found:
        check_no_extras(EVENTS.validate_python(event))
    check_order(found)
    return found


def check_no_extras(event: BaseModel) -> None:
    """The protocol's models keep what they do not know."""
    assert not event.model_extra, event
    for _, value in event:
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, BaseModel):
                check_no_extras(part)


def check_order(events: list[AgUiEvent]) -> None:
    """Everything that is begun ends before the run does, and a call is announced once."""
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-1] in ("RUN_FINISHED", "RUN_ERROR")) == ("RUN_STARTED", True)
    assert kinds.count("RUN_FINISHED") + kinds.count("RUN_ERROR") == 1
    open_parts: set[tuple[str, str]] = set()
    begun: set[tuple[str, str]] = set()
    for event in events:
        for part, key in (("TEXT_MESSAGE", "messageId"), ("TOOL_CALL", "toolCallId"), ("STEP", "stepName")):
            place = (part, event.get(key, ""))
            if event["type"] in (f"{part}_START", f"{part}_STARTED"):
                assert place not in begun, event
                begun.add(place)
                open_parts.add(place)
            elif event["type"] in (f"{part}_CONTENT", f"{part}_ARGS"):
                assert place in open_parts, event
            elif event["type"] in (f"{part}_END", f"{part}_FINISHED"):
                open_parts.remove(place)
    assert not open_parts or kinds[-1] == "RUN_ERROR"


def text_of(events: list[AgUiEvent]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")


async def test_an_answer_with_tools_of_the_hybrid_is_told_step_by_step() -> None:
    agent = ScriptedAgent([["I look.", call("look", place="Orb")], ["It is ", "small."]])
    async with Hybrid(near=agent, tools=[look], policy={"strategy": "device"}) as hybrid:
        events = await events_of(hybrid, asked())
    kinds = [event["type"] for event in events if event["type"] != "CUSTOM"]
    text = ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"]
    called = ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"]
    said = [*text[:2], *text[1:]]
    assert kinds == ["RUN_STARTED", "STEP_STARTED", *text, *called, *said, "STEP_FINISHED", "RUN_FINISHED"]
    told = {event["type"]: event for event in events}
    assert told["RUN_STARTED"]["protocolVersion"] == "1.0"
    assert told["TOOL_CALL_START"]["parentMessageId"] == next(event["messageId"] for event in events if "messageId" in event)
    assert json.loads(told["TOOL_CALL_ARGS"]["delta"]) == {"place": "Orb"}
    assert "small" in told["TOOL_CALL_RESULT"]["content"]
    assert told["RUN_FINISHED"]["outcome"] == {"type": "success"}
    assert told["RUN_FINISHED"]["usage"][0]["outputTokens"] > 0
    costs = [event["value"] for event in events if event.get("name") == "nearfar.cost"]
    assert [(cost["agent"], cost["side"]) for cost in costs] == [("scripted", "near")] * 2
    assert next(event["value"] for event in events if event.get("name") == "nearfar.result")["side"] == "near"


async def test_a_rejected_draft_is_a_step_without_a_text() -> None:
    near = ScriptedAgent([["a bad ", "draft"]], name="small", confidence=0.01)
    far = ScriptedAgent([["a good ", "answer"]], name="large", side=Side.FAR)
    async with Hybrid(near=near, far=far, policy=Policy(sensitivity=Sensitivity.PUBLIC)) as hybrid:
        events = await events_of(hybrid, asked())
    assert text_of(events) == "a good answer"
    steps = [(event["stepName"], event["metadata"]["nearfar"]) for event in events if event["type"].startswith("STEP_")]
    assert [(name, told.get("side", told.get("outcome"))) for name, told in steps] == [
        ("1. small", "near"),
        ("1. small", "rejected"),
        ("2. large", "far"),
        ("2. large", "accepted"),
    ]


async def test_a_call_of_a_frontend_tool_ends_the_run_and_its_result_begins_the_next() -> None:
    agent = ScriptedAgent([["I paint.", call("paint", color="red")], "It is red."])
    async with Hybrid(near=agent) as hybrid:
        first = await events_of(hybrid, asked(tools=[PAINT]))
        assert first[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["call_1"]}
        assert "TOOL_CALL_RESULT" not in [event["type"] for event in first]
        tool_calls = [{"id": "call_1", "type": "function", "function": {"name": "paint", "arguments": '{"color": "red"}'}}]
        history: list[dict[str, Any]] = [
            {"id": "m1", "role": "user", "content": [{"type": "text", "text": "Paint."}]},
            {"id": "m2", "role": "assistant", "content": "I paint.", "toolCalls": tool_calls},
            {"id": "m3", "role": "tool", "toolCallId": "call_1", "content": "done"},
            {"id": "m4", "role": "activity", "activityType": "plan", "content": {"steps": 2}},
        ]
        second = await events_of(hybrid, asked(*history, run="r2", tools=[PAINT]))
    assert (text_of(second), second[-1]["outcome"]) == ("It is red.", {"type": "success"})
    assert [message.role for message in agent.requests[1].messages] == ["user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("answer", "paid", "said"),
    [
        ({"status": "resolved", "payload": {"approved": True}}, [5], "paid"),
        ({"status": "resolved", "payload": True}, [5], "paid"),
        ({"status": "resolved", "payload": {"approved": "yes"}}, [], "not run"),
        ({"status": "resolved"}, [], "not run"),
        ({"status": "cancelled", "payload": {"approved": True}}, [], "not run"),
    ],
)
async def test_an_approval_is_an_interrupt_and_the_resumed_run_does_not_announce_the_call_again(
    tmp_path: Path, answer: dict[str, Any], paid: list[int], said: str
) -> None:
    PAID.clear()
    agent = ScriptedAgent([["I pay.", call("pay", amount=5)], "Done."])
    async with Hybrid(near=agent, tools=[pay], records=tmp_path / "records") as hybrid:
        stopped = await events_of(hybrid, asked())
        (interrupt,) = stopped[-1]["outcome"]["interrupts"]
        assert (interrupt["reason"], interrupt["toolCallId"]) == ("tool_call", "call_1")
        assert PAID == []
        tool_calls = [{"id": "call_1", "type": "function", "function": {"name": "pay", "arguments": '{"amount": 5}'}}]
        history: list[dict[str, Any]] = [
            {"id": "m1", "role": "user", "content": "Pay."},
            {"id": "m2", "role": "assistant", "toolCalls": tool_calls},
        ]
        resuming = asked(*history, run="r2", resume=[{"interruptId": interrupt["id"], **answer}])
        foreign = await events_of(hybrid, resuming, user="eve")
        assert (foreign[-1]["type"], foreign[-1]["code"]) == ("RUN_ERROR", "NotFound")
        resumed = await events_of(hybrid, resuming)
    assert paid == PAID
    kinds = [event["type"] for event in resumed]
    assert "TOOL_CALL_START" not in kinds
    assert said in next(event["content"] for event in resumed if event["type"] == "TOOL_CALL_RESULT")
    assert text_of(resumed) == "Done."


async def test_a_call_with_the_id_of_another_one_is_announced_and_asked_about_as_itself(tmp_path: Path) -> None:
    PAID.clear()
    earlier: list[dict[str, Any]] = [
        {"id": "m1", "role": "user", "content": "Pay 1."},
        {"id": "m2", "role": "assistant", "toolCalls": [_known("call_1", "pay", amount=1)]},
        {"id": "m3", "role": "tool", "toolCallId": "call_1", "content": "paid"},
        {"id": "m4", "role": "user", "content": "Go on."},
    ]
    script: list[ToolCall | str] = [call("pay", amount=900), call("pay", amount=900), "Done."]
    async with Hybrid(near=ScriptedAgent(script), tools=[pay], records=tmp_path, policy={"strategy": "device"}) as hybrid:
        stopped = await events_of(hybrid, asked(*earlier))
        first = _asked_about(stopped)
        assert (first["toolCallId"], first["message"]) == ("call_1-2", 'pay needs approval: pay {"amount": 900}')
        history = [*earlier, {"id": "m5", "role": "assistant", "toolCalls": [_known("call_1-2", "pay", amount=900)]}]
        answer = {"interruptId": first["id"], "status": "resolved", "payload": True}
        resumed = await events_of(hybrid, asked(*history, run="r2", resume=[answer]))
        assert [event["toolCallId"] for event in resumed if event["type"] == "TOOL_CALL_RESULT"] == ["call_1-2"]
        assert _asked_about(resumed)["toolCallId"] == "call_1-3"
    assert PAID == [900]


def _asked_about(events: list[AgUiEvent]) -> dict[str, Any]:
    """The only interrupt, which is about the only call that was announced."""
    (interrupt,) = events[-1]["outcome"]["interrupts"]
    assert [event["toolCallId"] for event in events if event["type"] == "TOOL_CALL_START"] == [interrupt["toolCallId"]]
    return dict(interrupt)


def _known(identifier: str, name: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON value
    """A call as an interface tells it in a conversation."""
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


async def test_a_yes_and_a_no_to_one_interrupt_are_a_no(tmp_path: Path) -> None:
    PAID.clear()
    agent = ScriptedAgent([[call("pay", amount=5)], "Done."])
    async with Hybrid(near=agent, tools=[pay], records=tmp_path / "records") as hybrid:
        stopped = await events_of(hybrid, asked())
        (interrupt,) = stopped[-1]["outcome"]["interrupts"]
        said = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": word}} for word in (False, True)]
        resumed = await events_of(hybrid, asked(run="r2", resume=said))
    assert (text_of(resumed), PAID) == ("Done.", [])


async def test_a_request_that_is_repeated_is_answered_from_its_run(tmp_path: Path) -> None:
    agent = ScriptedAgent(["It is small."])
    async with Hybrid(near=agent, records=tmp_path / "records") as hybrid:
        assert text_of(await events_of(hybrid, asked())) == "It is small."
        assert text_of(await events_of(hybrid, asked())) == "It is small."
        other = await events_of(hybrid, asked({"id": "m1", "role": "user", "content": "Another?"}))
    assert (other[-1]["type"], other[-1]["code"]) == ("RUN_ERROR", "IdempotencyConflict")
    assert len(agent.requests) == 1


async def test_two_users_may_choose_the_same_ids(tmp_path: Path) -> None:
    async with Hybrid(near=ScriptedAgent(["for ana", "for eve"]), records=tmp_path) as hybrid:
        assert text_of(await events_of(hybrid, asked(), user="ana")) == "for ana"
        assert text_of(await events_of(hybrid, asked(), user="eve")) == "for eve"


async def test_an_error_ends_the_run_with_its_class() -> None:
    async with Hybrid(near=ScriptedAgent([]), policy={"strategy": "device"}) as hybrid:
        events = await events_of(hybrid, asked())
        image = {"type": "audio", "source": {"type": "url", "value": "https://example.org/a.wav"}}
        refused = await events_of(hybrid, asked({"id": "m1", "role": "user", "content": [{"type": "text", "text": "Hear."}, image]}))
    assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "NotFound")
    assert (refused[-1]["type"], refused[-1]["code"]) == ("RUN_ERROR", "InvalidRequest")


async def test_a_run_that_is_cancelled_elsewhere_says_so(tmp_path: Path) -> None:
    waiting = anyio.Event()
    agent = ScriptedAgent([["I look.", waiting, call("look", place="Orb")], "It is small."])
    request = AgUiRequest.parse(asked())
    options = request.options({"user": "ana", "strategy": "device"})
    last: dict[str, Any] = {}
    async with Hybrid(near=agent, tools=[look], records=tmp_path) as hybrid, aclosing(serve_agui(hybrid, request, options)) as events:
        async for event in events:
            if event["type"] == "STEP_STARTED":
                await hybrid.cancel(options["idempotency_key"], user="ana")
                waiting.set()
            last = event
    assert (last["type"], last["outcome"]) == ("RUN_FINISHED", {"type": "cancelled"})


async def test_the_situation_that_the_interface_tells_stands_behind_the_prompt() -> None:
    agent = ScriptedAgent(["hi"])
    async with Hybrid(near=agent) as hybrid:
        await events_of(hybrid, asked(context=[{"description": "The page", "value": "settings"}]))
    assert "The page:\nsettings" in agent.requests[0].messages[-1].text


async def test_a_client_that_leaves_cancels_its_turn() -> None:
    agent = ScriptedAgent([["one", anyio.Event(), "two"]])
    async with Hybrid(near=agent, policy={"strategy": "device"}) as hybrid:
        stream: AsyncGenerator[AgUiEvent, None] = serve_agui(hybrid, AgUiRequest.parse(asked()), {})
        async with aclosing(stream) as events:
            async for event in events:
                if event["type"] == "TEXT_MESSAGE_CONTENT":
                    break
        assert (agent.live_steps, agent.cancelled_steps) == (0, 1)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "body"),
        ({"threadId": "t", "runId": "r"}, "messages"),
        ({"threadId": "t", "runId": "", "messages": []}, "runId"),
        ({"threadId": "t", "runId": "r", "messages": [], "resume": [{"interruptId": "x", "status": "maybe"}]}, "resume.0.status"),
    ],
)
def test_a_request_of_another_form_is_refused_with_its_place(body: object, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        AgUiRequest.parse(body)


async def test_answers_that_belong_to_no_run_end_with_an_error(tmp_path: Path) -> None:
    async with Hybrid(near=ScriptedAgent([]), records=tmp_path / "records") as hybrid:
        for ids in (["nothing"], ["a/1", "b/1"], ["a/"]):
            events = await events_of(hybrid, asked(resume=[{"interruptId": each, "status": "resolved"} for each in ids]))
            assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "InvalidRequest")


@pytest.mark.parametrize("calls", [5, True, "x", {"id": "1"}])
async def test_calls_that_are_no_list_end_with_an_error(calls: object) -> None:
    async with Hybrid(near=ScriptedAgent([])) as hybrid:
        events = await events_of(hybrid, asked(messages=[{"id": "1", "role": "assistant", "content": "", "toolCalls": calls}]))
    assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "InvalidRequest")
