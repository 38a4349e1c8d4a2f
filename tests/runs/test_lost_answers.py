"""A server that keeps what it is told to keep, and dies before it says so."""

from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest
from forgetful_server import ForgetfulServer, forgetful

from nearfar import Hybrid, Records, tool
from nearfar.orchestrator.runs import RunState
from nearfar.orchestrator.runs.store import RunStore
from nearfar.orchestrator.storage.postgres import PostgresDatabase, PostgresSession
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import ScriptedAgent, StepRequest, ToolCall

pytestmark = pytest.mark.anyio

WRITES = 8
"""Commits of a run at least: its task, its nodes, the intent and the result of its call, its own result."""


def near(request: StepRequest) -> ToolCall | str:
    told = request.messages[-1].tool_result
    return ToolCall(id="1", name="send", arguments={}) if told is None else told.content


def lose(place: int, server: ForgetfulServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the answer to itself to one commit, before which there are so many."""
    kept = PostgresDatabase.writing
    left = place

    def writing(database: PostgresDatabase) -> AbstractContextManager[PostgresSession]:
        nonlocal left
        server.is_armed, left = left == 0, left - 1
        return kept(database)

    monkeypatch.setattr(PostgresDatabase, "writing", writing)


@pytest.mark.parametrize("place", range(WRITES))
async def test_what_was_kept_without_a_word_is_neither_done_again_nor_taken_for_lost(
    place: int, postgres_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    @tool(effect="at_most_once")
    def send() -> str:
        """Send it."""
        sent.append("sent")
        return "sent"

    with forgetful(postgres_database) as (server, address), closing(RunStore.open(RunsConfig(folder=tmp_path), address=address)) as store:
        lose(place, server, monkeypatch)
        async with Hybrid(near=ScriptedAgent(near), tools=[send], records=Records(runs=store)) as hybrid:
            result = await hybrid.run("Send it", idempotency_key="run")
        assert (result.text, store.show("run").state) == ("sent", RunState.DONE)
        assert server.commits_lost == 1
    assert sent == ["sent"]
