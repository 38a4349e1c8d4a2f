"""A `Hybrid`'s own gateway: a real child process with the shipped far model."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import psutil
import pytest

from nearfar import Hybrid, Result
from nearfar.orchestrator.compose import LocalFarConfig, NearConfig, parse_far
from nearfar.orchestrator.compose.gateway_process import GatewayProcess
from nearfar.orchestrator.lab.worlds.loading import SearchWorld
from nearfar.orchestrator.storage.owners import SocketFolder
from nearfar.orchestrator.task.policy import Policy
from nearfar.orchestrator.task.routing_policy import AmountsConfig, FallbackConfig, LimitsConfig
from nearfar.protocols import (
    DeadlineExceeded,
    IdempotencyConflict,
    Message,
    ModelNotFound,
    Prices,
    Sensitivity,
    Side,
    StepRequest,
    Unavailable,
    complete,
)
from nearfar.protocols.testing import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

WORLD = SearchWorld()
QUESTION = next(task for task in WORLD.tasks(30, seed=7) if len(WORLD.question(task).program.steps) == 1)
EPISODE = WORLD.reset(QUESTION)
TOOLS = EPISODE.tools
LONG = {"type": "string", "minLength": 250, "maxLength": 300}
"""An answer that takes hundreds of tokens: long enough for its gateway to be killed in the middle."""
PUBLIC = Policy(sensitivity=Sensitivity.PUBLIC)
FAR = LocalFarConfig(threads=1)


def step(text: str, *, max_output_tokens: int = 8) -> StepRequest:
    return StepRequest(messages=(Message.user(text),), sensitivity=Sensitivity.PUBLIC, max_output_tokens=max_output_tokens)


async def gone(process_id: int) -> None:
    """Return when the process has ended."""
    try:
        process = psutil.Process(process_id)
    except psutil.NoSuchProcess:
        return
    await anyio.to_thread.run_sync(process.wait, 20)


@pytest.mark.parametrize("address", [None, "127.0.0.1:0"])
async def test_a_task_reaches_the_far_model_through_a_process_of_its_own(address: str | None) -> None:
    gateway = await GatewayProcess.start(FAR, address=address)
    try:
        assert gateway.process_id not in (None, os.getpid())
        assert gateway.card.side is Side.FAR
        async with Hybrid(far=gateway, tools=TOOLS, policy=PUBLIC) as hybrid:
            result = await hybrid.run(QUESTION.prompt, strategy="cloud")
        assert EPISODE.grade(result.text).success
        assert result.far.steps == 2
    finally:
        await gateway.aclose()


async def test_a_hybrid_starts_its_gateway_on_first_use_and_stops_it_with_itself() -> None:
    before = {child.pid for child in psutil.Process().children()}
    async with Hybrid(far="far", tools=TOOLS, policy=PUBLIC) as hybrid:
        assert {child.pid for child in psutil.Process().children()} == before
        await hybrid.run(QUESTION.prompt, strategy="cloud")
        started = {child.pid for child in psutil.Process().children(recursive=True)} - before
        assert started
    for process_id in started:
        await gone(process_id)


async def test_a_local_far_model_costs_nothing_and_fits_a_dollar_limit() -> None:
    policy = PUBLIC.model_copy(update={"limits": LimitsConfig(day=AmountsConfig(dollars=0.01))})
    async with Hybrid(far="far", tools=TOOLS, policy=policy) as hybrid:
        result = await hybrid.run(QUESTION.prompt, strategy="cloud")
    assert result.dollars == 0
    assert result.far.usage.output_tokens


async def test_a_local_far_model_takes_the_prices_that_its_section_states() -> None:
    prices = Prices(input=Decimal(1), output=Decimal(2), source="our own power bill", as_of=date(2026, 11, 1))
    gateway = await GatewayProcess.start(FAR.model_copy(update={"prices": prices}))
    try:
        assert gateway.card.prices == prices
    finally:
        await gateway.aclose()


async def test_a_killed_gateway_means_the_device_answers_until_there_is_a_new_one() -> None:
    gateway = await GatewayProcess.start(FAR)
    try:
        # Its words were shown, so the user has to allow that another one starts over.
        policy = PUBLIC.model_copy(update={"fallback": FallbackConfig(after_first_token="restart")})
        async with Hybrid(near=NearConfig(threads=1), far=gateway, policy=policy) as hybrid:
            first = gateway.process_id
            assert first is not None
            fallback = await _run_and_kill_in_mid_step(hybrid, first)
            assert fallback.served_on_device
            assert fallback.was_fallback
            with anyio.fail_after(60):
                while (await hybrid.run(QUESTION.prompt, strategy="cloud", tools=TOOLS)).side is Side.NEAR:
                    pass  # it is left alone for a while where the lost step has cost seconds
        assert gateway.process_id != first
    finally:
        await gateway.aclose()


async def _run_and_kill_in_mid_step(hybrid: Hybrid, process_id: int) -> Result:
    """Run a task in the cloud, and kill the gateway when the first words of its answer arrive."""
    async for event in hybrid.stream("Talk to me.", strategy="cloud", output=LONG):
        if event.type == "text" and psutil.pid_exists(process_id):
            os.kill(process_id, signal.SIGKILL)
        if event.type == "task_finished":
            return event.result
    raise AssertionError("a stream ends with its result")


async def test_a_far_model_that_does_not_exist_is_reported_as_such() -> None:
    with pytest.raises(ModelNotFound, match="no-such-model"):
        await GatewayProcess.start(parse_far("/no-such-model.gguf"))


PARENT = """
import asyncio
from nearfar.orchestrator.compose import LocalFarConfig
from nearfar.orchestrator.compose.gateway_process import GatewayProcess
async def main():
    gateway = await GatewayProcess.start(LocalFarConfig(threads=1))
    print(gateway.process_id, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def killed_parent(temporary: Path, *, with_child: bool) -> None:
    """Start a gateway process in a process of its own, and kill that."""
    environment = {**os.environ, "TMPDIR": str(temporary)}
    before = set(temporary.iterdir())
    async with await anyio.open_process([sys.executable, "-c", PARENT], stderr=None, env=environment) as parent:
        assert parent.stdout is not None
        with anyio.fail_after(60):
            gateway_id = int((await parent.stdout.receive()).decode())
        assert len(set(temporary.iterdir()) - before) == 1
        if with_child:
            os.kill(gateway_id, signal.SIGSTOP)  # it must not notice
        parent.send_signal(signal.SIGKILL)
        await parent.wait()
        if with_child:
            os.kill(gateway_id, signal.SIGKILL)
        await gone(gateway_id)


def test_the_gateway_ends_in_silence_where_its_parent_has_left_while_it_started() -> None:
    order = {"far": LocalFarConfig(threads=1).model_dump(mode="json"), "address": "127.0.0.1:0", "token": "secret"}
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as nowhere:
        command = [sys.executable, "-m", "nearfar.orchestrator.compose.gateway_process"]
        ended = subprocess.run(
            command, input=json.dumps(order).encode() + b"\n", stdout=nowhere, stderr=subprocess.PIPE, check=False, timeout=60
        )
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A temporary folder whose sockets have short paths, which `tmp_path` does not promise."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


async def test_the_gateway_ends_when_its_parent_is_killed_and_leaves_no_folder(short_path: Path) -> None:
    await killed_parent(short_path, with_child=False)
    assert list(short_path.iterdir()) == []


async def test_the_folder_of_processes_that_were_killed_is_removed_by_the_next_one(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    living = SocketFolder()
    await killed_parent(short_path, with_child=True)
    assert len(list(short_path.iterdir())) == 2
    next_one = SocketFolder()
    assert {*short_path.iterdir()} == {living.path, next_one.path}
    living.close()
    next_one.close()
    assert list(short_path.iterdir()) == []


def test_only_own_folders_that_an_owner_has_left_are_removed(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    (short_path / "elsewhere").mkdir()
    (short_path / "elsewhere" / "gone.owner").touch()
    (short_path / "nearfar-sockets-link").symlink_to("elsewhere")
    (short_path / "nearfar-sockets-file").touch()
    (short_path / "nearfar-sockets-just-made").mkdir()
    before = {*short_path.rglob("*")}
    SocketFolder().close()
    assert {*short_path.rglob("*")} == before


def test_a_temporary_folder_too_long_for_a_socket_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = SocketFolder()
    assert len(str(folder.path / "gateway")) <= 100
    folder.close()
    assert not folder.path.exists()


@pytest.mark.parametrize("name", ["a%41", "a#b", "a?b", "a,b"])
def test_a_temporary_folder_that_grpc_would_misread_is_not_used(short_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (short_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(short_path / name))
    folder = SocketFolder()
    assert name not in str(folder.path)
    folder.close()


def test_a_temporary_folder_that_is_the_working_folder_is_named_in_full(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(short_path)
    monkeypatch.setattr(tempfile, "tempdir", ".")
    folder = SocketFolder()
    assert folder.path.parent == short_path
    folder.close()


async def test_the_working_folder_gives_the_gateway_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("json", "anyio", "grpc"):
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    gateway = await GatewayProcess.start(FAR)
    await gateway.aclose()
    assert not (tmp_path / "ran").exists()


async def test_a_closed_gateway_process_refuses_politely() -> None:
    gateway = await GatewayProcess.start(FAR)
    await complete(gateway, step(QUESTION.prompt))
    process_id = gateway.process_id
    await gateway.aclose()
    assert process_id is not None
    await gone(process_id)
    with pytest.raises(Unavailable, match="closed"):
        await complete(gateway, step(QUESTION.prompt))


async def test_two_runs_of_one_task_share_a_key_and_two_different_tasks_must_not() -> None:
    async with Hybrid(far=FAR, tools=TOOLS, policy=PUBLIC) as hybrid:
        first = await hybrid.run(QUESTION.prompt, strategy="cloud", idempotency_key="order-7")
        again = await hybrid.run(QUESTION.prompt, strategy="cloud", idempotency_key="order-7")
        assert (again.text, again.far.usage) == (first.text, first.far.usage)
        with pytest.raises(IdempotencyConflict, match="different request"):
            await hybrid.run("What is the mayor of Port Alder?", strategy="cloud", idempotency_key="order-7")


async def test_tasks_that_meet_while_a_killed_gateway_is_replaced_are_all_served() -> None:
    gateway = await GatewayProcess.start(FAR)
    try:
        async with Hybrid(far=gateway, tools=TOOLS, policy=PUBLIC) as hybrid:
            killed = gateway.process_id
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            with anyio.fail_after(30):
                await eventually(lambda: gateway.process_id is None)
            texts: list[str] = []

            async def one() -> None:
                texts.append((await hybrid.run(QUESTION.prompt, strategy="cloud")).text)

            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(one)
                    await anyio.lowlevel.checkpoint()
                tasks.start_soon(_read_card_until_replaced, gateway, killed)
        assert [EPISODE.grade(text).success for text in texts] == [True] * 4
    finally:
        await gateway.aclose()


async def _read_card_until_replaced(gateway: GatewayProcess, killed: int) -> None:
    """What an agent is, is known all the time."""
    with anyio.fail_after(60):
        while gateway.process_id in (None, killed):
            assert gateway.card.side is Side.FAR
            await anyio.lowlevel.checkpoint()
    assert gateway.card.side is Side.FAR


async def test_a_step_whose_time_is_over_while_the_gateway_is_replaced_says_so_and_loses_no_process() -> None:
    before = {child.pid for child in psutil.Process().children()}
    gateway = await GatewayProcess.start(FAR)
    try:
        assert gateway.process_id is not None
        os.kill(gateway.process_id, signal.SIGKILL)
        with anyio.fail_after(30):
            await eventually(lambda: gateway.process_id is None)
        late = step(QUESTION.prompt).model_copy(update={"timeout": 0.01})
        with pytest.raises(DeadlineExceeded, match="gateway process"):
            await complete(gateway, late)
        await complete(gateway, step(QUESTION.prompt))
    finally:
        await gateway.aclose()
    left = {child.pid for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE}
    assert left <= before


async def test_where_sockets_have_no_files_the_gateway_has_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""
    monkeypatch.setattr("nearfar.orchestrator.compose.gateway_process._HAS_SOCKET_FILES", False)
    gateway = await GatewayProcess.start(FAR)
    try:
        assert gateway.card.name == "far"
    finally:
        await gateway.aclose()
