"""Measures the exported models the way they are used: llama.cpp, greedy, over tasks with unseen names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from llama_cpp import Llama
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from nearfar.orchestrator.worlds.lookup import NOTHING_FOUND, SearchTask, SearchWorld, score

from .data import END, TOOL_CALL

WINDOW: Final = 4
"""Consecutive tokens over which the confidence of a step is averaged."""
THRESHOLD: Final = 0.91
"""Confidence from which the cascade accepts a grounded near answer; chosen on the validation seed."""
VALIDATION_SEED: Final = 777
TEST_SEED: Final = 31337

_TASKS_PER_WORLD: Final = 25
_MOST_TURNS: Final = 8
_MOST_TOKENS: Final = 64


@dataclass(frozen=True, slots=True)
class Step:
    """One generated turn: its text, its confidence in (0, 1], and the tokens read and written."""

    text: str
    confidence: float
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """One task tried by one agent; ``tokens`` sums what every turn read and wrote."""

    task: SearchTask
    answer: str
    right: bool
    grounded: bool
    confidence: float
    tokens: int
    turns: int


@dataclass(frozen=True, slots=True)
class Cascaded:
    """One task run near first: what near did, and what far did if near was not trusted."""

    near: Attempt
    far: Attempt
    escalated: bool

    @property
    def right(self) -> bool:
        """Tell whether the answer that was kept is right."""
        return self.far.right if self.escalated else self.near.right

    @property
    def far_tokens(self) -> int:
        """Return the tokens that far read and wrote."""
        return self.far.tokens if self.escalated else 0


class Agent:
    """An exported model behind its own chat template, generating greedily on one thread."""

    def __init__(self, path: Path) -> None:
        self._llama = Llama(str(path), n_ctx=512, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False)
        template = self._llama.metadata["tokenizer.chat_template"]
        self._formatter = Jinja2ChatFormatter(template=template, eos_token=END, bos_token="")
        self._end = self._llama.token_eos()

    def step(self, messages: Sequence[dict[str, Any]]) -> Step:
        """Generate one assistant turn."""
        prompt = self._formatter(messages=list(messages)).prompt  # type: ignore[arg-type]
        ids = self._llama.tokenize(prompt.encode(), add_bos=True, special=True)
        self._llama.n_tokens = 0
        self._llama.eval(ids)
        written, logs = self._generate()
        text = self._llama.detokenize([token for token in written if token != self._end], special=True).decode(errors="replace")
        return Step(text, step_confidence(logs), len(ids), len(written))

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


def step_confidence(logs: Sequence[float], window: int = WINDOW) -> float:
    """Return exp of the lowest mean log-probability over any ``window`` consecutive tokens."""
    width = min(window, len(logs))
    if width == 0:
        return 0.0
    return float(np.exp(min(sum(logs[i : i + width]) / width for i in range(len(logs) - width + 1))))


def attempt(agent: Agent, task: SearchTask, world: SearchWorld) -> Attempt:
    """Let one agent try one task, with the world answering its lookups."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": task.question}]
    found: list[str] = []
    steps: list[Step] = []
    answer = ""
    while len(steps) < _MOST_TURNS:
        steps.append(agent.step(messages))
        text = steps[-1].text
        if TOOL_CALL[0] not in text:
            answer = text
            break
        arguments = parse_call(text)
        if arguments is None:
            break
        result = world.lookup(*arguments)
        found.append(result)
        messages += _turn(arguments, result)
    return Attempt(
        task=task,
        answer=answer,
        right=bool(score(answer, task)),
        grounded=is_grounded(answer, found),
        confidence=min(step.confidence for step in steps),
        tokens=sum(step.prompt_tokens + step.completion_tokens for step in steps),
        turns=len(steps),
    )


def parse_call(text: str) -> tuple[str, str] | None:
    """Return (entity, attribute) of a lookup, or None if the text is not exactly one valid call."""
    start, end = TOOL_CALL
    if not (text.startswith(start) and text.endswith(end)):
        return None
    try:
        call = json.loads(text.removeprefix(start).removesuffix(end))
        arguments = call["arguments"]
        values = (arguments["entity"], arguments["attribute"])
    except (ValueError, KeyError, TypeError):
        return None
    return values if call.get("name") == "lookup" and all(isinstance(value, str) for value in values) else None


def is_grounded(answer: str, found: Sequence[str]) -> bool:
    """Tell whether an answer occurs in what a lookup found."""
    return bool(answer.strip()) and any(answer.strip() in result for result in found if not result.startswith(NOTHING_FOUND))


def trusted(near: Attempt, threshold: float) -> bool:
    """Tell whether the cascade keeps a near answer."""
    return near.grounded and near.confidence >= threshold


def run(paths: Sequence[Path], count: int, seed: int) -> list[list[Attempt]]:
    """Let every model try the same ``count`` tasks of the demo mix; one list of attempts per model."""
    agents = [Agent(path) for path in paths]
    attempts: list[list[Attempt]] = [[] for _ in paths]
    for start in range(0, count, _TASKS_PER_WORLD):
        world = SearchWorld(seed + start // _TASKS_PER_WORLD, "test")
        for task in world.tasks(min(_TASKS_PER_WORLD, count - start)):
            for agent, done in zip(agents, attempts, strict=True):
                done.append(attempt(agent, task, world))
    return attempts


def cascade(near: Sequence[Attempt], far: Sequence[Attempt], threshold: float) -> list[Cascaded]:
    """Combine attempts of both models: near first, far from scratch where near is not trusted."""
    return [Cascaded(one, other, not trusted(one, threshold)) for one, other in zip(near, far, strict=True)]


def _turn(arguments: tuple[str, str], result: str) -> list[dict[str, Any]]:
    call = {"name": "lookup", "arguments": dict(zip(("entity", "attribute"), arguments, strict=True))}
    return [
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
        {"role": "tool", "content": result},
    ]


def by_hops(results: Sequence[tuple[int, bool]]) -> dict[str, float]:
    """Return the share of right answers over all tasks and for each number of hops."""
    shares = {"all": [right for _, right in results]}
    for hops in sorted({hops for hops, _ in results}):
        shares[str(hops)] = [right for one, right in results if one == hops]
    return {name: float(np.mean(rights)) for name, rights in shares.items()}


def summary(near: Sequence[Attempt], far: Sequence[Attempt], threshold: float) -> dict[str, object]:
    """Return what the cascade gains and costs; token shares are relative to always using far."""
    done = cascade(near, far, threshold)
    always_far = sum(one.tokens for one in far)
    far_tokens = sum(one.far_tokens for one in done)
    accuracy = {
        name: by_hops([(one.near.task.hops, right) for one, right in zip(done, rights, strict=True)])
        for name, rights in {
            "near": [one.right for one in near],
            "far": [one.right for one in far],
            "cascade": [one.right for one in done],
        }.items()
    }
    return {
        "threshold": threshold,
        **accuracy,
        "quality_share": accuracy["cascade"]["all"] / accuracy["far"]["all"],
        "escalated_share": float(np.mean([one.escalated for one in done])),
        "far_token_share": far_tokens / always_far,
        "all_token_share": (far_tokens + sum(one.tokens for one in near)) / always_far,
        "wrong_but_trusted": sum(not one.escalated and not one.near.right for one in done),
        "right_but_escalated": sum(one.escalated and one.near.right for one in done),
    }


def choose_threshold(near: Sequence[Attempt], far: Sequence[Attempt], quality: float = 0.96) -> float:
    """Return the lowest threshold, in hundredths, that keeps ``quality`` of far's accuracy.

    A lower threshold asks far less often. Raises ``ValueError`` if no threshold keeps enough.
    """
    wanted = quality * sum(one.right for one in far)
    for hundredths in range(100):
        if sum(one.right for one in cascade(near, far, hundredths / 100)) >= wanted:
            return hundredths / 100
    raise ValueError(f"no threshold keeps {quality:.0%} of far's accuracy")
