"""Records the drafts and verdicts of `verified_drafts`.

python -m benchmarks.spend_figures.verified_recording     an hour of one core
"""

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator
from contextlib import closing
from typing import Final

from nearfar import Hybrid
from nearfar.device.llama.model import start_backend
from nearfar.orchestrator.lab.worlds import World, WorldTask
from nearfar.orchestrator.lab.worlds.loading import draw_tasks, open_world
from nearfar.orchestrator.routing.looks import is_grounded
from nearfar.orchestrator.strategies.prompts import verify_progress_request
from nearfar.orchestrator.strategies.verifying import SHIPPED_WORDS
from nearfar.protocols import (
    Finished,
    Message,
    NearfarError,
    StepEvent,
    StepRequest,
    TextDelta,
    TokenLogprob,
    ToolChoice,
    complete,
)

from ..routing_figures.near_recording import HeardAgent
from .verified_drafts import FILE, PARTS, SAMPLES, WORLDS, Row

_TEMPERATURE: Final = 0.7
_TURNS: Final = 40


class HeardWork:
    """An agent that keeps the last request and reply, and sums up tokens and confidence."""

    def __init__(self, agent: HeardAgent) -> None:
        self.card = agent.card
        self._agent = agent
        self.start()

    def start(self) -> None:
        """Forget what was heard."""
        self.request: StepRequest | None = None
        self.text = ""
        self.confidences: list[float] = []
        self.tokens = [0, 0]

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        """Pass a step on."""
        self.request, self.text = request, ""
        async for event in self._agent.step(request):
            if isinstance(event, TextDelta):
                self.text += event.text
            if isinstance(event, Finished):
                self.confidences += [] if event.confidence is None else [event.confidence]
                self.tokens = [self.tokens[0] + event.usage.input_tokens, self.tokens[1] + event.usage.output_tokens]
            yield event

    async def aclose(self) -> None:
        """Do nothing: the model is freed with the process."""


class DraftRecorder:
    """Both models, and the tasks that they are given."""

    def __init__(self) -> None:
        start_backend()
        self._near, self._far = HeardAgent("near"), HeardAgent("far")

    async def record(self, world: World, task: WorldTask, *, samples: int) -> Row:
        """Let both models carry out a task, and the far one judge the near one's work."""
        self._near.steps.clear()
        self._far.steps.clear()
        work = HeardWork(self._near)
        near = await _outcome(work, world, task)
        row = {"prompt": task.prompt, "class": f"{world.name}/{task.kind}", "near": near}
        if near["answer"] is not None and work.request is not None:
            row |= await self._judged(task, work.request, work.text)
        row["far"] = await _outcome(HeardWork(self._far), world, task)
        again = [await _outcome(HeardWork(self._near), world, task, temperature=_TEMPERATURE) for _ in range(samples)]
        return row | {"samples": [{name: each[name] for name in ("answer", "right", "confidence")} for each in again]}

    async def _judged(self, task: WorldTask, request: StepRequest, text: str) -> Row:
        """Return the verdict on the near model's work, the tokens that it took, and a second sample of the answer."""
        work = [*request.messages[1:], Message.assistant(text)]
        asked = StepRequest(
            messages=verify_progress_request(task.prompt, "", work), idempotency_key="judge", top_logprobs=20, max_output_tokens=1
        )
        near, _ = await _verdict(self._near, asked)
        far, tokens = await _verdict(self._far, asked)
        fields = {"tool_choice": ToolChoice.NONE, "temperature": _TEMPERATURE, "idempotency_key": "opinion"}
        opinion = await complete(self._near, request.model_copy(update=fields))
        return {
            "verdicts": {"near": near, "far": far},
            "verdict_tokens": tokens,
            "opinion": opinion.text,
            "is_grounded": is_grounded(text, request.messages),
        }


async def _verdict(agent: HeardAgent, asked: StepRequest) -> tuple[float | None, int]:
    """Return the share of yes in a verdict, and the tokens that the judge read."""
    reply = await complete(agent, asked)
    logprobs = tuple(map(TokenLogprob.model_validate, agent.steps[-1][1].logprobs))
    finished = reply.finished.model_copy(update={"logprobs": logprobs})
    return SHIPPED_WORDS.likely_share(reply.model_copy(update={"finished": finished})), finished.usage.input_tokens


async def _outcome(work: HeardWork, world: World, task: WorldTask, *, temperature: float | None = None) -> Row:
    work.start()
    answer: str | None = None
    with closing(world.reset(task)) as episode:
        try:
            policy = {"strategy": "device", "maximum_turns": _TURNS, "temperature": temperature}
            async with Hybrid(near=work, policy=policy) as hybrid:
                answer = (await hybrid.run(task.prompt, tools=episode.tools)).text
        except NearfarError:
            pass  # out of turns, or of context
        is_right = episode.grade(answer or "").success
    return {"answer": answer, "right": is_right, "confidence": min(work.confidences, default=None), "tokens": work.tokens}


async def record() -> list[Row]:
    """Record the tasks of both parts in both worlds."""
    recorder, rows = DraftRecorder(), []
    for part, (tasks, seed) in PARTS.items():
        for name in WORLDS:
            world = open_world(name)
            for task in draw_tasks(world, tasks, seed):
                rows.append({"part": part, **await recorder.record(world, task, samples=SAMPLES if name == "search" else 0)})
    return rows


if __name__ == "__main__":
    with gzip.open(FILE, "wt", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in asyncio.run(record()))
