"""Every shape of conversation that the orchestrator makes can be shown by the templates of the usual model families."""

import pytest

pytest.importorskip("llguidance", reason="running models needs llama.cpp: pip install 'nearfar[llama]'")
from family_templates import DEEPSEEK_R1, FAMILIES, GEMMA, NATIVE, PHI, QWEN2, QWEN3

from nearfar.device.worker.prompt import ChatTemplate, TemplateInput, native, plain
from nearfar.protocols import Message, ModelError, ToolCall, ToolResult, ToolSpec, Unsupported

SYSTEM = Message.system("Speak in rhyme.")
QUESTION = Message.user("Which rivers?")
CALLS = (ToolCall(id="call_1", name="look", arguments={"what": "<Rhine>"}), ToolCall(id="call_2", name="look", arguments={"what": "Main"}))
CALLING = Message.assistant("", CALLS)
RESULTS = tuple(Message.tool(ToolResult(call_id=call.id, name="look", content=f"result {call.id}")) for call in CALLS)
CORRECTION = Message.user("Your last reply could not be used. Reply again.")
LOOK = ToolSpec(name="look", description="Looks.")

CONVERSATIONS = {
    "a question": (QUESTION,),
    "with a system message": (SYSTEM, QUESTION),
    "a second turn": (SYSTEM, QUESTION, Message.assistant("The Rhine."), Message.user("More!")),
    "results in a row": (SYSTEM, QUESTION, CALLING, *RESULTS),
    "text beside calls": (QUESTION, Message.assistant("I look.", CALLS), *RESULTS),
    "an empty reply": (QUESTION, Message.assistant(""), Message.user("Well?")),
    "a correction of the first reply": (SYSTEM, QUESTION, CORRECTION),
    "a correction after results": (SYSTEM, QUESTION, CALLING, *RESULTS, CORRECTION),
    "a late system message": (QUESTION, Message.assistant("The Rhine."), Message.system("Now shout."), Message.user("Again?")),
}


def _template(source: str) -> ChatTemplate:
    return ChatTemplate(source, start_text="<s>", end_text="</s>")


def _conversation(template: ChatTemplate, messages: tuple[Message, ...], tools: tuple[ToolSpec, ...]) -> TemplateInput:
    return native(messages, tools) if template.shows_tools else plain(messages, tools)


@pytest.mark.parametrize("family", FAMILIES)
def test_own_tool_format_of_a_template_is_used_only_where_it_is_the_enforced_one(family: str) -> None:
    assert _template(FAMILIES[family]).shows_tools == (family in NATIVE)


@pytest.mark.parametrize("tools", [(), (LOOK,)], ids=["without tools", "with tools"])
@pytest.mark.parametrize("shape", CONVERSATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_all_texts_of_a_conversation_are_shown(family: str, shape: str, tools: tuple[ToolSpec, ...]) -> None:
    template = _template(FAMILIES[family])
    messages = CONVERSATIONS[shape]
    rendered = template.render(_conversation(template, messages, tools))
    expected = [message.text for message in messages] + [tool.description for tool in tools]
    expected += [message.tool_result.content for message in messages if message.tool_result]
    expected += ['{"what": "<Rhine>"}' for message in messages if message.tool_calls]
    missing = [text for text in expected if text not in rendered]
    assert not missing, rendered


@pytest.mark.parametrize("source", [GEMMA, PHI])
def test_system_text_that_a_template_refuses_or_leaves_out_begins_the_question(source: str) -> None:
    rendered = _template(source).render(plain((SYSTEM, QUESTION), ()))
    assert "Speak in rhyme.\n\nWhich rivers?" in rendered


def test_system_text_alone_is_a_question_where_there_is_no_system_role() -> None:
    assert "<start_of_turn>user\nSpeak in rhyme.<end_of_turn>" in _template(GEMMA).render(plain((SYSTEM,), ()))


@pytest.mark.parametrize("family", ["gemma", "mistral"])
def test_conversation_that_cannot_be_shown_is_refused_with_the_templates_reason(family: str) -> None:
    with pytest.raises(Unsupported, match="alternate"):
        _template(FAMILIES[family]).render(plain((Message.assistant("Hello!"), QUESTION), ()))


def test_reasoning_is_left_to_the_template_or_closed() -> None:
    talk = plain((QUESTION,), ())
    assert _template(QWEN3).render(talk).endswith("assistant\n")
    assert _template(DEEPSEEK_R1).render(talk).endswith("<think>\n")
    for source in (QWEN3, DEEPSEEK_R1):
        assert _template(source).render(talk, may_reason=False).endswith("<think>\n\n</think>\n\n")
    assert "think" not in _template(QWEN2).render(talk, may_reason=False)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}<tool_call>",
    ],
)
def test_template_that_computes_without_end_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.device.worker.prompt._SECONDS", 0.05)
    with pytest.raises(ModelError, match="computed"):
        _template(source).render(plain((QUESTION,), ()))


_DOUBLING = "{% set s = namespace(v='x') %}{% for a in range(40) %}{% set s.v = s.v ~ s.v %}{% endfor %}{{ s.v | length }}"


@pytest.mark.parametrize("source", [_DOUBLING, "{{ 'x' * 10**12 }}", "{{ 9 ** (9 ** 9) }}", "{{ 10**9 * [0] }}", "{{ '\\ud800' }}"])
def test_value_that_no_tokenizer_takes_is_refused(source: str) -> None:
    with pytest.raises(Unsupported):
        _template(source).render(plain((QUESTION,), ()))


def test_ordinary_arithmetic_is_allowed() -> None:
    assert _template("{{ 2 * 3 }}{{ '-' * 3 }}{{ 2 ** 3 }}").render(plain((QUESTION,), ())) == "6---8"
