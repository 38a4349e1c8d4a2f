"""Random schedules of writes, partitions, restarts, skewed clocks, erasures and revocations."""

import os
from itertools import combinations
from pathlib import Path
from random import Random

import pytest
from sync_world import World, check_convergence, check_erased, check_nothing_lost, check_wire

SCHEDULES = int(os.environ.get("NEARFAR_SYNC_SCHEDULES", "500"))
_STEPS = 40
_PARTS = 10
_ON_FILES = 25
"""Of so many schedules one is on files, with replicas that restart."""


@pytest.mark.parametrize("part", range(_PARTS))
def test_replicas_converge_and_lose_nothing_and_keep_private_what_is(part: int, tmp_path: Path) -> None:
    for seed in range(part, SCHEDULES, _PARTS):
        is_on_files = seed % _ON_FILES == part
        folder = tmp_path / str(seed) if is_on_files else None
        if folder is not None:
            folder.mkdir()
        check_schedule(seed, folder)


def check_schedule(seed: int, folder: Path | None) -> None:
    world = World(Random(seed), folder)
    world.run(_STEPS)
    world.heal()
    for one, other in combinations(world.live, 2):
        check_convergence(one, other)
    for node in world.live:
        check_nothing_lost(world, node)
        check_erased(world, node)
    check_wire(world)
    for node in world.nodes:
        node.close()
