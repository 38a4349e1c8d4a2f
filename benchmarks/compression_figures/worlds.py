"""The shipped models at work in a window that is too small for their conversations."""

from collections.abc import Mapping
from unittest.mock import patch

from nearfar.orchestrator.compose import NearConfig
from nearfar.orchestrator.hybrid.hybrid import Hybrid
from nearfar.orchestrator.lab.worlds import World
from nearfar.orchestrator.lab.worlds.apps import AppsWorld
from nearfar.orchestrator.lab.worlds.loading import SearchWorld
from nearfar.orchestrator.strategies import turn as fitting
from nearfar.orchestrator.task.modes import Strategy
from nearfar.orchestrator.task.policy import CompressionConfig, CompressionUse, Policy
from nearfar.protocols import NearfarError

from .methods import METHODS, mean

SEED = 7
TURNS = 40
WINDOWS = {"near": 96, "far": 160}
"""Tokens by model: about half of its tasks need more."""
RESERVE = 20
"""Tokens of the longest call of the models."""


async def figures(*, quick: bool) -> dict[str, object]:
    """Mean scores by model and world: `whole` with a window of 4,096 tokens, and in a tight one `off` and by each method.

    All methods cut under the same conditions; only what they keep differs.
    """
    count = 6 if quick else 100
    results: dict[str, object] = {}
    for model in ("near",) if quick else WINDOWS:
        for world in (SearchWorld(), AppsWorld()):
            results[f"{model} {world.name}"] = await _of(model, world, count)
    return {"windows": WINDOWS, "tasks": count, **results}


async def _of(model: str, world: World, count: int) -> Mapping[str, float | None]:
    scores = {
        "whole": await _score(model, world, count, CompressionUse.NEVER, window=4096),
        "off": await _score(model, world, count, CompressionUse.NEVER, window=WINDOWS[model]),
    }
    for name, method in METHODS.items():
        with patch.object(fitting, "compress", method):
            scores[name] = await _score(model, world, count, CompressionUse.LAST_RESORT, window=WINDOWS[model])
    return scores


async def _score(model: str, world: World, count: int, use: CompressionUse, *, window: int) -> float | None:
    policy = Policy(strategy=Strategy.DEVICE, maximum_turns=TURNS, compression=CompressionConfig(use=use, reserve_tokens=RESERVE))
    near = NearConfig(model=model, threads=1, context_tokens=window)
    scores: list[float] = []
    async with Hybrid(near=near, policy=policy) as hybrid:
        for task in world.tasks(count, SEED):
            episode = world.reset(task)
            try:
                answer = (await hybrid.run(task.prompt, tools=episode.tools)).text
            except NearfarError:  # a task that was not finished counts by what was done
                answer = ""
            scores.append(episode.grade(answer).score)
            episode.close()
    return mean(scores)
