"""Episodes of the search world as token sequences, and the tokenizer they share.

Batches are a pure function of (seed, step), so a resumed run sees exactly the data it would have seen.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from nearfar.orchestrator.worlds.lookup import NOTHING_FOUND, SearchTask, SearchWorld, Trail

BOS: Final = "<|bos|>"
END: Final = "<|end|>"
PAD: Final = "<|pad|>"
TOOL_CALL: Final = ("<tool_call>", "</tool_call>")
SPECIALS: Final = (BOS, END, PAD, "<|user|>", "<|assistant|>", "<|tool|>", "<|system|>", *TOOL_CALL)
VOCABULARY: Final = 1024

_TASKS_PER_WORLD: Final = 16
_GROUP: Final = 16
"""Batches made together: sorted by length inside a group, so that little of a batch is padding."""
_SLIP_RATE: Final = 0.05
"""Share of episodes in which a lookup first goes wrong, to teach the model to look again."""
_SYSTEM_RATE: Final = 0.1
_SYSTEM_TEXT: Final = (
    "a about accurate act again agent all always an and answer any are as ask assistant at available be before best "
    "brief but by call can careful check clear concise correct do does each every example explain fact facts few "
    "find first follow for from get give given good guess have help helpful how if in information instructions into "
    "is it just keep know language last let list look lookup make may more most must need never next no not now of "
    "on once one only or other our output people plan please precise question questions read reason reply report "
    "research respond result results return rules say search see short should so step steps task tasks tell text "
    "than that the their them then there these they think this time to tool tools try until up use user using value "
    "very we what when where which who will with without word words work write you your"
)
_SYSTEM_WORDS: Final = _SYSTEM_TEXT.split()


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of an episode; only pieces the assistant has to produce are ``learned``."""

    text: str
    learned: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids and the positions whose prediction counts, both of shape (episodes, length)."""

    tokens: NDArray[np.int64]
    learned: NDArray[np.bool_]


def call_text(entity: str, attribute: str) -> str:
    """Return a lookup exactly as the models write it."""
    arguments = {"entity": entity, "attribute": attribute}
    call = json.dumps({"name": "lookup", "arguments": arguments}, ensure_ascii=False)
    return f"{TOOL_CALL[0]}{call}{TOOL_CALL[1]}"


def episode(task: SearchTask, trail: Trail, random_: random.Random) -> list[Segment]:
    """Write a solved task as a conversation, now and then with a system prompt or a slip."""
    segments = [Segment(BOS, False)]
    if random_.random() < _SYSTEM_RATE:
        segments.append(Segment(f"<|system|>{_system_prompt(random_)}{END}", False))
    segments.append(Segment(f"<|user|>{task.question}{END}", False))
    slip = random_.randrange(task.hops) if random_.random() < _SLIP_RATE else None
    for number, (entity, attribute, value) in enumerate(trail.lookups()):
        if number == slip:
            segments += _turn(_garbled(entity, trail, random_), attribute, None)
        segments += _turn(entity, attribute, value)
    return [*segments, Segment("<|assistant|>", False), Segment(f"{task.answer}{END}", True)]


def _system_prompt(random_: random.Random) -> str:
    # Its words carry no meaning here: the model only has to stay unmoved by whatever stands there.
    words = [_system_word(random_) for _ in range(random_.randint(2, 30))]
    text = " ".join(words)
    return text[0].upper() + text[1:] + random_.choice((".", ".", "", ":", "!"))


def _system_word(random_: random.Random) -> str:
    unknown = "".join(random_.choices("abcdefghijklmnopqrstuvwxyz", k=random_.randint(2, 9)))
    word = random_.choice(_SYSTEM_WORDS) if random_.random() < 0.9 else unknown
    shape = random_.random()
    if shape < 0.06:
        return word.capitalize()
    return word + (random_.choice((",", ".", ";", ".\n")) if shape < 0.18 else "")


def _turn(entity: str, attribute: str, value: str | None) -> list[Segment]:
    found = value if value is not None else f"{NOTHING_FOUND} {attribute} of {entity}"
    # A slip is shown as context only: the model must learn to recover from it, not to make it.
    call = Segment(f"{call_text(entity, attribute)}{END}", value is not None)
    return [Segment("<|assistant|>", False), call, Segment(f"<|tool|>{found}{END}", False)]


def _garbled(entity: str, trail: Trail, random_: random.Random) -> str:
    other = random_.choice(trail.values)
    return f"{entity.split()[0]} {other.split()[-1]}x"


def train_tokenizer(target: Path, worlds: int = 200) -> None:
    """Learn the byte-level BPE from training worlds and write it to ``target``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(text, special=True) for text in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(worlds), trainer)
    target.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(target))


def _texts(worlds: int) -> list[str]:
    random_ = random.Random("tokenizer")
    texts = []
    for seed in range(worlds):
        for task, trail in SearchWorld(seed, "train").worked_tasks(_TASKS_PER_WORLD):
            texts += [segment.text for segment in episode(task, trail, random_)]
    # System prompts may be anything, so the vocabulary is better spent on the world.
    texts = [text for text in texts if not text.startswith("<|system|>")]
    # Specials are split off before the merges apply, so they must not shape the merges either.
    return [_without_specials(text) for text in texts]


def _without_specials(text: str) -> str:
    for special in SPECIALS:
        text = text.replace(special, "")
    return text


class Batches:
    """Training batches of about ``tokens`` tokens each, with the given share of each hop count."""

    def __init__(self, tokenizer: Tokenizer, seed: int, tokens: int, weights: Mapping[int, float]) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        self._tokens = tokens
        self._weights = dict(weights)
        self.pad = tokenizer.token_to_id(PAD)
        self._group = lru_cache(maxsize=1)(self._make_group)

    def at(self, step: int) -> Batch:
        """Return the batch of one training step."""
        return self._group(step // _GROUP)[step % _GROUP]

    def _make_group(self, number: int) -> list[Batch]:
        random_ = random.Random(f"group/{self._seed}/{number}")
        episodes: list[tuple[list[int], list[bool]]] = []
        size = 0
        while size < self._tokens * _GROUP:
            for encoded in self._world_episodes(random_):
                episodes.append(encoded)
                size += len(encoded[0])
        batches = self._cut(sorted(episodes, key=lambda pair: len(pair[0])), size / _GROUP)
        random_.shuffle(batches)
        return batches

    def _world_episodes(self, random_: random.Random) -> list[tuple[list[int], list[bool]]]:
        world = SearchWorld(random_.getrandbits(48), "train")
        pairs = world.worked_tasks(_TASKS_PER_WORLD, self._weights)
        return [encode(self._tokenizer, episode(task, trail, random_)) for task, trail in pairs]

    def _cut(self, episodes: list[tuple[list[int], list[bool]]], size: float) -> list[Batch]:
        rows: list[list[tuple[list[int], list[bool]]]] = [[] for _ in range(_GROUP)]
        seen = 0
        for pair in episodes:
            rows[min(int(seen / size), _GROUP - 1)].append(pair)
            seen += len(pair[0])
        return [self._padded(row) for row in rows]

    def _padded(self, row: list[tuple[list[int], list[bool]]]) -> Batch:
        shape = (len(row), max(len(ids) for ids, _ in row))
        tokens = np.full(shape, self.pad, dtype=np.int64)
        learned = np.zeros(shape, dtype=np.bool_)
        for index, (ids, mask) in enumerate(row):
            tokens[index, : len(ids)] = ids
            learned[index, : len(mask)] = mask
        return Batch(tokens, learned)


def encode(tokenizer: Tokenizer, segments: list[Segment]) -> tuple[list[int], list[bool]]:
    """Return token ids and, for each, whether the model has to produce it."""
    ids: list[int] = []
    learned: list[bool] = []
    for segment in segments:
        piece = tokenizer.encode(segment.text, add_special_tokens=False).ids
        ids += piece
        learned += [segment.learned] * len(piece)
    return ids, learned


def load_tokenizer(path: Path) -> Tokenizer:
    """Read the tokenizer that ``train_tokenizer`` wrote."""
    return Tokenizer.from_file(str(path))
