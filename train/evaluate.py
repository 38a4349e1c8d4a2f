"""Measures the exported models role by role: llama.cpp, greedy, over tasks with unseen names."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from nearfar.orchestrator.lab.worlds import guidance
from nearfar.orchestrator.lab.worlds.apps import grade_state
from nearfar.orchestrator.lab.worlds.loading import exact_match
from nearfar.orchestrator.strategies.prompts import CONTINUE, with_guidance, with_plan
from nearfar.protocols import ToolCall

from .data import Share
from .episodes import BOS, END, ROLES, TOOL_CALL, Segment, call_segment
from .problems import AppsProblem, Problem, SearchProblem

WINDOW: Final = 4
"""Consecutive tokens over which the confidence of a step is averaged."""
VALIDATION_SEED: Final = 777
TEST_SEED: Final = 31337

_MOST_TURNS: Final = 24
_MOST_TOKENS: Final = 320
UNMADE: Final = (("combine", "apps"), ("aggregate", "search"))
"""Roles that a world has no tasks for."""
_LOOPS: Final = ("execute", "execute_plan", "execute_advice")


@dataclass(frozen=True, slots=True)
class Reply:
    """One generated turn and its confidence in (0, 1]."""

    text: str
    confidence: float


class Model:
    """An exported model that continues text, greedily and on one thread; what it has read of a text before is not read again."""

    def __init__(self, path: Path) -> None:
        from llama_cpp import Llama

        from nearfar.device.llama.extra_buffers import prepare_library

        prepare_library()
        self._llama = Llama(str(path), n_ctx=2048, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False)
        self._end = self._llama.token_eos()

    def reply(self, text: str) -> Reply:
        """Generate until the end of the turn."""
        ids = self._llama.tokenize(text.encode(), add_bos=False, special=True)
        seen = list(self._llama.input_ids[: self._llama.n_tokens])
        shared = next((place for place, (one, other) in enumerate(zip(seen, ids, strict=False)) if one != other), min(len(seen), len(ids)))
        self._llama.n_tokens = min(shared, len(ids) - 1)
        if len(ids) >= self._llama.n_ctx():
            return Reply("", 0.0)
        self._llama.eval(ids[self._llama.n_tokens :])
        written, logs = self._generate()
        said = [token for token in written if token != self._end]
        return Reply(self._llama.detokenize(said, special=True).decode(errors="replace"), step_confidence(logs))

    def _generate(self) -> tuple[list[int], list[float]]:
        written: list[int] = []
        logs: list[float] = []
        while len(written) < _MOST_TOKENS and self._llama.n_tokens < self._llama.n_ctx():
            logits = self._llama.scores[self._llama.n_tokens - 1].astype(np.float64)
            token = int(logits.argmax())
            written.append(token)
            logs.append(float(-np.log(np.exp(logits - logits[token]).sum())))
            if token == self._end:
                break
            self._llama.eval([token])
        return written, logs


@dataclass(frozen=True, slots=True)
class Solved:
    """One task carried out by a model on its own."""

    kind: str
    answer: str
    right: bool
    confidence: float
    turns: int


def step_confidence(logs: Sequence[float], window: int = WINDOW) -> float:
    """Return exp of the lowest mean log-probability over any ``window`` consecutive tokens."""
    width = min(window, len(logs))
    if width == 0:
        return 0.0
    return float(np.exp(min(sum(logs[i : i + width]) / width for i in range(len(logs) - width + 1))))


def parse_call(text: str) -> ToolCall | None:
    """Return the call that a turn consists of, or None if it is not exactly one."""
    start, end = TOOL_CALL
    if not (text.startswith(start) and text.endswith(end)):
        return None
    try:
        call = json.loads(text.removeprefix(start).removesuffix(end))
        return ToolCall(id="call", name=call["name"], arguments=call["arguments"])
    except (ValueError, KeyError, TypeError):
        return None


def carry_out(model: Model, problem: Problem, prompt: str) -> Solved:
    """Let a model work on a problem, with the world answering its calls."""
    text = f"{BOS}<|user|>{prompt}{END}"
    confidence, answer, turns = 1.0, "", 0
    while turns < _MOST_TURNS:
        turns += 1
        reply = model.reply(f"{text}<|assistant|>")
        confidence = min(confidence, reply.confidence)
        call = parse_call(reply.text)
        if call is None:
            answer = reply.text
            break
        text += f"<|assistant|>{call_segment(call)}{END}<|tool|>{outcome(problem, call)}{END}"
    return Solved(_kind(problem), answer, is_right(problem, answer), confidence, turns)


def execution(model: Model, role: str, world: str, count: int, seed: int) -> list[Solved]:
    """Carry out ``count`` unseen tasks from the text alone, from the right plan, or from the right advice."""
    solved = []
    for problem in drawn_problems(world, count, seed):
        prompt = {
            "execute": problem.text,
            "execute_plan": with_plan(problem.text, problem.solution.program.plan()),
            "execute_advice": with_guidance(problem.text, guidance(problem.solution, (), None)),
        }[role]
        solved.append(carry_out(model, problem, prompt))
    return solved


def supervision(model: Model, role: str, world: str, count: int, seed: int) -> dict[str, float]:
    """How often the model says exactly what the solver says; for checks also how often it gets the verdict right, by verdict."""
    random_ = random.Random(f"supervision/{seed}")
    shares: dict[str, list[bool]] = defaultdict(list)
    for problem in drawn_problems(world, count, seed):
        prompt, wanted = last_turn(ROLES[role](problem, random_))
        said = model.reply(prompt).text
        shares["exact"].append(said == wanted)
        if role.startswith("check"):
            name = "sound work let go on" if wanted == CONTINUE else "faulty work stopped"
            shares[name].append((said.split("\n")[0] == CONTINUE) is (wanted == CONTINUE))
    return {name: float(np.mean(hits)) for name, hits in shares.items()}


def by_kind(solved: Sequence[Solved]) -> dict[str, float]:
    """Return the share of right outcomes over all tasks and for each kind."""
    shares = {"all": [one.right for one in solved]}
    for kind in sorted({one.kind for one in solved}):
        shares[kind] = [one.right for one in solved if one.kind == kind]
    return {name: float(np.mean(rights)) for name, rights in shares.items()}


def report(path: Path, count: int, seed: int) -> dict[str, dict[str, float]]:
    """Measure every role in both worlds."""
    model = Model(path)
    figures: dict[str, dict[str, float]] = {}
    for world in ("search", "apps"):
        for role in ROLES:
            if role in _LOOPS:
                figures[f"{role}/{world}"] = by_kind(execution(model, role, world, count, seed))
            elif (role, world) not in UNMADE:
                figures[f"{role}/{world}"] = supervision(model, role, world, count, seed)
    return figures


def drawn_problems(world: str, count: int, seed: int) -> Iterator[Problem]:
    """Draw unseen tasks of a world; those of a smaller count come first."""
    share = Share("execute", "search" if world == "search" else "apps", 1.0)
    random_ = random.Random(f"evaluate/{world}/{seed}")
    drawn = 0
    while drawn < count:
        for problem in share.problems(random_, "test")[: count - drawn]:
            drawn += 1
            yield problem


def last_turn(segments: Sequence[Segment]) -> tuple[str, str]:
    """What comes before the last turn of an episode, and that turn."""
    shown, said = "".join(segment.text for segment in segments).rsplit("<|assistant|>", 1)
    return f"{shown}<|assistant|>", said.removesuffix(END)


def outcome(problem: Problem, call: ToolCall) -> str:
    """What the world answers to a call, however malformed."""
    try:
        return problem.run(call)[0]
    except (KeyError, TypeError, AttributeError):
        return "invalid arguments"


def is_right(problem: Problem, answer: str) -> bool:
    """Whether a task ended well, which for errands is a matter of what was done."""
    if isinstance(problem, AppsProblem):
        return all(grade_state(problem.assignment, problem.state))
    return bool(exact_match(answer, problem.solution.program.ending.answer))


def _kind(problem: Problem) -> str:
    task = problem.assignment if isinstance(problem, AppsProblem) else problem.question if isinstance(problem, SearchProblem) else None
    assert task is not None, "there are two worlds"
    return task.kind
