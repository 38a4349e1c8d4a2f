"""Random runs of `speculate` against the same runs of `cloud`: agreement, latency, failure, cancellation and a stop with a resumption."""

import asyncio
import random
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from nearfar import Hybrid, NearfarError, Policy, Result

from .scripted_world import ScriptedTask, ScriptedWorld, without_ids

_SEED: Final = 4711
_SLOWEST: Final = 0.004
"""Seconds of a far step at most: the order in which things happen is what counts, and not how long they take."""


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Return the share of runs whose answer, conversation and effects are those of `cloud`. `data` is not used."""
    runs = 300 if quick else 1000
    return asyncio.run(_compared(runs))


async def _compared(runs: int) -> dict[str, Any]:
    same, unconfirmed, resumed, confirmed = 0, 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(runs):
            task, kind = _drawn(number)
            expected = await _run(task, "cloud", random.Random(number), None)
            records = Path(folder) / str(number) if kind == "killed" else None
            found = await _run(task, "speculate", random.Random(number), records, is_cancelled=kind == "cancelled")
            is_same = found[1] == expected[1][: len(found[1])] if kind == "cancelled" else found[:2] == expected[:2]
            same += is_same
            unconfirmed += sum(effect not in expected[1] for effect in found[1])
            resumed += kind == "killed"
            confirmed += found[2]
    return {
        "speculate_identical": same / runs,
        "speculate_unconfirmed_effects": unconfirmed,
        "speculate_identical_runs": runs,
        "speculate_identical_killed": resumed,
        "speculate_identical_confirmed_steps": confirmed,
    }


def _drawn(number: int) -> tuple[ScriptedTask, str]:
    chance = random.Random(f"{_SEED} {number}")
    agreement = {name: chance.choice((0.0, 0.4, 0.7, 1.0)) for name in ("", "find", "look", "put")}
    fails_at = chance.choice((*(None,) * 6, 0, 2, 4))
    task = ScriptedTask(f"{_SEED} {number}", chance.randrange(1, 8), agreement, chance.choice((0.0, 0.3)), fails_at)
    return task, chance.choice(("plain", "plain", "cancelled", "killed"))


async def _run(
    task: ScriptedTask, strategy: str, chance: random.Random, records: Path | None, *, is_cancelled: bool = False
) -> tuple[object, list[int], int]:
    """Return what the run came to, its effects, and near's confirmed steps."""
    world = ScriptedWorld()

    async def slow() -> None:
        await asyncio.sleep(chance.random() * _SLOWEST)

    async def serve(*, stops: bool, resumes: bool) -> Result | str:
        near, far = task.agents(slow, slow)
        policy = Policy.model_validate({"sensitivity": "public", "speculate": {"thrift": chance.choice((0.0, 0.3, 0.6))}})
        async with Hybrid(near=near, far=far, tools=world.tools, policy=policy, records=records) as hybrid:
            asked = hybrid.resume("run") if resumes else hybrid.run("Do it.", strategy=strategy, idempotency_key="run")
            serving = asyncio.create_task(asked)
            if stops:
                await asyncio.wait((serving,), timeout=chance.random() * 4 * _SLOWEST)
                serving.cancel()
            try:
                return await serving
            except NearfarError as error:
                return type(error).__name__

    result: Result | str = ""
    with suppress(asyncio.CancelledError):
        result = await serve(stops=is_cancelled or records is not None, resumes=False)
    if records is not None and not isinstance(result, Result):
        result = await serve(stops=False, resumes=True)
        if result == "NotFound":  # it was stopped before it had begun
            result = await serve(stops=False, resumes=False)
    if not isinstance(result, Result):
        return result, world.effects, 0
    told = (result.text, result.agent, without_ids(result.messages), [(each.call.name, each.result) for each in result.tool_calls])
    return told, world.effects, 0 if result.speculation is None else result.speculation.confirmed
