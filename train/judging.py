"""The adapter with which near judges its own finished work: it learns from its drafts of training tasks, and whether they are right."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer
from torch import Tensor

from nearfar.orchestrator.strategies.prompts import CONTINUE, INTERVENE, verify_progress_request
from nearfar.orchestrator.task import transcript
from nearfar.protocols import Message

from .adapted import Decoder, Speaker, Voice, carried_out
from .adapters import Report, descend, weighted_loss
from .data import Batches, Share, Stage
from .episodes import LEARNED, READ, Segment, conversation
from .evaluate import is_right
from .export import write_adapter
from .gguf_base import read_base
from .lora import Router, adapt, taken_out
from .problems import Problem

WORLDS: Final = ("search", "apps")
_PLANNING: Final = 3
"""One draft in so many is by near with the two adapters that let it plan, which does more tasks right."""
_TOKENS: Final = 2048
_RANK: Final = 8
_RATE: Final = 5e-3


@dataclass(frozen=True, slots=True)
class JudgedDraft:
    """Finished work on a task: calls, results and the answer, as judges are shown it."""

    task: str
    work: str
    right: bool

    @property
    def episode(self) -> list[Segment]:
        """The judge's one turn."""
        request = verify_progress_request(self.task, "", [Message.assistant(self.work)])
        return [*conversation(request), Segment("<|assistant|>", READ), Segment(CONTINUE if self.right else INTERVENE, LEARNED)]


def record_drafts(near: Path, adapters: Sequence[Path], world: str, seed: int, count: int, target: Path) -> list[JudgedDraft]:
    """Draft training tasks of a world, or go on doing so, a line of the file each; return those that ended with an answer in time."""
    known = target.read_text(encoding="utf-8").splitlines(keepends=True) if target.exists() else []
    known = [line for line in known if line.endswith("\n")]
    with target.open("w", encoding="utf-8") as file:
        file.writelines(known)
        for draft in islice(_drafts(near, adapters, world, seed, first=len(known)), count - len(known)):
            known.append(f"{json.dumps(draft and asdict(draft))}\n")
            file.write(known[-1])
            file.flush()
    return [JudgedDraft(**found) for found in map(json.loads, known) if found is not None]


def _drafts(near: Path, adapters: Sequence[Path], world: str, seed: int, first: int) -> Iterator[JudgedDraft | None]:
    """Endlessly draft tasks, from the `first` one on; None: it ran out of turns."""
    decoder = Decoder(near, adapters)
    alone, planning = Speaker(Voice(decoder), Voice(decoder)), Speaker(Voice(decoder, 1), Voice(decoder, 2))
    for number, problem in enumerate(_problems(world, seed)):
        if number >= first:
            work = carried_out(planning if number % _PLANNING == 0 else alone, problem)
            answer = work[-1].text if work[-1].role == "assistant" else None
            yield None if answer is None else JudgedDraft(problem.text, transcript(work), is_right(problem, answer))


def _problems(world: str, seed: int) -> Iterator[Problem]:
    share = Share("execute", "search" if world == "search" else "apps", 1.0)
    random_ = random.Random(f"judging/{world}/{seed}")
    while True:
        yield from share.problems(random_)


class DraftBatches(Batches):
    """Batches of drafts, each drawn about equally often."""

    def __init__(self, tokenizer: Tokenizer, seed: int, drafts: Sequence[JudgedDraft], steps: int) -> None:
        super().__init__(tokenizer, seed, _TOKENS, (Stage(steps, ()),))
        self._drafts = drafts

    def drawn(self, step: int, random_: random.Random) -> Iterator[list[Segment]]:
        """Endlessly draw drafts."""
        del step
        while True:
            yield random_.choice(self._drafts).episode


def train_judge(base: Path, drafts: Sequence[JudgedDraft], target: Path, *, seed: int, steps: int, report: Report) -> None:
    """Train the adapter and write it, on one thread: on several, models this small take longer."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model, tokenizer = read_base(base)
    router = Router(1, _RANK)
    learned = adapt(model, router)
    batches = DraftBatches(tokenizer, seed, drafts, steps)

    def loss_at(step: int) -> Tensor:
        batch = batches.at(step)
        ids = torch.from_numpy(batch.tokens)
        router.choose(torch.zeros_like(ids[:, :-1]))
        return weighted_loss(model, ids, torch.from_numpy(batch.weights)[:, 1:])

    descend("judge", learned, loss_at, _RATE, steps, report)
    write_adapter(taken_out(model, router)[0], model.shape, target, f"nearfar-{target.stem}")
