"""One LoRA adapter for everything, one for text and one for tool calls, or two whole models: accuracy, memory and the cost of switching.

    python benchmarks/adapters.py --json [--quick]

`adapter_switch_ms`: what a switch adds to the next token on near.gguf, setting the adapter included; CPU time of the one thread that
decodes. Bar: 1 or less. `adapter_set_ms` is setting it alone. The same with `large_`: on near.gguf enlarged to 115M parameters, which
has 46 layers.
`response_ratio`: time of a whole step that switches at its tool call / of one that does not, through `LlamaAgent`; both write the same.
`base_copies`: memory of a worker that has used both adapters / of one without any, on the enlarged model. Bar: 1.1 or less.
`two_models_copies`: the same for two workers.
`*_search`, `*_apps`: share of unseen tasks done right, by near as it is (`base`), with the two adapters that ship (`shipped`), and, where
`python -m train adapters --seeds 0 1 2` has run, by each form that it trained, mean over the seeds. `pair_minus_*`: points between
the two adapters and each of the other forms on the same tasks, with a 95 % bootstrap interval over tasks and seeds.

The adapters for the timing change every matrix of every layer (rank 8) by zero, so that with any of them the same text is written.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import gguf
import numpy as np
import psutil

from nearfar.device.gguf_file import read_gguf
from nearfar.device.hardware.processors import Threads
from nearfar.device.llama import LlamaAgent
from nearfar.device.llama.devices import CPU_ONLY
from nearfar.device.llama.model import LlamaAdapters, LlamaContext, LlamaModel, start_backend
from nearfar.orchestrator.lab.statistics import percentile_interval
from nearfar.orchestrator.lab.worlds.loading import SearchWorld
from nearfar.protocols import Message, StepRequest, complete

ROOT = Path(__file__).parent.parent
sys.path[0] = str(ROOT)

from train.adapted import Decoder, Speaker, Voice, outcomes  # noqa: E402 - found only from here on
from train.enlarge import enlarge  # noqa: E402
from train.evaluate import TEST_SEED  # noqa: E402

MODELS = ROOT / "device" / "models"
TRAINED = ROOT / "train" / "runs" / "adapters"
NEAR = MODELS / "near.gguf"
SHIPPED = tuple(MODELS / f"near-{name}.gguf" for name in ("text", "calls"))
RANK = 8
MOST_CELLS = 256
"""Tokens that the timed one attends to, at most, so that attention is a small part of its time."""
FORMS = ("shared", "pair", "models")
WORLDS = ("search", "apps")

Outcomes = dict[str, list[bool]]
"""By world: which tasks were done right."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure."""

    tokens: int
    turns: int
    tasks: int
    seeds: int


def blank_adapter(base: Path, target: Path) -> Path:
    """An adapter that changes every matrix of every layer, by nothing."""
    writer = gguf.GGUFWriter(str(target), "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(RANK))
    for tensor in read_gguf(base).tensors:
        if tensor.name.startswith("blk.") and len(tensor.dimensions) == 2:
            inputs, outputs = tensor.dimensions
            writer.add_tensor(f"{tensor.name}.lora_a", np.zeros((RANK, inputs), dtype=np.float16))
            writer.add_tensor(f"{tensor.name}.lora_b", np.zeros((outputs, RANK), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


class Clock:
    """Times single tokens under one adapter or another."""

    def __init__(self, base: Path, adapters: Mapping[str, Path]) -> None:
        model = LlamaModel(str(base), CPU_ONLY)
        self._loaded = LlamaAdapters(model.handle, {name: str(path) for name, path in adapters.items()})
        self._context = LlamaContext(model, cells=MOST_CELLS, sequences=1, threads=Threads(1, 1), adapters=self._loaded)
        self._position = 0

    def milliseconds(self, adapter: int) -> tuple[float, float]:
        """Of setting the adapter, and of that together with the next token."""
        if self._position == MOST_CELLS:
            self._context.forget(0, 0)
            self._position = 0
        batch = self._context.batch
        begin = time.thread_time()
        self._context.use_adapter(adapter)
        is_set = time.thread_time()
        batch.clear()
        batch.add([100], position=self._position, sequence=0, last=True)
        if not self._context.decode():
            raise RuntimeError("the context is full")
        self._context.logits(0)
        self._position += 1
        return (is_set - begin) * 1000, (time.thread_time() - begin) * 1000


def switch_figures(base: Path, adapters: Mapping[str, Path], tokens: int) -> dict[str, float]:
    """Every second token switches, so that both kinds meet the same moods of the machine."""
    clock = Clock(base, adapters)
    plain = [clock.milliseconds(0)[1] for _ in range(tokens // 4)]
    clock.milliseconds(1)
    switched, steady = [], []
    for number in range(tokens // 2):
        switched.append(clock.milliseconds(2 - number % 2))
        steady.append(clock.milliseconds(2 - number % 2)[1])
    token = statistics.median(steady)
    return {
        "adapter_switch_ms": round(statistics.median(both for _, both in switched) - token, 3),
        "adapter_set_ms": round(statistics.median(set_ for set_, _ in switched), 4),
        "token_ms": round(token, 3),
        "token_without_adapter_ms": round(statistics.median(plain), 3),
    }


def request(adapter: str | None, call_adapter: str | None, seed: int) -> StepRequest:
    """A question that is answered with a tool call."""
    world = SearchWorld()
    task = world.tasks(1, seed=seed)[0]
    tools = tuple(tool.spec for tool in world.reset(task).tools)
    return StepRequest(messages=(Message.user(task.prompt),), tools=tools, adapter=adapter, call_adapter=call_adapter)


async def response_ratio(base: Path, adapters: Mapping[str, Path], turns: int) -> float:
    """By turns; the first of each meets an empty cache and does not count."""
    ratios = []
    async with await LlamaAgent.load(base, adapters=adapters, threads=1) as agent:
        for turn in range(turns + 1):
            seconds = {}
            for call_adapter in ("a", "b") if turn % 2 else ("b", "a"):
                begin = time.perf_counter()
                reply = await complete(agent, request("a", call_adapter, seed=1))
                seconds[call_adapter] = time.perf_counter() - begin
                if not reply.tool_calls:
                    raise RuntimeError("the model called no tool")
            ratios += [seconds["b"] / seconds["a"]] if turn else []
    return round(statistics.median(ratios), 3)


async def memory_figures(base: Path, adapters: Mapping[str, Path]) -> dict[str, float]:
    """Of workers that have answered with all that they have."""
    alone = await resident(base, {}, [(None, None)])
    adapted = await resident(base, adapters, [(None, None), ("a", "b"), ("b", "a")])
    return {
        "base_copies": round(adapted / alone, 3),
        "two_models_copies": round((alone + await resident(base, {}, [(None, None)])) / alone, 3),
        "large_worker_mb": round(alone / 1e6, 1),
    }


async def resident(base: Path, adapters: Mapping[str, Path], used: list[tuple[str | None, str | None]]) -> float:
    """Resident bytes of a worker process after a step with each of the adapters in `used`."""
    async with await LlamaAgent.load(base, adapters=adapters, threads=1) as agent:
        for adapter, call_adapter in used:
            await complete(agent, request(adapter, call_adapter, seed=1))
        process = (await agent.statistics()).process_id
        return float(psutil.Process(process).memory_info().rss)


def speaker(base: Path, adapters: tuple[Path, ...]) -> Speaker:
    """One model: as it is, with one adapter, or with one for text and one for calls."""
    decoder = Decoder(base, adapters)
    return Speaker(Voice(decoder, min(len(adapters), 1)), Voice(decoder, len(adapters)))


def trained_speakers(folder: Path) -> dict[str, Speaker]:
    """The three forms that were trained with one seed."""
    texts, calls = (Voice(Decoder(folder / f"{name}-model.gguf")) for name in ("text", "calls"))
    return {
        "shared": speaker(NEAR, (folder / "shared.gguf",)),
        "pair": speaker(NEAR, (folder / "text.gguf", folder / "calls.gguf")),
        "models": Speaker(texts, calls),
    }


def accuracy_figures(tasks: int, seeds: int) -> dict[str, float | list[float]]:
    """Shares of tasks done right."""
    figures: dict[str, float | list[float]] = {}
    for name, adapters in (("base", ()), ("shipped", SHIPPED)):
        for world in WORLDS:
            figures[f"{name}_{world}"] = share(outcomes(speaker(NEAR, adapters), world, tasks, TEST_SEED))
    folders = list(islice(trained_folders(), seeds))
    runs = [{form: solved(one, tasks) for form, one in trained_speakers(folder).items()} for folder in folders]
    if runs:
        figures["seeds"] = len(runs)
        figures |= {f"{form}_{world}": share([right for run in runs for right in run[form][world]]) for form in FORMS for world in WORLDS}
        figures |= {f"pair_minus_{form}": difference(runs, form) for form in FORMS if form != "pair"}
    return figures


def trained_folders() -> Iterator[Path]:
    """Those in which a training has come to its end."""
    yield from (folder for folder in sorted(TRAINED.glob("seed-*")) if (folder / "calls-model.gguf").exists())


def solved(one: Speaker, tasks: int) -> Outcomes:
    return {world: outcomes(one, world, tasks, TEST_SEED) for world in WORLDS}


def share(rights: list[bool]) -> float:
    return round(float(np.mean(rights)), 4)


def difference(runs: list[dict[str, Outcomes]], form: str) -> list[float]:
    """Points by which the pair is better than another form, and the interval's ends."""
    # Of shape (seeds, tasks).
    gaps = np.array([[*map(_gap, _all(run["pair"]), _all(run[form]))] for run in runs]) * 100
    random = np.random.default_rng(0)
    seeds = random.integers(len(gaps), size=(2000, len(gaps), 1))
    tasks = random.integers(gaps.shape[1], size=(2000, 1, gaps.shape[1]))
    found = percentile_interval(float(gaps.mean()), gaps[seeds, tasks].mean(axis=(1, 2)))
    return [round(value, 2) for value in (found.value, found.low, found.high)]


def _all(outcomes_: Outcomes) -> list[bool]:
    return [right for world in WORLDS for right in outcomes_[world]]


def _gap(one: bool, other: bool) -> int:
    return int(one) - int(other)


def run(plan: Plan) -> dict[str, float | list[float]]:
    """All figures."""
    start_backend()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        large = folder / "large.gguf"
        enlarge(NEAR, large)
        blank = {key: blank_adapter(NEAR, folder / f"near-{key}.gguf") for key in ("a", "b")}
        large_blank = {key: blank_adapter(large, folder / f"large-{key}.gguf") for key in ("a", "b")}
        return {
            **switch_figures(NEAR, blank, plan.tokens),
            "response_ratio": asyncio.run(response_ratio(NEAR, blank, plan.turns * 8)),
            **{f"large_{key}": value for key, value in switch_figures(large, large_blank, plan.tokens // 8).items()},
            "large_response_ratio": asyncio.run(response_ratio(large, large_blank, plan.turns)),
            **asyncio.run(memory_figures(large, large_blank)),
            **accuracy_figures(plan.tasks, plan.seeds),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer tokens and tasks and no comparison of the forms, under 45 s")
    arguments = parser.parse_args()
    figures = run(Plan(tokens=400, turns=3, tasks=20, seeds=0) if arguments.quick else Plan(tokens=1600, turns=10, tasks=300, seeds=3))
    if arguments.json:
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    for name, value in figures.items():
        sys.stdout.write(f"{name:28} {value}\n")


if __name__ == "__main__":
    main()
