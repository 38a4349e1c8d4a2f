"""Score, far tokens and dollars of `pevr` where near drafts its own plan, over those of a plan by far for every task.

The shipped models work on errands (apps) and questions (search) of a seed that nothing was chosen on; the limits of the draft's
confidence were chosen on seeds 777 and 778. Both configurations have the same tasks, and no checks.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from nearfar.orchestrator.compose import NearConfig, parse_far
from nearfar.orchestrator.lab.statistics import ratio
from nearfar.orchestrator.lab.study import StudyFile, make_study
from nearfar.orchestrator.lab.study.workbench import Item, Workbench
from nearfar.orchestrator.routing.outcome_records import RunRecord
from nearfar.orchestrator.task.policy import Policy

_SEED: Final = 5101
_LIMITS: Final[Mapping[str, float]] = {"apps": 0.7, "search": 0.88}
_FULL: Final = "pevr/inf"
_AT_ONCE: Final = 8
_MEASURES: Final[Mapping[str, Callable[[RunRecord], float]]] = {
    "score": lambda record: record.score,
    "tokens": lambda record: record.far_usage.output_tokens,
    "dollars": lambda record: record.dollars or 0.0,
    "near_tokens": lambda record: record.near_usage.total_tokens,
}


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Return the ratios of each world with their intervals; those of apps have a bar. `data` is not used."""
    found: dict[str, Any] = {}
    for world, limit in _LIMITS.items() if not quick else (("apps", _LIMITS["apps"]),):
        draft = f"{_FULL}:draft_plan_above={limit}"
        records = asyncio.run(_records(world, (_FULL, draft), 24 if quick else 200))
        name = "partial_plan" if world == "apps" else f"partial_plan_{world}"
        found |= _ratios(name, records, draft)
    return found


async def _records(world: str, runs: tuple[str, ...], tasks: int) -> list[RunRecord]:
    file = StudyFile(worlds=(world,), tasks=tasks, seeds=(_SEED,), runs=runs, policy={"maximum_turns": 40}, jobs=1)
    study = make_study(file, near=NearConfig(model="near", threads=1), far=parse_far("far"), policy=Policy())
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(bench: Workbench, item: Item) -> RunRecord:
        async with slots:
            return await bench.run(item)

    items = [
        Item(world=world, seed=_SEED, index=index, configuration=configuration.label)
        for index in range(tasks)
        for configuration in study.configurations
    ]
    async with Workbench(study) as bench:
        return list(await asyncio.gather(*(one(bench, item) for item in items)))


def _ratios(name: str, records: list[RunRecord], draft: str) -> dict[str, Any]:
    drafted, full = ([each for each in records if (each.configuration == draft) is is_draft] for is_draft in (True, False))
    found: dict[str, Any] = {
        f"{name}_tasks": len(full),
        f"{name}_full_score": sum(each.score for each in full) / len(full),
        f"{name}_without_far": sum(not each.far_calls for each in drafted) / len(drafted),
    }
    for measure, value in _MEASURES.items():
        estimate = ratio(*({each.task: [value(each)] for each in runs} for runs in (drafted, full)))
        assert estimate is not None, "every plan by far has tokens and a price"
        found[f"{name}_{measure}"] = estimate.value
        found[f"{name}_{measure}_interval"] = [estimate.low, estimate.high]
    return found
