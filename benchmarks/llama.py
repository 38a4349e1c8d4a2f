"""Decoding speed of LlamaAgent against llama-cpp-python's own streaming completion, in one run on one machine.

    python benchmarks/llama.py --json [--quick]

`tokens_per_s_ratio`: agent / library, one stream, on far.gguf enlarged to 115M parameters. Bar: 0.95 or more.
`concurrency_gain_4`: tokens per second of four concurrent steps / of one, on the same model. Bar: 1.5 or more.
`near_tokens_per_s_ratio`: agent / library, one stream, on near.gguf. Bar: 1.0 or more.

Both sides generate the same number of tokens greedily from the same prompt, by turns, on as many threads as the agent takes by default:
one for near.gguf, half of the logical CPUs for one stream of the large model, up to all physical cores for batches. The figures are
medians over the turns. So that neither side stops early, both run a copy of the model in which the end token has another name and the
model's end is a token that it never writes: the weights are the same.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import gguf
import llama_cpp
import psutil
from llama_cpp.llama_types import CreateCompletionStreamResponse

from nearfar.device.llama import LlamaAgent
from nearfar.device.llama.extra_buffers import prepare_library
from nearfar.protocols import Agent, Message, StepRequest, complete

ROOT = Path(__file__).parent.parent
MODELS = ROOT / "device" / "models"
QUESTIONS = (
    "What is the mayor of the city of Orbix Labs?",
    "Find the founder of Lumen Works.",
    "Tell me the sister of the mentor of Mira Falk.",
    "I need the capital of Velden Republic.",
)
END, NEVER = "<|end|>", "<|pad|>"
PARAMETERS = 115_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure on one model."""

    tokens: int
    turns: int
    concurrency: int


@dataclass(slots=True)
class Speeds:
    """Tokens per second of each turn."""

    library: list[float]
    agent: list[float]
    concurrent: list[float]


def endless(source: Path, target: Path) -> Path:
    """Copy a model so that it never ends a text: its end token loses the name that llama.cpp knows, and another takes its place."""
    shutil.copyfile(source, target)
    reader = gguf.GGUFReader(target, "r+")
    tokens = reader.fields["tokenizer.ggml.tokens"]
    names = tokens.contents()
    # A field's parts are views of the file; data[i] is the part that holds the i-th string.
    tokens.parts[tokens.data[names.index(END)]][:] = list(b"<|fin|>")
    template = reader.fields["tokenizer.chat_template"]
    text = template.contents().replace(END, "<|fin|>")
    template.parts[template.data[0]][:] = list(text.encode())
    reader.fields["tokenizer.ggml.eos_token_id"].parts[-1][0] = names.index(NEVER)
    reader.data.flush()
    return target


class Library:
    """llama-cpp-python's high-level API."""

    def __init__(self, model: Path, *, threads: int, context: int) -> None:
        cores = psutil.cpu_count(logical=False) or 1
        prepare_library()
        self._llama = llama_cpp.Llama(str(model), n_ctx=context, n_threads=threads, n_threads_batch=cores, verbose=False)

    def tokens_per_second(self, question: str, tokens: int) -> float:
        prompt = f"<|bos|><|user|>{question}<|fin|><|assistant|>"
        begin = time.perf_counter()
        chunks = list(self._llama.create_completion(prompt, max_tokens=tokens, temperature=0.0, stream=True))
        seconds = time.perf_counter() - begin
        reason = cast("CreateCompletionStreamResponse", chunks[-1])["choices"][0]["finish_reason"]
        if reason != "length":
            raise RuntimeError(f"the library stopped early: {reason}")
        return tokens / seconds


async def agent_tokens_per_second(agent: Agent, questions: tuple[str, ...], tokens: int) -> float:
    requests = [StepRequest(messages=(Message.user(question),), max_output_tokens=tokens) for question in questions]
    begin = time.perf_counter()
    replies = await asyncio.gather(*(complete(agent, request) for request in requests))
    seconds = time.perf_counter() - begin
    generated = sum(reply.finished.usage.output_tokens for reply in replies)
    if generated != tokens * len(questions):
        raise RuntimeError(f"the agent stopped early: {generated} tokens")
    return generated / seconds


async def measure(model: Path, plan: Plan, threads: int) -> Speeds:
    """Library and agent by turns."""
    context = plan.tokens + 64
    library = Library(model, threads=threads, context=context)
    speeds = Speeds([], [], [])
    async with await LlamaAgent.load(model, context_tokens=context) as agent:
        await agent_tokens_per_second(agent, QUESTIONS, 8)
        library.tokens_per_second(QUESTIONS[0], 8)
        for _ in range(plan.turns):
            speeds.library.append(library.tokens_per_second(QUESTIONS[0], plan.tokens))
            speeds.agent.append(await agent_tokens_per_second(agent, QUESTIONS[:1], plan.tokens))
            if plan.concurrency:
                speeds.concurrent.append(await agent_tokens_per_second(agent, QUESTIONS[: plan.concurrency], plan.tokens))
    return speeds


def enlarged(folder: Path) -> Path:
    """far.gguf with 115M parameters, endless."""
    sys.path.insert(0, str(ROOT))
    from train.enlarge import enlarge

    enlarge(MODELS / "far.gguf", folder / "large.gguf", PARAMETERS)
    return endless(folder / "large.gguf", folder / "large-endless.gguf")


def _median_ratio(ours: list[float], theirs: list[float]) -> float:
    """Of each turn's pair, which meets the same moods of the machine."""
    return round(statistics.median(one / other for one, other in zip(ours, theirs, strict=True)), 3)


def run(*, quick: bool) -> dict[str, float]:
    """All figures."""
    half = max((os.cpu_count() or 2) // 2, 1)
    median: Callable[[list[float]], float] = statistics.median
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        near = asyncio.run(measure(endless(MODELS / "near.gguf", folder / "near.gguf"), Plan(400, 15 if quick else 40, 0), 1))
        large = asyncio.run(measure(enlarged(folder), Plan(96, 8 if quick else 12, 4), half))
    return {
        "tokens_per_s_ratio": _median_ratio(large.agent, large.library),
        "concurrency_gain_4": _median_ratio(large.concurrent, large.agent),
        "near_tokens_per_s_ratio": _median_ratio(near.agent, near.library),
        "large_agent_tokens_per_s": round(median(large.agent), 1),
        "large_library_tokens_per_s": round(median(large.library), 1),
        "large_agent_4_tokens_per_s": round(median(large.concurrent), 1),
        "near_agent_tokens_per_s": round(median(near.agent)),
        "near_library_tokens_per_s": round(median(near.library)),
        "large_threads": half,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer turns, under 45 s")
    arguments = parser.parse_args()
    figures = run(quick=arguments.quick)
    if arguments.json:
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    for name, value in figures.items():
        sys.stdout.write(f"{name:28} {value}\n")


if __name__ == "__main__":
    main()
