"""Prompts as LangChain's messages, as a LangGraph app has them at hand."""

from types import SimpleNamespace
from typing import Any

import pytest
from attached import PIXEL
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.content import create_image_block, create_text_block

from nearfar import Hybrid, InvalidRequest, Message, ProviderState, ScriptedAgent, ToolCall, ToolResult
from nearfar.orchestrator.task import STATE, as_messages

LOOK = {"name": "look", "args": {"place": "Aldara"}, "id": "c1"}
CALL = ToolCall(id="c1", name="look", arguments={"place": "Aldara"})


def test_a_conversation_is_read_with_its_calls_and_results() -> None:
    assert as_messages(
        [
            SystemMessage("Be brief."),
            HumanMessage("Where is Aldara?"),
            AIMessage("I look.", tool_calls=[LOOK]),
            ToolMessage("in the north", tool_call_id="c1"),
            AIMessage("In the north."),
            ChatMessage(content="And Orb?", role="user"),
        ]
    ) == (
        Message.system("Be brief."),
        Message.user("Where is Aldara?"),
        Message.assistant("I look.", (CALL,)),
        Message.tool(ToolResult(call_id="c1", name="look", content="in the north")),
        Message.assistant("In the north."),
        Message.user("And Orb?"),
    )


def test_a_failed_tool_stays_one_that_failed() -> None:
    told = as_messages([HumanMessage("Look."), AIMessage("", tool_calls=[LOOK]), ToolMessage("no", tool_call_id="c1", status="error")])
    assert told[-1].tool_result == ToolResult(call_id="c1", name="look", content="no", is_error=True)


def test_parts_of_a_models_message_that_are_no_text_are_left_out() -> None:
    parts: list[str | dict[str, object]] = [
        {"type": "thinking", "thinking": "Hm."},
        {"type": "text", "text": "I "},
        "look.",
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"place": "Aldara"}},
    ]
    assert as_messages([HumanMessage("Where?"), AIMessage(parts, tool_calls=[LOOK])])[1] == Message.assistant("I look.", (CALL,))


def test_the_state_of_a_provider_comes_back_with_its_message() -> None:
    state = ProviderState(provider="p", model="m", parts=({"type": "reasoning", "encrypted": "x"},))
    kept = AIMessage("In the north.", additional_kwargs={STATE: state.model_dump(mode="json")})
    assert as_messages([HumanMessage("Where?"), kept])[1] == Message.assistant("In the north.", state=state)
    with pytest.raises(InvalidRequest, match=r"messages\[1\]\.state"):
        as_messages([HumanMessage("Where?"), AIMessage("Here.", additional_kwargs={STATE: "no state"})])


def test_a_streamed_message_is_one_too() -> None:
    whole = AIMessageChunk(content="In the ") + AIMessageChunk(content="north.")
    assert as_messages([HumanMessage("Where?"), whole])[1] == Message.assistant("In the north.")


def test_pairs_of_a_role_and_a_text_are_messages() -> None:
    told = as_messages([("system", "Be brief."), ("human", "Hello?"), ("ai", "Hi."), ("user", "Bye?")])
    assert told == (Message.system("Be brief."), Message.user("Hello?"), Message.assistant("Hi."), Message.user("Bye?"))


@pytest.mark.anyio
async def test_a_task_takes_them_side_by_side_with_ours() -> None:
    agent = ScriptedAgent(["hi"])
    async with Hybrid(near=agent) as hybrid:
        assert (
            await hybrid.run([HumanMessage("Hello?"), Message.assistant("Yes?"), {"role": "user", "content": "Greet me."}])
        ).text == "hi"
    assert agent.requests[0].messages[0] == Message.user("Hello?")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (FunctionMessage(content="x", name="look"), r"messages\[1\]\.role"),
        (RemoveMessage(id="m1"), r"messages\[1\]\.role"),
        (ToolMessage("x", tool_call_id="c9"), r"messages\[1\]\.tool_call_id names no call"),
        (
            HumanMessage([{"type": "image_url", "image_url": {"url": "x"}}]),
            r"messages\[1\]\.content\[0\] is neither a data: URL",
        ),
        (HumanMessage([{"type": "audio", "base64": "x"}]), r"messages\[1\]\.content\[0\] is 'audio'"),
        (AIMessage([{"type": "image", "base64": PIXEL.base64}]), r"messages\[1\].*only messages of users and tools carry attachments"),
        (AIMessage("", tool_calls=[{**LOOK, "id": None}]), r"messages\[1\]"),
    ],
)
def test_what_agents_cannot_be_told_is_refused_with_its_place(message: BaseMessage, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        as_messages([HumanMessage("Hello?"), message])


def test_images_in_langchains_blocks_are_read() -> None:
    blocks: list[Any] = [create_text_block("What is this?"), create_image_block(base64=PIXEL.base64, mime_type="image/png")]
    assert as_messages([HumanMessage(content_blocks=blocks)]) == (Message.user("What is this?", (PIXEL,)),)


@pytest.mark.parametrize("calls", [5, [5], [{}], [None]])
def test_an_object_that_only_resembles_one_is_refused(calls: object) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[1\]"):
        as_messages([HumanMessage("Hello?"), SimpleNamespace(type="ai", content="x", tool_calls=calls)])


@pytest.mark.parametrize("pair", [("user",), ("user", "a", "b"), ("user", 5), ("owner", "x")])
def test_other_tuples_are_no_messages(pair: object) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[0\]"):
        as_messages([pair])
