from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from llama_engine import require_llama

pytest.importorskip("torch", reason="training needs torch: pip install 'nearfar[train]'")
require_llama()
pytest.importorskip("gguf", reason="reading model files needs gguf: pip install gguf")

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nearfar.device.llama.model import start_backend
from nearfar.device.worker.engine import Outfit, adapter_of, cells
from train.adapted import Decoder, Speaker, Voice, outcomes
from train.adapters import NAMES, Course, Recipe, inside_calls
from train.data import Share, encode
from train.episodes import TOOL_CALL, Segment, execute, execute_own_plan
from train.export import write_adapter
from train.gguf_base import read_base
from train.lora import AdaptedLinear, Router, adapt, taken_out
from train.problems import Problem

MODELS = Path(__file__).parents[2] / "device" / "models"
_STRONG = 0.3
NEAR = MODELS / "near.gguf"


@pytest.fixture(scope="module", autouse=True)
def backend() -> None:
    start_backend()
    torch.set_num_threads(1)


def test_a_model_read_back_says_in_torch_what_it_says_in_llama_cpp() -> None:
    model, tokenizer = read_base(NEAR)
    ids, weights = encode(tokenizer, episode(execute))
    with torch.no_grad():
        expected = model(torch.tensor([ids]))[0].argmax(-1).tolist()
    assert agreement(Decoder(NEAR), ids, weights, expected) > 0.97


@pytest.mark.parametrize("adapters", [1, 2])
def test_exported_adapters_say_in_llama_cpp_what_they_say_in_torch(tmp_path: Path, adapters: int) -> None:
    """With random adapters, strong enough that the wrong ones, or none, say something else."""
    torch.manual_seed(1)
    model, tokenizer = read_base(NEAR)
    ids, weights = encode(tokenizer, episode(execute))
    calls = called(tokenizer.encode("".join(TOOL_CALL)).ids, ids)
    router = Router(adapters, rank=4)
    adapt(model, router)
    router.choose(torch.from_numpy(calls[None].astype(np.int64)) % adapters)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, AdaptedLinear):
                module.up.normal_(std=_STRONG)
        expected = model(torch.tensor([ids]))[0].argmax(-1).tolist()
    files = [tmp_path / f"{number}.gguf" for number in range(adapters)]
    for adapter, file in zip(taken_out(model, router), files, strict=True):
        write_adapter(adapter, model.shape, file, file.stem)
    decoder = Decoder(NEAR, files)
    right = [1 + int(call) % adapters for call in calls]
    assert agreement(decoder, ids, weights, expected, right) > 0.95
    assert agreement(decoder, ids, weights, expected) < 0.8
    if adapters == 2:
        assert agreement(decoder, ids, weights, expected, [1] * len(ids)) < 0.8


def test_a_plan_stands_in_front_of_the_first_call_and_is_learned() -> None:
    plain, planned = episode(execute), episode(execute_own_plan)
    first = next(index for index, segment in enumerate(plain) if segment.text == "<|assistant|>")
    assert [*planned[: first + 1], *planned[first + 2 :]] == plain
    assert planned[first + 1].weight > 0
    assert planned[first + 1].text.startswith("1. ")


words = st.lists(st.integers(3, 6), max_size=4)


@given(st.lists(st.tuples(words, words)), words)
def test_training_and_running_agree_on_which_tokens_are_calls(turns: list[tuple[list[int], list[int]]], rest: list[int]) -> None:
    opener, closer = 1, 2
    tokens = [token for text, call in turns for token in (*text, opener, *call, closer)] + rest + [0]
    marked = Outfit(0, 1).prompt(tokens, (opener,), (closer,))
    assert [adapter_of([cell]) for cell in marked] == inside_calls(np.array([tokens]), opener, closer)[0].astype(int).tolist()


def test_a_course_trains_every_form_once(tmp_path: Path) -> None:
    names = {"shared", *NAMES, *(f"{name}-model" for name in NAMES)}
    stamps = []
    for _ in range(2):
        Course(NEAR, tmp_path, seed=0, recipe=Recipe(steps=2, rank=2), report=print).run()
        stamps.append({path.stem: path.stat().st_mtime_ns for path in tmp_path.iterdir()})
    assert set(stamps[0]) == names
    assert stamps[0] == stamps[1]
    texts, calls = (Voice(Decoder(tmp_path / f"{name}-model.gguf")) for name in NAMES)
    assert outcomes(Speaker(texts, calls), "search", count=8, seed=2).count(True) > 0


@pytest.mark.parametrize("world", ["search", "apps"])
def test_with_its_adapters_near_plans_for_itself(world: str) -> None:
    decoder = Decoder(NEAR, [MODELS / f"near-{name}.gguf" for name in NAMES])
    alone = outcomes(Speaker(Voice(decoder), Voice(decoder)), world, count=24, seed=2)
    adapted = outcomes(Speaker(Voice(decoder, 1), Voice(decoder, 2)), world, count=24, seed=2)
    assert sum(adapted) >= sum(alone) + 2


def episode(role: Callable[[Problem, random.Random], list[Segment]]) -> list[Segment]:
    random_ = random.Random(3)
    problem = Share("execute", "apps", 1.0, {"4 errands": 1.0}).problems(random_, "test")[0]
    return role(problem, random_)


def called(markers: list[int], ids: list[int]) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = inside_calls(np.array([ids]), *markers)[0]
    return inside


def agreement(decoder: Decoder, ids: list[int], weights: list[float], expected: list[int], adapters: list[int] | None = None) -> float:
    """Share of learned tokens of which llama.cpp predicts what torch does, with an adapter for each token."""
    marked = [cell for token, adapter in zip(ids, adapters or [0] * len(ids), strict=True) for cell in cells([token], adapter)]
    learned = [place for place in range(len(ids) - 1) if weights[place + 1] > 0]
    return float(np.mean([decoder.read(marked[: place + 1]) == expected[place] for place in learned]))
