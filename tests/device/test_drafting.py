"""Drafted tool calls: the same events as without drafting, whatever is asked of whichever model."""

from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from llama_engine import require_llama

require_llama()
pytest.importorskip("gguf", reason="writing models needs gguf: pip install gguf")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from near_model import NEAR, OPEN, QUESTION, ask
from pydantic import JsonValue
from schedulers import Slow, Steady
from tiny_gguf import TinyModel, write_tiny_gguf

from nearfar.device.hardware.processors import Threads
from nearfar.device.llama.devices import CPU_ONLY
from nearfar.device.llama.model import LlamaAdapters, LlamaContext, LlamaModel, start_backend
from nearfar.device.worker.draft_payoff import Eager
from nearfar.device.worker.drafting import Drafting
from nearfar.device.worker.protocol import StepEventKind
from nearfar.device.worker.scheduler import Scheduler, StepEvent
from nearfar.protocols import Message, StepRequest, ToolCall, ToolChoice, ToolResult, ToolSpec

# llguidance's own; in the worker process, where this code runs otherwise, warnings are no errors.
pytestmark = pytest.mark.filterwarnings("ignore:llama_token_get_attr is deprecated:DeprecationWarning")

TOLERANCE = 0.1
SMALLEST_CONTEXT = 12 << 20
"""Bytes that a context of these tests takes at least."""
ADAPTERS = {"text": str(NEAR.with_name("near-text.gguf")), "calls": str(NEAR.with_name("near-calls.gguf"))}
VARIANTS = {
    "plain": TinyModel(),
    "sentencepiece": TinyModel(sentencepiece=True),
    "sliding window": TinyModel(window=16),
    "markers as text": TinyModel(tool_tokens=False),
}


class Bench:
    """One model with two schedulers: one drafts wherever it can, and one never does."""

    def __init__(self, path: Path, *, adapters: dict[str, str] | None = None, tolerance: float = TOLERANCE) -> None:
        start_backend()
        self._model = LlamaModel(str(path), CPU_ONLY)
        self._adapters = LlamaAdapters(self._model.handle, adapters or {})
        self.drafting = Drafting(self._model.vocabulary, tolerance=tolerance, payoff=Eager())
        self.drafted = self.scheduler(self.drafting)
        self.plain = self.scheduler(None)

    def agrees(self, *requests: StepRequest) -> None:
        """Ask both, from empty caches, since where tokens lie in the cache shows in the last digits, too."""
        assert events(self.scheduler(self.drafting), requests) == events(self.scheduler(None), requests)

    def scheduler(self, drafting: Drafting | None) -> Scheduler:
        context = LlamaContext(self._model, cells=2048, sequences=4, threads=Threads(1, 1), adapters=self._adapters)
        return Steady(self._model, context, context_tokens=512, parallel=4, drafting=drafting)


def events(scheduler: Scheduler, requests: Sequence[StepRequest]) -> list[list[object]]:
    """What happens in steps that start together, without how long it took."""
    for number, request in enumerate(requests):
        scheduler.submit(number, request, None)
    happened: list[StepEvent] = []
    while scheduler.busy:
        happened += scheduler.round()
    assert not [payload for _, kind, payload in happened if kind is StepEventKind.ERROR and "InternalError" in str(payload)]
    return [[(kind, _comparable(payload)) for step, kind, payload in happened if step == number] for number in range(len(requests))]


def _comparable(payload: JsonValue) -> object:
    """Without times, and with room for the rounding of a confidence: passes are cut by time, and adapters and plain floats are rounded."""
    if not isinstance(payload, dict) or "confidence" not in payload:
        return payload
    kept: dict[str, object] = {name: value for name, value in payload.items() if name not in ("performance", "cached_tokens")}
    if kept["confidence"] is not None:
        kept["confidence"] = pytest.approx(kept["confidence"], rel=0.2)
    return kept


_STRING: dict[str, JsonValue] = {"type": "string", "maxLength": 12}
_KINDS: list[JsonValue] = [
    {"type": "string"},
    _STRING,
    {"type": "integer", "minimum": 1, "maximum": 120},
    {"type": "boolean"},
    {"enum": ["fast", "faster", "full", "none"]},
    {"type": "array", "items": _STRING, "maxItems": 2},
    {"type": "object", "properties": {"city": _STRING}, "required": ["city"], "additionalProperties": False},
]
_PARAMETERS = st.sampled_from(_KINDS)
_NAMES = st.sampled_from(["title", "section", "query", "mode", "count"])


@st.composite
def _schemas(draw: st.DrawFn) -> dict[str, JsonValue]:
    properties = draw(st.dictionaries(_NAMES, _PARAMETERS, max_size=3))
    required: list[JsonValue] = draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_TOOLS = st.lists(
    st.builds(ToolSpec, name=st.sampled_from(["open", "open_file", "search", "pay"]), parameters=_schemas()) | st.just(OPEN),
    max_size=3,
    unique_by=lambda tool: tool.name,
)
_TURNS = [
    (Message.user(QUESTION),),
    (Message.user("Pay Mira Falk 50, please."),),
    (
        Message.user("Find the founder of Lumen Works."),
        Message.assistant("", (ToolCall(id="1", name="open", arguments={"title": "Lumen Works", "section": "founder"}),)),
        Message.tool(ToolResult(call_id="1", name="open", content='{"title": "Vera Falk", "section": "founder"}')),
    ),
]


@st.composite
def _requests(draw: st.DrawFn) -> StepRequest:
    tools = draw(_TOOLS)
    return StepRequest(
        messages=draw(st.sampled_from(_TURNS)),
        tools=tuple(tools),
        tool_choice=draw(st.sampled_from([ToolChoice.AUTO, ToolChoice.REQUIRED] if tools else [ToolChoice.AUTO])),
        output_schema=draw(st.none() | _schemas()),
        max_output_tokens=draw(st.integers(1, 60)),
        stop=draw(st.sampled_from([(), ("a",), ('"',)])),
    )


@st.composite
def _ordinary_requests(draw: st.DrawFn) -> StepRequest:
    """What the model is sure of: who runs beside a step may tip what it is not, with drafts or without."""
    adapter, call_adapter = draw(st.sampled_from([(None, None), ("text", "calls"), ("calls", None)]))
    return StepRequest(
        messages=draw(st.sampled_from([_TURNS[0], _TURNS[2]])),
        tools=(OPEN,),
        tool_choice=draw(st.sampled_from([ToolChoice.AUTO, ToolChoice.REQUIRED])),
        max_output_tokens=draw(st.integers(1, 60)),
        adapter=adapter,
        call_adapter=call_adapter,
    )


@pytest.fixture(scope="module")
def near() -> Bench:
    return Bench(NEAR, adapters=ADAPTERS)


@pytest.fixture(scope="module", params=VARIANTS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", VARIANTS[request.param]))


_many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@_many
@given(request=_requests())
def test_near_model_says_the_same_with_drafts(near: Bench, request: StepRequest) -> None:
    near.agrees(request)


@settings(_many, max_examples=25)
@given(request=_requests())
def test_any_kind_of_model_says_the_same_with_drafts(tiny: Bench, request: StepRequest) -> None:
    tiny.agrees(request)


@settings(_many, max_examples=25)
@given(requests=st.lists(_ordinary_requests(), min_size=2, max_size=4))
def test_steps_that_run_together_say_the_same_with_drafts(near: Bench, requests: list[StepRequest]) -> None:
    near.agrees(*requests)


def test_adapters_change_at_the_same_tokens_with_drafts() -> None:
    bench = Bench(NEAR, adapters=ADAPTERS)
    accepted = 0
    for adapter, call_adapter in ((None, "calls"), ("text", "calls"), ("calls", "text"), ("text", None)):
        request = ask(
            QUESTION, tools=(OPEN,), tool_choice=ToolChoice.REQUIRED, adapter=adapter, call_adapter=call_adapter, max_output_tokens=80
        )
        for again in (request, request.model_copy(update={"tool_choice": ToolChoice.AUTO})):
            assert events(bench.drafted, [again]) == events(bench.plain, [again])
        before, accepted = accepted, bench.drafted.drafts["schema"]["accepted"]
        assert accepted > before


@pytest.mark.parametrize("tolerance", [2.0, 1e6])
def test_what_is_too_close_is_decided_by_a_pass_of_its_own(tolerance: float) -> None:
    bench = Bench(NEAR, tolerance=tolerance)
    for turn in _TURNS:
        request = StepRequest(messages=turn, tools=(OPEN,), tool_choice=ToolChoice.REQUIRED, max_output_tokens=60)
        assert events(bench.drafted, [request]) == events(bench.plain, [request])
    accepted = sum(counts["accepted"] for counts in bench.drafted.drafts.values())
    assert bench.drafted.drafts["schema"]["drafted"] > 0
    assert (accepted == 0) is (tolerance == 1e6)


def test_most_of_a_call_takes_few_passes() -> None:
    bench = Bench(NEAR)
    request = ask(QUESTION, tools=(OPEN,), tool_choice=ToolChoice.REQUIRED)
    passes = []
    for scheduler in (bench.plain, bench.drafted, bench.drafted):
        before = scheduler.decode_calls
        events(scheduler, [request])
        passes.append(scheduler.decode_calls - before)
    plain, cold, warm = passes
    assert 2 * cold <= plain
    assert warm <= cold
    assert bench.drafted.decoded_tokens == 2 * bench.plain.decoded_tokens


def test_values_of_past_calls_are_drafted_again() -> None:
    bench = Bench(NEAR)
    request = ask(QUESTION, tools=(OPEN,), tool_choice=ToolChoice.REQUIRED)
    events(bench.drafted, [request])
    assert "history" not in bench.drafted.drafts
    events(bench.drafted, [request])
    assert bench.drafted.drafts["history"]["accepted"] > 0


@pytest.mark.parametrize("sampling", [{"temperature": 0.5, "seed": 1}, {"presence_penalty": 0.1}, {"frequency_penalty": 0.1}])
def test_nothing_is_drafted_where_tokens_are_drawn_or_penalized(sampling: dict[str, float]) -> None:
    bench = Bench(NEAR)
    events(bench.drafted, [ask(QUESTION, tools=(OPEN,), tool_choice=ToolChoice.REQUIRED, **sampling)])
    assert bench.drafted.drafts == {}


def test_drafts_change_neither_the_text_nor_its_log_probabilities() -> None:
    bench = Bench(NEAR)
    schema = {"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}, "reason": {"const": "it is so"}}}
    request = ask(QUESTION, output_schema={**schema, "required": ["answer", "reason"]}, top_logprobs=2, top_k=5, top_p=0.9)
    drafted, plain = (events(scheduler, [request])[0] for scheduler in (bench.drafted, bench.plain))
    assert drafted[:-1] == plain[:-1]
    sure, expected = (told[-1][-1]["logprobs"] for told in (drafted, plain))  # type: ignore[index]  # the payload of a step's end
    assert [token["token"] for token in sure] == [token["token"] for token in expected]
    assert [token["logprob"] for token in sure] == pytest.approx([token["logprob"] for token in expected], abs=1e-3)
    assert bench.drafted.drafts


def test_cancelling_between_passes_leaves_a_clean_cache() -> None:
    bench = Bench(NEAR)
    request = ask(QUESTION, tools=(OPEN,), tool_choice=ToolChoice.REQUIRED)
    expected = events(bench.plain, [request])
    for rounds in range(1, 5):
        bench.drafted.submit(99, request, None)
        for _ in range(rounds):
            bench.drafted.round()
        bench.drafted.cancel(99)
        assert [step[:-1] for step in events(bench.drafted, [request])] == [step[:-1] for step in expected]


def test_a_context_that_nobody_needs_any_more_gives_its_memory_back(near: Bench) -> None:
    request = ask(QUESTION, tools=(OPEN,), max_output_tokens=2)
    events(near.scheduler(None), [request])
    before = psutil.Process().memory_info().rss
    for _ in range(20):
        events(near.scheduler(None), [request])
    assert psutil.Process().memory_info().rss - before < 5 * SMALLEST_CONTEXT


def test_long_drafts_of_one_step_leave_room_for_the_others() -> None:
    start_backend()
    model = LlamaModel(str(NEAR), CPU_ONLY)
    context = LlamaContext(model, cells=2048, sequences=4, threads=Threads(1, 1), adapters=LlamaAdapters(model.handle, {}))
    drafting = Drafting(model.vocabulary, tolerance=TOLERANCE, payoff=Eager())
    scheduler = Slow(model, context, context_tokens=512, parallel=4, drafting=drafting)
    for number in range(4):
        scheduler.submit(number, ask(QUESTION, tools=(OPEN,), tool_choice=ToolChoice.REQUIRED), None)
    scheduler.round()
    while any(step.is_prefilling for step in scheduler._running):
        scheduler.round()
    while steps := {step: step.measures.tokens for step in scheduler._running}:
        scheduler.round()
        assert all(step.measures.tokens > before for step, before in steps.items())
    assert scheduler.drafts["schema"]["accepted"] > 0


def test_a_prompt_counts_as_one_even_where_nothing_may_follow_it() -> None:
    scheduler = Bench(NEAR).drafted
    events(scheduler, [ask(QUESTION, tools=(OPEN,), tool_choice=ToolChoice.REQUIRED, max_output_tokens=1)])
    assert scheduler.prefilled_tokens > 0
    assert scheduler.decoded_tokens == 0
    assert scheduler.drafts == {}


def test_what_a_step_puts_through_the_model_includes_drafts_that_were_wrong() -> None:
    passed: list[int] = []

    class Recorded(LlamaContext):
        def decode(self) -> bool:
            passed.append(self.batch.size)
            return super().decode()

    start_backend()
    model = LlamaModel(str(NEAR), CPU_ONLY)
    context = Recorded(model, cells=2048, sequences=4, threads=Threads(1, 1), adapters=LlamaAdapters(model.handle, {}))
    drafting = Drafting(model.vocabulary, tolerance=TOLERANCE, payoff=Eager())
    scheduler = Steady(model, context, context_tokens=512, parallel=4, drafting=drafting)
    for number, messages in enumerate(_TURNS):
        scheduler.submit(number, StepRequest(messages=messages, tools=(OPEN,), tool_choice=ToolChoice.REQUIRED, max_output_tokens=60), None)
    scheduler.round()
    steps = list(scheduler._running)
    while scheduler.busy:
        scheduler.round()
    assert sum(step.measures.tokens for step in steps) == sum(passed)
    assert any(counts["accepted"] < counts["drafted"] for counts in scheduler.drafts.values())
