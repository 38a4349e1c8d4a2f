"""The shipped models' own steps, which `speculation` replays: far's on tasks of both worlds, and near's proposals at each of them.

    python -m benchmarks.spend_figures.proposals 100       # records 100 tasks of each world and seed into proposals.jsonl.gz

Both models are greedy. Near is asked with far's transcript; where it would answer, it is asked once more and has to call a tool. Where it
calls something else than far, it goes on from there by itself for up to 4 steps: look-ups run, and calls that change something are taken to
say what their tool has said before.
"""

import asyncio
import gzip
import json
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from nearfar import Agent, Hybrid, NearfarError, Policy
from nearfar.device.llama import LlamaAgent
from nearfar.orchestrator.lab.worlds import World, WorldTask
from nearfar.orchestrator.lab.worlds.loading import open_world
from nearfar.orchestrator.strategies.near_path import step_of
from nearfar.orchestrator.task.tools import Effect, Tool, run_tool_call
from nearfar.protocols import (
    AgentCard,
    Finished,
    Message,
    Side,
    StepEvent,
    StepReply,
    StepRequest,
    TextDelta,
    ToolCall,
    ToolCalled,
    ToolChoice,
    ToolResult,
    complete,
)

RECORDED: Final = Path(__file__).with_name("proposals.jsonl.gz")
WORLDS: Final = ("search", "apps")
SEEDS: Final = (77, 78)
"""The first for choosing priors and groups, and for the tasks that a run learns from; figures are of the second."""
_MODELS: Final = Path(__file__).parents[2] / "device" / "models"
_AHEAD: Final = 4
_MOST_TOKENS: Final = 60
"""Of a proposal: the calls of these worlds take half of that."""

Said = list[Any]
"""The tools that near calls, and its confidence; at a step of far, also whether far says the same, and near's way from there if not."""


class _Recorder:
    """An agent that says what far says, and records it with near's proposals."""

    def __init__(self, far: Agent, near: Agent, tools: Sequence[Tool], results: dict[str, str]) -> None:
        self._far, self._near = far, near
        self._tools = {tool.name: tool for tool in tools}
        self._results = results
        """The last result of each tool."""
        self._asked = 0
        self.steps: list[dict[str, Any]] = []

    @property
    def card(self) -> AgentCard:
        return self._far.card

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        """Stream far's step, and record it."""
        self._note_results(request)
        events: list[StepEvent] = []
        async for event in self._far.step(request):
            events.append(event)
            yield event
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        said = Message.assistant(text, tuple(event.call for event in events if isinstance(event, ToolCalled)))
        usage = [[event.usage.input_tokens, event.usage.output_tokens] for event in events if isinstance(event, Finished)]
        near, proposal = await self._proposals(request)
        if near:
            is_same = proposal is not None and step_of(proposal) == step_of(said)
            near[-1] += [is_same, [] if is_same or proposal is None else await self._beyond(request, proposal)]
        self.steps.append({"far": _tools(said), "usage": usage[0], "near": near})

    async def aclose(self) -> None:
        """Leave the models open for the next task."""

    def _note_results(self, request: StepRequest) -> None:
        results = [message.tool_result for message in request.messages if message.tool_result is not None]
        self._results.update((result.name, result.content) for result in results)
        if self.steps:
            self.steps[-1]["failed"] = any(result.is_error for result in results[-len(self.steps[-1]["far"]) :])

    async def _proposals(self, request: StepRequest) -> tuple[list[Said], Message | None]:
        """Return near's step; where it is an answer, also the call that it makes if it has to. The message is the call."""
        found: list[Said] = []
        for choice in (ToolChoice.AUTO, ToolChoice.REQUIRED):
            reply = await self._ask(request, choice)
            if reply is None:
                return found, None
            found.append([_tools(reply.message), round(reply.finished.confidence or 0.0, 5)])
            if reply.tool_calls:
                return found, reply.message
        return found, None

    async def _ask(self, request: StepRequest, choice: ToolChoice) -> StepReply | None:
        self._asked += 1
        more = {"idempotency_key": f"asked {self._asked}", "tool_choice": choice, "max_output_tokens": _MOST_TOKENS, "timeout": None}
        try:
            return await complete(self._near, request.model_copy(update=more))
        except NearfarError:
            return None

    async def _beyond(self, request: StepRequest, said: Message | None) -> list[list[Said]]:
        """Return near's proposals behind a step that far does not take, until it knows no further or a look-up fails."""
        found: list[list[Said]] = []
        while said is not None and len(found) < _AHEAD:
            results = [await self._result(call) for call in said.tool_calls]
            if any(result.is_error for result in results):
                break
            request = request.model_copy(update={"messages": (*request.messages, said, *map(Message.tool, results))})
            proposals, said = await self._proposals(request)
            found.append(proposals)
        return found

    async def _result(self, call: ToolCall) -> ToolResult:
        if self._tools[call.name].declared.effect is Effect.READ:
            return await run_tool_call(call, self._tools)
        said = self._results.get(call.name)
        return ToolResult(call_id=call.id, name=call.name, content=said or "", is_error=said is None)


def _tools(message: Message) -> list[str]:
    return [call.name for call in message.tool_calls]


def recorded(world: str, seed: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the steps of each recorded task."""
    with gzip.open(RECORDED, "rt", encoding="utf-8") as file:
        for line in map(json.loads, file):
            if (line["world"], line["seed"]) == (world, seed):
                yield line["steps"]


async def _record(count: int) -> None:
    async with (
        await LlamaAgent.load(_MODELS / "far.gguf", name="far", side=Side.FAR, threads=1) as far,
        await LlamaAgent.load(_MODELS / "near.gguf", name="near", threads=1) as near,
    ):
        with gzip.open(RECORDED, "wt", encoding="utf-8") as file:
            for name in WORLDS:
                world, results = open_world(name), dict[str, str]()
                for seed in SEEDS:
                    for task in world.tasks(count, seed):
                        steps = await _steps(world, task, far, near, results)
                        file.write(json.dumps({"world": name, "seed": seed, "steps": steps}) + "\n")


async def _steps(world: World, task: WorldTask, far: Agent, near: Agent, results: dict[str, str]) -> list[dict[str, Any]]:
    """Return the steps of one task; none where far does not come to an answer."""
    episode = world.reset(task)
    recorder = _Recorder(far, near, episode.tools, results)
    policy = Policy.model_validate({"sensitivity": "public", "temperature": 0, "maximum_turns": 40})
    try:
        async with Hybrid(far=recorder, tools=list(episode.tools), policy=policy) as hybrid:
            await hybrid.run(task.prompt, strategy="cloud")
    except NearfarError:
        return []
    finally:
        episode.close()
    return recorder.steps


if __name__ == "__main__":
    asyncio.run(_record(int(sys.argv[1])))
