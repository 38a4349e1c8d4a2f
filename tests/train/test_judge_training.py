from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from llama_engine import require_llama

pytest.importorskip("torch", reason="training needs torch: pip install 'nearfar[train]'")
require_llama()
pytest.importorskip("gguf", reason="reading model files needs gguf: pip install gguf")

import numpy as np
import torch

from nearfar.device.llama.model import start_backend
from nearfar.device.worker.engine import cells
from nearfar.orchestrator.strategies.prompts import CONTINUE, INTERVENE
from train.adapted import Decoder
from train.gguf_base import read_base
from train.judging import DraftBatches, JudgedDraft, record_drafts, train_judge

MODELS = Path(__file__).parents[2] / "device" / "models"
NEAR = MODELS / "near.gguf"
PAIR = [MODELS / f"near-{name}.gguf" for name in ("text", "calls")]


@pytest.fixture(scope="module", autouse=True)
def backend() -> None:
    start_backend()
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> list[JudgedDraft]:
    folder = tmp_path_factory.mktemp("drafts")
    return [draft for world in ("search", "apps") for draft in record_drafts(NEAR, PAIR, world, 5, 60, folder / f"{world}.jsonl")]


def test_drafting_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    whole = record_drafts(NEAR, PAIR, "search", 3, 6, tmp_path / "whole.jsonl")
    record_drafts(NEAR, PAIR, "search", 3, 4, tmp_path / "halves.jsonl")
    with (tmp_path / "halves.jsonl").open("a") as file:
        file.write('{"task": "half a li')
    assert record_drafts(NEAR, PAIR, "search", 3, 6, tmp_path / "halves.jsonl") == whole
    assert (tmp_path / "halves.jsonl").read_text() == (tmp_path / "whole.jsonl").read_text()


def test_a_draft_is_shown_with_its_calls_and_only_the_verdict_is_learned(drafts: Sequence[JudgedDraft]) -> None:
    tokenizer = read_base(NEAR)[1]
    batch = DraftBatches(tokenizer, 0, drafts, steps=16).at(3)
    shown = [tokenizer.decode(row.tolist(), skip_special_tokens=False) for row in batch.tokens]
    assert all("Work:" in text and "= " in text for text in shown)
    assert batch.weights.sum(axis=1).tolist() == [1.0] * len(shown)
    learned = {tokenizer.id_to_token(int(token)) for token in batch.tokens[batch.weights > 0]}
    assert learned <= {CONTINUE, INTERVENE}


def test_a_judge_is_trained_into_an_adapter_of_near(drafts: Sequence[JudgedDraft], tmp_path: Path) -> None:
    train_judge(NEAR, drafts, tmp_path / "judge.gguf", seed=0, steps=12, report=print)
    before, after = (_separation(drafts, adapters) for adapters in ([], [tmp_path / "judge.gguf"]))
    assert after > before + 0.05


def test_the_shipped_judge_tells_right_drafts_from_wrong_ones(drafts: Sequence[JudgedDraft]) -> None:
    assert _separation(drafts, [MODELS / "near-judge.gguf"]) > 0.85


def _separation(drafts: Sequence[JudgedDraft], adapters: Sequence[Path]) -> float:
    """The share of pairs of a right and a wrong draft of which the judge prefers the right one."""
    decoder = Decoder(NEAR, adapters)
    vocabulary = decoder.model.vocabulary
    yes, no = (vocabulary.tokenize(word)[0] for word in (CONTINUE, INTERVENE))
    odds = []
    for draft in drafts:
        prompt = "".join(segment.text for segment in draft.episode[:-1])
        decoder.read(cells(vocabulary.tokenize(prompt), len(adapters)))
        logits = decoder.context.logits(decoder.context.batch.size - 1)
        odds.append(float(logits[yes] - logits[no]))
    right = np.array([draft.right for draft in drafts])
    scores = np.array(odds)
    return float((scores[right][:, None] > scores[~right][None]).mean())
