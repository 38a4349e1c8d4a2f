"""Agents that other devices lend serve tasks, and where such a device is lost, another agent does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from nearfar import Hybrid, Policy
from nearfar.orchestrator.compose.config import load_config, parse_config
from nearfar.orchestrator.compose.hub import HubConfig, WorkerConfig, accept_workers
from nearfar.protocols import (
    Agent,
    ConfigError,
    DeviceState,
    PrivacyViolation,
    ScriptedAgent,
    Side,
    StepRequest,
    Unauthenticated,
    Unavailable,
    complete,
)
from nearfar.protocols.attach import Worker
from nearfar.protocols.fakes import Reply
from nearfar.protocols.security import Scope
from nearfar.protocols.steps import Message
from nearfar.protocols.testing import chaos_proxy, eventually
from nearfar.protocols.token_file import add_token, revoke_tokens

pytestmark = pytest.mark.anyio

DEVICE = (Scope.ATTACH, Scope.MEMORY)
PHONE_FIRST = Policy.model_validate({"strategy": "route", "rules": [{"name": "the phone first", "agent": "phone"}]})


@asynccontextmanager
async def lending(agent: Agent, address: str, token: str) -> AsyncIterator["asyncio.Task[None]"]:
    worker = Worker(agent, address, token=token)
    running = asyncio.create_task(worker.run())
    await worker.attached.wait()
    yield running
    await worker.drain(0)
    await asyncio.wait([running], timeout=10)


@pytest.fixture
def config(tmp_path: Path) -> HubConfig:
    workers = {"phone": WorkerConfig(trust=Side.NEAR), "neighbour": WorkerConfig()}
    return HubConfig(address="localhost:0", workers=workers).anchored(tmp_path)


@pytest.fixture
def token(config: HubConfig) -> str:
    return add_token(config.tokens, "phone", scopes=DEVICE).token


async def test_task_is_served_by_the_phone(config: HubConfig, token: str) -> None:
    phone = ScriptedAgent(["from the phone"], model="phone's own")
    with anyio.fail_after(30):
        async with (
            accept_workers(config) as (_, address),
            lending(phone, address, token),
            Hybrid(far=ScriptedAgent(["far"], side=Side.FAR, name="far"), agents=config.agents) as hybrid,
        ):
            result = await hybrid.run("A private question")
    assert (result.text, result.agent, result.side, result.model) == ("from the phone", "phone", Side.NEAR, "phone's own")


async def test_task_goes_on_elsewhere_when_the_phone_is_lost_in_mid_step(config: HubConfig, token: str) -> None:
    lost = anyio.Event()

    def start(_: StepRequest) -> Reply:
        lost.set()
        return ["half an an", anyio.Event(), "swer"]

    near = ScriptedAgent(["a whole answer"], name="near")
    with anyio.fail_after(30):
        async with (
            accept_workers(config) as (_, address),
            chaos_proxy(address) as proxy,
            lending(ScriptedAgent(start), proxy.address, token),
            Hybrid(near=near, agents=config.agents, policy=PHONE_FIRST) as hybrid,
            anyio.create_task_group() as tasks,
        ):

            async def cut_off() -> None:
                await lost.wait()
                proxy.reset()

            tasks.start_soon(cut_off)
            result = await hybrid.run("A private question")
    assert (result.text, result.agent, result.was_fallback) == ("a whole answer", "near", True)
    assert [(attempt.agent, attempt.outcome) for attempt in result.attempts] == [("phone", "failed"), ("near", "accepted")]
    assert len(near.requests) == 1


async def test_private_task_never_reaches_a_device_that_is_not_the_users_own(config: HubConfig) -> None:
    neighbour = ScriptedAgent(["overheard"], side=Side.NEAR)
    with anyio.fail_after(30):
        token = add_token(config.tokens, "neighbour", scopes=DEVICE).token
        async with (
            accept_workers(config) as (_, address),
            lending(neighbour, address, token),
            Hybrid(near=ScriptedAgent(["at home"], name="near"), agents=config.agents) as hybrid,
        ):
            member = hybrid.pool["neighbour"]
            assert member.side is Side.FAR
            with pytest.raises(PrivacyViolation):
                await complete(await member.open(), StepRequest(messages=(Message.user("A private question"),)))
            assert (await hybrid.run("A private question")).agent == "near"
    assert neighbour.requests == []


async def test_without_a_hub_a_lent_agent_is_unavailable(config: HubConfig) -> None:
    async with Hybrid(near=ScriptedAgent(["at home"], name="near"), agents=config.agents) as hybrid:
        with pytest.raises(Unavailable):
            await hybrid.pool["phone"].open()


async def test_worker_that_never_came_is_unavailable(config: HubConfig, token: str) -> None:
    assert token
    async with accept_workers(config), Hybrid(near=ScriptedAgent(["x"], name="near"), agents=config.agents) as hybrid:
        with pytest.raises(Unavailable):
            await hybrid.pool["phone"].open()


async def test_token_file_is_followed(config: HubConfig, token: str) -> None:
    with anyio.fail_after(30):
        async with accept_workers(config) as (hub, address), lending(ScriptedAgent(["x"]), address, token) as phone:
            neighbour = add_token(config.tokens, "neighbour", scopes=DEVICE).token
            await eventually(lambda: "neighbour" in hub.agents)
            async with lending(ScriptedAgent(["x"]), address, neighbour):
                revoke_tokens(config.tokens, "phone")
                with pytest.raises(Unauthenticated):
                    await phone
                assert list(hub.attached) == ["neighbour"]


async def test_removing_the_only_token_shuts_its_worker_out(config: HubConfig, token: str) -> None:
    with anyio.fail_after(30):
        async with accept_workers(config) as (hub, address), lending(ScriptedAgent(["x"]), address, token) as phone:
            revoke_tokens(config.tokens, "phone")
            with pytest.raises(Unauthenticated):
                await phone
            assert not hub.attached
            assert not hub.agents


async def test_broken_token_file_changes_nothing(config: HubConfig, token: str, caplog: pytest.LogCaptureFixture) -> None:
    with anyio.fail_after(30):
        async with accept_workers(config) as (hub, address), lending(ScriptedAgent(["x"]), address, token):
            config.tokens.write_text("phone = ")
            await eventually(lambda: "stay as they were" in caplog.text)
            assert list(hub.attached) == ["phone"]
            config.tokens.unlink()
            await eventually(lambda: caplog.text.count("stay as they were") == 2)
            assert list(hub.attached) == ["phone"]


async def test_certificate_without_a_key_is_refused(config: HubConfig, token: str, tmp_path: Path) -> None:
    assert token
    with pytest.raises(ConfigError):
        async with accept_workers(config.model_copy(update={"certificate": tmp_path / "hub.pem"})):
            raise NotImplementedError


async def test_low_battery_sends_the_task_elsewhere(config: HubConfig, token: str) -> None:
    spared = config.model_copy(update={"workers": {"phone": WorkerConfig(trust=Side.NEAR, minimum_battery=0.3)}})
    phone = ScriptedAgent(["from the phone"])
    async with accept_workers(spared) as (hub, address):
        worker = Worker(phone, address, token=token, device_state=lambda: DeviceState(battery=0.1))
        running = asyncio.create_task(worker.run())
        await hub.wait_for("phone")
        async with Hybrid(near=ScriptedAgent(["at home"], name="near"), agents=spared.agents, policy=PHONE_FIRST) as hybrid:
            result = await hybrid.run("A private question")
        await worker.drain(0)
        await running
    assert result.agent == "near"
    assert phone.requests == []


def test_hub_section_makes_its_workers_agents(tmp_path: Path) -> None:
    file = tmp_path / "nearfar.toml"
    file.write_text('[near]\nmodel = "near"\n[hub]\ntokens = "w.toml"\n[hub.workers.phone]\ntrust = "near"\n[hub.workers.neighbour]\n')
    loaded = load_config(file)
    assert loaded.agents == {"near": Side.NEAR, "phone": Side.NEAR, "neighbour": Side.FAR}
    assert loaded.hub is not None
    assert (loaded.hub.tokens, loaded.hub.socket) == (tmp_path / "w.toml", tmp_path / "hub.sock")


@pytest.mark.parametrize("text", [
    "[other_near.phone]\n[hub.workers.phone]",
    "[hub.workers.near]",
    "[hub.workers.phone]\ntrust = 'mine'",
    "[hub.workers.phone]\nminimum_battery = 20",
    "[hub]\nadress = 'x'",
])  # fmt: skip
def test_mistake_in_the_hub_section_is_explained(text: str) -> None:
    with pytest.raises(ConfigError, match="nearfar.toml"):
        parse_config(text, "nearfar.toml")
