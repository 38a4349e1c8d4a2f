"""The shipped GGUF files on onnxruntime: converted by the worker, with their adapters, chosen where llama.cpp is absent."""

import os
import random
import signal
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime_genai", reason="running ONNX models needs onnxruntime-genai: pip install 'nearfar[onnx]'")
from llama_engine import needs_llama
from near_model import NEAR, QUESTION, ask
from tiny_gguf import TinyModel, write_tiny_gguf

from nearfar import LlamaAgent, OnnxAgent
from nearfar.device.onnx import read_model
from nearfar.device.onnx.from_gguf import write_folder
from nearfar.orchestrator.compose import NearConfig, open_local
from nearfar.protocols import ConfigError, ModelError, ModelNotFound, NearfarError, Side, WorkerCrashed, complete

pytestmark = pytest.mark.anyio

FAR = NEAR.with_name("far.gguf")
PAIR = {"text": NEAR.with_name("near-text.gguf"), "calls": NEAR.with_name("near-calls.gguf")}
QUESTIONS = (QUESTION, "Who is the employer of Ines Falk?", "Are the mayors of Port Alder and Helvar the same person?")


@pytest.fixture
def _without_llama(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nearfar look for llama.cpp and not find it."""

    def find_others(name: str) -> ModuleSpec | None:
        return None if name == "llama_cpp" else find_spec(name)

    for module in ("nearfar.orchestrator.compose", "nearfar.device.onnx"):
        monkeypatch.setattr(f"{module}.find_spec", find_others)


@pytest.mark.parametrize(("model", "layers"), [(NEAR, 4), (FAR, 6)], ids=["near", "far"])
async def test_a_shipped_model_loads_and_leaves_nothing_behind(
    model: Path, layers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    async with await OnnxAgent.load(model) as agent:
        assert list(tmp_path.iterdir()) == []
        reply = await complete(agent, ask(QUESTION))
    assert reply.finished.usage.output_tokens > 0
    assert (agent.card.name, agent.card.world) == (model.stem, "search, apps")
    assert agent.card.execution is not None
    assert (agent.card.execution.engine, agent.card.execution.layers) == ("onnxruntime-genai", layers)


async def test_a_worker_that_was_killed_converts_the_model_again() -> None:
    async with await OnnxAgent.load(NEAR) as agent:
        first = await complete(agent, ask(QUESTION))
        os.kill((await agent.statistics()).process_id, signal.SIGKILL)
        with pytest.raises(WorkerCrashed):
            await complete(agent, ask(QUESTION))
        assert (await complete(agent, ask(QUESTION))).text == first.text


@needs_llama
@pytest.mark.parametrize("adapters", [{}, PAIR], ids=["as it is", "with the shipped adapters"])
async def test_both_engines_say_the_same(adapters: dict[str, Path]) -> None:
    chosen = {"adapter": "text", "call_adapter": "calls"} if adapters else {}
    said = []
    for engine in (OnnxAgent, LlamaAgent):
        async with await engine.load(NEAR, adapters=adapters, **chosen) as agent:  # type: ignore[arg-type]  # each is a text
            replies = [await complete(agent, ask(question)) for question in QUESTIONS]
            said.append([(reply.text, [(call.name, call.arguments) for call in reply.tool_calls]) for reply in replies])
    assert said[0] == said[1]


async def test_an_adapter_changes_what_the_model_says() -> None:
    async with await OnnxAgent.load(NEAR, adapters=PAIR) as agent:
        plain = await complete(agent, ask(QUESTION))
        adapted = await complete(agent, ask(QUESTION, adapter="text"))
        again = await complete(agent, ask(QUESTION))
    assert "open" in adapted.text
    assert adapted.text != plain.text == again.text


@pytest.mark.parametrize(("adapter", "error"), [("none.gguf", ModelNotFound), ("near.gguf", ModelError)])
async def test_what_is_no_adapter_of_the_model_is_refused(adapter: str, error: type[NearfarError]) -> None:
    with pytest.raises(error):
        await OnnxAgent.load(NEAR, adapters={"text": NEAR.with_name(adapter)})


async def test_a_model_of_another_kind_is_refused_with_a_way_on(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "other.gguf", TinyModel(sentencepiece=True))
    with pytest.raises(ModelError, match="cannot be converted for onnxruntime") as caught:
        await OnnxAgent.load(path)
    assert "nearfar[llama]" in caught.value.hint


def test_a_damaged_file_is_refused_or_converted(tmp_path: Path) -> None:
    data = NEAR.read_bytes()
    header = data.index(b"token_embd.weight") + 4000
    draw = random.Random(3)
    refused = 0
    for _ in range(100):
        damaged = bytearray(data)
        for _ in range(draw.choice((1, 1, 2, 4))):
            damaged[draw.randrange(header)] = draw.randrange(256)
        (tmp_path / "damaged.gguf").write_bytes(damaged)
        try:
            read_model(tmp_path / "damaged.gguf")
            write_folder(tmp_path / "damaged.gguf", tmp_path, lora=True)
        except ModelError:
            refused += 1
    assert 0 < refused < 100


@pytest.mark.usefixtures("_without_llama")
async def test_without_llama_cpp_near_runs_on_onnxruntime_and_its_card_says_why() -> None:
    agent = await open_local(NearConfig(), name="near", side=Side.NEAR)
    await agent.aclose()
    assert agent.card.execution is not None
    assert agent.card.execution.engine == "onnxruntime-genai"
    assert agent.card.description.endswith("Run by onnxruntime, since llama.cpp is not installed.")


@pytest.mark.usefixtures("_without_llama")
async def test_layers_on_a_gpu_are_llama_cpps_and_refused_without_it() -> None:
    with pytest.raises(ConfigError, match="onnxruntime runs"):
        await open_local(NearConfig(gpu_layers=2), name="near", side=Side.NEAR)
