"""What each of several processes does to one cache: many tasks at a time ask for different users, models and policies."""

import asyncio
import json
import resource
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from stored_answers import ask, embedder

from nearfar.orchestrator.cache import AnswerCache
from nearfar.orchestrator.cache.agent import CachedAgent
from nearfar.orchestrator.task import TaskScope, current_scope, within_scope
from nearfar.orchestrator.task.stores import CacheConfig
from nearfar.protocols import Message, ScriptedAgent, StepRequest, complete

_AT_A_TIME: Final = 8
_PLACES: Final = ("Bonn", "Ulm", "Berlin", "Much Wenlock")
_WORDINGS: Final = ("How can I find {}?", "What is the best way to find {}?", "How can I not find {}?", "Why can I find {}?")


def work(path: Path, worker: int, tasks: int, *, semantic: bool, largest_file: int | None) -> None:
    """Ask, see that every answer is the right one, and write down how many there were and how many came from the cache."""
    if largest_file is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, hard))  # as if the disk were full beyond
    cache = AnswerCache(CacheConfig(path=path, semantic=semantic, shadow_share=0), embedder=embedder() if semantic else None)
    saved = asyncio.run(_crowd(cache, Random(worker), tasks))
    cache.close()
    path.with_name(f"told-{worker}.json").write_text(json.dumps({"asked": tasks, "saved": saved}), encoding="utf-8")


async def _crowd(cache: AnswerCache, random: Random, tasks: int) -> int:
    agents = {model: CachedAgent(ScriptedAgent(partial(_answer, model), name="far", model=model), cache) for model in ("large", "small")}
    room = asyncio.Semaphore(_AT_A_TIME)

    async def one() -> bool:
        async with room:
            return await _asked(agents, random)

    return sum(await asyncio.gather(*(one() for _ in range(tasks))))


async def _asked(agents: dict[str, CachedAgent], random: Random) -> bool:
    """Whether the answer came from the cache; that it is the right one is asserted."""
    model, system = random.choice(["large", "small"]), random.choice(["Be brief.", "Be exact."])
    whose = TaskScope(user=random.choice(["ada", "bea"]), policy=random.choice(["strict", "free"]))
    question = random.choice(_WORDINGS).format(random.choice(_PLACES))
    request = ask("", messages=(Message.system(system), Message.user(question)))
    with within_scope(whose):
        reply = await complete(agents[model], request)
        assert reply.text == _answer(model, request), (question, reply.text)
    return reply.finished.saved is not None


def _answer(model: str, request: StepRequest) -> str:
    """The same for what means the same, and for nothing else."""
    system, question = (message.text for message in request.messages)
    meaning = question.replace("What is the best way to", "How can I")
    asked = current_scope()
    return " / ".join((asked.user, asked.policy, model, system, meaning))
