"""Batches of episodes as token sequences, and the tokenizer they share.

Batches are a pure function of (seed, step), so a resumed run sees exactly the data it would have seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from nearfar.orchestrator.lab.worlds import Split
from nearfar.orchestrator.lab.worlds.apps import TEST_MIX as APPS_MIX
from nearfar.orchestrator.lab.worlds.loading import TEST_MIX as SEARCH_MIX

from .episodes import BOS, END, ROLES, TOOL_CALL, Segment
from .problems import Problem, draw_apps, draw_search

PAD: Final = "<|pad|>"
SPECIALS: Final = (BOS, END, PAD, "<|user|>", "<|assistant|>", "<|tool|>", "<|system|>", *TOOL_CALL)
VOCABULARY: Final = 2048
_GROUP: Final = 16
"""Batches made together: sorted by length inside a group, so that little of a batch is padding."""

Encoded = tuple[list[int], list[float]]


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the training data: one role in one world.

    ``weight`` is its share of the episodes; ``kinds`` the share of each kind of task, by default that of the tests.
    """

    role: str
    world: Literal["search", "apps"]
    weight: float
    kinds: Mapping[str, float] = field(default_factory=dict)

    def problems(self, random_: random.Random, split: Split = "train") -> Sequence[Problem]:
        """Draw a few problems of its world."""
        if self.world == "search":
            return draw_search(random_, split, self.kinds or SEARCH_MIX)
        return draw_apps(random_, split, self.kinds or APPS_MIX)


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the training with a mix of its own; ``steps`` is a multiple of 16, the number of batches made together."""

    steps: int
    mix: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids, and what each counts in the loss when it is predicted; both of shape (episodes, length)."""

    tokens: NDArray[np.int64]
    weights: NDArray[np.float32]


def episodes(mix: Sequence[Share], random_: random.Random) -> Iterator[list[Segment]]:
    """Endlessly draw episodes of a mix."""
    weights = [share.weight for share in mix]
    while True:
        share = random_.choices(mix, weights)[0]
        for problem in share.problems(random_):
            yield ROLES[share.role](problem, random_)


def train_tokenizer(target: Path, mix: Sequence[Share], count: int = 12_000) -> None:
    """Learn the byte-level BPE from training episodes and write it to ``target``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(text, special=True) for text in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    drawn = episodes(mix, random.Random("tokenizer"))
    # Specials are split off before the merges apply, so they must not shape the merges either.
    texts = (_without_specials(segment.text) for _ in range(count) for segment in next(drawn))
    tokenizer.train_from_iterator(texts, trainer)
    target.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(target))


def _without_specials(text: str) -> str:
    for special in SPECIALS:
        text = text.replace(special, "")
    return text


class Batches:
    """Training batches of about ``tokens`` tokens each, from the mix of the stage that a step belongs to."""

    def __init__(self, tokenizer: Tokenizer, seed: int, tokens: int, stages: Sequence[Stage]) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        self._tokens = tokens
        self._stages = tuple(stages)
        self.pad = tokenizer.token_to_id(PAD)
        self._group = lru_cache(maxsize=1)(self._make_group)

    def at(self, step: int) -> Batch:
        """Return the batch of one training step."""
        return self._group(step // _GROUP)[step % _GROUP]

    def drawn(self, step: int, random_: random.Random) -> Iterator[list[Segment]]:
        """Endlessly draw episodes for the batches from one step on."""
        return episodes(self._mix_at(step), random_)

    def _make_group(self, number: int) -> list[Batch]:
        random_ = random.Random(f"group/{self._seed}/{number}")
        drawn = self.drawn(number * _GROUP, random_)
        encoded: list[Encoded] = []
        size = 0
        while size < self._tokens * _GROUP:
            encoded.append(encode(self._tokenizer, next(drawn)))
            size += len(encoded[-1][0])
        batches = self._cut(sorted(encoded, key=lambda pair: len(pair[0])), size / _GROUP)
        random_.shuffle(batches)
        return batches

    def _mix_at(self, step: int) -> Sequence[Share]:
        for stage in self._stages:
            if step < stage.steps:
                return stage.mix
            step -= stage.steps
        return self._stages[-1].mix

    def _cut(self, encoded: list[Encoded], size: float) -> list[Batch]:
        rows: list[list[Encoded]] = [[] for _ in range(_GROUP)]
        seen = 0
        for pair in encoded:
            rows[min(int(seen / size), _GROUP - 1)].append(pair)
            seen += len(pair[0])
        return [self._padded(row) for row in rows]

    def _padded(self, row: list[Encoded]) -> Batch:
        shape = (len(row), max(len(ids) for ids, _ in row))
        tokens = np.full(shape, self.pad, dtype=np.int64)
        weights = np.zeros(shape, dtype=np.float32)
        for index, (ids, counts) in enumerate(row):
            tokens[index, : len(ids)] = ids
            weights[index, : len(counts)] = counts
        return Batch(tokens, weights)


def encode(tokenizer: Tokenizer, segments: Sequence[Segment]) -> Encoded:
    """Return token ids and what each counts in the loss."""
    ids: list[int] = []
    weights: list[float] = []
    for segment in segments:
        piece = tokenizer.encode(segment.text, add_special_tokens=False).ids
        ids += piece
        weights += [segment.weight] * len(piece)
    return ids, weights


def load_tokenizer(path: Path) -> Tokenizer:
    """Read the tokenizer that ``train_tokenizer`` wrote."""
    return Tokenizer.from_file(str(path))
