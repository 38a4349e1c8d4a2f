"""Random runs of `speculate` against the same runs of `cloud`: agreement, latency, failure, cancellation, and the death of the process.

A process that is to die is killed at a random step of an agent or a tool, and another one resumes the run; an effect may then be made once
more, as its tool is declared idempotent.
"""

import asyncio
import os
import random
import signal
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple

from nearfar import Hybrid, NearfarError, NotFound, Policy, Result

from .scripted_world import ScriptedTask, ScriptedWorld, without_ids

_SEED: Final = 4711
_SLOWEST: Final = 0.004
"""Seconds of a far step at most: the order in which things happen is what counts, and not how long they take."""
_LONGEST: Final = 60.0
"""Seconds of a process."""


class _Outcome(NamedTuple):
    """What a run came to."""

    told: object
    effects: list[int]
    confirmed: int = 0
    """Proposals of near that far has confirmed."""


@dataclass(frozen=True)
class _Drawn:
    """One random task, and what befalls it."""

    number: int

    @property
    def chance(self) -> random.Random:
        """Return the run's own chance, from the beginning."""
        return random.Random(f"{_SEED} {self.number}")

    @property
    def kind(self) -> str:
        """Return what befalls the run."""
        return ("plain", "plain", "cancelled", "killed")[self.number % 4]

    @property
    def task(self) -> ScriptedTask:
        """Return the task."""
        chance = self.chance
        agreement = {name: chance.choice((0.0, 0.4, 0.7, 1.0)) for name in ("", "find", "look", "put")}
        fails_at = chance.choice((*(None,) * 6, 0, 2, 4))
        return ScriptedTask(f"{_SEED} {self.number}", chance.randrange(1, 8), agreement, chance.choice((0.0, 0.3, 0.7)), fails_at)

    @property
    def tells(self) -> bool:
        """Return whether what changes something says what came of it."""
        return self.number % 3 == 0


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Return the share of runs whose answer, conversation and effects are those of `cloud`. `data` is not used."""
    drawn = [_Drawn(number) for number in range(48 if quick else 1000)]
    same, unconfirmed, confirmed = 0, 0, 0
    for each in drawn:
        expected, found = _expected(each), _found(each)
        is_same = found.effects == expected.effects[: len(found.effects)] if each.kind == "cancelled" else found[:2] == expected[:2]
        same += is_same
        unconfirmed += sum(effect not in expected.effects for effect in found.effects)
        confirmed += found.confirmed
    return {
        "speculate_identical": same / len(drawn),
        "speculate_unconfirmed_effects": unconfirmed,
        "speculate_identical_runs": len(drawn),
        "speculate_identical_killed": sum(each.kind == "killed" for each in drawn),
        "speculate_identical_confirmed_steps": confirmed,
    }


def _expected(drawn: _Drawn) -> _Outcome:
    world = ScriptedWorld(drawn.tells)
    with tempfile.TemporaryDirectory() as name:  # a run on record makes no effect twice, whoever asks for it
        records = Path(name) if drawn.kind == "killed" else None
        return _outcome(asyncio.run(_served(drawn, world, "cloud", records=records)), world)


def _found(drawn: _Drawn) -> _Outcome:
    with tempfile.TemporaryDirectory() as name:
        if drawn.kind == "killed":
            return _resumed(drawn, Path(name))
        world = ScriptedWorld(drawn.tells)
        return _outcome(asyncio.run(_served(drawn, world, "speculate", stops=drawn.kind == "cancelled")), world)


def _resumed(drawn: _Drawn, folder: Path) -> _Outcome:
    """Return what comes of a run whose process dies, and that another one resumes."""
    world = ScriptedWorld(drawn.tells, folder / "effects")
    (folder / "effects").touch()
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, "nearfar.orchestrator.strategies.graphs"])
    process = context.Process(target=_serve_and_die, args=(drawn, folder))
    process.start()
    process.join(_LONGEST)
    served = asyncio.run(_served(drawn, world, "speculate", records=folder / "records", resumes=True))
    outcome = _outcome(served, world)
    return outcome._replace(effects=[effect for effect, _ in groupby(outcome.effects)])


def _serve_and_die(drawn: _Drawn, folder: Path) -> None:
    """Serve the task, and die at one of its steps, unless it ends before."""
    world = ScriptedWorld(drawn.tells, folder / "effects")
    asyncio.run(_served(drawn, world, "speculate", records=folder / "records", dies_at=drawn.chance.randrange(1, 20)))


async def _served(
    drawn: _Drawn,
    world: ScriptedWorld,
    strategy: str,
    *,
    records: Path | None = None,
    stops: bool = False,
    resumes: bool = False,
    dies_at: int | None = None,
) -> Result | str:
    """Serve the task, and return its result, or the name of the error that it ends with; empty: it was cancelled."""
    chance = drawn.chance
    left = dies_at

    async def slow() -> None:
        nonlocal left
        await asyncio.sleep(chance.random() * _SLOWEST)
        if left is not None and (left := left - 1) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    near, far = drawn.task.agents(slow, slow)
    policy = Policy.model_validate({"sensitivity": "public", "speculate": {"thrift": chance.choice((0.0, 0.3, 0.6))}})
    async with Hybrid(near=near, far=far, tools=world.tools, policy=policy, records=records) as hybrid:
        serving = asyncio.create_task(_resumed_or_run(hybrid, strategy, resumes=resumes))
        if stops:
            await asyncio.wait((serving,), timeout=chance.random() * 4 * _SLOWEST)
            serving.cancel()
        with suppress(asyncio.CancelledError):
            try:
                return await serving
            except NearfarError as error:
                return type(error).__name__
    return ""


async def _resumed_or_run(hybrid: Hybrid, strategy: str, *, resumes: bool) -> Result:
    if resumes:
        with suppress(NotFound):  # its process died before it had begun
            return await hybrid.resume("run")
    return await hybrid.run("Do it.", strategy=strategy, idempotency_key="run")


def _outcome(result: Result | str, world: ScriptedWorld) -> _Outcome:
    if not isinstance(result, Result):
        return _Outcome(result, world.effects)
    told = (result.text, result.agent, without_ids(result.messages), [(each.call.name, each.result) for each in result.tool_calls])
    return _Outcome(told, world.effects, 0 if result.speculation is None else result.speculation.confirmed)
