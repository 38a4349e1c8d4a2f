"""What OnnxAgent does beyond the contract: prefixes, adapters, providers, and what happens when its process dies."""

import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("llguidance", reason="running models needs llguidance: pip install 'nearfar[onnx]'")
pytest.importorskip("onnxruntime_genai", reason="running ONNX models needs onnxruntime-genai: pip install 'nearfar[onnx]'")
pytest.importorskip("torch", reason="exporting models needs torch: pip install 'nearfar[train]'")
from near_model import OPEN, QUESTION, ask, near_agent
from onnx_adapters import Adapted, write_adapted

from nearfar import OnnxAgent
from nearfar.orchestrator.compose import NearConfig, open_local
from nearfar.protocols import (
    ConfigError,
    Message,
    ModelError,
    ModelNotFound,
    Side,
    StepRequest,
    ToolResult,
    WorkerCrashed,
    complete,
    stream,
)

pytestmark = pytest.mark.anyio

_ROUNDING = 0.01
"""Of a confidence, relative: a prompt that comes from the cache was computed in one pass, or in several."""


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return write_adapted(tmp_path_factory.mktemp("adapted"))


@asynccontextmanager
async def adapted_agent(adapted: Adapted, *, adapter: str | None = None) -> AsyncIterator[OnnxAgent]:
    async with await OnnxAgent.load(adapted.folder, adapters=adapted.adapters, adapter=adapter) as agent:
        yield agent


async def test_it_says_what_llama_agent_says(near_folder: Path) -> None:
    async with await OnnxAgent.load(near_folder) as onnx, near_agent() as llama:
        for question in (QUESTION, "Find the founder of Lumen Works.", "What is the employer of Mira Falk's sister?"):
            ours, theirs = [await complete(agent, ask(question, tools=(OPEN,))) for agent in (onnx, llama)]
            assert [(call.name, call.arguments) for call in ours.tool_calls] == [(call.name, call.arguments) for call in theirs.tool_calls]
            assert ours.finished.usage.input_tokens == theirs.finished.usage.input_tokens


async def test_a_further_turn_computes_only_what_is_new(near_folder: Path) -> None:
    async with await OnnxAgent.load(near_folder) as agent:
        first = await complete(agent, ask(QUESTION, tools=(OPEN,)))
        (call,) = first.tool_calls
        before = (await agent.statistics()).prefilled_tokens
        result = ToolResult(call_id=call.id, name=call.name, content="Vera Falk")
        messages = (Message.user(QUESTION), Message.assistant(tool_calls=(call,)), Message.tool(result))
        second = await complete(agent, StepRequest(messages=messages, tools=(OPEN,)))
        usage = second.finished.usage
        assert usage.cached_tokens > first.finished.usage.input_tokens
        assert (await agent.statistics()).prefilled_tokens - before == usage.input_tokens - usage.cached_tokens


async def test_the_card_says_what_really_runs(near_folder: Path) -> None:
    async with await OnnxAgent.load(near_folder, threads=2) as agent:
        execution = agent.card.execution
        assert execution is not None
        assert (execution.engine, execution.provider, execution.threads) == ("onnxruntime-genai", "cpu", 2)
        assert (execution.layers, execution.offloaded_layers) == (4, 0)
        assert agent.card.world == "search, apps"


async def test_an_absent_provider_is_an_error_that_names_those_there_are(near_folder: Path) -> None:
    with pytest.raises(ConfigError, match="cpu"):
        await OnnxAgent.load(near_folder, compute="cuda")


async def test_an_absent_provider_is_replaced_where_that_is_allowed(near_folder: Path) -> None:
    async with await OnnxAgent.load(near_folder, compute="cuda", allow_fallback=True) as agent:
        assert agent.card.execution is not None
        assert agent.card.execution.provider == "cpu"


async def _kill_in_mid_step(agent: OnnxAgent, worker: int) -> None:
    async with stream(agent, ask(QUESTION, tools=(OPEN,))) as events:
        os.kill(worker, signal.SIGKILL)
        async for _ in events:
            pass


async def test_a_killed_worker_fails_its_step_and_the_next_one_works(near_folder: Path) -> None:
    async with await OnnxAgent.load(near_folder) as agent:
        worker = (await agent.statistics()).process_id
        with pytest.raises(WorkerCrashed):
            await _kill_in_mid_step(agent, worker)
        assert (await complete(agent, ask(QUESTION, tools=(OPEN,)))).tool_calls


async def test_a_folder_that_was_damaged_since_is_not_loaded_again(near_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(near_folder, tmp_path / "near")
    async with await OnnxAgent.load(folder) as agent:
        (folder / "genai_config.json").write_text("{")
        os.kill((await agent.statistics()).process_id, signal.SIGKILL)
        with pytest.raises((WorkerCrashed, ModelError)):
            await complete(agent, ask(QUESTION))
        with pytest.raises(ModelError, match="damaged"):
            await complete(agent, ask(QUESTION))


async def test_steps_beyond_the_caches_wait(near_folder: Path) -> None:
    async with await OnnxAgent.load(near_folder, parallel=64) as agent:
        assert agent.card.limits.concurrency == 16384 // 2048


async def _confidence(agent: OnnxAgent, **adapters: str) -> float:
    """How sure the model is of a call, which shows by what adapters each of its tokens was computed."""
    request = ask(QUESTION, tools=(OPEN,), tool_choice="required", max_output_tokens=40, **adapters)
    sure = (await complete(agent, request)).finished.confidence
    assert sure is not None
    return sure


async def test_an_adapter_leaves_no_trace(adapted: Adapted) -> None:
    async with adapted_agent(adapted) as agent, adapted_agent(adapted) as other:
        plain, calls = await _confidence(agent), await _confidence(other, adapter="calls")
        assert await _confidence(agent, adapter="text") != pytest.approx(plain, rel=0.5)
        assert await _confidence(agent, adapter="calls") == pytest.approx(calls, rel=_ROUNDING)
        assert await _confidence(agent) == pytest.approx(plain, rel=_ROUNDING)


async def test_adapters_change_within_a_reply(adapted: Adapted) -> None:
    async with adapted_agent(adapted) as agent:
        alone = [await _confidence(agent), await _confidence(agent, adapter="calls")]
        mixed = await _confidence(agent, call_adapter="calls")
        assert all(mixed != pytest.approx(other, rel=0.5) for other in alone)
        assert await _confidence(agent, call_adapter="calls") == pytest.approx(mixed, rel=_ROUNDING)


async def test_an_agent_may_have_an_adapter_by_default(adapted: Adapted) -> None:
    async with adapted_agent(adapted) as agent, adapted_agent(adapted, adapter="text") as other:
        named = await complete(agent, ask(QUESTION, adapter="text", max_output_tokens=20))
        assert (await complete(other, ask(QUESTION, max_output_tokens=20))).text == named.text


async def test_an_adapter_of_another_base_is_refused(adapted: Adapted) -> None:
    with pytest.raises(ModelError, match="does not suit"):
        await OnnxAgent.load(adapted.folder, adapters={"foreign": adapted.foreign})


async def test_a_model_that_takes_no_adapters_refuses_them(adapted: Adapted, near_folder: Path) -> None:
    with pytest.raises(ModelError, match="does not suit"):
        await OnnxAgent.load(near_folder, adapters=adapted.adapters)


async def test_a_file_that_is_no_adapter_is_refused(adapted: Adapted) -> None:
    with pytest.raises(ModelError, match="cannot load the adapter"):
        await OnnxAgent.load(adapted.folder, adapters={"wrong": adapted.folder / "tokenizer.json"})
    with pytest.raises(ModelNotFound):
        await OnnxAgent.load(adapted.folder, adapters={"none": adapted.folder / "none.onnx_adapter"})


async def test_a_configuration_names_a_folder_as_it_names_a_file(near_folder: Path) -> None:
    agent = await open_local(NearConfig(model=str(near_folder)), name="near", side=Side.NEAR)
    assert isinstance(agent, OnnxAgent)
    await agent.aclose()
    with pytest.raises(ConfigError, match="gpu_layers"):
        await open_local(NearConfig(model=str(near_folder), gpu_layers=1), name="near", side=Side.NEAR)
