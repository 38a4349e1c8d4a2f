"""The thin worker as a phone runs it: in an environment that has grpcio and protobuf, and in a process of its own."""

import os
import signal
import subprocess
import sys
import venv
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import distribution
from pathlib import Path

import anyio
import pytest
from thin_phone import NAME, TOKEN, llama_http

import nearfar.device
from nearfar.device import thin_worker
from nearfar.protocols import Agent, Message, ScriptedAgent, Sensitivity, StepRequest, Unavailable, complete, stream
from nearfar.protocols.address import Pairing
from nearfar.protocols.hub import AttachedAgent, Hub, serve_hub
from nearfar.protocols.testing import eventually

INSTALLED = ("grpcio", "protobuf", "typing_extensions")
"""The last because grpcio needs it."""


@pytest.fixture(scope="module")
def phone_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with nearfar, grpcio and protobuf, and without anything else."""
    folder = tmp_path_factory.mktemp("phone")
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "nearfar").symlink_to(Path(nearfar.device.__file__).parents[1])
    for name in INSTALLED:
        link_distribution(name, packages)
    return folder / "bin" / "python"


def link_distribution(name: str, packages: Path) -> None:
    """Make the modules of a distribution, as it is installed here, importable from the folder `packages` too."""
    installed = distribution(name)
    for file in installed.files or ():
        module = Path(*file.parts[: 2 if file.parts[0] == "google" else 1])  # a folder that several distributions share
        if module.suffix != ".dist-info" and module.parts[0] not in ("..", "__pycache__") and not (packages / module).exists():
            (packages / module).parent.mkdir(exist_ok=True)
            (packages / module).symlink_to(str(installed.locate_file(module)))


def run(python: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([python, "-I", *arguments], capture_output=True, text=True, timeout=60)


def test_it_imports_where_nothing_but_grpcio_and_protobuf_is_installed(phone_python: Path) -> None:
    result = run(phone_python, "-W", "error", "-c", "import nearfar.device.thin_worker")
    assert (result.returncode, result.stderr) == (0, "")


def test_the_environment_of_these_tests_really_lacks_the_rest(phone_python: Path) -> None:
    for name in ("pydantic", "anyio", "google.rpc", "pip"):
        assert run(phone_python, "-c", f"import {name}").returncode == 1


def test_its_help_says_how_to_use_it(phone_python: Path) -> None:
    result = run(phone_python, "-m", "nearfar.device.thin_worker", "--help")
    assert result.returncode == 0, result.stderr
    assert "--pairing-file" in result.stdout


def asking(**fields: object) -> StepRequest:
    return StepRequest.model_validate({"messages": (Message.user("Hello?"),), "sensitivity": Sensitivity.PUBLIC, **fields})


@asynccontextmanager
async def worker_process(python: Path, agent: Agent, pairing_file: Path) -> AsyncIterator[tuple[AttachedAgent, Hub, Process]]:
    """A worker's process that is attached, and killed on the way out if it still runs."""
    hub = Hub({NAME: TOKEN})
    async with llama_http(agent) as http, serve_hub(hub) as address:
        pairing_file.touch(mode=0o600)
        pairing_file.write_text(Pairing(address=address, token=TOKEN, name=NAME).uri, encoding="utf-8")
        command = ("-I", "-m", "nearfar.device.thin_worker", "--pairing-file", str(pairing_file), "--server", http.url)
        process = await create_subprocess_exec(python, *command, stderr=PIPE)
        try:
            with anyio.fail_after(30):
                lent = await hub.wait_for(NAME)
            yield lent, hub, process
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@pytest.mark.anyio
async def test_it_serves_steps_from_that_environment_until_it_is_told_to_stop(phone_python: Path, tmp_path: Path) -> None:
    agent = ScriptedAgent(lambda _: "Good morning.")
    async with worker_process(phone_python, agent, tmp_path / "pairing") as (lent, hub, process):
        assert (await complete(lent, asking())).text == "Good morning."
        process.send_signal(signal.SIGTERM)
        with anyio.fail_after(20):
            _, said = await process.communicate()
        assert NAME not in hub.attached
    assert process.returncode == 0
    assert b"attached to" in said
    assert TOKEN.encode() not in said


@pytest.mark.anyio
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
async def test_the_token_is_in_no_process_list(phone_python: Path, tmp_path: Path) -> None:
    async with worker_process(phone_python, ScriptedAgent(lambda _: "Hi."), tmp_path / "pairing") as (_, _, process):
        assert TOKEN not in await anyio.Path(f"/proc/{process.pid}/cmdline").read_text(encoding="utf-8")


@pytest.mark.anyio
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_a_phone_that_is_suddenly_gone_leaves_no_caller_waiting(number: signal.Signals, phone_python: Path, tmp_path: Path) -> None:
    hang = anyio.Event()
    agent = ScriptedAgent(lambda request: ["first ", hang] if request.max_output_tokens != 1 else "Hi")
    async with worker_process(phone_python, agent, tmp_path / "pairing") as (lent, _, process), stream(lent, asking()) as events:
        await anext(aiter(events))
        os.kill(process.pid, number)
        with anyio.fail_after(10), pytest.raises(Unavailable):
            await anext(aiter(events))


@pytest.mark.anyio
async def test_the_second_signal_does_not_wait_for_the_steps(phone_python: Path, tmp_path: Path) -> None:
    hang = anyio.Event()
    agent = ScriptedAgent(lambda request: ["first ", hang] if request.max_output_tokens != 1 else "Hi")
    async with worker_process(phone_python, agent, tmp_path / "pairing") as (lent, hub, process), stream(lent, asking()) as events:
        await anext(aiter(events))
        process.send_signal(signal.SIGINT)
        with anyio.fail_after(10):
            await eventually(lambda: hub.attached[NAME].is_draining)
        process.send_signal(signal.SIGINT)
        with anyio.fail_after(10):
            assert await process.wait() == 130


PRIVATE = Pairing(address="localhost:1", token=TOKEN, name="my-phone")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "given twice"),
        (["localhost:1", "--pairing-file", "x"], "given twice"),
        (["localhost:1"], "there is no token"),
        (["--pairing-file", "/nowhere/pairing"], "cannot be read"),
        (["localhost:1", "--token-file", "/nowhere/token"], "cannot be read"),
        (["localhost:1", "--fingerprint", "sha256:00"], "fingerprint"),
        (["no-port"], "not an address"),
        (["localhost:1", "--server", "http://192.0.2.1:8080"], "not the address of a server on this device"),
    ],
)
def test_wrong_options_are_said_to_be_wrong(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NEARFAR_TOKEN", raising=False)
    if said not in ("there is no token", "cannot be read"):
        monkeypatch.setenv("NEARFAR_TOKEN", TOKEN)
    assert thin_worker.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_the_name_comes_from_the_pairing_unless_one_is_given(tmp_path: Path) -> None:
    path = tmp_path / "pairing"
    path.touch(mode=0o600)
    path.write_text(PRIVATE.uri, encoding="utf-8")
    parser = thin_worker.parser()
    assert thin_worker._worker(parser.parse_args(["--pairing-file", str(path)])).name == "my-phone"
    assert thin_worker._worker(parser.parse_args(["--pairing-file", str(path), "--name", "other"])).name == "other"
