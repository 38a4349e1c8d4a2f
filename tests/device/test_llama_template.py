"""Chat templates are rendered as in training, and strangers' templates reach nothing."""

import pytest

pytest.importorskip("llguidance", reason="running models needs llama.cpp: pip install 'nearfar[llama]'")

from nearfar.device.worker.prompt import ChatTemplate, TemplateInput, native, plain
from nearfar.protocols import Message, ModelError, ToolCall, ToolResult, ToolSpec, Unsupported

TALK = TemplateInput(({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <&> 'you'"}))


def _template(source: str | None) -> ChatTemplate:
    return ChatTemplate(source, start_text="<s>", end_text="</s>")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ lipsum.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{% set x = messages.append(1) %}",
        "{% set x = messages[0].update({'content': 'changed'}) %}",
        "{{ ''.format_map.__self__ }}",
        "{{ ('{0.__class__}').format(1) }}",
        "{% for a in range(1000000) %}{% endfor %}",
    ],
)
def test_template_cannot_reach_python(source: str) -> None:
    try:
        rendered = _template(source).render(TALK)
    except Unsupported:
        return
    # What jinja2 does not refuse, it renders as undefined: nothing.
    assert rendered == ""


def test_too_long_template_is_refused() -> None:
    with pytest.raises(ModelError):
        _template("x" * 300_000)


def test_broken_template_is_refused() -> None:
    with pytest.raises(ModelError):
        _template("{% if %}")


def test_tojson_writes_what_models_were_trained_on() -> None:
    source = "{{ messages[-1] | tojson }}|{{ messages[-1] | tojson(indent=1) }}"
    assert _template(source).render(TemplateInput(TALK.messages[1:])) == (
        '{"role": "user", "content": "Hi <&> \'you\'"}|{\n "role": "user",\n "content": "Hi <&> \'you\'"\n}'
    )


def test_raise_exception_becomes_a_typed_error_with_its_text() -> None:
    with pytest.raises(Unsupported, match="only one turn"):
        _template("{{ raise_exception('only one turn') }}").render(TALK)


def test_refused_system_text_moves_to_the_user() -> None:
    source = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}[{{ m.content }}]{% endfor %}"
    assert _template(source).render(TALK) == "[Be brief.\n\nHi <&> 'you']"


def test_blocks_are_trimmed_and_extensions_known() -> None:
    source = (
        "{% for m in messages %}\n    {% if loop.index > 1 %}{% break %}{% endif %}\n"
        "{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}"
    )
    assert _template(source).render(TALK) == "Be brief."


def test_without_a_template_the_prompt_is_chatml() -> None:
    rendered = _template(None).render(TALK)
    assert rendered == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <&> 'you'<|im_end|>\n<|im_start|>assistant\n"


CALL = ToolCall(id="1", name="look", arguments={"what": "it"})
TOOL = ToolSpec(name="look", description="Looks.")
MESSAGES = (
    Message.user("Where?"),
    Message.assistant("", (CALL,)),
    Message.tool(ToolResult(call_id="1", name="look", content="here")),
)


def test_tool_aware_templates_get_calls_as_data() -> None:
    conversation = native(MESSAGES, (TOOL,))
    call = {"type": "function", "id": "1", "function": {"name": "look", "arguments": {"what": "it"}}}
    assert conversation.messages[1] == {"role": "assistant", "content": "", "tool_calls": [call]}
    assert conversation.messages[2] == {"role": "tool", "name": "look", "tool_call_id": "1", "content": "here"}
    assert conversation.tools[0]["function"] == {"name": "look", "description": "Looks.", "parameters": TOOL.parameters}


def test_other_templates_get_tools_explained_and_calls_as_text() -> None:
    system, user, assistant, result = plain(MESSAGES, (TOOL,)).messages
    assert system["role"] == "system"
    assert '"name": "look"' in str(system["content"])
    assert user == {"role": "user", "content": "Where?"}
    assert assistant == {"role": "assistant", "content": '<tool_call>{"name": "look", "arguments": {"what": "it"}}</tool_call>'}
    assert result == {"role": "user", "content": "<tool_response>here</tool_response>"}


def test_roles_alternate_where_a_template_may_insist_on_it() -> None:
    talk = plain((Message.user("one"), Message.user("two"), Message.assistant("three")), ())
    assert [message["role"] for message in talk.messages] == ["user", "assistant"]
