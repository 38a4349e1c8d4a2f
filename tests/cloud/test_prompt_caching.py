"""Anthropic's prompt cache: where a request is marked, and that what is stored is counted and paid."""

import copy
from itertools import pairwise

import pytest
from pydantic import JsonValue

from nearfar.cloud.anthropic import AnthropicDecoder, AnthropicDialect
from nearfar.cloud.openai import OpenAIDialect
from nearfar.cloud.responses import ResponsesDialect
from nearfar.protocols import Message, StepRequest, ToolCall, ToolResult, ToolSpec, Usage

LOOKUP = ToolSpec(name="lookup", description="Look a word up. " * 300, parameters={"type": "object", "properties": {}})
SMALL = ToolSpec(name="lookup", description="Look a word up.", parameters={"type": "object", "properties": {}})
MARK = {"type": "ephemeral"}


def loop(steps: int, *, tool: ToolSpec = LOOKUP, calls: int = 1, result: str = "found") -> StepRequest:
    """A request after so many steps of a tool loop."""
    messages = [Message.system("Be brief."), Message.user("Look it up.")]
    for step in range(steps):
        asked = tuple(ToolCall(id=f"c{step}-{number}", name="lookup", arguments={}) for number in range(calls))
        messages.append(Message.assistant("", asked))
        messages += [Message.tool(ToolResult(call_id=call.id, name="lookup", content=result)) for call in asked]
    return StepRequest(messages=tuple(messages), tools=(tool,))


def body(request: StepRequest) -> dict[str, JsonValue]:
    return AnthropicDialect().body(request, "claude-sonnet-5-5", max_output_tokens=100)


def blocks(sent: JsonValue) -> list[dict[str, JsonValue]]:
    """All blocks of a request in the order of the prompt."""
    assert isinstance(sent, dict)
    system = sent["system"]
    head = [{"type": "text", "text": system}] if isinstance(system, str) else system
    turns = [block for turn in sent["messages"] for block in turn["content"]]  # type: ignore[union-attr, index, call-overload]
    return [*sent["tools"], *head, *turns]  # type: ignore[misc, list-item]


def marked(sent: JsonValue) -> list[int]:
    return [index for index, block in enumerate(blocks(sent)) if block.get("cache_control") == MARK]


@pytest.mark.parametrize("calls", [1, 30])
def test_each_step_of_a_tool_loop_reads_all_that_the_step_before_has_stored(calls: int) -> None:
    requests = [body(loop(steps, calls=calls)) for steps in range(5)]
    for before, after in pairwise(requests):
        stored = marked(before)[-1]
        assert stored == len(blocks(before)) - 1, "the mark moves with the end of the conversation"
        assert stored in marked(after), "the next step looks for it at the same block"
        assert len(marked(after)) <= 4
        plain = [[{**block, "cache_control": None} for block in blocks(sent)][: stored + 1] for sent in (before, after)]
        assert plain[0] == plain[1], "marks apart, the prefix is the same"


def test_tools_and_system_are_marked_together_for_the_next_task() -> None:
    sent = body(loop(0))
    assert marked(sent) == [1, 2]
    without_system = body(loop(0).model_copy(update={"messages": (Message.user("Look it up."),)}))
    tools = without_system["tools"]
    assert isinstance(tools, list)
    assert isinstance(tools[0], dict)
    assert tools[0]["cache_control"] == MARK
    assert "system" not in without_system


def test_a_prefix_that_no_model_stores_is_not_marked() -> None:
    sent = body(loop(2, tool=SMALL))
    assert marked(sent) == []
    assert sent["system"] == "Be brief."


def test_a_long_conversation_is_marked_even_where_its_tools_are_short() -> None:
    sent = body(loop(2, tool=SMALL, result="word " * 1000))
    assert marked(sent) == [4, 6]
    assert sent["system"] == "Be brief."


def test_a_single_question_stores_nothing_that_nobody_reads_again() -> None:
    request = StepRequest(messages=(Message.system("Be brief. " * 1000), Message.user("Why?")))
    assert "cache_control" not in str(body(request))


def test_marking_does_not_touch_the_request() -> None:
    request = loop(3)
    before = copy.deepcopy(request)
    assert body(request) == body(request)
    assert request == before


def test_stored_tokens_are_counted_beside_those_that_were_read() -> None:
    decoder = AnthropicDecoder()
    usage: JsonValue = {"input_tokens": 10, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 3000, "output_tokens": 1}
    decoder.feed({"type": "message_start", "message": {"model": "claude", "usage": usage}})
    decoder.feed({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}})
    decoder.feed({"type": "message_stop"})
    assert decoder.end().usage == Usage(input_tokens=3210, output_tokens=7, cached_tokens=200, cache_write_tokens=3000)


def test_openais_stored_tokens_are_counted_in_both_of_its_dialects() -> None:
    details: JsonValue = {"cached_tokens": 200, "cache_write_tokens": 3000}
    chat = OpenAIDialect(hosted=True).decoder()
    chat.feed({"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]})
    chat.feed({"choices": [], "usage": {"prompt_tokens": 3210, "completion_tokens": 7, "prompt_tokens_details": details}})
    responses = ResponsesDialect().decoder()
    counted: JsonValue = {"input_tokens": 3210, "output_tokens": 7, "input_tokens_details": details}
    responses.feed({"type": "response.completed", "response": {"status": "completed", "output": [], "usage": counted}})
    expected = Usage(input_tokens=3210, output_tokens=7, cached_tokens=200, cache_write_tokens=3000)
    assert chat.end().usage == expected
    assert responses.end().usage == expected
