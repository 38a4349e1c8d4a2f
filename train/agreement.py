"""Do the exports say what torch says? Greedy tokens on the worlds' own prompts, engine against engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final

import numpy as np
import torch
from tokenizers import Tokenizer

from .episodes import END, ROLES
from .evaluate import TEST_SEED, UNMADE, drawn_problems, last_turn
from .gguf_base import read_base
from .model import TinyLlama
from .trainer import load_model

MOST_TOKENS: Final = 64

Continue = Callable[[Sequence[int]], list[int]]
"""From a prompt's tokens to those that follow greedily, the end of the turn or `MOST_TOKENS` included."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an engine first says something else than torch."""

    prompt: int
    position: int
    """Of the token in the reply."""
    token: int | None
    expected: int | None
    margin: float
    """By how much torch prefers its own token to the other, in logits."""


def prompts(tokenizer: Tokenizer, count: int, seed: int = TEST_SEED) -> list[list[int]]:
    """Unseen tasks of both worlds in all roles, each up to the last turn, as token ids."""
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in _texts(count, seed)]


def _texts(count: int, seed: int) -> Iterator[str]:
    random_ = random.Random(f"agreement/{seed}")
    parts = [(role, world) for role in ROLES for world in ("search", "apps") if (role, world) not in UNMADE]
    for number in range(count):
        role, world = parts[number % len(parts)]
        problem = next(drawn_problems(world, 1, seed + number))
        yield last_turn(ROLES[role](problem, random_))[0]


def compare(gguf: Path, folders: Sequence[Path], count: int, checkpoint: Path | None) -> Iterator[tuple[str, list[Difference]]]:
    """The differences of each export from torch, which runs the weights of the GGUF or of a checkpoint."""
    model, tokenizer = read_base(gguf)
    if checkpoint is not None:
        model = load_model(checkpoint)
    end = tokenizer.token_to_id(END)
    assert end is not None, "the tokenizer was trained with it"
    asked = prompts(tokenizer, count)
    expected = [torch_reply(model, prompt, end) for prompt in asked]
    yield gguf.name, first_differences(model, asked, expected, llama_engine(gguf, end))
    for folder in folders:
        yield folder.name, first_differences(model, asked, expected, onnx_engine(folder, end))


def first_differences(
    model: TinyLlama, prompts_: Sequence[Sequence[int]], expected: Sequence[list[int]], engine: Continue
) -> list[Difference]:
    """Where an engine parts with what torch says, for each prompt on which it does."""
    said = [engine(prompt) for prompt in prompts_]
    return [
        _difference(model, number, prompt, *pair)
        for number, (prompt, pair) in enumerate(zip(prompts_, zip(expected, said, strict=True), strict=True))
        if pair[0] != pair[1]
    ]


def torch_reply(model: TinyLlama, prompt: Sequence[int], end: int) -> list[int]:
    """What torch says."""
    return list(_greedy(lambda said: _torch_logits(model, [*prompt, *said]), end))


def llama_engine(path: Path, end: int) -> Continue:
    """What llama.cpp says with a GGUF."""
    from llama_cpp import Llama

    from nearfar.device.llama.extra_buffers import prepare_library

    prepare_library()
    llama = Llama(str(path), n_ctx=2048, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False)

    def reply(prompt: Sequence[int]) -> list[int]:
        llama.n_tokens = 0
        llama.eval(list(prompt))

        def logits(said: list[int]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
            if said:
                llama.eval(said[-1:])
            return np.asarray(llama.scores[llama.n_tokens - 1])

        return list(_greedy(logits, end))

    return reply


def onnx_engine(folder: Path, end: int) -> Continue:
    """What onnxruntime-genai says with a folder."""
    from nearfar.device.onnx.model import genai, open_model

    model = open_model(str(folder), "cpu", 1)

    def reply(prompt: Sequence[int]) -> list[int]:
        generator = genai.Generator(model, genai.GeneratorParams(model))
        generator.append_tokens(np.array(prompt, dtype=np.int32))

        def logits(said: list[int]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
            if said:
                generator.append_tokens(np.array(said[-1:], dtype=np.int32))
            return np.asarray(generator.get_logits().reshape(-1))

        return list(_greedy(logits, end))

    return reply


def _greedy(logits: Callable[[list[int]], np.ndarray[tuple[int], np.dtype[np.float32]]], end: int) -> Iterator[int]:
    said: list[int] = []
    while len(said) < MOST_TOKENS and said[-1:] != [end]:
        said.append(int(logits(said).argmax()))
        yield said[-1]


def _torch_logits(model: TinyLlama, ids: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    with torch.no_grad():
        return np.asarray(model(torch.tensor([ids]))[0, -1].numpy())


def _difference(model: TinyLlama, number: int, prompt: Sequence[int], expected: list[int], said: list[int]) -> Difference:
    pairs = enumerate(zip_longest(expected, said))
    position, (wanted, token) = next((position, pair) for position, pair in pairs if pair[0] != pair[1])
    logits = _torch_logits(model, [*prompt, *expected[:position]])
    margin = float(logits[wanted] - logits[token]) if wanted is not None and token is not None else float("inf")
    return Difference(number, position, token, wanted, margin)
