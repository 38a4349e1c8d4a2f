"""Searches of the search world and the score, with and without `unchanging_tools`, where the executor repeats itself.

The executor is scripted: it follows the world's own solution, and before each step it makes an earlier call once more, with a set
probability. Half of the repeated queries are in lower case. Both configurations have the same questions and the same repeats.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from nearfar import Hybrid, Policy, ScriptedAgent, StepRequest, ToolCall
from nearfar.orchestrator.lab.statistics import difference, ratio
from nearfar.orchestrator.lab.worlds import WorldTask
from nearfar.orchestrator.lab.worlds.loading import SearchWorld
from nearfar.orchestrator.task.tools import LOOKED_UP
from nearfar.protocols.fakes import Reply

_SEED: Final = 5201
_REPEATED: Final = 0.45
"""Probability that a turn repeats an earlier call: about as often as agents that were trained to search do (arXiv 2605.29796)."""
_POLICY: Final = {"strategy": "device", "maximum_turns": 40}
_AGAIN: Final = "again"


class _Run(NamedTuple):
    score: float
    asked: int
    """Calls that the executor made."""
    made: int
    """Calls that ran."""


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Return the share of searches that are not made, and the points of score that this costs. `data` is not used."""
    return asyncio.run(_figures(60 if quick else 400))


async def _figures(count: int) -> dict[str, Any]:
    world = SearchWorld()
    tasks = world.tasks(count, _SEED)
    usual, own = [await _runs(world, tasks, tools) for tools in ((), ("search", "open"))]
    names = [task.identifier for task in tasks]
    made = ratio(*({name: [run.made] for name, run in zip(names, runs, strict=True)} for runs in (own, usual)))
    points = difference(*({name: [100 * run.score] for name, run in zip(names, runs, strict=True)} for runs in (own, usual)))
    assert made is not None, "every question takes a search"
    return {
        "search_saving": 1 - made.value,
        "search_saving_interval": [1 - made.high, 1 - made.low],
        "search_saving_points": points.value,
        "search_saving_points_interval": [points.low, points.high],
        "search_saving_usual_score": sum(run.score for run in usual) / count,
        "search_saving_asked": sum(run.asked for run in own) / count,
        "search_saving_tasks": count,
    }


async def _runs(world: SearchWorld, tasks: Sequence[WorldTask], tools: tuple[str, ...]) -> list[_Run]:
    solutions = {task.prompt: world.question(task).program for task in tasks}

    def step(request: StepRequest) -> Reply:
        made = [call for message in request.messages for call in message.tool_calls]
        chance = random.Random(f"{_SEED} {request.messages[0].text} {len(made)}")
        if made and chance.random() < _REPEATED:
            return _again(made, chance)
        program, done = solutions[request.messages[0].text], sum(not call.id.startswith(_AGAIN) for call in made)
        return program.steps[done].call(f"step-{done}") if done < len(program.steps) else program.ending.answer

    policy = Policy.model_validate({**_POLICY, "unchanging_tools": tools})
    async with Hybrid(near=ScriptedAgent(step, name="near"), policy=policy) as hybrid:
        return [await _run(hybrid, world, task) for task in tasks]


def _again(made: Sequence[ToolCall], chance: random.Random) -> ToolCall:
    call = chance.choice(made)
    query = call.arguments.get("query")
    changed = {"query": query.lower()} if isinstance(query, str) and chance.random() < 0.5 else {}
    return call.model_copy(update={"id": f"{_AGAIN}-{len(made)}", "arguments": {**call.arguments, **changed}})


async def _run(hybrid: Hybrid, world: SearchWorld, task: WorldTask) -> _Run:
    with closing(world.reset(task)) as episode:
        result = await hybrid.run(task.prompt, tools=episode.tools)
        made = sum(not outcome.result.endswith(LOOKED_UP) for outcome in result.tool_calls)
        return _Run(episode.grade(result.text).score, len(result.tool_calls), made)
