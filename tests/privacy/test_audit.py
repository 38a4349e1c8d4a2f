"""The record of what left: complete, durable, and without a word of it."""

import json
import re
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nearfar import Hybrid, Records, Tier, tool
from nearfar.orchestrator.agents import AgentHandle
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.hybrid.arguments import TaskOptions
from nearfar.orchestrator.safety.outbound_filter import OutboundRecord, PrivacyRecords
from nearfar.orchestrator.safety.placeholders import Placeholder
from nearfar.orchestrator.safety.privacy import RunPrivacy
from nearfar.orchestrator.task.labels import Label
from nearfar.orchestrator.task.policy import OnFinding, Policy, PrivacyConfig
from nearfar.orchestrator.task.stores import CacheConfig, RunsConfig
from nearfar.protocols import Message, PrivacyViolation, ScriptedAgent, Sensitivity, Side, StepRequest, ToolCall
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

DIARY = "the vault opens at nine, says Tomas Berg"
EMAIL = "tomas.berg@example.org"
READ = ToolCall(id="1", name="read_diary", arguments={})
FAR: TaskOptions = {"mode": "prefer_in_cloud", "strategy": "route", "idempotency_key": "run-1"}
POLICY = Policy(sensitivity=Sensitivity.PUBLIC, privacy=PrivacyConfig(placeholders=True, findings=OnFinding.PLACEHOLDER))


@tool(returns="device", effect="read", source="internal_tool")
def read_diary() -> str:
    """What was written."""
    return DIARY


def says(request: StepRequest) -> Reply:
    """Reads the diary and repeats the placeholders that it is shown."""
    if len(request.messages) == 1:
        return READ
    return " ".join(re.findall(r"<[A-Z]+_\d+_\w{6}>", request.model_dump_json()))


def far() -> ScriptedAgent:
    return ScriptedAgent(says, name="far", side=Side.FAR)


def files(folder: Path) -> bytes:
    """All that is on the disk."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def served(folder: Path, policy: Policy = POLICY, near: ScriptedAgent | None = None) -> list[OutboundRecord]:
    records = PrivacyRecords(folder)
    async with Hybrid(near=near, far=far(), tools=[read_diary], policy=policy, records=Records(privacy=records)) as hybrid:
        await hybrid.run(f"Write what my diary says to {EMAIL}", **FAR)
    found = records.outbound_log("run-1")
    records.close()
    return found


async def test_audit_tells_what_left_to_whom_how_much_and_why(tmp_path: Path) -> None:
    first, second = await served(tmp_path)
    assert (first.agent, first.role, first.outcome, first.findings) == ("far", "execute", "left", {"email": 1})
    assert first.reason == "placeholders stand where the detectors found something"
    assert [name.split("_")[0] for name in first.placeholders] == ["<EMAIL"]
    assert [name.split("_")[0] for name in second.placeholders] == ["<EMAIL", "<PRIVATE"]
    assert second.bytes > first.bytes > 50
    assert len(first.digest) == 64
    assert first.tier is second.tier is Tier.SHARED


async def test_audit_tells_what_was_held_back(tmp_path: Path) -> None:
    policy = POLICY.model_copy(update={"privacy": PrivacyConfig()})
    (held,) = await served(tmp_path, policy, ScriptedAgent(["nine"], name="near"))
    assert (held.outcome, held.findings) == ("held", {"email": 1})
    assert "looks private" in held.reason


async def test_audit_of_a_run_that_read_something_private_names_the_tool(tmp_path: Path) -> None:
    policy = POLICY.model_copy(update={"privacy": PrivacyConfig(findings=OnFinding.ALLOW)})
    near = ScriptedAgent(lambda request: READ if len(request.messages) == 1 else "nine", name="near")
    left, held = await served(tmp_path, policy, near)
    assert (left.outcome, left.reason) == ("left", "[policy.privacy] findings allows what the detectors found")
    assert (held.outcome, held.tier, held.origins) == ("held", Tier.DEVICE, ("tool read_diary",))


async def test_names_of_items_of_the_memory_are_in_no_reason(tmp_path: Path) -> None:
    """They may say as much as the items."""
    records = PrivacyRecords(tmp_path)
    label = Label(tier=Tier.DEVICE, origins=("memory patients/tomas-berg", "tool read_diary"))
    cloud = AgentHandle("far", Side.FAR, far())
    privacy = RunPrivacy(PrivacyConfig(), [], records=records.of("run-1"))
    request = StepRequest(messages=(Message.user("hi"),))
    with pytest.raises(PrivacyViolation, match="the memory, tool read_diary") as raised:
        await privacy.filter_request(cloud, request, label, role="execute")
    records.close()
    assert "tomas" not in str(raised.value)
    assert b"tomas" not in files(tmp_path)


async def test_what_goes_to_another_device_of_the_user_is_on_record_too(tmp_path: Path) -> None:
    records = PrivacyRecords(tmp_path)
    near = ScriptedAgent(["At nine."], name="near")
    near.is_elsewhere = True  # type: ignore[attr-defined]  # as agents in other processes say it
    async with Hybrid(near=near, records=Records(privacy=records)) as hybrid:
        await hybrid.run("When does it open?", idempotency_key="run-1")
    (left,) = records.outbound_log("run-1")
    assert (left.agent, left.outcome, left.tier, left.origins) == ("near", "left", Tier.USER, ("the task",))
    records.close()


async def test_answer_from_a_cache_is_on_record_as_nothing_that_left(tmp_path: Path) -> None:
    records = PrivacyRecords(tmp_path / "runs")
    cache = CacheConfig(path=tmp_path / "cache.db", sides=(Side.FAR,), semantic=False)
    policy = Policy(sensitivity=Sensitivity.PUBLIC)
    async with Hybrid(
        far=ScriptedAgent(["Lima."], name="far", side=Side.FAR), policy=policy, records=Records(cache=cache, privacy=records)
    ) as hybrid:
        for key in ("run-1", "run-2"):
            await hybrid.run("What is the capital of Peru?", strategy="cloud", idempotency_key=key)
    assert [[each.outcome for each in records.outbound_log(key)] for key in ("run-1", "run-2")] == [["left"], ["cached"]]
    records.close()


async def test_nothing_on_the_disk_holds_a_private_word(tmp_path: Path) -> None:
    await served(tmp_path)
    kept = files(tmp_path)
    assert b"run-1" in kept
    assert not any(word in kept for word in (b"vault", EMAIL.encode(), b"Tomas"))
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_placeholders_are_kept_sealed_until_the_run_ends_and_the_key_goes_with_them(tmp_path: Path) -> None:
    placeholder = Placeholder(name="<EMAIL_1_abcdef>", value=EMAIL, tier=Tier.USER, origin="the detectors")
    records = PrivacyRecords(tmp_path)
    records.of("run-1").keep([placeholder])
    records.of("run-2").keep([placeholder])
    records.close()
    records = PrivacyRecords(tmp_path)
    assert records.of("run-1").placeholders() == [placeholder]
    assert EMAIL.encode() not in files(tmp_path)
    records.of("run-1").end()
    assert records.of("run-1").placeholders() == []
    assert records.of("run-2").placeholders() == [placeholder]
    records.close()
    with sqlite3.connect(tmp_path / "privacy.keys") as keys:
        assert keys.execute("SELECT count(*) FROM keys").fetchone() == (1,)
    keys.close()


def test_placeholder_of_one_run_cannot_be_read_in_the_place_of_another_ones(tmp_path: Path) -> None:
    records = PrivacyRecords(tmp_path)
    records.of("run-1").keep([Placeholder(name="<EMAIL_1_abcdef>", value=EMAIL, tier=Tier.USER, origin="x")])
    with records.database.writing() as connection:
        connection.execute("UPDATE placeholders SET number = 2")
    with pytest.raises(ValueError, match="sealed for another write"):
        records.of("run-1").placeholders()
    records.close()


def test_record_of_the_oldest_runs_is_forgotten(tmp_path: Path) -> None:
    record = OutboundRecord(
        at=0.0, agent="far", role="execute", outcome="left", reason="", bytes=1, digest="", tier=Tier.SHARED, origins=()
    )
    records = PrivacyRecords(tmp_path)
    for number in range(5):
        records.of(f"run-{number}").log(record)
    records.close()
    records = PrivacyRecords(tmp_path, keep=2)
    assert [bool(records.outbound_log(f"run-{number}")) for number in range(5)] == [False, False, False, True, True]
    records.close()


async def test_placeholders_of_a_run_that_broke_off_are_the_same_when_it_goes_on(tmp_path: Path) -> None:
    policy = PrivacyConfig(placeholders=True)
    records = PrivacyRecords(tmp_path)
    name = RunPrivacy(policy, [], records=records.of("run-1")).placeholders.name_for(DIARY, "private", tier=Tier.DEVICE, origin="x")
    records.close()
    records = PrivacyRecords(tmp_path)
    again = RunPrivacy(policy, [], records=records.of("run-1"))
    assert again.placeholders.name_for(DIARY, "private", tier=Tier.DEVICE, origin="x") == name
    assert again.placeholders.fill(name) == DIARY
    records.close()


async def test_nothing_leaves_that_cannot_be_recorded(tmp_path: Path) -> None:
    records = PrivacyRecords(tmp_path)
    cloud = far()
    async with Hybrid(far=cloud, tools=[read_diary], policy=POLICY, records=Records(privacy=records)) as hybrid:
        with records.database.writing() as connection:
            connection.execute("CREATE TRIGGER full BEFORE INSERT ON departures BEGIN SELECT RAISE(ABORT, 'full'); END")
        with pytest.raises(PrivacyViolation, match="could not be recorded"):
            await hybrid.run("Hello", **FAR)
    assert cloud.requests == []
    records.close()


@pytest.mark.usefixtures("wide_terminal")
async def test_command_prints_the_audit_as_a_table_and_as_json(tmp_path: Path) -> None:
    configuration = tmp_path / "nearfar.toml"
    configuration.write_text('[runs]\nfolder = "runs"\n', encoding="utf-8")
    await served(RunsConfig(folder=tmp_path / "runs").folder)
    told = CliRunner().invoke(app, ["privacy", "audit", "run-1", "--json", "--config", str(configuration)])
    assert told.exit_code == 0, told.output
    departures = json.loads(told.stdout)["departures"]
    assert [each["outcome"] for each in departures] == ["left", "left"]
    table = CliRunner().invoke(app, ["privacy", "audit", "run-1", "--config", str(configuration)])
    assert "placeholders stand where" in table.output
    unknown = CliRunner().invoke(app, ["privacy", "audit", "run-9", "--config", str(configuration)])
    assert unknown.exit_code == 2
    assert "run-9" in unknown.output
