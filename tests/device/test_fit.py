"""What `nearfar models fit` predicts is what worker processes take."""

import json
from pathlib import Path

import psutil
import pytest

pytest.importorskip("llguidance", reason="running models needs an engine: pip install 'nearfar[onnx]'")
pytest.importorskip("gguf", reason="writes models: pip install 'nearfar[test]'")
pytest.importorskip("httpx", reason="looks into repositories: pip install 'nearfar[models]'")
import numpy as np
from fake_hub import REPOSITORY, fake_hub
from gguf import GGUFWriter
from llama_engine import HAS_LLAMA, needs_llama
from near_model import NEAR, QUESTION, ask, near_agent
from tiny_gguf import WIDTH, TinyModel, write_tiny_gguf
from typer.testing import CliRunner

from nearfar.device.llama import ModelShape
from nearfar.device.store import ModelStore
from nearfar.device.store.fit import Candidate, fits, local_candidate, stored_candidates
from nearfar.device.store.hub import HubOptions
from nearfar.orchestrator.cli import app, running
from nearfar.protocols import ConfigError, ModelNotFound, complete
from train.enlarge import enlarge

FAR = NEAR.with_name("far.gguf")
ENOUGH = 1 << 60


def has_gpu_libraries() -> bool:
    """Tell if llama.cpp was built for a GPU, too, whose libraries every worker loads."""
    if not HAS_LLAMA:
        return False
    import llama_cpp

    found = {path.name.split(".")[0].removeprefix("libggml-") for path in (Path(llama_cpp.__file__).parent / "lib").glob("libggml-*")}
    return bool(found & {"cuda", "hip", "sycl", "vulkan"})


needs_plain_llama = pytest.mark.skipif(has_gpu_libraries(), reason="CUDA's libraries alone take 170 MB of a worker, whatever the model")


@needs_llama
@needs_plain_llama
@pytest.mark.anyio
@pytest.mark.parametrize("context", [512, 1024, 2048])
@pytest.mark.parametrize("model", [NEAR, FAR], ids=["near", "far"])
async def test_prediction_is_within_15_percent_of_what_a_worker_takes(model: Path, context: int) -> None:
    measured = await _measured(model, context)
    assert _predicted(model, context) == pytest.approx(measured, rel=0.15)


@needs_llama
@needs_plain_llama
@pytest.mark.anyio
async def test_prediction_holds_for_a_model_whose_weights_count(tmp_path: Path) -> None:
    enlarge(FAR, tmp_path / "large.gguf", 60_000_000)
    measured = await _measured(tmp_path / "large.gguf", 2048)
    assert _predicted(tmp_path / "large.gguf", 2048) == pytest.approx(measured, rel=0.15)


def _predicted(model: Path, context: int) -> int:
    (fit,) = fits([local_candidate("model", model)], ENOUGH, context=context, parallel=4).fits
    return fit.footprint.total


async def _measured(model: Path, context: int) -> int:
    """Resident bytes of a real worker after a step with a prompt of hundreds of tokens."""
    async with near_agent(model, context_tokens=context) as agent:
        await complete(agent, ask(QUESTION * 45, max_output_tokens=8))
        statistics = await agent.statistics()
        resident: int = psutil.Process(statistics.process_id).memory_info().rss
    return resident


def test_layers_with_heads_of_their_own_are_summed(tmp_path: Path) -> None:
    writer = GGUFWriter(str(tmp_path / "mixed.gguf"), "llama")
    writer.add_block_count(4)
    writer.add_context_length(4096)
    writer.add_embedding_length(256)
    writer.add_head_count(8)
    writer.add_head_count_kv([2, 0, 4, 0])
    writer.add_feed_forward_length([512, 1024, 512, 512])
    writer.add_tensor("token_embd.weight", np.zeros((4, 256), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shape = local_candidate("mixed", tmp_path / "mixed.gguf").shape
    assert shape == ModelShape(trained_tokens=4096, cache_bytes=2 * (2 + 4) * (32 + 32), width=256, widest=1024, vocabulary=0)


def test_verdicts_follow_the_free_memory(tmp_path: Path) -> None:
    model = local_candidate("tiny", write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(context_length=512)))
    needed = model.shape.footprint(model.weights, context_tokens=512, parallel=4).total
    for free, verdict in ((2 * needed, "fits"), (needed, "tight"), (needed - 1, "too large"), (None, "unknown")):
        (fit,) = fits([model], free, context=512, parallel=4).fits
        assert (fit.verdict, fit.footprint.total) == (verdict, needed)


def test_no_model_is_given_more_context_than_it_was_trained_for(tmp_path: Path) -> None:
    model = local_candidate("tiny", write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(context_length=3000)))
    assert [fit.context_tokens for fit in fits([model], ENOUGH, context=None, parallel=1).fits] == [2048, 3000]


def test_the_largest_context_is_the_largest_that_fits() -> None:
    model = Candidate("big", 1 << 30, ModelShape(trained_tokens=40_960, cache_bytes=1 << 17, width=2048, widest=8192, vocabulary=150_000))

    def largest(free: int) -> int | None:
        return fits([model], free, context=2048, parallel=1).largest_contexts["big"]

    def needed(tokens: int) -> int:
        return model.shape.footprint(model.weights, context_tokens=tokens, parallel=1).total

    assert largest(needed(40_960)) == 40_960
    assert largest(needed(40_960) - 1) == 32_768
    assert largest(needed(256)) == 256
    assert largest(needed(256) - 1) is None


def test_quantisations_of_a_repository_are_compared_by_their_headers_alone(tmp_path: Path) -> None:
    small = write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(layers=1)).read_bytes()
    with fake_hub() as hub:
        hub.files |= {"tiny-Q4_0.gguf": small, "tiny-Q8_0.gguf": small + bytes(100_000), "README.md": b"# Tiny"}
        store = ModelStore(tmp_path / "nearfar", HubOptions(endpoint=hub.endpoint, hosts=("localhost",), cache=tmp_path / "hub", pause=0))
        found = stored_candidates(store, f"hf:{REPOSITORY}")
        assert [model.name for model in found] == ["Q4_0", "Q8_0"]
        assert found[1].weights == found[0].weights + 100_000
        assert found[0].shape.cache_bytes == 2 * 2 * WIDTH
        assert all(asked is not None and asked.startswith("bytes=0-") for asked in hub.ranges)
        assert [model.name for model in stored_candidates(store, f"hf:{REPOSITORY}:Q8_0")] == ["Q8_0"]
        with pytest.raises(ModelNotFound, match="has no 'Q2_K'"):
            stored_candidates(store, f"hf:{REPOSITORY}:Q2_K")
        assert store.models() == []
        store.pull(f"hf:{REPOSITORY}:Q4_0")
        assert [model.name for model in stored_candidates(store, f"hf:{REPOSITORY}")] == ["Q4_0", "Q8_0"]
        hub.asked[:] = []
        (pulled,) = stored_candidates(store, f"hf:{REPOSITORY}:Q4_0")
        assert (pulled.weights, hub.asked) == (found[0].weights, [])


def test_each_model_of_a_repository_has_a_header_of_its_own(tmp_path: Path) -> None:
    with fake_hub() as hub:
        hub.files = {
            f"{name}.gguf": write_tiny_gguf(tmp_path / name, TinyModel(layers=layers)).read_bytes()
            for name, layers in (("plain", 1), ("deep", 3), ("a-Q8_0", 1), ("b-Q8_0", 2))
        }
        store = ModelStore(tmp_path / "nearfar", HubOptions(endpoint=hub.endpoint, hosts=("localhost",), cache=tmp_path / "hub", pause=0))
        found = {model.name: model.shape.cache_bytes for model in stored_candidates(store, f"hf:{REPOSITORY}")}
    assert found == {name: layers * 2 * 2 * WIDTH for name, layers in (("plain", 1), ("deep", 3), ("a-Q8_0", 1), ("b-Q8_0", 2))}


def test_models_that_must_not_be_loaded_do_not_keep_others_from_being_looked_at(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "nearfar", HubOptions(cache=tmp_path / "hub", is_offline=True))
    for name in ("gone", "here"):
        store.add(write_tiny_gguf(tmp_path / f"{name}.gguf", TinyModel(layers=1)))
    (tmp_path / "gone.gguf").unlink()
    assert [model.name for model in stored_candidates(store, None)] == ["here"]


def test_an_adapter_is_no_model_that_fits(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "nearfar", HubOptions(cache=tmp_path / "hub", is_offline=True))
    adapter = NEAR.with_name("near-text.gguf")
    store.add(adapter, name="adapter")
    assert stored_candidates(store, None) == []
    for name in ("adapter", str(adapter)):
        with pytest.raises(ConfigError, match="is not a language model on its own"):
            stored_candidates(store, name)


def test_a_folder_is_not_guessed_at(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a GGUF file"):
        local_candidate("onnx", tmp_path)


@pytest.mark.usefixtures("wide_terminal")
def test_where_the_free_memory_is_unknown_nothing_is_said_not_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.device.hardware.state.free_memory_bytes", lambda: None)
    result = CliRunner().invoke(app, ["models", "fit", str(FAR)])
    assert "unknown whether it fits" in result.stdout
    assert "does not fit" not in result.stdout


@pytest.mark.usefixtures("wide_terminal")
def test_command_prints_what_each_model_takes_and_the_largest_context(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(app, ["models", "fit"])
    assert result.exit_code == 0
    assert "near: at most a context of 2048 tokens" in result.stdout
    monkeypatch.setattr(running.output, "width", 80)
    narrow = CliRunner().invoke(app, ["models", "fit", str(FAR)]).stdout
    assert "fits" in narrow
    assert "\N{HORIZONTAL ELLIPSIS}" not in narrow, "nothing is cut off"
    result = CliRunner().invoke(app, ["models", "fit", str(FAR), "--context", "1024", "--parallel", "1", "--json"])
    value = json.loads(result.stdout)
    (fit,) = value["fits"]
    assert (fit["name"], fit["context_tokens"], fit["verdict"]) == (str(FAR), 1024, "fits")
    assert fit["bytes"] == sum(fit[f"{part}_bytes"] for part in ("weights", "cache", "computing", "vocabulary", "runtime"))
    assert value["largest_contexts"] == {str(FAR): 2048}
