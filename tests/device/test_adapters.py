"""LoRA adapters in the llama worker: chosen per step, switched at a tool call, and kept apart in the cache."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import groupby, takewhile
from pathlib import Path
from typing import cast

import anyio
import pytest
from llama_engine import require_llama

require_llama()
pytest.importorskip("gguf", reason="writing adapters needs gguf: pip install gguf")

import gguf
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from near_model import CONTEXT_TOKENS, NEAR, OPEN, ask
from numpy.typing import DTypeLike
from schedulers import Slow

from nearfar import LlamaAgent
from nearfar.device.hardware.processors import Threads
from nearfar.device.llama.devices import CPU_ONLY
from nearfar.device.llama.model import LlamaAdapters, LlamaContext, LlamaModel, start_backend
from nearfar.device.worker.engine import Outfit, adapter_of, run, tokens_of
from nearfar.device.worker.protocol import StepEventKind
from nearfar.device.worker.scheduler import Scheduler
from nearfar.protocols import (
    Agent,
    ConfigError,
    Message,
    ModelError,
    ModelNotFound,
    StepReply,
    StepRequest,
    ToolChoice,
    ToolResult,
    Unsupported,
    complete,
)
from nearfar.protocols.testing import TRANSPORTS, Transport, in_process
from nearfar.protocols.testing.agent_conformance import CHECKS, Check, SchemaUse, Subject, ToolUse, run_check

TEXT, CALLS = NEAR.with_name("near-text.gguf"), NEAR.with_name("near-calls.gguf")
PAIR = {"text": TEXT, "calls": CALLS}
QUESTION = "What is the employer of Mira Falk's sister?"
PLAN = '1. open(title="Mira Falk", section="sister")\n2. open(title=<sister>, section="employer")\n3. answer <employer>'
AGE = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 120}},
    "required": ["age"],
    "additionalProperties": False,
}
LONG = "city of city of city of"
"""What near answers with hundreds of tokens, with either adapter."""
OPENER, CLOSER = (7, 8), (9,)

with_transports = pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda transport: transport.__name__)
pytestmark = pytest.mark.anyio


@asynccontextmanager
async def adapted(**fields: object) -> AsyncIterator[LlamaAgent]:
    """The near model with its two adapters."""
    async with await LlamaAgent.load(NEAR, adapters=PAIR, **fields) as agent:  # type: ignore[arg-type]  # each test gives a few of load's options
        yield agent


def request(adapter: str | None = None, call_adapter: str | None = None) -> StepRequest:
    return ask(QUESTION, tools=(OPEN,), adapter=adapter, call_adapter=call_adapter, max_output_tokens=120)


def said(reply: StepReply) -> tuple[str, list[dict[str, object]]]:
    return reply.text, [dict(call.arguments) for call in reply.tool_calls]


def next_turn(first: StepRequest, reply: StepReply, result: str) -> StepRequest:
    answered = tuple(Message.tool(ToolResult(call_id=call.id, name=call.name, content=result)) for call in reply.tool_calls)
    return first.model_copy(update={"messages": (*first.messages, Message.assistant(reply.text, tool_calls=reply.tool_calls), *answered)})


async def _create() -> Agent:
    return await LlamaAgent.load(NEAR, context_tokens=CONTEXT_TOKENS, adapters=PAIR, adapter="text", call_adapter="calls")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_an_agent_that_switches_adapters_keeps_the_contract(check: Check) -> None:
    subject = Subject(
        create=_create,
        prompt=QUESTION,
        long_prompt=LONG,
        tool_use=ToolUse(prompt=QUESTION, tools=(OPEN,), result="Vera Falk"),
        schema_use=SchemaUse(prompt=QUESTION, schema=AGE),
        live_steps=lambda agent: cast(LlamaAgent, agent).live_steps,
        tokens_decoded=lambda agent: cast(LlamaAgent, agent).tokens_decoded,
    )
    await run_check(check, subject, in_process)


@with_transports
async def test_a_step_names_its_adapters(transport: Transport) -> None:
    async with adapted() as agent, transport(agent) as reached:
        assert reached.card.adapters == ("text", "calls")
        plain = said(await complete(reached, request()))
        planned = said(await complete(reached, request("text", "calls")))
    call = {"title": "Mira Falk", "section": "sister"}
    assert plain == ("", [call])
    assert planned == (PLAN, [call])


@with_transports
async def test_an_adapter_that_is_not_there_is_refused_with_those_that_are(transport: Transport) -> None:
    async with adapted() as agent, transport(agent) as reached:
        for asked in (request("poetry"), request("text", "poetry")):
            with pytest.raises(Unsupported) as caught:
                await complete(reached, asked)
            assert "text, calls" in caught.value.hint


async def test_what_a_call_holds_is_written_by_its_own_adapter() -> None:
    async with adapted() as agent:
        alone = said(await complete(agent, request("text")))
        mixed = said(await complete(agent, request("text", "calls")))
        swapped = said(await complete(agent, request("calls", "text")))
    # Both plan alike, since both wrote the plan with the adapter for text, and the third did not.
    assert alone[0] == mixed[0] == PLAN
    assert swapped[0] != PLAN


async def test_the_next_turn_reuses_what_both_adapters_computed() -> None:
    async with adapted() as agent:
        first = request("text", "calls")
        reply = await complete(agent, first)
        second = await complete(agent, next_turn(first, reply, "Elin Berg"))
    assert said(second) == ("", [{"title": "Elin Berg", "section": "employer"}])
    used = reply.finished.usage
    assert second.finished.usage.cached_tokens == used.input_tokens + used.output_tokens


async def test_what_one_adapter_computed_is_not_taken_for_anothers() -> None:
    asked = [request(), request("text"), request("calls"), request("text", "calls")]
    alone = []
    for one in asked:
        async with adapted() as agent:
            alone.append(said(await complete(agent, one)))
    async with adapted(parallel=1) as agent:
        replies = [await complete(agent, one) for one in asked]
        again = await complete(agent, asked[-1])
    assert [said(reply) for reply in replies] == alone
    # Between the second and the fourth, the third wrote over what they could have shared.
    assert [reply.finished.usage.cached_tokens for reply in replies] == [0, 0, 0, 0]
    assert again.finished.usage.cached_tokens == again.finished.usage.input_tokens - 1


async def test_a_prompts_earlier_calls_count_as_calls_without_a_cache() -> None:
    first = request("text", "calls")
    async with adapted() as agent:
        reply = await complete(agent, first)
        second = next_turn(first, reply, "Elin Berg")
        kept = await complete(agent, second)
    async with adapted() as fresh:
        recomputed = await complete(fresh, second)
    assert recomputed.finished.usage.cached_tokens == 0
    assert kept.finished.usage.cached_tokens > 0
    assert said(recomputed) == said(kept)


async def test_steps_with_different_adapters_run_side_by_side() -> None:
    questions = ("What is the mayor of Port Alder?", QUESTION, "Find Elin Stark's employer's city.")
    # The adapter for texts alone writes calls that it is unsure of, and who shares a pass with a step may tip such choices.
    outfits = [request(), request("calls"), request("text", "calls")]
    asked = [one.model_copy(update={"messages": (Message.user(question),)}) for question in questions for one in outfits]
    replies: dict[int, StepReply] = {}

    async def one(agent: Agent, number: int) -> None:
        replies[number] = await complete(agent, asked[number])

    async with adapted(parallel=1) as agent:
        alone = [said(await complete(agent, each)) for each in asked]
    async with adapted(parallel=len(asked)) as agent:
        async with anyio.create_task_group() as group:
            for number in range(len(asked)):
                group.start_soon(one, agent, number)
        assert (await agent.statistics()).widest_batch > 1
    assert [said(replies[number]) for number in range(len(asked))] == alone


def test_steps_with_different_adapters_take_turns() -> None:
    """Of two long steps, neither waits more than a few passes, and the adapter is not switched at every pass."""
    start_backend()
    model = LlamaModel(str(NEAR), CPU_ONLY)
    worn: list[int] = []

    class Recorded(LlamaContext):
        def use_adapter(self, number: int) -> None:
            worn.append(number)
            super().use_adapter(number)

    adapters = LlamaAdapters(model.handle, {"one": str(TEXT), "other": str(TEXT)})
    context = Recorded(model, cells=512, sequences=2, threads=Threads(1, 1), adapters=adapters)
    scheduler = Scheduler(model, context, context_tokens=256, parallel=2)
    for number, adapter in enumerate(adapters.names):
        scheduler.submit(number, ask(QUESTION, adapter=adapter, max_output_tokens=40), None)
    while scheduler.running or scheduler.waiting or not worn:
        scheduler.round()
    together = worn[: len(worn) - len(list(takewhile(lambda number: number == worn[-1], reversed(worn))))]
    lengths = [len(list(turn)) for _, turn in groupby(together)]
    assert len(lengths) > 4
    assert 1 < max(lengths[1:]) <= 5


def test_a_step_has_its_turn_while_others_read_long_prompts() -> None:
    """Of two that read with one adapter, the second has to wait for the first; the third, with another one, has not."""
    start_backend()
    model = LlamaModel(str(NEAR), CPU_ONLY)
    adapters = LlamaAdapters(model.handle, {"one": str(TEXT), "other": str(TEXT)})
    context = LlamaContext(model, cells=6144, sequences=3, threads=Threads(1, 1), adapters=adapters)
    scheduler = Slow(model, context, context_tokens=2048, parallel=3)
    reading = " ".join([QUESTION] * 40)
    for number, (prompt, adapter) in enumerate([(reading, "one"), (reading, "one"), (QUESTION, "other")]):
        scheduler.submit(number, ask(prompt, adapter=adapter, max_output_tokens=1), None)
    over = []
    while scheduler.running or scheduler.waiting:
        over += [number for number, kind, _ in scheduler.round() if kind is StepEventKind.FINISHED]
    assert over == [2, 0, 1]


async def test_a_required_call_is_written_by_the_calls_adapter_from_its_first_token() -> None:
    required = request("text", "calls").model_copy(update={"tool_choice": ToolChoice.REQUIRED})
    async with adapted() as agent:
        reply = await complete(agent, required)
    assert said(reply) == ("", [{"title": "Mira Falk", "section": "sister"}])


async def test_requests_that_name_no_adapter_get_the_default() -> None:
    async with adapted(adapter="text", call_adapter="calls") as agent:
        by_default = said(await complete(agent, request()))
        named = said(await complete(agent, request("calls")))
    async with adapted() as agent:
        assert by_default == said(await complete(agent, request("text", "calls")))
        assert named == said(await complete(agent, request("calls")))


async def test_a_default_that_is_not_loaded_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        await LlamaAgent.load(NEAR, adapters=PAIR, adapter="poetry")
    assert "text, calls" in caught.value.hint


async def test_adapters_survive_a_worker_that_died() -> None:
    async with adapted() as agent:
        before = said(await complete(agent, request("text", "calls")))
        await agent._worker.close()
        assert said(await complete(agent, request("text", "calls"))) == before


async def test_an_adapter_that_is_missing_or_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        await LlamaAgent.load(NEAR, adapters={"text": tmp_path / "none.gguf"})
    with pytest.raises(ModelError, match="whole model"):
        await LlamaAgent.load(NEAR, adapters={"text": NEAR})


async def test_an_adapter_of_another_base_is_refused() -> None:
    with pytest.raises(ModelError, match="blk.0.attn_q.weight as 128x256, where the model has 192x256"):
        await LlamaAgent.load(NEAR.with_name("far.gguf"), adapters=PAIR)


@pytest.mark.parametrize(
    ("fault", "tensors"),
    [
        ("no tensors", {}),
        ("is not part", {"blk.0.attn_q.weight": (4, 128)}),
        ("no tensor blk.9", {"blk.9.attn_q.weight.lora_a": (4, 128), "blk.9.attn_q.weight.lora_b": (256, 4)}),
        ("missing", {"blk.0.attn_q.weight.lora_a": (4, 128)}),
        ("not matrices", {"blk.0.attn_q.weight.lora_a": (128,), "blk.0.attn_q.weight.lora_b": (256, 4)}),
        ("256x128", {"blk.0.attn_q.weight.lora_a": (4, 256), "blk.0.attn_q.weight.lora_b": (128, 4)}),
    ],
)
async def test_an_adapter_that_does_not_fit_is_refused_before_llama_cpp_sees_it(
    tmp_path: Path, fault: str, tensors: dict[str, tuple[int, ...]]
) -> None:
    with pytest.raises(ModelError, match=fault):
        await LlamaAgent.load(NEAR, adapters={"odd": write_adapter(tmp_path / "odd.gguf", tensors)})


async def test_an_adapter_stored_in_a_type_that_cannot_be_multiplied_is_refused(tmp_path: Path) -> None:
    fitting = {"blk.0.attn_q.weight.lora_a": (4, 128), "blk.0.attn_q.weight.lora_b": (256, 4)}
    with pytest.raises(ModelError, match="stored as I8"):
        await LlamaAgent.load(NEAR, adapters={"odd": write_adapter(tmp_path / "odd.gguf", fitting, number=np.int8)})


@pytest.mark.parametrize(("architecture", "kind"), [("qwen2", "lora"), ("llama", "loha")])
async def test_an_adapter_of_another_kind_is_refused(tmp_path: Path, architecture: str, kind: str) -> None:
    fitting = {"blk.0.attn_q.weight.lora_a": (4, 128), "blk.0.attn_q.weight.lora_b": (256, 4)}
    with pytest.raises(ModelError, match=architecture if architecture != "llama" else kind):
        await LlamaAgent.load(NEAR, adapters={"odd": write_adapter(tmp_path / "odd.gguf", fitting, architecture, kind)})


async def test_what_llama_cpp_itself_refuses_is_a_model_error(tmp_path: Path) -> None:
    ranks_differ = {"blk.0.attn_q.weight.lora_a": (4, 128), "blk.0.attn_q.weight.lora_b": (256, 8)}
    with pytest.raises(ModelError, match="cannot load the adapter"):
        await LlamaAgent.load(NEAR, adapters={"odd": write_adapter(tmp_path / "odd.gguf", ranks_differ)})


def write_adapter(
    path: Path, tensors: Mapping[str, tuple[int, ...]], architecture: str = "llama", kind: str = "lora", number: DTypeLike = np.float32
) -> Path:
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", kind)
    writer.add_float32("adapter.lora.alpha", 4.0)
    for name, shape in tensors.items():
        writer.add_tensor(name, np.zeros(shape, dtype=number))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


tokens = st.lists(st.integers(0, 12), min_size=1, max_size=40)


@given(tokens, st.integers(0, 3), st.integers(0, 3))
def test_a_prompts_cells_are_its_tokens_and_only_whole_calls_are_calls(prompt: list[int], text: int, call: int) -> None:
    marked = Outfit(text, call).prompt(prompt, OPENER, CLOSER)
    assert [token for cell in marked for token in tokens_of([cell])] == prompt
    assert [adapter_of([cell]) for cell in marked] == [call if inside else text for inside in inside_calls(prompt)]


@given(tokens, st.integers(0, 3), st.integers(0, 3))
def test_runs_of_one_adapter_make_up_the_prompt(prompt: list[int], text: int, call: int) -> None:
    marked = Outfit(text, call).prompt(prompt, OPENER, CLOSER)
    parts = []
    while marked:
        part, marked = marked[: run(marked)], marked[run(marked) :]
        parts.append(part)
    assert [token for part in parts for token in tokens_of(part)] == prompt
    assert all(len({adapter_of([cell]) for cell in part}) == 1 for part in parts)
    assert all(adapter_of(one) != adapter_of(other) for one, other in zip(parts, parts[1:], strict=False))


def inside_calls(prompt: Sequence[int]) -> list[bool]:
    """By the definition: from the last token of an opener to the next closer, if there is one."""
    inside, at = [False] * len(prompt), 0
    while at < len(prompt):
        opened = tuple(prompt[at : at + 2]) == OPENER and CLOSER[0] in prompt[at + 2 :]
        if opened:
            end = prompt.index(CLOSER[0], at + 2)
            inside[at + 1 : end + 1] = [True] * (end - at)
            at = end
        at += 1
    return inside
