"""Prompts as messages: those of nearfar, and mappings as OpenAI's API has them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar import Hybrid
from nearfar.orchestrator.task import as_messages
from nearfar.protocols import InvalidRequest, Message, NearfarError, ScriptedAgent, ToolCall, ToolResult

CALL = ToolCall(id="c1", name="look", arguments={"place": "Aldara"})
FOREIGN_CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"place": "Aldara"}'}}


def test_a_text_is_the_users() -> None:
    assert as_messages("Hello?") == (Message.user("Hello?"),)


def test_messages_of_openais_form_are_read_with_their_tool_calls() -> None:
    assert as_messages(
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Where is "}, {"type": "text", "text": "Aldara?"}]},
            {"role": "assistant", "content": None, "tool_calls": [FOREIGN_CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "in the north"},
            {"role": "assistant", "content": "In the north."},
        ]
    ) == (
        Message.system("Be brief."),
        Message.user("Where is Aldara?"),
        Message.assistant("", (CALL,)),
        Message.tool(ToolResult(call_id="c1", name="look", content="in the north")),
        Message.assistant("In the north."),
    )


def test_a_long_conversation_is_read_message_by_message() -> None:
    looks = 0

    class Watched(Message):
        def __getattribute__(self, name: str) -> object:
            nonlocal looks
            looks += name == "tool_calls"
            return super().__getattribute__(name)

    said = [Watched(role="user", text="Hi.") for _ in range(100)]
    assert len(as_messages([*said, *({"role": "user", "content": "Hi."} for _ in range(100))])) == 200
    assert looks <= 1000


def test_messages_of_our_own_form_and_mappings_may_stand_side_by_side() -> None:
    told = (Message.user("Where?"), Message.assistant("", (CALL,)), Message.tool(ToolResult(call_id="c1", name="look", content="x")))
    assert as_messages([message.model_dump() for message in told]) == told
    assert as_messages([told[0], told[1], {"role": "tool", "tool_call_id": "c1", "content": "x"}]) == told


@pytest.mark.anyio
async def test_a_task_takes_mappings() -> None:
    async with Hybrid(near=ScriptedAgent(["hi"])) as hybrid:
        assert (await hybrid.run([{"role": "user", "content": "Hello?"}])).text == "hi"


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ({"role": "user", "content": "Hello?"}, "a list of messages, not dict"),
        ([{"role": "owner", "content": "Hello?"}], r"messages\[0\]\.role"),
        ([{"content": "Hello?"}], r"messages\[0\]\.role"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content must be text, not int"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], r"content\[0\] holds no data"),
        ([{"role": "user", "contents": "Hello?"}], r"messages\[0\]\.contents"),
        ([{"role": "user", "content": "Hello?", "audio": {}}], "unknown key 'audio'"),
        (["Hello?"], r"messages\[0\] is no message but str"),
        ([{"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": "c9", "content": "x"}], r"messages\[1\]\.tool_call_id"),
        ([{"role": "user", "content": " "}], "the prompt is empty"),
        ([], "the prompt is empty"),
        (None, "not NoneType"),
        (b"Hello?", "not bytes"),
    ],
)
def test_what_is_no_message_is_told_with_its_place(prompt: object, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        as_messages(prompt)


@pytest.mark.parametrize("arguments", ["{", "[1]", "null", 5])
def test_arguments_of_a_call_that_are_no_object_are_refused(arguments: object) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    with pytest.raises(InvalidRequest, match=r"messages\[1\]"):
        as_messages([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}])


SCALARS: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=3)
KEYS = st.sampled_from(["role", "content", "text", "tool_calls", "tool_call_id", "function", "arguments", "name", "type", "id"])
ROLES: st.SearchStrategy[Any] = st.sampled_from(["user", "assistant", "tool", "system"])
VALUES = st.recursive(ROLES | SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)


@given(VALUES)
def test_whatever_is_given_is_read_or_refused_by_an_error_of_the_tree(prompt: object) -> None:
    try:
        messages = as_messages(prompt)
    except NearfarError:
        return
    assert all(isinstance(message, Message) for message in messages)
