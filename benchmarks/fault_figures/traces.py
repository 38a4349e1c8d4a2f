"""Traces: what recording takes, and whether blame names the step that was made to fail."""

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from nearfar.orchestrator import Hybrid
from nearfar.orchestrator.events import AttemptStarted
from nearfar.orchestrator.runs.settings import RunsConfig
from nearfar.orchestrator.task import Policy, Task
from nearfar.orchestrator.team import Member
from nearfar.orchestrator.tracing.blame.correction import Reference
from nearfar.orchestrator.tracing.blame.record import RecordedRun
from nearfar.orchestrator.tracing.blame.search import blame
from nearfar.orchestrator.tracing.recorder import RunTrace
from nearfar.orchestrator.tracing.store import TraceStore, open_traces
from nearfar.orchestrator.worlds.names import names
from nearfar.orchestrator.worlds.search import SearchWorld
from nearfar.orchestrator.worlds.search.world import exact_match
from nearfar.orchestrator.worlds.world import WorldTask
from nearfar.protocols import Message, Side, ToolCall

from .faulty_runs import ProgramExecutor, draw_fault, wrong_value

_SEED: Final = 7


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """`blame_accuracy`: share of injected faults whose step is named; beside it, that of naming the first step unlike the reference."""
    return {**asyncio.run(_blamed(8 if quick else 100)), **_recorded(5_000)}


async def _blamed(faults: int) -> dict[str, Any]:
    random_ = random.Random(_SEED)
    world = SearchWorld()
    named = first = certain = tried = replays = 0
    with tempfile.TemporaryDirectory() as folder, closing(open_traces(RunsConfig(folder=Path(folder)))) as store:
        for number, task in enumerate(world.tasks(faults * 3, _SEED)):
            if tried == faults:
                break
            found = await _blame_one(world, task, store, random_, number)
            if found is None:
                continue
            tried += 1
            named, first, certain, replays = (a + b for a, b in zip((named, first, certain, replays), found, strict=True))
    return {
        "blame_accuracy": named / tried,
        "blame_accuracy_first_difference": first / tried,
        "blame_certain": certain / tried,
        "blame_replays": replays / tried,
        "blame_faults": tried,
    }


async def _blame_one(
    world: SearchWorld, task: WorldTask, store: TraceStore, random_: random.Random, number: int
) -> tuple[bool, bool, bool, int] | None:
    """Whether blame names the injected step, whether its first difference from the reference is it; None where the fault did no harm."""
    question = world.question(task)
    program = question.program
    right = [str(argument.value) for step in program.steps for _, argument in step.arguments] + [question.answer]
    wrong = wrong_value(right, names("person", "test"), random_)
    fault = draw_fault(program, random_)
    good = await _run(world, task, store, ProgramExecutor(program, None, wrong), f"good-{number}")
    bad = await _run(world, task, store, ProgramExecutor(program, fault, wrong), f"bad-{number}")
    if bad.answer is None or exact_match(bad.answer, question.answer):
        return None
    reference = Reference.of(good)
    live = {"near": Member("near", Side.NEAR, ProgramExecutor(program, fault, wrong))}

    def judge(answer: str, calls: Sequence[ToolCall]) -> bool:
        return bool(exact_match(answer, question.answer))

    found = await blame(bad, reference, judge, live=live, also=[good])
    injected = fault.place + 1 + (fault.detour is not None)
    challenged = [step.number for step in bad.steps if await reference.correct(step) is not None]
    is_named = found.decisive is not None and found.decisive.step == injected
    return is_named, challenged[0] == injected, found.is_certain, found.replays


async def _run(world: SearchWorld, task: WorldTask, store: TraceStore, agent: ProgramExecutor, name: str) -> RecordedRun:
    episode = world.reset(task)
    async with Hybrid(near=agent, tools=episode.tools, traces=store, policy=Policy()) as hybrid:
        await hybrid.run(task.prompt, strategy="device", idempotency_key=name)
    episode.close()
    store.flush()
    return RecordedRun(name, store.entries(name))


def _recorded(entries: int) -> dict[str, Any]:
    """What an entry takes of the run's own time, and of the processor with all that the writing thread does."""
    with tempfile.TemporaryDirectory() as folder, closing(open_traces(RunsConfig(folder=Path(folder)))) as store:
        trace = RunTrace.of(store, Task(messages=(Message.user("a task"),)), {})
        event = AttemptStarted(agent="near", side=Side.NEAR, model="a model")
        used, started = time.process_time(), time.perf_counter()
        for _ in range(entries):
            trace.hear(event)
        heard = time.perf_counter() - started
        store.flush()
        used = time.process_time() - used
    return {"trace_hear_us": 1e6 * heard / entries, "trace_cpu_us": 1e6 * used / entries}
