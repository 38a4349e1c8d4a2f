from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'nearfar[train]'")
pytest.importorskip("tokenizers", reason="training needs tokenizers: pip install 'nearfar[train]'")

from tokenizers import Tokenizer

from nearfar.orchestrator.worlds.lookup import SearchWorld
from train.data import Batches, encode, episode, load_tokenizer, train_tokenizer
from train.model import Shape, TinyLlama
from train.trainer import Recipe, Trainer

RECIPE = Recipe(
    name="tiny",
    shape=Shape(width=32, layers=2, heads=2, head_width=32, hidden=64, vocabulary=1024),
    weights={1: 1.0},
    steps=6,
    decay_steps=3,
    seed=1,
    batch_tokens=256,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer(path, worlds=60)
    return load_tokenizer(path)


def test_a_resumed_run_ends_with_the_same_weights(tokenizer: Tokenizer, tmp_path: Path) -> None:
    whole = Trainer(RECIPE, tokenizer, tmp_path / "whole")
    whole.run()
    first = Trainer(RECIPE, tokenizer, tmp_path / "halves")
    first.run(until=3)
    second = Trainer(RECIPE, tokenizer, tmp_path / "halves")
    second.resume(tmp_path / "halves" / "last.pt")
    second.run()
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    assert (second.step, second.tokens) == (whole.step, whole.tokens)


def test_training_lowers_the_loss_and_writes_the_curve(tokenizer: Tokenizer, tmp_path: Path) -> None:
    trainer = Trainer(replace(RECIPE, steps=100), tokenizer, tmp_path)
    trainer.run()
    curve = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert [line["step"] for line in curve] == [50, 100]
    assert curve[1]["loss"] < curve[0]["loss"]


def test_a_batch_depends_only_on_seed_and_step(tokenizer: Tokenizer) -> None:
    first, second = (Batches(tokenizer, 5, 256, {1: 0.5, 3: 0.5}) for _ in range(2))
    second.at(40)
    assert (first.at(3).tokens == second.at(3).tokens).all()
    assert first.at(4).tokens.shape != first.at(20).tokens.shape or (first.at(4).tokens != first.at(20).tokens).any()


def test_only_what_the_assistant_writes_is_learned(tokenizer: Tokenizer) -> None:
    for task, trail in SearchWorld(1, "train").worked_tasks(50):
        segments = episode(task, trail, random.Random(task.identifier))
        ids, learned = encode(tokenizer, segments)
        written = tokenizer.decode([one for one, flag in zip(ids, learned, strict=True) if flag], skip_special_tokens=False)
        assert written.count("<tool_call>") == task.hops
        assert written.endswith(f"{task.answer}<|end|>")
        assert task.question not in written
        assert "nothing found" not in written


def test_later_tokens_do_not_change_earlier_predictions() -> None:
    torch.manual_seed(0)
    model = TinyLlama(RECIPE.shape).eval()
    ids = torch.randint(0, 1024, (1, 20))
    changed = ids.clone()
    changed[0, 12:] = 5
    with torch.no_grad():
        assert torch.allclose(model(ids)[0, :12], model(changed)[0, :12], atol=1e-5)
