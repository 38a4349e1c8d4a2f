"""What is recorded of a run."""

import logging
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from traced_tasks import LOOKUP, hybrid, lookup

from nearfar import Hybrid, Records
from nearfar.orchestrator.storage import DatabaseSession
from nearfar.orchestrator.task.events import AttemptEnded, Routed
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.orchestrator.tracing import (
    AgentStepped,
    EntriesLost,
    Happened,
    Labelled,
    RunBegan,
    RunEnded,
    ToolRan,
    TraceStore,
    insert_entries,
    open_traces,
)
from nearfar.orchestrator.tracing.recorder import redact_credentials
from nearfar.protocols import DeadlineExceeded, NotFound, ScriptedAgent, StepRequest, StoreUnavailable, ToolCall, Unavailable
from nearfar.protocols.items import Tier

pytestmark = pytest.mark.anyio


async def test_a_trace_has_each_step_tool_call_and_decision_in_order(traces: TraceStore) -> None:
    async with hybrid([LOOKUP, "Tomas Berg"], [LOOKUP, "Mira Falk"], records=Records(traces=traces)) as agents:
        result = await agents.run("Who leads Orbix Labs?", strategy="cascade", idempotency_key="r1")
    entries = traces.entries("r1")
    assert [entry.type for entry in entries] == [
        "began", "event", "event", "step", "tool", "step", "event", "event", "step", "tool", "step", "event", "ended",
    ]  # fmt: skip
    began, routed, ended = entries[0], entries[1], entries[-1]
    assert isinstance(began, RunBegan)
    assert [each.declared.effect for each in began.tools] == ["read", "read"]
    assert isinstance(routed, Happened)
    assert isinstance(routed.event, Routed)
    assert isinstance(ended, RunEnded)
    assert (ended.text, ended.agent, ended.dollars) == ("Mira Falk", "far", result.dollars)
    assert [entry.call for entry in entries if isinstance(entry, AgentStepped)] == list(result.calls)
    assert [entry.call.arguments for entry in entries if isinstance(entry, ToolRan)] == [LOOKUP.arguments] * 2
    attempts = [entry.event.attempt for entry in entries if isinstance(entry, Happened) and isinstance(entry.event, AttemptEnded)]
    assert attempts == list(result.attempts)
    assert all(before.at <= after.at for before, after in zip(entries, entries[1:], strict=False))


async def test_a_step_is_kept_with_what_is_new_in_its_request(traces: TraceStore) -> None:
    async with hybrid([LOOKUP, "Mira Falk"], [], records=Records(traces=traces)) as agents:
        await agents.run("Who leads Orbix Labs?", strategy="device", idempotency_key="r1")
    first, second = (entry for entry in traces.entries("r1") if isinstance(entry, AgentStepped))
    assert [(step.kept, [message.role for message in step.messages]) for step in (first, second)] == [
        (0, ["user"]),
        (1, ["assistant", "tool"]),
    ]
    assert (first.reply.tool_calls, second.reply.text) == ((LOOKUP,), "Mira Falk")


async def test_what_a_private_tool_says_is_a_change_of_label(traces: TraceStore) -> None:
    read = ToolCall(id="1", name="read_mail", arguments={"subject": "vault"})
    async with hybrid([read, "at nine"], [], records=Records(traces=traces)) as agents:
        await agents.run("When does it open?", strategy="device", idempotency_key="r1")
    labels = [entry.label for entry in traces.entries("r1") if isinstance(entry, Labelled)]
    assert (labels[-1].tier, labels[-1].integrity, labels[-1].origins) == (Tier.DEVICE, "untrusted", ("tool read_mail",))


async def test_tokens_are_not_kept(traces: TraceStore, config: RunsConfig) -> None:
    read = ToolCall(id="1", name="read_mail", arguments={"subject": "vault"})
    async with hybrid([read, "the key is sk-abcdefghijklmnopqrst"], [], records=Records(traces=traces)) as agents:
        await agents.run("Which key?", strategy="device", idempotency_key="r1")
    traces.flush()
    kept = b"".join(path.read_bytes() for path in config.folder.glob("traces.db*"))
    assert b"abcdefgh1234" not in kept
    assert b"sk-abcdefg" not in kept
    assert b"[redacted]" in kept


@pytest.mark.parametrize(
    "secret",
    [
        "sk-abcdefghijklmnop12",
        "AIzaSyabcdefghijklmnopqrstu",
        "AKIAABCDEFGHIJKLMNOP",
        "ghp_abcdefghijklmnopqrst",
        "xoxb-1234567890",
        "eyJabcdefgh.eyJabcdefgh.abc",
        "-----BEGIN RSA PRIVATE KEY-----\\nabc\\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_credentials_are_replaced(secret: str) -> None:
    assert redact_credentials(f'"{secret}", {secret}') == '"[redacted]", [redacted]'
    assert redact_credentials("BEARER abcdefgh.Bearer ijklmnop") == "BEARER [redacted] [redacted]"
    assert redact_credentials("https://x.org/?KEY=abc&key=def") == "https://x.org/?KEY=[redacted]&key=[redacted]"


@pytest.mark.parametrize("words", ["a risk-averse plan", "key-value", "the sk-rating", "eyJust", "?monkey=1"])
def test_ordinary_words_are_no_credentials(words: str) -> None:
    assert redact_credentials(words) == words


async def test_a_failed_run_says_why(traces: TraceStore) -> None:
    async with hybrid([Unavailable("the model is gone")], [Unavailable("the cloud, too")], records=Records(traces=traces)) as agents:
        with pytest.raises(Unavailable):
            await agents.run("Who?", strategy="cascade", idempotency_key="r1")
    last = traces.entries("r1")[-1]
    assert isinstance(last, RunEnded)
    assert (last.outcome, last.error) == ("failed", "Unavailable")
    assert "the cloud, too" in last.text


async def test_a_run_that_is_out_of_time_says_so(traces: TraceStore) -> None:
    async with hybrid([anyio.Event()], [], records=Records(traces=traces)) as agents:
        with pytest.raises(DeadlineExceeded):
            await agents.run("Who?", strategy="device", idempotency_key="r1", timeout=0.01)
    last = traces.entries("r1")[-1]
    assert isinstance(last, RunEnded)
    assert last.outcome == "stopped"


async def test_a_trace_that_cannot_be_written_fails_no_run(traces: TraceStore, caplog: pytest.LogCaptureFixture) -> None:
    with traces.database.writing() as session:
        session.execute("ALTER TABLE entries RENAME TO gone")
    with caplog.at_level(logging.WARNING):
        async with hybrid([LOOKUP, "Mira Falk"], [], records=Records(traces=traces)) as agents:
            result = await agents.run("Who leads Orbix Labs?", strategy="device", idempotency_key="r1")
        traces.flush()
    assert result.text == "Mira Falk"
    assert "could not be traced" in caplog.text


async def test_what_was_lost_is_counted(traces: TraceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.orchestrator.tracing.recorder.MOST_WAITING", 1)
    with traces.database.writing():  # the thread that writes waits meanwhile
        async with hybrid([LOOKUP, "Mira Falk"], [], records=Records(traces=traces)) as agents:
            await agents.run("Who leads Orbix Labs?", strategy="device", idempotency_key="r1")
    assert [entry.count > 3 for entry in traces.entries("r1") if isinstance(entry, EntriesLost)] == [True]


async def test_a_resumed_run_goes_on_in_the_same_trace(config: RunsConfig) -> None:
    async with hybrid([LOOKUP, Unavailable("gone")], [], records=config) as agents:
        with pytest.raises(Unavailable):
            await agents.run("Who leads Orbix Labs?", strategy="device", idempotency_key="r1")
    async with hybrid(["Mira Falk"], [], records=config) as agents:
        await agents.resume("r1")
    store = open_traces(config)
    entries = store.entries("r1")
    store.close()
    assert [entry.type for entry in entries].count("began") == 2
    assert [entry.outcome for entry in entries if isinstance(entry, RunEnded)] == ["failed", "done"]


async def test_a_trace_is_forgotten_with_its_run_and_is_the_owners_alone(config: RunsConfig) -> None:
    async with hybrid(["Mira Falk"], [], records=config) as agents:
        await agents.run("Who leads Orbix Labs?", strategy="device", idempotency_key="r1")
        agents.runs.forget("r1")
    path = Path(config.folder / "traces.db")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    store = open_traces(config)
    with pytest.raises(NotFound):
        store.entries("r1")
    store.close()
    assert b"Orbix" not in path.read_bytes()


async def test_a_trace_is_for_its_user(traces: TraceStore) -> None:
    async with hybrid(["Mira Falk"], [], records=Records(traces=traces)) as agents:
        await agents.run("Who leads Orbix Labs?", strategy="device", idempotency_key="r1", user="mira")
    assert [line.run for line in traces.newest(user="mira")] == ["r1"]
    assert traces.newest(user="tomas") == []
    with pytest.raises(NotFound, match="no trace"):
        traces.entries("r1", user="tomas")


async def test_traces_are_kept_in_a_database_that_several_orchestrators_share(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch, config: RunsConfig
) -> None:
    monkeypatch.setenv("RUNS_DATABASE", postgres_database)
    shared = config.model_copy(update={"postgres_variable": "RUNS_DATABASE"})
    async with hybrid([LOOKUP, "Mira Falk"], [], records=shared) as agents:
        result = await agents.run("Who leads Orbix Labs?", strategy="device", idempotency_key="r1", user="mira")
        assert [(line.run, line.ended.text) for line in agents.traces.newest(user="mira") if line.ended] == [("r1", result.text)]
        assert agents.traces.newest(user="tomas") == []
        agents.runs.forget("r1")
        with pytest.raises(NotFound):
            agents.traces.entries("r1")


async def test_nothing_of_a_run_comes_back_once_its_trace_is_forgotten(traces: TraceStore) -> None:
    """As where another process erases it while its last entries are on their way."""

    def erases(request: StepRequest) -> str:
        traces.flush()
        traces.forget_all(["r1"])
        return "Mira Falk"

    async with Hybrid(near=ScriptedAgent(erases, name="near"), records=Records(traces=traces)) as agents:
        await agents.run("Who leads Orbix?", strategy="device", idempotency_key="r1")
    with pytest.raises(NotFound):
        traces.entries("r1")


async def test_behind_lost_entries_a_step_is_kept_with_its_whole_request(traces: TraceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nobody could tell what it was asked."""
    failed: list[bool] = []

    def written(session: DatabaseSession, run: str, user: str, entries: list[tuple[str, str]]) -> None:
        if not failed and any(type_ == "step" for type_, _ in entries):
            failed.append(True)
            raise StoreUnavailable("the disk is full")
        insert_entries(session, run, user, entries)

    monkeypatch.setattr("nearfar.orchestrator.tracing.recorder.insert_entries", written)

    def script(request: StepRequest) -> Any:  # noqa: ANN401 - what a script may say
        with suppress(StoreUnavailable):
            traces.flush()
        return "Mira Falk" if len(request.messages) > 4 else LOOKUP.model_copy(update={"id": str(len(request.messages))})

    async with Hybrid(near=ScriptedAgent(script, name="near"), tools=[lookup], records=Records(traces=traces)) as agents:
        await agents.run("Who leads Orbix?", strategy="device", idempotency_key="r1")
    lost = [entry.type for entry in traces.entries("r1")].index("lost")
    first = next(entry for entry in traces.entries("r1")[lost:] if isinstance(entry, AgentStepped))
    assert first.kept == 0
