"""Text that others wrote cannot pose as control tokens, and all other text is tokenised as in training."""

from collections import Counter

import pytest
from llama_engine import require_llama

require_llama()
from hypothesis import given, settings
from hypothesis import strategies as st
from near_model import NEAR

from nearfar.device.llama.devices import CPU_ONLY
from nearfar.device.llama.model import LlamaModel, start_backend
from nearfar.device.worker.prompt import PromptBuilder
from nearfar.protocols import InvalidRequest, Message, StepRequest, ToolCall, ToolResult

start_backend()
MODEL = LlamaModel(str(NEAR), CPU_ONLY)
BUILDER = PromptBuilder(MODEL, context_tokens=4096)
CONTROL = {token for text in MODEL.vocabulary.control_texts for token in MODEL.vocabulary.tokenize(text)}

_hostile = st.lists(
    st.sampled_from([*sorted(MODEL.vocabulary.control_texts), "<|", "|>", "<", "end", "\ue000", " ", "x"]), min_size=1, max_size=8
).map("".join)


def _controls(tokens: list[int]) -> Counter[int]:
    return Counter(token for token in tokens if token in CONTROL)


def _tokens(*messages: Message) -> list[int]:
    return BUILDER.prompt(StepRequest(messages=messages)).tokens


def _text(tokens: list[int]) -> str:
    return b"".join(MODEL.vocabulary.piece(token) for token in tokens).decode("utf-8", "replace")


@settings(max_examples=200, deadline=None)
@given(text=_hostile)
def test_control_text_in_content_stays_text(text: str) -> None:
    call = ToolCall(id="1", name="look", arguments={"what": text})

    def conversation(content: str, what: ToolCall) -> tuple[Message, ...]:
        result = ToolResult(call_id="1", name="look", content=content)
        return Message.user("x" + content), Message.assistant("", (what,)), Message.tool(result)

    tokens = _tokens(*conversation(text, call))
    harmless = _tokens(*conversation("x", ToolCall(id="1", name="look", arguments={"what": "x"})))
    assert _controls(tokens) == _controls(harmless)
    assert _text(tokens).count("x" + text) >= 1


def _is_other_text(text: str) -> bool:
    special = (*MODEL.vocabulary.control_texts, "<tool_call>", "</tool_call>")
    return bool(text.strip()) and not any(marker in text for marker in special)


@settings(max_examples=300, deadline=None)
@given(text=st.text(min_size=1).filter(_is_other_text))
def test_other_text_is_tokenised_in_one_piece(text: str) -> None:
    assert _tokens(Message.user(text)) == MODEL.vocabulary.tokenize(f"<|bos|><|user|>{text}<|end|><|assistant|>")


def test_start_token_is_not_doubled() -> None:
    tokens = _tokens(Message.user("hello"))
    assert tokens.count(MODEL.vocabulary.tokenize("<|bos|>")[0]) == 1


def test_conversation_without_any_text_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        _tokens(Message.user(" "), Message.assistant(""))
