"""What happens to LlamaAgent when processes die, steps are cancelled and model files are bad."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
import psutil
import pytest
from llama_engine import require_llama

require_llama()
from near_model import NEAR, QUESTION, ask, long_prompt, near_agent
from tiny_gguf import TinyModel, write_tiny_gguf

from nearfar import LlamaAgent
from nearfar.device.worker import LocalAgent
from nearfar.protocols import (
    ConfigError,
    DeadlineExceeded,
    ModelError,
    ModelNotFound,
    Stalled,
    Unavailable,
    WorkerCrashed,
    complete,
    stream,
)

pytestmark = pytest.mark.anyio

_SECONDS = 60.0


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that talks nonsense for thousands of tokens."""
    model = TinyModel(context_length=16384, layers=4, end_bias=0.0)
    return write_tiny_gguf(tmp_path_factory.mktemp("endless") / "endless.gguf", model)


async def _kill_in_mid_step(agent: LocalAgent, worker: int) -> None:
    """Start a step, kill the worker once it runs, and read on to its end."""
    async with stream(agent, ask(QUESTION)) as events:
        await anext(aiter(events))
        os.kill(worker, signal.SIGKILL)
        async for _ in events:
            pass


def _gone(process_id: int) -> bool:
    return not psutil.pid_exists(process_id) or psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE


async def _until_gone(process_id: int) -> None:
    with anyio.fail_after(_SECONDS):
        while not _gone(process_id):  # noqa: ASYNC110 - another process sets no event here
            await anyio.sleep(0.01)


async def test_killed_worker_fails_its_step_and_the_next_one_works(endless: Path) -> None:
    async with near_agent(endless) as agent:
        worker = (await agent.statistics()).process_id
        with anyio.fail_after(_SECONDS), pytest.raises(WorkerCrashed):
            await _kill_in_mid_step(agent, worker)
        assert (await complete(agent, ask(QUESTION, max_output_tokens=9))).text
        assert (await agent.statistics()).process_id != worker


async def test_all_steps_of_a_killed_worker_fail() -> None:
    prompts = [f"{await long_prompt()} {number}" for number in range(6)]
    async with near_agent(parallel=2) as agent:
        worker = (await agent.statistics()).process_id
        os.kill(worker, signal.SIGSTOP)
        with anyio.fail_after(_SECONDS):
            steps = [asyncio.ensure_future(complete(agent, ask(prompt))) for prompt in prompts]
            while agent.live_steps < len(steps):  # noqa: ASYNC110 - the steps set no event when they are sent
                await anyio.sleep(0.005)
            os.kill(worker, signal.SIGKILL)
            outcomes = await asyncio.gather(*steps, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [WorkerCrashed] * len(steps)
        assert agent.live_steps == 0


async def test_worker_that_keeps_dying_is_given_up_with_a_reason(endless: Path) -> None:
    async with near_agent(endless) as agent:
        for _ in range(3):
            worker = (await agent.statistics()).process_id
            with pytest.raises(WorkerCrashed):
                await _kill_in_mid_step(agent, worker)
        with pytest.raises(Unavailable) as caught:
            await complete(agent, ask(QUESTION))
        assert caught.value.retry_after is not None
        assert not isinstance(caught.value, WorkerCrashed)


async def test_cancelled_step_decodes_at_most_two_more_tokens(endless: Path) -> None:
    async with near_agent(endless) as agent:
        async with stream(agent, ask(QUESTION)) as events:
            await anext(aiter(events))
            worker = psutil.Process((await agent.statistics()).process_id)
            # While it is stopped, the cancellation arrives in its socket, between two questions for its counts.
            worker.suspend()
            before = asyncio.ensure_future(agent.statistics())
            await asyncio.sleep(0)
        worker.resume()
        with anyio.fail_after(_SECONDS):
            counted, after = await before, await agent.statistics()
            while agent.live_steps:  # noqa: ASYNC110 - the worker's report sets no event here
                await anyio.sleep(0.005)
        assert (counted.active_steps, after.active_steps) == (1, 0)
        assert after.decoded_tokens - counted.decoded_tokens <= 2
        # It looks at its socket before every pass, and a pass generates one token of a step.
        assert after.decode_calls <= after.socket_checks


async def test_cancelled_steps_leave_room_for_the_others(endless: Path) -> None:
    async with near_agent(endless, parallel=2) as agent:
        for number in range(12):
            async with stream(agent, ask(f"{QUESTION} {number}")) as events:
                await anext(aiter(events))
        assert (await complete(agent, ask(QUESTION, max_output_tokens=9))).text
        statistics = await agent.statistics()
        assert (statistics.active_steps, statistics.queued_steps) == (0, 0)


async def test_worker_that_hangs_beyond_a_deadline_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.device.worker.process._GRACE_SECONDS", 0.1)
    async with near_agent() as agent:
        worker = (await agent.statistics()).process_id
        os.kill(worker, signal.SIGSTOP)
        with anyio.fail_after(_SECONDS):
            with pytest.raises(DeadlineExceeded):
                await complete(agent, ask(QUESTION, timeout=0.1))
            await _until_gone(worker)
            with suppress(WorkerCrashed):  # A step may be sent before the death is noticed.
                await complete(agent, ask(QUESTION))
            assert (await complete(agent, ask(QUESTION))).text


async def test_worker_that_hangs_is_stopped_although_the_step_has_no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async with near_agent() as agent:
        worker = (await agent.statistics()).process_id
        os.kill(worker, signal.SIGSTOP)
        monkeypatch.setattr("nearfar.device.worker.process._QUIET_SECONDS", 0.05)
        monkeypatch.setattr("nearfar.device.worker.process._HUNG_SECONDS", 0.1)
        with anyio.fail_after(_SECONDS):
            with pytest.raises(Stalled):
                await complete(agent, ask(QUESTION))
            await _until_gone(worker)


async def test_quiet_worker_that_answers_is_left_alone(endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.device.worker.process._QUIET_SECONDS", 0.0)
    async with near_agent(endless) as agent:
        reply = await complete(agent, ask(QUESTION, max_output_tokens=30))
        assert reply.finished.usage.output_tokens == 30


async def test_closing_ends_the_worker_and_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.device.worker.process._EXIT_SECONDS", 0.1)
    prompt = await long_prompt()
    agent = await LlamaAgent.load(NEAR)
    worker = (await agent.statistics()).process_id
    os.kill(worker, signal.SIGSTOP)
    step = asyncio.ensure_future(complete(agent, ask(prompt)))
    while not agent.live_steps:  # noqa: ASYNC110 - the step sets no event when it is sent
        await anyio.sleep(0.005)
    with anyio.fail_after(_SECONDS):
        await agent.aclose()
        with pytest.raises(Unavailable):
            await step
    assert _gone(worker)
    with pytest.raises(Unavailable):
        await complete(agent, ask(QUESTION))
    await agent.aclose()


_PARENT = """
import asyncio, sys
from nearfar import LlamaAgent
from nearfar.protocols import DeadlineExceeded, Message, StepRequest, complete

async def main():
    agent = await LlamaAgent.load(sys.argv[1])
    sys.stdout.write(f"{(await agent.statistics()).process_id}\\n")
    sys.stdout.flush()
    while True:
        await complete(agent, StepRequest(messages=(Message.user(sys.argv[2]),)))

asyncio.run(main())
"""


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_worker_ends_with_its_parent(death: signal.Signals) -> None:
    prompt = await long_prompt()
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PARENT, str(NEAR), prompt, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert parent.stdout is not None
    with anyio.fail_after(_SECONDS):
        worker = int(await parent.stdout.readline())
        assert not _gone(worker)
        parent.send_signal(death)
        await parent.wait()
    await _until_gone(worker)


async def test_import_of_the_package_does_not_load_llama_cpp() -> None:
    program = "import sys, nearfar.device; sys.exit(bool({'llama_cpp', 'llguidance', 'numpy', 'jinja2'} & sys.modules.keys()))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await process.wait() == 0


async def test_missing_model_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        await LlamaAgent.load(tmp_path / "absent.gguf")


def _cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 2 // 3)


def _overwrite(path: Path) -> None:
    path.write_bytes(b"#!/bin/sh\necho this is not a model\n" * 100)


def _cut_header(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1000)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _rename_architecture(path: Path) -> None:
    write_tiny_gguf(path, TinyModel(architecture="strange"))


def _break_template(path: Path) -> None:
    write_tiny_gguf(path, TinyModel(template="{% for %}"))


@pytest.mark.parametrize("damage", [_cut, _cut_header, _overwrite, _empty, _replace_by_folder, _rename_architecture, _break_template])
async def test_unusable_model_is_a_model_error_that_says_what_to_do(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "model.gguf"
    shutil.copyfile(NEAR, path)
    damage(path)
    with anyio.fail_after(_SECONDS), pytest.raises(ModelError) as caught:
        await LlamaAgent.load(path)
    assert caught.value.hint


async def test_context_that_cannot_fit_the_memory_is_refused_before_it_is_filled(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "model.gguf")
    with anyio.fail_after(_SECONDS), pytest.raises(ModelError, match="MiB of memory are free"):
        await LlamaAgent.load(path, context_tokens=2_000_000_000)


@pytest.mark.parametrize("options", [{"parallel": 0}, {"context_tokens": 0}, {"threads": -1}])
async def test_count_below_one_is_a_configuration_error(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        await LlamaAgent.load(NEAR, **options)  # type: ignore[arg-type]  # each is an int


async def test_unknown_architecture_is_named(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "model.gguf", TinyModel(architecture="strange"))
    with pytest.raises(ModelError) as caught:
        await LlamaAgent.load(path)
    assert "strange" in str(caught.value)


async def test_model_that_vanished_is_reported_at_the_restart(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    shutil.copyfile(NEAR, path)
    async with near_agent(path) as agent:
        worker = (await agent.statistics()).process_id
        os.kill(worker, signal.SIGKILL)
        path.unlink()
        with anyio.fail_after(_SECONDS):
            with suppress(ModelNotFound, WorkerCrashed):  # A step may be sent before the death is noticed.
                await complete(agent, ask(QUESTION))
            with pytest.raises(ModelNotFound):
                await complete(agent, ask(QUESTION))
