"""Near's drafts of training tasks, each with whether it is right: what near learns from to judge its own finished work."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from nearfar.orchestrator.task.task import transcript

from .adapted import Decoder, Speaker, Voice, carried_out
from .data import Share
from .evaluate import is_right
from .problems import Problem

WORLDS: Final = ("search", "apps")


@dataclass(frozen=True, slots=True)
class JudgedDraft:
    """A finished draft."""

    world: str
    kind: str
    task: str
    work: str
    """The calls, their results and the answer, a line each."""
    right: bool


def drafts(near: Path, adapters: Sequence[Path], world: str, seed: int) -> Iterator[JudgedDraft | None]:
    """Endlessly draft training tasks of a world, on its own and with its two adapters in turns; None: out of turns."""
    decoder = Decoder(near, adapters)
    speakers = (Speaker(Voice(decoder), Voice(decoder)), Speaker(Voice(decoder, 1), Voice(decoder, 2)))
    for number, problem in enumerate(_problems(world, seed)):
        work = carried_out(speakers[number % 3 == 2], problem)
        if work[-1].role != "assistant":
            yield None
            continue
        kind = problem.assignment.kind if hasattr(problem, "assignment") else problem.question.kind
        yield JudgedDraft(world, kind, problem.text, transcript(work), is_right(problem, work[-1].text))


def _problems(world: str, seed: int) -> Iterator[Problem]:
    share = Share("execute", "search" if world == "search" else "apps", 1.0)
    random_ = random.Random(f"judging/{world}/{seed}")
    while True:
        yield from share.problems(random_)


def record(near: Path, adapters: Sequence[Path], world: str, seed: int, count: int, target: Path) -> None:
    with target.open("a", encoding="utf-8") as file:
        for draft in islice(drafts(near, adapters, world, seed), count):
            file.write(json.dumps(None if draft is None else asdict(draft)) + "\n")
            file.flush()
