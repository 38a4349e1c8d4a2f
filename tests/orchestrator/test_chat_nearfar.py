"""`ChatNearfar`: a `Hybrid` as a chat model of LangChain. LangChain's standard suites are in `tests/judges/test_langchain.py`."""

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import date
from decimal import Decimal
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage, ToolMessage, trim_messages
from langchain_core.tools import tool as langchain_tool
from llama_engine import needs_llama
from pydantic import BaseModel

from nearfar import (
    Capabilities,
    ChatNearfar,
    Hybrid,
    InvalidRequest,
    Limits,
    Policy,
    PrivacyViolation,
    ProviderState,
    ScriptedAgent,
    Sensitivity,
    Side,
    StepEvent,
    StepRequest,
    ToolCall,
    ToolChoice,
    Unsupported,
    tool,
)
from nearfar.protocols import Finished, FinishReason, Prices, Usage
from nearfar.protocols.fakes import Script

pytestmark = pytest.mark.anyio
STATE = ProviderState(provider="p", model="scripted", parts=({"type": "reasoning", "encrypted": "x"},))
PRICES = Prices(input=Decimal(1), output=Decimal(2), source="test", as_of=date(2026, 1, 1))
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
LOOK = ToolCall(id="call_1", name="look", arguments={"place": "Örb"})


@langchain_tool
def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is small"


def finished(**more: Any) -> Finished:  # noqa: ANN401 - fields of it
    usage = Usage(input_tokens=9, output_tokens=4, cached_tokens=3, cache_write_tokens=2, reasoning_tokens=1)
    return Finished(reason=FinishReason.STOP, usage=usage, model="scripted-2", **more)


async def whole(model: BaseChatModel, prompt: Any, **options: Any) -> AIMessage:  # noqa: ANN401 - as LangChain has them
    """A streamed answer, put together."""
    pieces = [piece async for piece in model.astream(prompt, **options)]
    assert pieces[-1].chunk_position == "last"
    message = pieces[0]
    for piece in pieces[1:]:
        message = message + piece
    assert isinstance(message, AIMessageChunk)
    return message


async def test_an_answer_says_who_gave_it_and_what_it_cost() -> None:
    far = ScriptedAgent([["Hel", "lo", finished()]] * 2, name="far", side=Side.FAR, prices=PRICES, confidence=0.5)
    async with Hybrid(far=far, policy={"strategy": "cloud", "sensitivity": "public"}) as hybrid:
        model = ChatNearfar(hybrid=hybrid)
        for answer in (await model.ainvoke("Greet me."), await whole(model, "Greet me.")):
            assert answer.text == "Hello"
            assert answer.usage_metadata == {
                "input_tokens": 9,
                "output_tokens": 4,
                "total_tokens": 13,
                "input_token_details": {"cache_read": 3, "cache_creation": 2},
                "output_token_details": {"reasoning": 1},
            }
            told = answer.response_metadata
            assert told["model_name"] == "scripted-2"
            assert (told["model_provider"], told["side"], told["finish_reason"], told["attempts"]) == ("nearfar", "far", "stop", 1)
            assert told["dollars"] > 0
            assert told["run"]


async def test_a_call_of_a_bound_tool_ends_the_turn_and_its_result_is_answered() -> None:
    agent = ScriptedAgent([LOOK, "small", LOOK])
    async with Hybrid(near=agent) as hybrid:
        model = ChatNearfar(hybrid=hybrid).bind_tools([look])
        asked = await model.ainvoke("How is it?")
        assert asked.tool_calls == [{"name": "look", "args": {"place": "Örb"}, "id": "call_1", "type": "tool_call"}]
        assert asked.response_metadata["finish_reason"] == "tool_calls"
        answer = await model.ainvoke([HumanMessage("How is it?"), asked, await look.ainvoke(asked.tool_calls[0])])
        assert answer.text == "small"
        streamed = await whole(model, "How is it?")  # type: ignore[arg-type]  # a bound model streams as the model does
        assert streamed.tool_calls == asked.tool_calls
    assert agent.requests[0].tools[0].parameters["required"] == ["place"]
    assert "Örb is small" in str(agent.requests[1].messages[-1].tool_result)


@pytest.mark.parametrize(
    ("choice", "expected", "shown"),
    [
        (None, ToolChoice.AUTO, ["look", "other"]),
        ("auto", ToolChoice.AUTO, ["look", "other"]),
        ("none", ToolChoice.NONE, ["look", "other"]),
        ("any", ToolChoice.REQUIRED, ["look", "other"]),
        (True, ToolChoice.REQUIRED, ["look", "other"]),
        ("look", ToolChoice.REQUIRED, ["look"]),
        ({"type": "function", "function": {"name": "look"}}, ToolChoice.REQUIRED, ["look"]),
    ],
)
async def test_a_tool_choice_is_the_agents(choice: Any, expected: ToolChoice, shown: list[str]) -> None:  # noqa: ANN401 - all that LangChain has
    @tool
    def other() -> str:
        """Do something else."""
        return ""

    agent = ScriptedAgent([LOOK if expected is ToolChoice.REQUIRED else "no"])
    async with Hybrid(near=agent) as hybrid:
        await ChatNearfar(hybrid=hybrid).bind_tools([look, other], tool_choice=choice).ainvoke("Go.")
    request = agent.requests[0]
    assert (request.tool_choice, [each.name for each in request.tools]) == (expected, shown)


async def test_tools_that_a_provider_would_run_are_refused() -> None:
    async with Hybrid(near=ScriptedAgent([])) as hybrid:
        with pytest.raises(InvalidRequest, match="'web_search' is a tool that one provider runs itself"):
            ChatNearfar(hybrid=hybrid).bind_tools([{"type": "web_search"}])
        with pytest.raises(InvalidRequest, match="no tool choice"):
            ChatNearfar(hybrid=hybrid).bind_tools([look], tool_choice={"type": "function"})


@pytest.mark.parametrize(
    "message",
    [
        HumanMessage([{"type": "text", "text": "What is this?"}, {"type": "audio", "base64": "AAAA", "mime_type": "audio/wav"}]),
        HumanMessage([{"type": "text", "text": "What is this?"}, {"type": "video", "url": "https://example.org/a.mp4"}]),
        HumanMessage([{"type": "text", "text": "What is this?"}, {"type": "strange"}]),
        ToolMessage([{"type": "audio", "base64": "AAAA", "mime_type": "audio/wav"}], tool_call_id="call_1"),
    ],
)
async def test_a_part_that_no_agent_can_be_given_is_refused_and_not_dropped(message: BaseMessage) -> None:
    agent = ScriptedAgent(["a guess"])
    history = [HumanMessage("Look."), AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "call_1"}]), message]
    async with Hybrid(near=agent) as hybrid:
        with pytest.raises((InvalidRequest, Unsupported), match=r"messages\[2\]"):
            await ChatNearfar(hybrid=hybrid).ainvoke(history)
    assert agent.requests == []


async def test_an_image_goes_to_an_agent_that_reads_images_and_else_to_none() -> None:
    message = HumanMessage([{"type": "text", "text": "What is this?"}, {"type": "image", "base64": PNG, "mime_type": "image/png"}])
    blind = ScriptedAgent(["a guess"], name="blind")
    seeing = ScriptedAgent(["a dot"], name="seeing", capabilities=Capabilities(images=True))
    async with Hybrid(near=blind) as hybrid:
        with pytest.raises(Unsupported):
            await ChatNearfar(hybrid=hybrid).ainvoke([message])
        assert (ChatNearfar(hybrid=hybrid).profile or {})["image_inputs"] is False
    async with Hybrid(near=blind, agents={"seeing": seeing}) as hybrid:
        assert (await ChatNearfar(hybrid=hybrid).ainvoke([message])).text == "a dot"
        assert (ChatNearfar(hybrid=hybrid).profile or {})["image_inputs"] is True
    assert blind.requests == []


class Town(BaseModel):
    """A town."""

    name: str
    people: int


@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
async def test_structured_output_is_asked_for_by_schema(method: Any) -> None:  # noqa: ANN401 - one of the literals
    agent = ScriptedAgent(['{"name": "Orb", "people": 12}'] * 2)
    async with Hybrid(near=agent) as hybrid:
        model = ChatNearfar(hybrid=hybrid)
        assert await model.with_structured_output(Town, method=method).ainvoke("A town?") == Town(name="Orb", people=12)
        told = await model.with_structured_output(Town, method=method, include_raw=True).ainvoke("A town?")
    assert isinstance(told, dict)
    assert (told["parsed"], told["parsing_error"]) == (Town(name="Orb", people=12), None)
    assert isinstance(told["raw"], AIMessage)
    assert agent.requests[0].output_schema is not None
    assert agent.requests[0].output_schema["required"] == ["name", "people"]


async def test_a_response_format_of_openai_is_a_schema_too() -> None:
    agent = ScriptedAgent(['{"name": "Orb", "people": 12}', "{}"])
    schema = Town.model_json_schema()
    async with Hybrid(near=agent) as hybrid:
        model = ChatNearfar(hybrid=hybrid)
        await model.ainvoke("A town?", response_format={"type": "json_schema", "json_schema": {"name": "Town", "schema": schema}})
        await model.ainvoke("Anything?", response_format={"type": "json_object"})
        with pytest.raises(InvalidRequest, match="no response format"):
            await model.ainvoke("A town?", response_format={"type": "xml"})
    assert [request.output_schema for request in agent.requests] == [schema, {"type": "object"}]


async def test_sampling_and_options_come_from_the_model_and_each_call_stands_above() -> None:
    near, other = ScriptedAgent(["1", "2"], name="near"), ScriptedAgent(["3"], name="other", model="other-model")
    async with Hybrid(near=near, agents={"other": other}) as hybrid:
        model = ChatNearfar(hybrid=hybrid, temperature=0.5, max_tokens=7, stop=["END"], seed=1, options={"sampling": {"seed": 2}})
        await model.ainvoke("One.", model="near")
        await model.ainvoke("Two.", model="near", temperature=1.5, max_tokens=5, stop=["."], seed=3)
        assert (await model.ainvoke("Three.", model="other")).response_metadata["model_name"] == "other-model"
        with pytest.raises(InvalidRequest, match="unknown option 'no_such'"):
            await model.ainvoke("Four.", no_such=1)
    told = [(each.temperature, each.max_output_tokens, each.stop, each.seed) for each in near.requests]
    assert told == [(0.5, 7, ("END",), 2), (1.5, 5, (".",), 3)]


async def test_private_is_the_default_and_an_option_opens_it() -> None:
    far = ScriptedAgent(["hi"], name="far", side=Side.FAR)
    async with Hybrid(far=far, policy={"strategy": "cloud"}) as hybrid:
        with pytest.raises(PrivacyViolation):
            await ChatNearfar(hybrid=hybrid).ainvoke("Hello")
        assert (await ChatNearfar(hybrid=hybrid, options={"sensitivity": "public"}).ainvoke("Hello")).text == "hi"
    assert len(far.requests) == 1


async def test_nothing_of_a_rejected_draft_is_streamed() -> None:
    near = ScriptedAgent([["a bad ", "draft"]], confidence=0.01)
    far = ScriptedAgent([["a good ", "answer"]], name="far", side=Side.FAR)
    async with Hybrid(near=near, far=far, policy=Policy(sensitivity=Sensitivity.PUBLIC)) as hybrid:
        answer = await whole(ChatNearfar(hybrid=hybrid), "Which is it?")
    assert (answer.text, answer.response_metadata["side"], answer.response_metadata["attempts"]) == ("a good answer", "far", 2)


async def test_a_providers_state_travels_with_the_message() -> None:
    far = ScriptedAgent([["I look.", finished(state=STATE)], "done", ["I look.", finished(state=STATE)]], name="far", side=Side.FAR)
    async with Hybrid(far=far, policy={"strategy": "cloud", "sensitivity": "public"}) as hybrid:
        model = ChatNearfar(hybrid=hybrid)
        said = await model.ainvoke("Go.")
        await model.ainvoke([HumanMessage("Go."), said, HumanMessage("And?")])
        assert (await whole(model, "Go.")).additional_kwargs == said.additional_kwargs
    assert far.requests[1].messages[1].state == STATE


def test_sync_and_async_calls_may_be_mixed() -> None:
    """The sync ones have made the `Hybrid` their loop's."""
    agent = ScriptedAgent(lambda request: ["a", "b"])
    with Hybrid(near=agent) as hybrid:
        model = ChatNearfar(hybrid=hybrid)
        assert model.invoke("Hello").text == "ab"
        assert asyncio.run(model.ainvoke("Hello")).text == "ab"
        assert asyncio.run(whole(model, "Hello")).text == "ab"
        assert "".join(piece.text for piece in model.stream("Hello")) == "ab"
        assert [each.text for each in model.batch(["Hello", "Hello"])] == ["ab", "ab"]


async def test_loops_of_other_threads_may_call_it() -> None:
    agent = ScriptedAgent(lambda request: ["a", "b"])
    async with Hybrid(near=agent) as hybrid:
        model = ChatNearfar(hybrid=hybrid)
        assert (await model.ainvoke("Hello")).text == "ab"
        assert (await asyncio.to_thread(lambda: asyncio.run(whole(model, "Hello")))).text == "ab"
        assert (await asyncio.to_thread(model.invoke, "Hello")).text == "ab"


class Watched(ScriptedAgent):
    """Tells other threads of the end of each step."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.ended = threading.Semaphore(0)

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        try:
            async with aclosing(super().step(request)) as events:
                async for event in events:
                    yield event
        finally:
            await self.leave()

    async def leave(self) -> None:
        self.ended.release()


@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_a_caller_that_leaves_cancels_the_step(*, is_elsewhere: bool) -> None:
    """Also where the `Hybrid` works in the loop of sync calls."""
    agent = Watched(["first", ["one", anyio.Event(), "two"], ["one", anyio.Event(), "two"]])
    hybrid = Hybrid(near=agent)
    model = ChatNearfar(hybrid=hybrid, options={"strategy": "device"})
    await (asyncio.to_thread(model.invoke, "Hello") if is_elsewhere else model.ainvoke("Hello"))
    with anyio.move_on_after(0.2) as scope:
        await model.ainvoke("Wait.")
    assert scope.cancelled_caught
    async with aclosing(model.astream("Wait.")) as stream:  # type: ignore[type-var]  # it is a generator
        async for _ in stream:
            break
    for _ in range(3):
        assert await asyncio.to_thread(agent.ended.acquire, timeout=5)
    assert agent.cancelled_steps == 2
    await hybrid.aclose()


class SlowToLeave(Watched):
    """An agent whose cancelled steps end when they may."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.may_leave = threading.Event()

    async def leave(self) -> None:
        await asyncio.to_thread(self.may_leave.wait)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("loop_ends", [False, True])
def test_a_caller_that_leaves_hears_no_more_of_its_task(caplog: pytest.LogCaptureFixture, *, is_streamed: bool, loop_ends: bool) -> None:
    """The task ends in the loop of sync calls after its caller has left, or after the caller's loop has ended."""
    agent = SlowToLeave(["first", ["one", anyio.Event(), "two"]])
    with Hybrid(near=agent) as hybrid:
        model = ChatNearfar(hybrid=hybrid, options={"strategy": "device"})

        async def leave() -> None:
            async with aclosing(model.astream("Wait.")) as stream:  # type: ignore[type-var]  # it is a generator
                async for _ in stream:
                    break

        async def give_up() -> None:
            answering = asyncio.create_task(model.ainvoke("Wait."))
            while len(agent.requests) < 2:
                await anyio.lowlevel.checkpoint()
            answering.cancel()
            await asyncio.wait([answering])

        async def call() -> None:
            await (leave() if is_streamed else give_up())
            if not loop_ends:
                agent.may_leave.set()
                await asyncio.to_thread(hybrid.close)
                await anyio.lowlevel.checkpoint()
                gc.collect()

        agent.may_leave.set()
        model.invoke("Hello")
        agent.may_leave.clear()
        asyncio.run(call())
        agent.may_leave.set()
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_node_of_langgraph_names_the_session_by_its_thread() -> None:
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import START, MessagesState, StateGraph

    near = ScriptedAgent(["unsure", "unsure"], confidence=0.01)
    far = ScriptedAgent(["sure", "sure again"], name="far", side=Side.FAR)
    async with Hybrid(near=near, far=far, policy=Policy(sensitivity=Sensitivity.PUBLIC)) as hybrid:
        model = ChatNearfar(hybrid=hybrid)

        async def chat(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState).add_node("chat", chat).add_edge(START, "chat").compile(checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "t1"}}
        await graph.ainvoke({"messages": [HumanMessage("Which?")]}, config)
        told = await graph.ainvoke({"messages": [HumanMessage("And now?")]}, config)
    assert [each.response_metadata.get("side") for each in told["messages"]] == [None, "far", None, "far"]
    assert len(near.requests) == 1  # the follow-up goes to the agent that answered last


def test_what_langchain_is_told_of_the_model() -> None:
    with Hybrid(near=ScriptedAgent([])) as hybrid:
        model = ChatNearfar(hybrid=hybrid, temperature=0.5)
        params = model._get_ls_params(stop=["x"])
        assert params == {
            "ls_provider": "nearfar",
            "ls_model_name": "auto",
            "ls_model_type": "chat",
            "ls_temperature": 0.5,
            "ls_stop": ["x"],
        }
        assert model.profile is not None
        assert (model.profile["tool_calling"], model.profile["structured_output"]) == (True, True)
        assert "max_input_tokens" not in model.profile
        assert "hybrid" not in model.asdict()


def test_its_window_is_that_of_the_agents_that_may_answer() -> None:
    near = ScriptedAgent([], limits=Limits(context_tokens=4000))
    far = ScriptedAgent([], name="far", side=Side.FAR, limits=Limits(context_tokens=9000))
    with Hybrid(near=near, far=far) as hybrid:
        profiles = [ChatNearfar(hybrid=hybrid).profile, ChatNearfar(hybrid=hybrid, options={"sensitivity": "public"}).profile]
    assert [profile and profile["max_input_tokens"] for profile in profiles] == [4000, 9000]


async def test_several_instructions_are_one_conversation() -> None:
    agent = ScriptedAgent(["hi"])
    async with Hybrid(near=agent) as hybrid:
        await ChatNearfar(hybrid=hybrid).ainvoke([SystemMessage("Be brief."), SystemMessage("Be kind."), HumanMessage("Hello")])
    assert [message.text for message in agent.requests[0].messages] == ["Be brief.", "Be kind.", "Hello"]


@needs_llama
def test_prompts_are_counted_by_the_near_models_tokenizer() -> None:
    with Hybrid(near="near") as hybrid:
        model = ChatNearfar(hybrid=hybrid)
        asked: list[BaseMessage] = [SystemMessage("Be brief."), HumanMessage("What is the mayor of Port Alder?")]
        counted = model.get_num_tokens_from_messages(asked)
        used = model.invoke(asked).usage_metadata
        kept = trim_messages([*asked, AIMessage("Mira Falk."), HumanMessage("And of Orb?")], max_tokens=counted, token_counter=model)
    assert used is not None
    assert counted == used["input_tokens"]
    assert kept[-1].text == "And of Orb?"
    assert len(kept) < 4


async def test_tokens_are_estimated_for_parts_of_a_conversation_and_in_the_loop_of_the_hybrid() -> None:
    result = ToolMessage("Orb is small", tool_call_id="call_1")
    async with Hybrid(near=ScriptedAgent([])) as hybrid:
        model = ChatNearfar(hybrid=hybrid)
        await hybrid.pool.enter()
        parts: list[list[BaseMessage]] = [[HumanMessage("Hello")], [result], [HumanMessage("Hello"), result]]
        counts = [model.get_num_tokens_from_messages(part) for part in parts]
    assert counts[0] > 1
    assert counts[2] == counts[0] + counts[1]
