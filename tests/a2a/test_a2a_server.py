"""A `Hybrid` as an A2A agent, called with the package's own client on all transports."""

from pathlib import Path

import pytest

pytest.importorskip("a2a", reason="A2A is an extra: pip install 'nearfar[a2a]'")
from a2a.types import TaskState
from a2a_face import TRANSPORTS, answer, calling, served

from nearfar import Hybrid, ScriptedAgent

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("transport", TRANSPORTS)]


async def test_a_message_is_answered_by_an_artifact_of_its_task(transport: str, tmp_path: Path) -> None:
    async with (
        Hybrid(near=ScriptedAgent(["It is small."]), records=tmp_path) as hybrid,
        served(hybrid) as server,
        calling(server, transport) as ana,
    ):
        task = await ana.send("How is it?")
        assert (task.status.state, answer(task)) == (TaskState.TASK_STATE_COMPLETED, "It is small.")
        assert (await ana.get(task.id)) == task
        assert hybrid.runs.show(task.id).user == "ana"
