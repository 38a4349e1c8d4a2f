"""`nearfar worker conform` tells which parts of the contract an attached worker keeps."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nearfar.orchestrator.cli.running import show_error
from nearfar.orchestrator.cli.worker import Prompts, run_suite
from nearfar.orchestrator.compose.hub import HubConfig, accept_workers
from nearfar.protocols import Capabilities, Limits, ScriptedAgent, StepRequest, ToolCall, Unavailable
from nearfar.protocols.attach import Worker
from nearfar.protocols.fakes import Reply
from nearfar.protocols.security import Scope
from nearfar.protocols.testing.agent_conformance import CHECKS
from nearfar.protocols.token_file import add_token

pytestmark = pytest.mark.anyio

PROMPTS = Prompts(short="short", long="long", tool="tool")


def answer(request: StepRequest) -> Reply:
    last = request.messages[-1]
    match last.text:
        case "tool" if request.tools:
            return ToolCall(id="call-1", name="open", arguments={"title": "Port Alder", "section": "mayor"})
        case "long":
            return [f"word{number} " for number in range(200)]
    return ["Hello", ", ", "world"]


@asynccontextmanager
async def attached(agent: ScriptedAgent, folder: Path) -> AsyncIterator[HubConfig]:
    """A hub with a worker, which lends `agent` as the phone's."""
    config = HubConfig(address="127.0.0.1:0", tokens=folder / "workers.toml", socket=folder / "hub.sock")
    token = add_token(config.tokens, "phone", scopes=(Scope.ATTACH,)).token
    async with accept_workers(config) as (hub, address):
        worker = Worker(agent, address, token=token)
        running = asyncio.create_task(worker.run())
        await hub.wait_for("phone")
        yield config
        await worker.drain(0)
        await running


def agent(**fields: object) -> ScriptedAgent:
    claimed = Capabilities(tools=True, seed=True, cancellation=True, logprobs=True)
    return ScriptedAgent(answer, pace=checkpoint, capabilities=claimed, limits=Limits(context_tokens=500, concurrency=4), **fields)  # type: ignore[arg-type]  # options are free here


async def test_a_worker_that_keeps_the_contract_passes_every_check_that_applies(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with attached(agent(), tmp_path) as config:
            outcomes = await run_suite(config, "phone", PROMPTS, seconds=20)
    assert [found.check for found in outcomes] == [check.__name__ for check in CHECKS]
    assert {found.check for found in outcomes if found.outcome != "passed"} == {
        "broken_output_schema_is_refused",
        "characters_split_across_tokens_arrive_whole",
    }
    assert {found.outcome for found in outcomes} == {"passed", "does not apply"}


async def test_what_a_worker_breaks_is_named(tmp_path: Path) -> None:
    silent = agent()
    silent._card = silent.card.model_copy(update={"capabilities": silent.card.capabilities.model_copy(update={"confidence": True})})
    with anyio.fail_after(60):
        async with attached(silent, tmp_path) as config:
            outcomes = await run_suite(config, "phone", PROMPTS, seconds=20)
    assert [(found.check, found.reason) for found in outcomes if found.outcome == "failed"] == [
        ("confidence_is_a_probability", "the card says confidence=True, and Finished.confidence is None")
    ]


async def test_without_a_hub_it_says_what_to_start(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no hub answers") as error:
        await run_suite(HubConfig(socket=tmp_path / "hub.sock"), "phone", PROMPTS, seconds=5)
    assert "nearfar serve hub" in error.value.hint


async def test_a_hub_that_ends_in_mid_suite_is_named_instead_of_blaming_the_worker(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def hold() -> None:
        asked.set()
        await asyncio.Event().wait()

    held = ScriptedAgent(answer, pace=hold, capabilities=Capabilities(cancellation=True))
    config = HubConfig(address="127.0.0.1:0", tokens=tmp_path / "workers.toml", socket=tmp_path / "hub.sock")
    token = add_token(config.tokens, "phone", scopes=(Scope.ATTACH,)).token
    with anyio.fail_after(30):
        async with accept_workers(config) as (hub, address):
            worker = Worker(held, address, token=token)
            running = asyncio.create_task(worker.run())
            await hub.wait_for("phone")
            suite = asyncio.create_task(run_suite(config, "phone", PROMPTS, seconds=20))
            await asked.wait()
        with pytest.raises(Unavailable, match="no hub answers"):
            await suite
        await worker.drain(0)
        await running


def test_an_error_that_a_worker_wrote_sends_the_terminal_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(Unavailable("gone\x1b[2J", hint="look\x1b]0;title\x07"))
    assert not {"\x1b", "\x07"} & set(capsys.readouterr().err)
