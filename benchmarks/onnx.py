"""Decoding speed of OnnxAgent against a bare loop over onnxruntime-genai, and against llama.cpp, in one run on one machine.

    python benchmarks/onnx.py --json [--quick]

`tokens_per_s_ratio`: agent / loop, one stream, on far enlarged to 115M parameters, in 8 bits. Bar: 0.9 or more.
`tokens_per_cpu_s_ratio`: the same by the CPU seconds of the process that runs the model, which other work on the machine does not disturb.
`near_*`: the same on near, in 8 bits.
`llama_tokens_per_s_ratio`: OnnxAgent / LlamaAgent on the enlarged model, both in 8 bits.
`*_tokens_per_s`: of the enlarged model by the loop, by OnnxAgent in 8 and in 4 bits, and by LlamaAgent.
`*_megabytes`: sizes of what is compared.

The loop is the library's own: `generate_next_token` and `get_next_tokens`, greedy, with nothing around it. All sides generate the same
number of tokens from the same prompt, by turns, on the same number of threads; the figures are medians over the turns. So that none stops
early, all run a model whose end is a token that it never writes: the weights are the same.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

ROOT = Path(__file__).parent.parent
# Instead of this folder, in which this file would be taken for the package of the same name.
sys.path[0] = str(ROOT)

from benchmarks.llama import MODELS, PARAMETERS, QUESTIONS, agent_tokens_per_second, endless
from nearfar.device.hardware.processors import threads_for
from nearfar.device.llama import LlamaAgent
from nearfar.device.onnx import OnnxAgent
from nearfar.device.onnx.folder import read_folder
from nearfar.device.onnx.model import OnnxVocabulary, genai, open_model
from nearfar.device.worker import LocalAgent
from train.enlarge import enlarge
from train.export_onnx import write_folder
from train.gguf_base import read_base
from train.onnx_graph import Precision

NEVER = "<|pad|>"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure on one model."""

    tokens: int
    turns: int


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens per second of each turn, by who ran it: of wall-clock time, and of the CPU time of the process that ran the model."""

    wall: dict[str, list[float]]
    cpu: dict[str, list[float]]


class Loop:
    """onnxruntime-genai with nothing around it."""

    def __init__(self, folder: Path, *, threads: int, context: int) -> None:
        self._model = open_model(str(folder), "cpu", threads)
        self._vocabulary = OnnxVocabulary(folder, read_folder(folder))
        parameters = genai.GeneratorParams(self._model)
        parameters.set_search_options(max_length=context)
        self._generator = genai.Generator(self._model, parameters)

    def tokens_per_second(self, question: str, tokens: int) -> float:
        prompt = self._vocabulary.tokenize(f"<|bos|><|user|>{question}<|end|><|assistant|>")
        generator = self._generator
        begin = time.perf_counter()
        generator.rewind_to(0)
        generator.append_tokens(np.array(prompt, dtype=np.int32))
        said = []
        for _ in range(tokens):
            generator.generate_next_token()
            said.append(int(generator.get_next_tokens()[0]))
        return tokens / (time.perf_counter() - begin)


def export_endless(source: Path, folder: Path, precision: Precision) -> Path:
    """A model as a folder whose texts never end."""
    model, tokenizer = read_base(source)
    write_folder(model, tokenizer, folder, name=folder.name, precision=precision)
    path = folder / "genai_config.json"
    configuration = json.loads(path.read_text(encoding="utf-8"))
    configuration["model"]["eos_token_id"] = tokenizer.token_to_id(NEVER)
    path.write_text(json.dumps(configuration), encoding="utf-8")
    return folder


async def by_turns(agents: dict[str, LocalAgent], loop: Loop, plan: Plan) -> Speeds:
    """The speeds of each agent and of the loop."""
    workers = {name: psutil.Process((await agent.statistics()).process_id) for name, agent in agents.items()}
    processes = {"loop": psutil.Process(), **workers}
    speeds = Speeds({name: [] for name in processes}, {name: [] for name in processes})
    for turn in range(plan.turns + 1):
        question = QUESTIONS[turn % len(QUESTIONS)]  # Another one each turn, so that no prompt lies in a cache.
        # To and fro: what is compared runs side by side, and neither always comes first.
        for name, process in list(processes.items())[:: 1 if turn % 2 else -1]:
            begin = _cpu_seconds(process)
            if name == "loop":
                rate = loop.tokens_per_second(question, plan.tokens)
            else:
                rate = await agent_tokens_per_second(agents[name], (question,), plan.tokens)
            if turn:  # The first turn warms up.
                speeds.wall[name].append(rate)
                speeds.cpu[name].append(plan.tokens / (_cpu_seconds(process) - begin))
    return speeds


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def measure(folders: dict[str, Path], gguf: Path | None, plan: Plan) -> Speeds:
    """One model: as folders, the first of which the loop runs too, and as a GGUF."""
    context = plan.tokens + 64
    first = next(iter(folders.values()))
    agents: dict[str, LocalAgent] = {
        name: await OnnxAgent.load(folder, context_tokens=context, parallel=1) for name, folder in folders.items()
    }
    if gguf is not None:
        agents["llama"] = await LlamaAgent.load(gguf, context_tokens=context, parallel=1)
    try:
        loop = Loop(first, threads=threads_for(read_folder(first).parameters).single, context=context)
        return await by_turns(agents, loop, plan)
    finally:
        for agent in agents.values():
            await agent.aclose()


def _median_ratio(ours: list[float], theirs: list[float]) -> float:
    """Of each turn's pair, which meets the same moods of the machine."""
    return round(statistics.median(one / other for one, other in zip(ours, theirs, strict=True)), 3)


def _megabytes(path: Path) -> float:
    files = path.glob("model.onnx*") if path.is_dir() else [path]
    return round(sum(file.stat().st_size for file in files) / 1e6, 2)


def run(*, quick: bool) -> dict[str, float]:
    """All figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        near = {"int8": export_endless(MODELS / "near.gguf", folder / "near", Precision.INT8)}
        small = asyncio.run(measure(near, None, Plan(400, 8 if quick else 40)))
        enlarge(MODELS / "far.gguf", folder / "large.gguf", PARAMETERS)
        large = {
            str(each): export_endless(folder / "large.gguf", folder / f"large-{each}", each) for each in (Precision.INT8, Precision.INT4)
        }
        gguf = endless(folder / "large.gguf", folder / "large-endless.gguf")
        speeds = asyncio.run(measure(large, gguf, Plan(24, 12 if quick else 40)))
        sizes = {f"large_{each}_megabytes": _megabytes(path) for each, path in large.items()}
        sizes |= {"large_gguf_megabytes": _megabytes(gguf), "near_int8_megabytes": _megabytes(near["int8"])}
    return {
        "tokens_per_s_ratio": _median_ratio(speeds.wall["int8"], speeds.wall["loop"]),
        "tokens_per_cpu_s_ratio": _median_ratio(speeds.cpu["int8"], speeds.cpu["loop"]),
        "near_tokens_per_s_ratio": _median_ratio(small.wall["int8"], small.wall["loop"]),
        "near_tokens_per_cpu_s_ratio": _median_ratio(small.cpu["int8"], small.cpu["loop"]),
        "llama_tokens_per_s_ratio": _median_ratio(speeds.wall["int8"], speeds.wall["llama"]),
        **{f"{name}_tokens_per_s": round(statistics.median(rates), 1) for name, rates in speeds.wall.items()},
        **{f"near_{name}_tokens_per_s": round(statistics.median(rates)) for name, rates in small.wall.items()},
        **sizes,
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
