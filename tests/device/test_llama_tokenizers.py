"""SentencePiece and BPE vocabularies, with and without a start token of their own, say what is meant."""

import json
from pathlib import Path

import pytest
from llama_engine import require_llama

require_llama()
from family_templates import GEMMA, MISTRAL
from near_model import ask
from tiny_gguf import TinyModel, write_tiny_gguf

from nearfar import LlamaAgent
from nearfar.device.llama.devices import CPU_ONLY
from nearfar.device.llama.model import LlamaModel, start_backend
from nearfar.device.worker.generation import ToolSyntax
from nearfar.device.worker.prompt import PromptBuilder
from nearfar.protocols import ContextOverflow, Message, StepRequest, ToolChoice, ToolSpec, complete
from nearfar.protocols.validation import check_arguments

COUNT = ToolSpec(
    name="count",
    parameters={"type": "object", "properties": {"upto": {"type": "integer", "minimum": 10, "maximum": 99}}, "required": ["upto"]},
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = TinyModel(sentencepiece=True, context_length=4096, template=MISTRAL)
    return write_tiny_gguf(tmp_path_factory.mktemp("pieces") / "pieces.gguf", tiny)


@pytest.fixture(scope="module")
def model(path: Path) -> LlamaModel:
    start_backend()
    return LlamaModel(str(path), CPU_ONLY)


def _text(model: LlamaModel, tokens: list[int] | tuple[int, ...]) -> str:
    return b"".join(model.vocabulary.piece(token) for token in tokens).decode()


@pytest.mark.parametrize("text", ["<tool_call>", "th", " th", "\n", "\n<", "{", "\u00fc", "\0"])
def test_text_inside_a_text_gets_no_blank_in_front(model: LlamaModel, text: str) -> None:
    assert _text(model, model.vocabulary.tokenize_inside(text)) == text


def test_markers_of_calls_are_written_without_blanks(model: LlamaModel) -> None:
    syntax = ToolSyntax.of(model.vocabulary)
    assert _text(model, syntax.opener) == "<tool_call>"
    assert _text(model, syntax.closer) == "</tool_call>"
    assert _text(model, syntax.closer_on_new_line) == "\n</tool_call>"


def test_all_end_tokens_end_a_turn(model: LlamaModel) -> None:
    assert {model.vocabulary.tokenize(text)[-1] for text in ("</s>", "<|im_end|>")} <= model.vocabulary.ends


def test_control_text_in_content_is_cut_without_adding_blanks(model: LlamaModel) -> None:
    builder = PromptBuilder(model, context_tokens=4096)
    tokens = builder.prompt(StepRequest(messages=(Message.user("a</s>b"),))).tokens
    assert _text(model, tokens).endswith("[INST] a</s>b[/INST]")
    assert not set(tokens) & model.vocabulary.ends


def test_hopelessly_long_prompt_is_refused_before_it_is_tokenised(model: LlamaModel) -> None:
    with pytest.raises(ContextOverflow, match="bytes"):
        PromptBuilder(model, context_tokens=16).prompt(StepRequest(messages=(Message.user("a " * 1000),)))


@pytest.mark.parametrize("template", [GEMMA, "{% for m in messages %}{{ m.content }}{% endfor %}"])
@pytest.mark.parametrize("add_start", [True, False])
@pytest.mark.parametrize("sentencepiece", [True, False])
def test_start_token_is_written_once_by_template_or_tokenizer(tmp_path: Path, template: str, add_start: bool, sentencepiece: bool) -> None:
    tiny = TinyModel(sentencepiece=sentencepiece, add_start=add_start, template=template)
    start_backend()
    model = LlamaModel(str(write_tiny_gguf(tmp_path / "tiny.gguf", tiny)), CPU_ONLY)
    tokens = PromptBuilder(model, context_tokens=512).prompt(StepRequest(messages=(Message.user("hi"),))).tokens
    assert tokens.count(0) == int(add_start or template is GEMMA)
    assert 0 not in tokens[1:]


@pytest.mark.anyio
async def test_schema_and_calls_hold_with_single_bytes_and_openers_of_many_tokens(path: Path) -> None:
    async with await LlamaAgent.load(path) as agent:
        reply = await complete(agent, ask("?", output_schema={"const": "\u00e4 \u65e5\u672c \U0001f642"}))
        assert json.loads(reply.text) == "\u00e4 \u65e5\u672c \U0001f642"
        for seed in range(5):
            request = ask("?", tools=(COUNT,), tool_choice=ToolChoice.REQUIRED, temperature=1.0, seed=seed, max_output_tokens=300)
            reply = await complete(agent, request)
            assert reply.tool_calls
            for call in reply.tool_calls:
                check_arguments(call, (COUNT,))
