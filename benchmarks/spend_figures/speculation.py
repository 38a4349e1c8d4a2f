"""Time and far calls of `speculate` over those of `cloud`.

Agents are scripted: near agrees with far as often as the shipped models were seen to (0.62 in the search world, 0.67 in the apps world),
which differs by tool. A far step takes 0.2 s here for 1 s, and a near one 0.02 s for 0.1 s; the time of nearfar itself is not scaled,
and weighs five times what it would. Every far call that was begun counts as one that was paid for as a whole.
"""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from nearfar import Hybrid, Policy, ScriptedAgent, Side, StepRequest
from nearfar.protocols.fakes import Reply

from .scripted_world import ScriptedTask, ScriptedWorld

_SEED: Final = 90210
_FAR, _NEAR = 0.2, 0.02
_USUAL, _THRIFTY = 0.35, 0.5
_AT_ONCE: Final = 6
_WARM_UP: Final = 50
"""Tasks from which the look-ahead learns before anything counts."""
_DRAWS: Final = 1000
_WORLDS: Final[Mapping[str, tuple[Mapping[str, float], float, tuple[int, int]]]] = {
    "search": ({"": 0.62, "find": 0.85, "look": 0.39, "put": 0.62}, 0.0, (2, 6)),
    "apps": ({"": 0.67, "find": 0.9, "look": 0.44, "put": 0.67}, 0.2, (4, 9)),
}
"""By world: agreement after each tool, share of calls that change something, and least and most steps."""


class _Taken(NamedTuple):
    """The figures of one task."""

    seconds: float
    far_calls: int


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Return the figures of both worlds. `data` is not used."""
    tasks = 24 if quick else 120
    return asyncio.run(_figures(tasks))


async def _figures(tasks: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    wasted: list[float] = []
    for world in _WORLDS:
        alone = await _taken(world, tasks, "cloud", {})
        usual = await _taken(world, tasks, "speculate", {"thrift": _USUAL})
        thrifty = await _taken(world, tasks, "speculate", {"thrift": _THRIFTY})
        for name, taken in (("", usual), ("thrifty_", thrifty)):
            found[f"speculate_{name}wall_{world}"], found[f"speculate_{name}wall_{world}_interval"] = _ratio(taken, alone, 0)
            found[f"speculate_{name}dollars_{world}"], found[f"speculate_{name}dollars_{world}_interval"] = _ratio(taken, alone, 1)
        fixed = [await _taken(world, tasks, "speculate", {"thrift": 0.0, "maximum_ahead": k, "learn": False}) for k in (1, 2, 4)]
        found[f"speculate_fixed_{world}"] = [[_ratio(taken, alone, 0)[0], _ratio(taken, alone, 1)[0]] for taken in fixed]
        wasted.append(_waste(usual, fixed, alone))
    for name in ("speculate_wall", "speculate_dollars", "speculate_thrifty_wall", "speculate_thrifty_dollars"):
        found[name] = max(found[f"{name}_{world}"] for world in _WORLDS)
    found["speculate_waste"] = max(wasted)
    return found


async def _taken(world: str, tasks: int, strategy: str, given: Mapping[str, object]) -> list[_Taken]:
    agreement, changing, (least, most) = _WORLDS[world]
    script: dict[str, ScriptedTask] = {}
    asked: dict[str, int] = {}

    def named(request: StepRequest) -> ScriptedTask:
        return script[request.messages[0].text]

    def far_step(request: StepRequest) -> Reply:
        asked[request.messages[0].text] = asked.get(request.messages[0].text, 0) + 1
        return named(request).far(request)

    async def one(number: int, slots: asyncio.Semaphore) -> _Taken:
        name = f"{world} {number}"
        script[name] = ScriptedTask(f"{_SEED} {name}", random.Random(name).randrange(least, most), agreement, changing)
        async with slots:
            began = time.perf_counter()
            await hybrid.run(name, strategy=strategy, task_class=world, tools=ScriptedWorld().tools)
            return _Taken(time.perf_counter() - began, asked[name])

    far = ScriptedAgent(far_step, name="far", side=Side.FAR, pace=_FAR)
    near = ScriptedAgent(lambda request: named(request).near(request), name="near", pace=_NEAR)
    policy = Policy.model_validate({"sensitivity": "public", "speculate": given})
    async with Hybrid(near=near, far=far, policy=policy) as hybrid:
        slots = asyncio.Semaphore(_AT_ONCE)
        if given.get("learn", True) and strategy == "speculate":
            await asyncio.gather(*(one(-number, asyncio.Semaphore(_WARM_UP)) for number in range(1, _WARM_UP + 1)))
        return list(await asyncio.gather(*(one(number, slots) for number in range(tasks))))


def _ratio(taken: Sequence[_Taken], alone: Sequence[_Taken], place: int) -> tuple[float, list[float]]:
    """Return the ratio of the sums over the same tasks, and its 95 % interval."""
    chance, pairs = random.Random(_SEED), [(each[place], other[place]) for each, other in zip(taken, alone, strict=True)]
    draws = sorted(_quotient(chance.choices(pairs, k=len(pairs))) for _ in range(_DRAWS))
    return _quotient(pairs), [draws[int(0.025 * _DRAWS)], draws[int(0.975 * _DRAWS)]]


def _quotient(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(first for first, _ in pairs) / sum(second for _, second in pairs)


def _waste(learned: Sequence[_Taken], fixed: Sequence[Sequence[_Taken]], alone: Sequence[_Taken]) -> float:
    """Return the far calls that the learned look-ahead wastes over those of a mixture of the two fixed ones around its own wall time."""
    points = [(1.0, 0.0), *((_ratio(each, alone, 0)[0], _extra(each, alone)) for each in fixed)]
    wall = _ratio(learned, alone, 0)[0]
    reach = [
        low[1] + (high[1] - low[1]) * (low[0] - wall) / (low[0] - high[0])
        for low in points
        for high in points
        if high[0] < low[0] and high[0] <= wall <= low[0]
    ]
    best = min(reach, default=max(waste for _, waste in points))  # faster than any of them
    return _extra(learned, alone) / best


def _extra(taken: Sequence[_Taken], alone: Sequence[_Taken]) -> float:
    return fmean(each.far_calls - other.far_calls for each, other in zip(taken, alone, strict=True))
