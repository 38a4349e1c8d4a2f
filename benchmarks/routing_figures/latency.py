"""How long a decision takes beside llama.cpp: the whole `Router.decide` on one thread, and the head's part of it.

`decide` looks at a prompt's words and meaning, `decide_words` at its words alone; `predict` and `predict_words` are `Head.predict` in each.

The head is trained on 2,048 prompts of MMLU and asked about others. Trained on more it would take no longer: it remembers no more than so
many. Meanwhile another process keeps the other core busy with generations of the shipped near model; before, for the figures that end in
`_idle`, it has the model loaded and waits.

``python benchmarks/routing.py --data ../shared/data/routing --only latency`` prints these figures alone.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

import numpy

from nearfar.orchestrator.lab.replay import RecordedAgent
from nearfar.orchestrator.lab.training import HeadParts, train_head, write_head
from nearfar.orchestrator.lab.training.parts import LANDMARKS
from nearfar.orchestrator.routing import Router
from nearfar.orchestrator.routing.head import Head, HeadPart
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.policy import Policy
from nearfar.orchestrator.util.embedding import MiniLmEmbedder
from nearfar.protocols import Message, Side

from .prompt_only import mmlu

MODEL: Final = Path(__file__).parent.parent.parent / "device" / "models" / "near.gguf"
ASKED: Final = 1500
QUICK: Final = 128
"""Prompts that a quick run asks, and trains on: the head then remembers fewer of them than it might. It looks at whole decisions alone."""
WARM_UP: Final = 30
"""Decisions that are not counted."""

_GENERATE: Final = """
import sys, llama_cpp
from nearfar.device.llama.extra_buffers import prepare_library
prepare_library()
model = llama_cpp.Llama(sys.argv[1], n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
print("loaded", flush=True)
sys.stdin.readline()
while True:
    model.reset()
    model.create_completion("<|bos|><|user|>Find the founder of Lumen Works.<|assistant|>", max_tokens=400, temperature=1.0)
"""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of the time that a decision takes, in milliseconds."""

    p50: float
    p99: float


def figures(folder: Path, *, quick: bool) -> dict[str, Any]:
    """All figures by name."""
    asked, trained = (QUICK, QUICK) if quick else (ASKED, LANDMARKS)
    examples = mmlu(folder, most=trained + asked + WARM_UP)
    prompts = examples.prompts[trained:]
    known = examples.part(numpy.arange(trained))
    with TemporaryDirectory() as name:
        folders = {"": Path(name) / "meaning", "_words": Path(name) / "words"}
        head = train_head(known)
        write_head(head, folders[""])
        write_head(_words_of(head), folders["_words"])
        found = {}
        with worker() as generate:
            for load in ("_idle", ""):
                if not load:
                    generate()
                for kind, folder in folders.items():
                    found[f"decide{kind}{load}"] = measure(_decide(examples.agents), [_task(prompt, folder) for prompt in prompts])
                    if not quick:
                        found[f"predict{kind}{load}"] = measure(Head(folder, MiniLmEmbedder()).predict, prompts)
    return {
        f"{name}_ms_{quantile}": round(value, 3)
        for name, percentiles in found.items()
        for quantile, value in (("p50", percentiles.p50), ("p99", percentiles.p99))
    }


def _words_of(head: HeadParts) -> HeadParts:
    """Return the head without the part that looks at a prompt's meaning."""
    blends = tuple(blend for blend in head.blends if HeadPart.LIKENESS not in blend.weights)
    return replace(head, likeness=None, blends=blends)


def _task(prompt: str, head: Path) -> Task:
    policy = {"strategy": "route", "sensitivity": "public", "router": {"head": head}}
    return Task(messages=(Message.user(prompt),), policy=Policy.model_validate(policy))


def _decide(agents: Sequence[str]) -> Callable[[Task], object]:
    router = Router()
    team = [RecordedAgent(name, side) for name, side in zip(agents, Side, strict=True)]
    return lambda task: router.decide(task, team)


T = TypeVar("T")


def measure(decide: Callable[[T], object], asked: Sequence[T]) -> Percentiles:
    """Time a decision on each of the tasks or prompts but the first 30, one after the other."""
    seconds = []
    for each in asked:
        begin = time.perf_counter()
        decide(each)
        seconds.append(time.perf_counter() - begin)
    p50, p99 = numpy.quantile(seconds[WARM_UP:], (0.5, 0.99))
    return Percentiles(1000 * float(p50), 1000 * float(p99))


@contextmanager
def worker() -> Iterator[Callable[[], None]]:
    """Another process has the near model that ships, and waits. Once it is called, it generates text with it on one thread until the
    context ends."""
    process = subprocess.Popen([sys.executable, "-c", _GENERATE, str(MODEL)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdin is not None, "it was asked for"
        assert process.stdout is not None, "it was asked for"
        if process.stdout.readline().strip() != "loaded":
            raise RuntimeError("llama.cpp did not start")
        yield partial(print, file=process.stdin, flush=True)
    finally:
        process.terminate()
        process.wait()
