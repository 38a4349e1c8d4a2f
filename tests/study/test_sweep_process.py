"""The command as users run it: killed, stopped, too dear, on Ray."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from secrets_world import GATE, GATED_FROM

from nearfar.orchestrator.lab.study import StudyFile, make_study
from nearfar.orchestrator.lab.study.pools import LocalPool
from nearfar.orchestrator.lab.study.sweep import read_records
from nearfar.orchestrator.lab.study.workbench import Item
from nearfar.orchestrator.routing.navigator import Navigator
from nearfar.orchestrator.routing.outcome_records import RunRecord
from nearfar.orchestrator.task.events import Move
from nearfar.orchestrator.task.policy import Policy
from nearfar.protocols import WorkerCrashed

SECRETS = ("--world", "secrets_world:SecretsWorld", "--agents", "secrets_world:agents", "--public")
RUNS = ("--tasks", "5", "--seeds", "2", "--run", "device pevr/1", "--jobs", "1", "--concurrency", "2")
UNGATED = GATED_FROM * 2 * 2
"""Runs of the tasks that no gate holds back."""
DEADLINE = 100

NEEDS_RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")

pytestmark = pytest.mark.timeout(240)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "nearfar", "sweep", *arguments]


def sweep(*arguments: str, gate: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """A sweep to its end, from the folder of the test world."""
    return subprocess.run(
        command(*arguments), cwd=Path(__file__).parent, env=environment(gate), capture_output=True, text=True, timeout=200
    )


def environment(gate: Path | None) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **({GATE: str(gate)} if gate else {})}


def comparable(path: Path) -> dict[str, RunRecord]:
    records = read_records(path)
    assert len({each.key for each in records}) == len(records)
    return {each.key: each.model_copy(update={"seconds": 0.0}) for each in records}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunRecord]:
    """The runs of a sweep that nothing interrupts."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    result = sweep(*SECRETS, *RUNS, "--out", str(folder))
    assert result.returncode == 0, result.stderr
    return comparable(folder / "runs.jsonl")


class Held:
    """A sweep that runs until the gate holds it, and the processes that it started."""

    def __init__(self, folder: Path, gate: Path, *options: str) -> None:
        self.folder = folder
        self.gate = gate
        self.process = subprocess.Popen(
            command(*SECRETS, *RUNS, "--out", str(folder), *options),
            cwd=Path(__file__).parent,
            env=environment(gate),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.children: list[psutil.Process] = []

    async def reached(self) -> None:
        """Wait until all runs before the gate are recorded."""
        runs = self.folder / "runs.jsonl"
        with anyio.fail_after(DEADLINE):
            while not runs.exists() or runs.read_bytes().count(b"\n") < UNGATED:
                assert self.process.poll() is None, self.process.communicate()[1]
                await anyio.sleep(0.05)  # another process writes the file, so there is no event to wait for
        self.children = psutil.Process(self.process.pid).children(recursive=True)

    def leave_nothing(self) -> None:
        assert self.children
        assert psutil.wait_procs(self.children, timeout=DEADLINE)[1] == []


@pytest.fixture
def held(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Held]:
    held = Held(tmp_path / "held", tmp_path / "gate", *getattr(request, "param", ()))
    yield held
    held.process.kill()
    held.process.wait()
    assert held.process.stderr is not None
    held.process.stderr.close()


@pytest.mark.anyio
async def test_a_sweep_killed_in_the_middle_goes_on_as_if_nothing_had_been(held: Held, uninterrupted: dict[str, RunRecord]) -> None:
    await held.reached()
    held.process.kill()
    held.process.communicate()
    held.leave_nothing()
    runs = held.folder / "runs.jsonl"
    before = comparable(runs)
    assert len(before) == UNGATED < len(uninterrupted)
    with runs.open("ab") as file:
        file.write(b'{"key": "torn')
    result = sweep(*SECRETS, *RUNS, "--out", str(held.folder))
    assert result.returncode == 0, result.stderr
    assert f"{len(uninterrupted) - UNGATED} of {len(uninterrupted)} runs to make" in result.stderr
    assert comparable(runs) == uninterrupted
    assert list(comparable(runs))[:UNGATED] == list(before)


@pytest.mark.anyio
async def test_ctrl_c_closes_the_workers_and_says_how_to_go_on(held: Held) -> None:
    await held.reached()
    held.process.send_signal(signal.SIGINT)
    _, said = held.process.communicate(timeout=DEADLINE)
    assert held.process.returncode == 130
    assert "8 of 20 runs are missing; the same command makes them:" in said
    assert f"nearfar sweep {' '.join(SECRETS)}" in " ".join(said.split())
    held.leave_nothing()
    assert len(comparable(held.folder / "runs.jsonl")) == UNGATED


def test_a_worker_whose_sweep_was_killed_while_it_started_ends_without_a_word() -> None:
    options = {"worlds": ("secrets_world:SecretsWorld",), "agents": "secrets_world:agents", "runs": ("device",), "jobs": 1}
    study = make_study(StudyFile.model_validate(options), near=None, far=None, policy=Policy())
    program = [sys.executable, "-m", "nearfar.orchestrator.lab.study.pools"]
    pipe, folder = subprocess.PIPE, Path(__file__).parent
    with subprocess.Popen(program, cwd=folder, env=environment(None), stdin=pipe, stdout=pipe, stderr=pipe) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stderr is not None
        worker.stdout.close()
        worker.stdin.write(study.model_dump_json().encode() + b"\n")
        worker.stdin.close()
        assert worker.stderr.read() == b""
    assert worker.returncode == 0


@pytest.mark.anyio
async def test_a_worker_that_is_killed_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = tmp_path / "gate"
    monkeypatch.setenv(GATE, str(gate))
    monkeypatch.chdir(Path(__file__).parent)
    options = {"worlds": ("secrets_world:SecretsWorld",), "agents": "secrets_world:agents", "runs": ("device",), "jobs": 1}
    study = make_study(StudyFile.model_validate(options), near=None, far=None, policy=Policy())
    item = Item(world="secrets_world:SecretsWorld", seed=1, index=GATED_FROM, configuration="device")
    failures: list[WorkerCrashed] = []

    async def run_into_the_gate() -> None:
        try:
            await pool.run(item)
        except WorkerCrashed as error:
            failures.append(error)

    others = set(psutil.Process().children())  # such as a database that other tests use
    with anyio.fail_after(DEADLINE):
        async with LocalPool(study) as pool:
            free = await pool.run(item.model_copy(update={"index": 0}))
            async with anyio.create_task_group() as running:
                running.start_soon(run_into_the_gate)
                await anyio.wait_all_tasks_blocked()
                (worker,) = set(psutil.Process().children()) - others
                worker.kill()
            gate.touch()
            again = await pool.run(item)
    assert len(failures) == 1
    assert (free.task, again.task, again.error) == ("secret-1-0", "secret-1-3", None)


def test_a_sweep_with_nothing_left_to_do_writes_its_report_anew(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = (*SECRETS, *RUNS, "--out", str(tmp_path))
    assert sweep(*arguments).returncode == 0
    (tmp_path / "report.html").unlink()
    result = sweep(*arguments, "--json")
    assert "recorded already" in result.stderr
    assert (tmp_path / "report.html").exists()
    summary = json.loads(result.stdout)
    assert (summary["runs"], summary["missing"]) == (20, 0)
    assert [finding["number"] for finding in summary["findings"]] == list(range(1, 12))


def test_a_sweep_that_left_moves_to_chance_trains_a_navigator_on_them(tmp_path: Path) -> None:
    exploring = (*SECRETS, "--run", "pevr:explore=1", "--tasks", "100", "--seeds", "1", "--jobs", "1")
    result = sweep(*exploring, "--out", str(tmp_path), "--json")
    trained = Path(json.loads(result.stdout)["navigator"])
    assert trained == tmp_path / "navigator.json"
    seen = read_records(tmp_path / "runs.jsonl")[0].moves[0].seen
    assert set(Navigator.load(trained).worth(seen)) == set(Move)


def test_the_ceiling_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    result = sweep(*SECRETS, "--tasks", "5", "--seeds", "2", "--run", "cloud", "--jobs", "1", "--out", str(tmp_path), "--ceiling", "0.0005")
    assert result.returncode == 3, result.stderr
    assert "a higher --ceiling allows more" in result.stderr
    assert 0 < sum(each.dollars or 0 for each in read_records(tmp_path / "runs.jsonl")) <= 0.0005


def test_a_world_in_which_every_run_fails_is_said_to_be_broken(tmp_path: Path) -> None:
    world = ("--world", "secrets_world:BrokenWorld", "--agents", "secrets_world:agents", "--public")
    result = sweep(*world, "--tasks", "2", "--seeds", "1", "--run", "device", "--out", str(tmp_path), "--json")
    assert result.returncode == 1
    error: dict[str, Any] = json.loads(result.stdout)["error"]
    assert "every run failed, the first one with: NotFound" in error["message"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--world", "secrets_world:Secrets", "--public", "--agents", "secrets_world:agents"), "no function or class 'Secrets'"),
        (("--world", "search", "--run", "pevr/x"), "the pace is a number"),
        (("--world", "secrets_world:SecretsWorld"), "are private"),
        (("missing.toml",), "there is no missing.toml"),
        (("--agents", "secrets_world:not_agents", "--run", "device"), "not a near and a far agent"),
    ],
)
def test_a_mistake_is_reported_before_anything_runs(arguments: Sequence[str], problem: str, tmp_path: Path) -> None:
    result = sweep(*arguments, "--tasks", "1", "--out", str(tmp_path / "out"), "--json")
    assert result.returncode == 2, result.stderr
    assert problem in json.loads(result.stdout)["error"]["message"]


@NEEDS_RAY
@pytest.mark.anyio
@pytest.mark.parametrize("held", [("--ray",)], indirect=True, ids=["ray"])
async def test_ray_makes_the_same_runs_and_listens_on_loopback_alone(held: Held, uninterrupted: dict[str, RunRecord]) -> None:
    await held.reached()
    connections = [each for process in held.children for each in process.net_connections("inet")]
    listening = {each.laddr.ip.removeprefix("::ffff:") for each in connections if each.status == psutil.CONN_LISTEN}
    held.gate.touch()
    _, said = held.process.communicate(timeout=DEADLINE)
    assert held.process.returncode == 0, said
    assert comparable(held.folder / "runs.jsonl") == uninterrupted
    assert listening == {"127.0.0.1"}
    held.leave_nothing()


@pytest.mark.parametrize("pool", [(), pytest.param(("--ray",), marks=NEEDS_RAY)], ids=["here", "ray"])
def test_a_run_that_its_process_dies_of_fails_alone(pool: Sequence[str], tmp_path: Path) -> None:
    world = ("--world", "secrets_world:DeadlyWorld", "--agents", "secrets_world:agents", "--public")
    study = ("--tasks", "3", "--seeds", "1", "--run", "device", "--jobs", "1", "--concurrency", "3")
    result = sweep(*world, *study, "--out", str(tmp_path), *pool)
    assert result.returncode == 0, result.stderr
    errors = {each.task: each.error for each in read_records(tmp_path / "runs.jsonl")}
    assert (errors["secret-1-0"], errors["secret-1-2"]) == (None, None)
    assert (errors["secret-1-1"] or "").startswith("WorkerCrashed")


def test_without_ray_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError(name='ray')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = sweep(*SECRETS, *RUNS, "--out", str(tmp_path), "--ray")
    assert result.returncode == 2
    assert "nearfar[ray]" in result.stderr
