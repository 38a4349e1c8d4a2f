"""Where llama.cpp computes: what it is told, and what it reports. GPUs are described or faked, since the tests have none."""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from llama_engine import require_llama
from near_model import NEAR, QUESTION
from tiny_gguf import TinyModel, write_tiny_gguf

require_llama()

import fake_gpu_worker
import llama_cpp

from nearfar import LlamaAgent
from nearfar.device.hardware.processors import ProcessorKind
from nearfar.device.llama import LlamaOptions
from nearfar.device.llama.devices import (
    ALL_LAYERS,
    CPU_ONLY,
    BackendDevice,
    Placement,
    backend_devices,
    execution_of,
    layers_that_fit,
    place,
)
from nearfar.device.profiles import Profile, PromptPace, model_files, save_profile, this_device
from nearfar.protocols import ConfigError, Execution, Message, ModelError, StepRequest, complete

GIB = 1 << 30


def described(name: str, provider: str, kind: ProcessorKind, free_memory: Callable[[], int] = lambda: 8 * GIB) -> BackendDevice:
    return BackendDevice(handle=0, name=name, description=f"chip of {name}", provider=provider, kind=kind, free_memory=free_memory)


CPU = described("CPU", "cpu", ProcessorKind.CPU)
CUDA = described("CUDA0", "cuda", ProcessorKind.GPU)
SECOND = described("CUDA1", "cuda", ProcessorKind.GPU)
VULKAN = described("Vulkan0", "vulkan", ProcessorKind.INTEGRATED_GPU)


def options(**changes: Any) -> LlamaOptions:  # noqa: ANN401 - fields of any type
    return replace(LlamaOptions(path=str(NEAR), context_tokens=None, parallel=1, threads=None), **changes)


@pytest.mark.parametrize(
    ("changes", "placement"),
    [
        ({}, CPU_ONLY),  # near is tiny
        ({"compute": "cuda"}, Placement((CUDA, SECOND), ALL_LAYERS)),
        ({"gpu_layers": 3}, Placement((CUDA, SECOND), 3)),
        ({"gpu_layers": 0}, CPU_ONLY),
        ({"compute": "cpu"}, CPU_ONLY),
        ({"compute": "cpu", "gpu_layers": 0}, CPU_ONLY),
        ({"compute": "lowest_power"}, Placement((VULKAN,), ALL_LAYERS)),
        ({"compute": "metal", "allow_fallback": True}, CPU_ONLY),
        ({"tokens_per_second": {"cpu": 900.0, "cuda": 1000.0}}, Placement((CUDA, SECOND), ALL_LAYERS)),
        ({"tokens_per_second": {"cpu": 900.0, "cuda": 800.0}}, CPU_ONLY),
    ],
)
def test_placement_follows_the_options(changes: dict[str, object], placement: Placement) -> None:
    assert place(options(**changes), [CPU, CUDA, SECOND, VULKAN]) == placement


@pytest.mark.parametrize(
    ("changes", "devices"),
    [
        ({"compute": "cuda"}, [CPU]),
        ({"gpu_layers": 4}, [CPU]),
        ({"gpu_layers": ALL_LAYERS}, [CPU]),
        ({"compute": "cpu", "gpu_layers": 4}, [CPU, CUDA]),
        ({"compute": "cuda", "gpu_layers": 0}, [CPU, CUDA]),
    ],
)
def test_what_cannot_be_had_is_refused_unless_fallback_is_allowed(changes: dict[str, object], devices: list[BackendDevice]) -> None:
    with pytest.raises(ConfigError):
        place(options(**changes), devices)
    assert place(options(**changes, allow_fallback=True), devices) == CPU_ONLY


def test_a_gpu_that_has_no_room_for_a_single_layer_is_left_alone() -> None:
    full = described("CUDA0", "cuda", ProcessorKind.GPU, lambda: 1000)
    assert place(options(compute="cuda", allow_fallback=True), [CPU, full]) == CPU_ONLY
    assert place(options(tokens_per_second={"cpu": 1.0, "cuda": 2.0}), [CPU, full]) == CPU_ONLY
    with pytest.raises(ConfigError, match="not enough free memory"):
        place(options(compute="cuda"), [CPU, full])


def test_a_gpu_that_is_not_chosen_is_not_asked_for_its_memory() -> None:
    def asked() -> int:
        raise NotImplementedError

    place(options(compute="vulkan"), [CPU, described("CUDA0", "cuda", ProcessorKind.GPU, asked), VULKAN])


def test_as_many_layers_are_offloaded_as_fit() -> None:
    model = {"model_bytes": 9 * GIB, "cache_bytes": 0, "layers": 8}
    assert layers_that_fit(20 * GIB, **model) == ALL_LAYERS
    assert layers_that_fit(6 * GIB, **model) == 5  # of a GiB each, beside a reserve of 0.9 GiB
    assert layers_that_fit(GIB // 2, **model) == 0
    assert layers_that_fit(GIB // 4, model_bytes=GIB // 16, cache_bytes=0, layers=8) == 0  # CUDA's own libraries need it
    assert layers_that_fit(6 * GIB, model_bytes=9 * GIB, cache_bytes=8 * GIB, layers=8) == 2


def test_where_sizes_are_unknown_all_layers_are_tried() -> None:
    assert layers_that_fit(0, model_bytes=GIB, cache_bytes=0, layers=8) == ALL_LAYERS
    assert layers_that_fit(GIB, model_bytes=9 * GIB, cache_bytes=0, layers=None) == ALL_LAYERS


def test_execution_names_the_provider_that_really_has_the_layers() -> None:
    devices = [CPU, CUDA, SECOND]
    execution = execution_of(["CPU", "CPU", "CUDA0", "CUDA1", "CUDA1"], devices, threads=4)
    assert execution == Execution(engine="llama.cpp", provider="cuda", device="chip of CUDA1", layers=5, offloaded_layers=3, threads=4)


def test_a_model_that_stayed_on_the_cpu_says_so_whatever_gpus_there_are() -> None:
    execution = execution_of(["CPU", "CPU"], [CPU, CUDA], threads=4)
    assert execution == Execution(engine="llama.cpp", provider="cpu", device="chip of CPU", layers=2, offloaded_layers=0, threads=4)


@pytest.mark.parametrize("layers", [None, ["CPU", "Other9"]])
def test_execution_is_unknown_where_the_log_does_not_say(layers: list[str] | None) -> None:
    assert execution_of(layers, [CPU, CUDA], threads=1) is None


def test_this_machine_has_a_cpu() -> None:
    assert any(device.kind is ProcessorKind.CPU and device.description for device in backend_devices())


@pytest.mark.anyio
async def test_the_card_reports_what_llama_cpp_says_of_each_layer(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(layers=3))
    async with await LlamaAgent.load(path, compute="cpu", threads=1) as agent:
        execution = agent.card.execution
    assert execution is not None
    assert (execution.engine, execution.provider) == ("llama.cpp", "cpu")
    assert (execution.layers, execution.offloaded_layers, execution.threads) == (3, 0, 1)


@pytest.mark.anyio
async def test_an_absent_backend_is_refused_by_the_worker_with_a_typed_error() -> None:
    with pytest.raises(ConfigError, match="'no_such_backend' is not available"):
        await LlamaAgent.load(NEAR, compute="no_such_backend")


@pytest.mark.anyio
async def test_fallback_reports_the_cpu_and_not_what_was_asked_for() -> None:
    async with await LlamaAgent.load(NEAR, compute="no_such_backend", allow_fallback=True) as agent:
        assert agent.card.execution is not None
        assert agent.card.execution.provider != "no_such_backend"


class GpuAgent(LlamaAgent):
    """Its llama.cpp finds a card, which in truth is the CPU."""

    worker_module = "fake_gpu_worker"


@pytest.fixture
def _with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if llama_cpp.__version__ != fake_gpu_worker.VERSION:
        pytest.skip(f"the structures of the fake GPU are those of llama-cpp-python {fake_gpu_worker.VERSION}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))))


@pytest.mark.usefixtures("_with_a_gpu")
@pytest.mark.parametrize(
    ("options", "provider", "offloaded"),
    [
        ({"compute": "cuda"}, "cuda", 4),
        ({"compute": "cuda", "gpu_layers": 3}, "cuda", 2),  # the output layer is the third
        ({"gpu_layers": -1}, "cuda", 4),
        ({"compute": "lowest_power"}, "cpu", 0),
        ({"compute": "cpu"}, "cpu", 0),
        ({}, "cpu", 0),  # near is tiny
    ],
)
@pytest.mark.anyio
async def test_the_card_says_where_the_layers_really_are(options: dict[str, Any], provider: str, offloaded: int) -> None:
    async with await GpuAgent.load(NEAR, **options) as agent:
        execution = agent.card.execution
        reply = await complete(agent, StepRequest(messages=(Message.user(QUESTION),), max_output_tokens=8))
    assert execution is not None
    assert (execution.provider, execution.layers, execution.offloaded_layers) == (provider, 4, offloaded)
    assert (execution.device == fake_gpu_worker.DESCRIPTION.decode()) == bool(offloaded)
    assert reply.finished.usage.output_tokens > 0


@pytest.mark.usefixtures("_with_a_gpu")
@pytest.mark.anyio
async def test_a_model_that_a_full_gpu_does_not_take_runs_on_the_cpu_where_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPU_IS_FULL", "1")
    with pytest.raises(ModelError, match="unable to allocate") as refused:
        await GpuAgent.load(NEAR, compute="cuda")
    assert "close other programs that use the GPU" in (refused.value.hint or "")
    async with await GpuAgent.load(NEAR, compute="cuda", allow_fallback=True) as agent:
        execution = agent.card.execution
        reply = await complete(agent, StepRequest(messages=(Message.user(QUESTION),), max_output_tokens=8))
    assert execution is not None
    assert (execution.provider, execution.offloaded_layers) == ("cpu", 0)
    assert reply.finished.usage.output_tokens > 0


@pytest.mark.usefixtures("_with_a_gpu")
@pytest.mark.parametrize("fastest", ["cpu", "cuda"])
@pytest.mark.anyio
async def test_fastest_is_what_was_measured_on_this_device(fastest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFAR_HOME", str(tmp_path))
    for provider in ("cpu", "cuda"):
        save_profile(
            Profile(
                device=this_device(),
                model=model_files(NEAR),
                execution=Execution(engine="llama.cpp", provider=provider),
                measured_at=datetime.now(UTC),
                prompts=(PromptPace(prompt_tokens=64, prefill_tokens_per_second=1000.0, first_token_seconds=0.064),),
                decode_tokens_per_second=200.0 if provider == fastest else 100.0,
                load_seconds=1.0,
                memory_bytes=GIB,
            )
        )
    async with await GpuAgent.load(NEAR) as agent:
        assert agent.card.execution is not None
        assert agent.card.execution.provider == fastest
