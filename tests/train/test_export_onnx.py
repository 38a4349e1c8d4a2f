from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from llama_engine import needs_llama

pytest.importorskip("torch", reason="exporting models needs torch: pip install 'nearfar[train]'")
pytest.importorskip("onnx", reason="exporting models needs onnx: pip install 'nearfar[train]'")
pytest.importorskip("onnxruntime_genai", reason="running ONNX models needs onnxruntime-genai: pip install 'nearfar[onnx]'")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from nearfar.device.onnx import from_gguf
from nearfar.device.onnx.folder import read_folder
from train import export_onnx
from train.agreement import first_differences, llama_engine, onnx_engine, prompts, torch_reply
from train.episodes import END
from train.export_onnx import write_folder
from train.gguf_base import read_base
from train.model import Shape, TinyLlama
from train.onnx_graph import BLOCK, Precision, quantise

ROOT = Path(__file__).parents[2]
NEAR = ROOT / "device" / "models" / "near.gguf"
PROMPTS = 8


def near() -> tuple[TinyLlama, Tokenizer, int]:
    """The model that ships, its tokenizer and its end token."""
    model, tokenizer = read_base(NEAR)
    end = tokenizer.token_to_id(END)
    assert end is not None
    return model, tokenizer, end


@pytest.mark.parametrize("engine", [pytest.param("gguf", marks=needs_llama), "converted", "fp32", "int8"])
def test_an_export_says_what_torch_says(engine: str, tmp_path: Path) -> None:
    model, tokenizer, end = near()
    if engine == "gguf":
        run = llama_engine(NEAR, end)
    elif engine == "converted":
        from_gguf.write_folder(NEAR, tmp_path)
        run = onnx_engine(tmp_path, end)
    else:
        write_folder(model, tokenizer, tmp_path, name="near", precision=Precision(engine))
        run = onnx_engine(tmp_path, end)
    asked = prompts(tokenizer, PROMPTS)
    expected = [torch_reply(model, prompt, end) for prompt in asked]
    assert first_differences(model, asked, expected, run) == []


def test_a_difference_says_where_it_is_and_how_close_it_was() -> None:
    model, tokenizer, end = near()
    asked = prompts(tokenizer, 1)
    (expected,) = [torch_reply(model, prompt, end) for prompt in asked]
    wrong = [*expected[:1], (expected[1] + 1) % model.shape.vocabulary, *expected[2:]]
    (difference,) = first_differences(model, asked, [expected], lambda _: wrong)
    assert (difference.position, difference.token, difference.expected) == (1, wrong[1], expected[1])
    assert difference.margin > 0


def test_one_command_writes_folders_that_can_be_loaded(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "train", "export-onnx", "near", "--precision", "fp32", "int4", "--folder", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    exact, small = read_folder(tmp_path / "near-fp32"), read_folder(tmp_path / "near-int4")
    assert exact.parameters == small.parameters
    assert exact.size > 4 * small.size
    assert (exact.name, exact.world) == ("nearfar-near-fp32", "search, apps")


def test_a_large_model_keeps_its_weights_in_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_onnx, "_LARGEST_INLINE", 1 << 10)
    _, tokenizer = read_base(NEAR)
    torch.manual_seed(0)
    shape = Shape(width=64, layers=2, heads=2, head_width=32, hidden=96, vocabulary=tokenizer.get_vocab_size(), context=128)
    model = TinyLlama(shape).eval()
    for _ in range(2):  # A second export replaces the first.
        write_folder(model, tokenizer, tmp_path, name="random", precision=Precision.FP32)
    assert (tmp_path / "model.onnx.data").stat().st_size < 5 * model.parameter_count()
    assert read_folder(tmp_path).parameters == model.parameter_count()
    expected = [torch_reply(model, [1, 2, 3], end=0)]
    assert first_differences(model, [[1, 2, 3]], expected, onnx_engine(tmp_path, 0)) == []


@settings(deadline=None)
@given(st.sampled_from([4, 8]), st.integers(0, 2**32 - 1), st.floats(1e-4, 1e3))
def test_a_quantised_weight_is_off_by_a_step_at_most(bits: int, seed: int, spread: float) -> None:
    weight = np.random.default_rng(seed).normal(0, spread, (3, 2 * BLOCK)).astype(np.float32)
    numbers, scales = quantise(weight, bits)
    if bits == 4:
        numbers = np.stack((numbers & 15, numbers >> 4), axis=-1).reshape(3, 2, BLOCK)
    restored = (numbers.astype(np.float32) - (1 << (bits - 1))) * scales[..., None]
    # Half a step of rounding, or a whole one at the end where the numbers have one less.
    assert np.all(np.abs(restored.reshape(weight.shape) - weight) <= np.repeat(np.abs(scales), BLOCK, axis=1) * 1.001)


def test_a_block_of_zeros_stays_zero() -> None:
    numbers, scales = quantise(np.zeros((1, BLOCK), dtype=np.float32), 8)
    assert np.all(numbers == 128)
    assert np.all(scales == 0)
