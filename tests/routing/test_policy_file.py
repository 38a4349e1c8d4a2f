"""A policy that is edited while tasks run."""

import logging
import os
import threading
from itertools import count
from pathlib import Path

import pytest

from nearfar.orchestrator.compose.policy_file import PolicyFile
from nearfar.orchestrator.hybrid import Hybrid
from nearfar.protocols import ConfigError, ScriptedAgent, Side

MOMENTS = count(1)
AGENTS = {"near": Side.NEAR, "far": Side.FAR}


def write(path: Path, text: str) -> Path:
    """Replace the file in one step, as editors do; it was written long enough ago to have settled, and later than the one before."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    moment = next(MOMENTS)
    os.utime(fresh, (moment, moment))
    fresh.replace(path)
    return path


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    file = PolicyFile(write(tmp_path / "nearfar.toml", '[policy]\nmode = "auto"\n'))
    before = file.current
    write(tmp_path / "nearfar.toml", '[policy]\nmode = "only_on_device"\n')
    assert (before.mode, file.current.mode, file.problem) == ("auto", "only_on_device", None)


def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    file = PolicyFile(write(tmp_path / "nearfar.toml", "[policy]\n"))
    assert file.current is file.current


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ("[policy\n", "not valid TOML"),
        ('[policy]\nmode = "sometimes"\n', "line 2: policy.mode"),
        ('[[policy.rules]]\nname = "r"\nagent = "nobody"\n', "there is no agent 'nobody'"),
    ],
)
def test_a_broken_file_leaves_the_old_policy_and_says_why(
    tmp_path: Path, broken: str, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = PolicyFile(write(tmp_path / "nearfar.toml", '[policy]\nmode = "only_on_device"\n'), AGENTS)
    write(tmp_path / "nearfar.toml", broken)
    with caplog.at_level(logging.WARNING):
        assert [file.current.mode for _ in range(3)] == ["only_on_device"] * 3
    assert file.problem is not None
    assert problem in file.problem
    assert len(caplog.records) == 1
    write(tmp_path / "nearfar.toml", '[policy]\nmode = "prefer_in_cloud"\n')
    assert file.current.mode == "prefer_in_cloud"
    assert not file.problem


@pytest.mark.parametrize("text", ["", "\n", "# the policy\n\n", "\ufeff", "a = " + "[" * 50_000, "[policy]\nmaximum_turns = " + "9" * 5000])
def test_a_file_of_which_only_a_beginning_was_written_leaves_the_old_policy(tmp_path: Path, text: str) -> None:
    file = PolicyFile(write(tmp_path / "nearfar.toml", '[policy]\nmode = "only_on_device"\n'))
    write(tmp_path / "nearfar.toml", text)
    assert file.current.mode == "only_on_device"
    assert file.problem is not None


@pytest.mark.parametrize("other", ["pipe", "folder", "loop", "nowhere", "unlimited"])
def test_what_is_no_file_leaves_the_old_policy_and_is_not_waited_for(tmp_path: Path, other: str) -> None:
    path = write(tmp_path / "nearfar.toml", '[policy]\nmode = "only_on_device"\n')
    file = PolicyFile(path)
    path.unlink()
    match other:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "unlimited":
            path.symlink_to("/dev/zero")
        case _:
            path.symlink_to(path if other == "loop" else tmp_path / "nowhere")
    if other in ("pipe", "folder"):
        os.utime(path, (1, 1))
    assert file.current.mode == "only_on_device"


def test_a_file_that_is_being_written_in_place_is_left_until_it_has_rested(tmp_path: Path) -> None:
    path = write(tmp_path / "nearfar.toml", '[policy]\nmode = "only_on_device"\n')
    moment = 1000.0
    file = PolicyFile(path, now=lambda: moment)
    for text, seconds in (("", 1000.0), ('[policy]\nmode = "auto"\n', 1000.05)):
        path.write_text(text, encoding="utf-8")
        os.utime(path, (seconds, seconds))
        moment = seconds + 0.02
        assert file.current.mode == "only_on_device"
    moment = 1000.2
    assert (file.current.mode, file.problem) == ("auto", None)


def test_an_emptied_file_takes_no_rule_away(tmp_path: Path) -> None:
    file = PolicyFile(write(tmp_path / "nearfar.toml", '[policy]\nmode = "only_on_device"\n'))
    write(tmp_path / "nearfar.toml", "")
    assert file.current.mode == "only_on_device"
    assert file.problem is not None
    assert "is empty" in file.problem


def test_a_file_that_vanishes_leaves_the_old_policy(tmp_path: Path) -> None:
    path = write(tmp_path / "nearfar.toml", '[policy]\nmode = "only_on_device"\n')
    file = PolicyFile(path)
    path.unlink()
    assert file.current.mode == "only_on_device"
    assert file.problem is not None


def test_a_file_that_is_broken_from_the_start_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not valid TOML"):
        PolicyFile(write(tmp_path / "nearfar.toml", "[policy\n"))
    with pytest.raises(ConfigError, match="there is no"):
        PolicyFile(tmp_path / "none.toml")


def test_no_reader_sees_half_a_policy(tmp_path: Path) -> None:
    path = tmp_path / "nearfar.toml"

    def text(number: int) -> str:
        return f"[policy.objective]\ndollars = {number}\n[policy.router]\nthreshold = {number}\n"

    file = PolicyFile(write(path, text(0)))
    torn: list[tuple[float, float]] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            policy = file.current
            if policy.objective.dollars != policy.router.threshold:
                torn.append((policy.objective.dollars, policy.router.threshold))

    readers = [threading.Thread(target=read) for _ in range(8)]
    for reader in readers:
        reader.start()
    for number in range(1, 60):
        write(path, text(number))
    over.set()
    for reader in readers:
        reader.join()
    assert torn == []
    assert file.current.router.threshold == 59


@pytest.mark.anyio
async def test_a_running_task_keeps_the_policy_it_began_with(tmp_path: Path) -> None:
    path = write(tmp_path / "nearfar.toml", '[policy]\nstrategy = "route"\nmode = "prefer_on_device"\nsensitivity = "public"\n')

    def edit_and_answer(_: object) -> str:
        write(path, '[policy]\nstrategy = "route"\nmode = "prefer_in_cloud"\nsensitivity = "public"\n')
        return "near"

    near, far = ScriptedAgent(edit_and_answer, name="near"), ScriptedAgent(["far"], name="far", side=Side.FAR)
    async with Hybrid(near=near, far=far, policy=PolicyFile(path)) as hybrid:
        first, second = await hybrid.run("one"), await hybrid.run("two")
    assert (first.text, first.decision.mode) == ("near", "prefer_on_device")
    assert (second.text, second.decision.mode) == ("far", "prefer_in_cloud")


def test_a_policy_that_two_apps_share_has_to_fit_the_agents_of_both(tmp_path: Path) -> None:
    file = PolicyFile(write(tmp_path / "nearfar.toml", "[policy]\n"))
    Hybrid(near=ScriptedAgent([], name="near"), policy=file)
    Hybrid(near=ScriptedAgent([], name="other"), policy=file)
    write(tmp_path / "nearfar.toml", '[[policy.rules]]\nname = "r"\nagent = "other"\n')
    assert file.current.rules == ()
    assert file.problem is not None
    assert "there is no agent 'other'" in file.problem
