"""What a model thinks is neither answer nor tool call, however its tokens cut it."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from llama_engine import require_llama

require_llama()
from family_templates import DEEPSEEK_R1
from near_model import ask
from tiny_gguf import TinyModel, write_tiny_gguf

from nearfar import LlamaAgent
from nearfar.device.llama.devices import CPU_ONLY
from nearfar.device.llama.model import LlamaModel, start_backend
from nearfar.device.worker.generation import Generation, Reasoning, ToolSyntax
from nearfar.device.worker.protocol import StepEventKind
from nearfar.device.worker.sampling import Grammars
from nearfar.protocols import FinishReason, StepRequest, ToolChoice, ToolSpec, complete

# llguidance calls names of llama_cpp that are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:llama_:DeprecationWarning")

SIZES = st.lists(st.integers(1, 5), min_size=1)
LOOK = ToolSpec(name="look")
CALL = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'


def _filtered(text: str, sizes: list[int], *, opened: bool = False) -> str:
    reasoning, data, answer, at, turn = Reasoning(opened=opened), text.encode(), b"", 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        answer += reasoning.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    return (answer + reasoning.rest()).decode()


@given(blanks=st.text(" \n"), thoughts=st.text("ab</think>\n"), answer=st.text("ab<think>/\n"), sizes=SIZES, opened=st.booleans())
def test_reasoning_at_the_beginning_is_taken_off(blanks: str, thoughts: str, answer: str, sizes: list[int], opened: bool) -> None:
    assume("</think>" not in thoughts)
    text = ("" if opened else blanks + "<think>") + thoughts + "</think>" + answer
    assert _filtered(text, sizes, opened=opened) == answer.lstrip()


@given(text=st.text("ab<think>/ \n"), sizes=SIZES)
def test_text_that_does_not_begin_with_reasoning_is_left_alone(text: str, sizes: list[int]) -> None:
    text = text if not text.lstrip().startswith("<think>") else "a" + text
    assert _filtered(text, sizes) == text


@given(thoughts=st.text("ab<think>/\n"), sizes=SIZES)
def test_reasoning_without_an_end_is_no_answer(thoughts: str, sizes: list[int]) -> None:
    assume("</think>" not in thoughts)
    assert _filtered("<think>" + thoughts, sizes) == ""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LlamaModel:
    start_backend()
    return LlamaModel(str(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")), CPU_ONLY)


class _Said:
    """A generation whose model wants to say a given text, whatever is asked."""

    def __init__(self, model: LlamaModel, text: str, request: StepRequest, *, opened: bool = False) -> None:
        vocabulary = model.vocabulary
        syntax, grammars = ToolSyntax.of(vocabulary), Grammars(vocabulary)
        self.generation = Generation(
            request, vocabulary=vocabulary, syntax=syntax, grammars=grammars, most_tokens=500, stop=request.stop, reasoning_opened=opened
        )
        self._speak(vocabulary.tokenize(text) + [min(vocabulary.ends)], vocabulary.size)
        events = self.generation.events
        self.text = "".join(str(payload) for kind, payload in events if kind is StepEventKind.TEXT)
        self.calls = [payload for kind, payload in events if kind is StepEventKind.CALL]

    def _speak(self, tokens: list[int], size: int) -> None:
        while tokens and self.generation.finished is None:
            logits = np.zeros(size, dtype=np.float32)
            logits[tokens[0]] = 50.0
            for token in self.generation.advance(logits):
                # Tokens that follow of necessity are those that the model wanted to say.
                assert token == tokens.pop(0)


@pytest.mark.parametrize("opened", [False, True])
def test_call_behind_reasoning_is_a_call_and_one_inside_is_not(model: LlamaModel, opened: bool) -> None:
    thoughts = f"{'' if opened else '<think>'}I could say {CALL} or stop.</think>\n\n"
    said = _Said(model, thoughts + CALL, ask("?", tools=(LOOK,)), opened=opened)
    assert (said.text, said.calls, said.generation.finished) == ("", [{"name": "look", "arguments": {}}], FinishReason.TOOL_CALLS)


def test_stop_sequence_counts_in_the_answer_only(model: LlamaModel) -> None:
    said = _Said(model, "<think>one. two.</think>\n\nThree. Four.", ask("?", stop=(".", "\n")))
    assert said.text == "Three"


def test_confidence_and_usage_of_an_answer_behind_reasoning(model: LlamaModel) -> None:
    said = _Said(model, "<think>hm</think>Yes", ask("?"))
    assert said.text == "Yes"
    assert said.generation.output_tokens > len("Yes")
    assert said.generation.confidence == pytest.approx(1.0)


def test_text_about_the_markers_is_text(model: LlamaModel) -> None:
    said = _Said(model, "Write <think>so</think>.", ask("?"))
    assert said.text == "Write <think>so</think>."


@pytest.mark.parametrize("opened", [False, True])
def test_reasoning_is_closed_at_its_limit_and_the_answer_follows(model: LlamaModel, opened: bool) -> None:
    vocabulary = model.vocabulary
    generation = Generation(
        ask("?", max_reasoning_tokens=64),
        vocabulary=vocabulary,
        syntax=ToolSyntax.of(vocabulary),
        grammars=Grammars(vocabulary),
        most_tokens=500,
        stop=(),
        reasoning_opened=opened,
    )
    said = [] if opened else list(vocabulary.tokenize("<think>"))
    thinking, answer = vocabulary.tokenize("a")[0], [*vocabulary.tokenize("Yes"), min(vocabulary.ends)]
    while generation.finished is None:
        logits = np.zeros(vocabulary.size, dtype=np.float32)
        wanted = thinking if generation.reasoning_tokens < 64 else answer.pop(0)
        logits[said.pop(0) if said else wanted] = 50.0
        following = generation.advance(logits)[1:]
        if following:
            assert b"".join(map(vocabulary.piece, following)).decode().strip() == "</think>"
    assert "".join(str(payload) for kind, payload in generation.events if kind is StepEventKind.TEXT) == "Yes"
    assert generation.reasoning_tokens == 64
    assert generation.output_tokens > 64 + len("Yes")


@pytest.mark.anyio
async def test_a_step_without_effort_does_not_reason_and_a_limited_one_reasons_no_longer(tmp_path: Path) -> None:
    tiny = TinyModel(context_length=2048, tool_tokens=False, template=DEEPSEEK_R1)
    async with await LlamaAgent.load(write_tiny_gguf(tmp_path / "r1.gguf", tiny)) as agent:
        usual = await complete(agent, ask("?", max_output_tokens=200))
        assert usual.finished.usage.reasoning_tokens > 80
        limited = await complete(agent, ask("?", max_output_tokens=200, max_reasoning_tokens=70))
        assert limited.finished.usage.reasoning_tokens == 70
        assert limited.finished.usage.output_tokens > 70
        still = await complete(agent, ask("?", max_output_tokens=50, effort="none"))
        assert still.finished.usage.reasoning_tokens == 0


@pytest.mark.anyio
async def test_schema_and_required_call_hold_where_the_template_opens_reasoning(tmp_path: Path) -> None:
    tiny = TinyModel(context_length=2048, tool_tokens=False, template=DEEPSEEK_R1)
    async with await LlamaAgent.load(write_tiny_gguf(tmp_path / "r1.gguf", tiny)) as agent:
        reply = await complete(agent, ask("?", output_schema={"enum": ["yes", "no"]}))
        assert json.loads(reply.text) in ("yes", "no")
        reply = await complete(agent, ask("?", tools=(LOOK,), tool_choice=ToolChoice.REQUIRED, max_output_tokens=200))
        assert reply.tool_calls
        reply = await complete(agent, ask("?", max_output_tokens=20))
        assert (reply.text, reply.finished.reason, reply.finished.usage.output_tokens) == ("", FinishReason.LENGTH, 20)
