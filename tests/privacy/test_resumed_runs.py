"""A run that another process goes on with knows what it was told, and what its placeholders stand for."""

import re
from pathlib import Path

import pytest

from nearfar import Hybrid, Tier, tool
from nearfar.orchestrator.hybrid.arguments import TaskOptions
from nearfar.orchestrator.safety.outbound_filter import PrivacyRecords
from nearfar.orchestrator.safety.privacy import RunPrivacy
from nearfar.orchestrator.task.policy import Policy, PrivacyConfig
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import InvalidOutput, Message, PrivacyViolation, ScriptedAgent, Sensitivity, Side, StepRequest, ToolCall, Unavailable
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

DIARY = "the vault opens at nine, says Tomas Berg"
READ = ToolCall(id="1", name="read_diary", arguments={})
FAR: TaskOptions = {"strategy": "cloud", "idempotency_key": "run-1"}


@tool(returns="device", effect="read", source="internal_tool")
def read_diary() -> str:
    """What was written."""
    return DIARY


@tool(effect="idempotent")
def keep(text: str) -> str:
    """Keep a text."""
    return f"kept {len(text)}"


def placeholder_in(message: Message) -> str:
    found = re.search(r"<[A-Z]+_\d+_\w{6}>", message.model_dump_json())
    assert found is not None
    return found[0]


def far(*replies: Reply) -> ScriptedAgent:
    """Reads the diary, keeps it, and goes on with `replies`, in which `{}` is the placeholder that it has written itself."""
    last = list(replies)

    def script(request: StepRequest) -> Reply:
        match len(request.messages):
            case 1:
                return READ
            case 3:
                return ToolCall(id="2", name="keep", arguments={"text": placeholder_in(request.messages[2])})
            case _:
                reply = last.pop(0)
                return reply.format(placeholder_in(request.messages[3])) if isinstance(reply, str) else reply

    return ScriptedAgent(script, name="far", side=Side.FAR)


def hybrid(folder: Path, agent: ScriptedAgent, *, placeholders: bool) -> Hybrid:
    policy = Policy(sensitivity=Sensitivity.PUBLIC, privacy=PrivacyConfig(placeholders=placeholders))
    return Hybrid(far=agent, tools=[read_diary, keep], policy=policy, records=RunsConfig(folder=folder))


async def broken_off(folder: Path, *, placeholders: bool = True) -> None:
    """The agent is lost after the tools have run."""
    async with hybrid(folder, far(Unavailable("gone")), placeholders=placeholders) as first:
        with pytest.raises((Unavailable, PrivacyViolation)):
            await first.run("Keep my diary", **FAR)


async def test_placeholders_that_an_agent_has_seen_mean_the_same_when_the_run_goes_on(tmp_path: Path) -> None:
    await broken_off(tmp_path)
    cloud = far("It says {}.")
    async with hybrid(tmp_path, cloud, placeholders=True) as second:
        result = await second.resume("run-1")
    assert result.text == f"It says {DIARY}."
    assert result.label.tier is Tier.DEVICE
    assert len(cloud.requests) == 1
    assert "vault" not in cloud.requests[0].model_dump_json()


async def test_run_whose_placeholders_were_lost_refuses_them_and_fills_in_nothing(tmp_path: Path) -> None:
    await broken_off(tmp_path)
    records = PrivacyRecords(tmp_path)
    records.of("run-1").end()
    records.close()
    cloud = far("It says {}.", "It says {}, really.")
    async with hybrid(tmp_path, cloud, placeholders=True) as second:
        with pytest.raises(InvalidOutput, match="no placeholder"):
            await second.resume("run-1")
    assert len(cloud.requests) == 2
    assert "vault" not in str(cloud.requests)


async def test_run_that_read_something_private_is_told_to_nobody_far_away_when_it_goes_on(tmp_path: Path) -> None:
    await broken_off(tmp_path, placeholders=False)
    cloud = far("never reached")
    async with hybrid(tmp_path, cloud, placeholders=False) as second:
        with pytest.raises(PrivacyViolation, match="read_diary"):
            await second.resume("run-1")
    assert cloud.requests == []


async def test_placeholders_of_a_run_that_has_ended_are_on_no_disk_any_more(tmp_path: Path) -> None:
    async with hybrid(tmp_path, far("It says {}."), placeholders=True) as first:
        await first.run("Keep my diary", **FAR)
    records = PrivacyRecords(tmp_path)
    assert records.of("run-1").placeholders() == []
    assert len(records.outbound_log("run-1")) == 3
    records.close()


async def test_run_in_which_something_private_was_found_stays_when_it_goes_on(tmp_path: Path) -> None:
    policy = Policy(sensitivity=Sensitivity.PUBLIC)
    async with Hybrid(far=far(), policy=policy, records=RunsConfig(folder=tmp_path)) as first:
        with pytest.raises(PrivacyViolation):
            await first.run("Write to tomas@example.org", **FAR)
    records = PrivacyRecords(tmp_path)
    again = RunPrivacy(policy.privacy, [], records=records.of("run-1"))
    records.close()
    assert again.found.tier is Tier.USER
