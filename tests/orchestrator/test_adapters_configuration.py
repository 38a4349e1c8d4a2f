"""Adapters named in nearfar.toml, through a whole task."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("llguidance", reason="running models needs an engine: pip install 'nearfar[onnx]'")

from nearfar import Hybrid, Policy, Strategy, load_config
from nearfar.orchestrator.compose import NearConfig, model_path
from nearfar.orchestrator.lab.worlds.apps import AppsWorld

ALONE = Policy(strategy=Strategy.DEVICE)
TASKS = 8


async def solved(near: NearConfig) -> int:
    world = AppsWorld()
    rights = []
    async with Hybrid(near=near, policy=ALONE) as hybrid:
        for task in world.tasks(TASKS, seed=1):
            episode = world.reset(task)
            result = await hybrid.run(task.prompt, tools=episode.tools)
            rights.append(episode.grade(result.text).success)
    return sum(rights)


@pytest.mark.anyio
async def test_near_does_errands_with_the_adapters_of_the_configuration(tmp_path: Path) -> None:
    """One ships with nearfar, the other lies beside the file."""
    shutil.copy(model_path("near-calls"), tmp_path / "calls.gguf")
    (tmp_path / "nearfar.toml").write_text(
        '[near]\nmodel = "near"\nadapters = { text = "near-text", calls = "calls.gguf" }\nadapter = "text"\ncall_adapter = "calls"\n',
        encoding="utf-8",
    )
    near = load_config(tmp_path / "nearfar.toml").near
    assert isinstance(near, NearConfig)
    assert await solved(near) >= await solved(NearConfig()) + TASKS // 4
