"""Calls that are kept for the next worker to draft from."""

import json
import logging
import stat
from pathlib import Path

import pytest
from llama_engine import require_llama

require_llama()

from hypothesis import given
from hypothesis import strategies as st
from near_model import NEAR, OPEN, QUESTION, ask

from nearfar.device.llama import LlamaAgent
from nearfar.device.worker.draft_memory import CallFile, CallMemories, KeptCall, as_text
from nearfar.orchestrator.runs.erasing import erase_calls
from nearfar.orchestrator.task.stores import calls_folder
from nearfar.protocols import Sensitivity, ToolChoice, complete

SECRET = tuple(range(40, 60))


class Words:
    """A vocabulary of a hundred tokens."""

    size = 100

    def piece(self, token: int) -> bytes:
        return bytes([token])


def _call(tokens: tuple[int, ...] = SECRET, *, tool: str = "open", sensitivity: Sensitivity = Sensitivity.PRIVATE) -> KeptCall:
    return KeptCall(tool=tool, after=None, on_new_line=True, sensitivity=sensitivity, tokens=tokens)


def _memories(folder: Path) -> CallMemories:
    return CallMemories(CallFile(folder, Words()))  # type: ignore[arg-type]


def _knows(memories: CallMemories, sensitivity: Sensitivity = Sensitivity.PRIVATE) -> bool:
    match = memories.of(sensitivity).find("open", as_text(SECRET[:8]))
    return match is not None and match.following.startswith(as_text(SECRET[8:]))


def test_a_new_worker_drafts_from_the_calls_of_the_last_one(tmp_path: Path) -> None:
    _memories(tmp_path).add(_call())
    memories = _memories(tmp_path)
    assert _knows(memories)
    assert memories.of(Sensitivity.PRIVATE).on_new_line
    assert memories.of(Sensitivity.PRIVATE).by_likelihood(["close", "open"], after=None) == ["open", "close"]


def test_a_public_request_is_drafted_from_public_calls_alone(tmp_path: Path) -> None:
    _memories(tmp_path).add(_call())
    assert not _knows(_memories(tmp_path), Sensitivity.PUBLIC)
    _memories(tmp_path).add(_call(sensitivity=Sensitivity.PUBLIC))
    assert _knows(_memories(tmp_path), Sensitivity.PUBLIC)


def test_kept_calls_can_be_read_by_their_user_only(tmp_path: Path) -> None:
    _memories(tmp_path / "calls").add(_call())
    (file,) = (tmp_path / "calls").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    _memories(tmp_path).add(_call())
    (file,) = tmp_path.glob("*.jsonl")
    file.chmod(0o644)
    _memories(tmp_path).add(_call())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_no_call_is_written_where_a_link_leads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _memories(tmp_path / "calls").add(_call())
    (file,) = (tmp_path / "calls").glob("*.jsonl")
    file.unlink()
    (tmp_path / "other").write_text("kept")
    file.symlink_to(tmp_path / "other")
    _memories(tmp_path / "calls").add(_call())
    assert (tmp_path / "other").read_text() == "kept"
    assert "calls are not kept" in caplog.text


@given(damage=st.binary(max_size=200), at=st.integers(0, 400))
def test_a_damaged_file_costs_no_more_than_the_damaged_calls(damage: bytes, at: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("calls")
    first = _memories(folder)
    for tool in ("a", "b", "open"):
        first.add(_call(tool=tool))
    (file,) = folder.iterdir()
    written = file.read_bytes()
    file.write_bytes(written[:at] + damage + written[at:])
    calls = CallFile(folder, Words()).read()  # type: ignore[arg-type]
    assert len(calls) >= 2
    assert all(call.tokens == SECRET for call in calls if call.tool in ("a", "b", "open"))
    second = _memories(folder)
    second.add(_call())
    assert _knows(_memories(folder))


def test_tokens_that_the_vocabulary_lacks_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _memories(tmp_path).add(_call())
    (file,) = tmp_path.iterdir()
    with file.open("a") as lines:
        lines.write(json.dumps({**_call(tool="other").model_dump(mode="json"), "tokens": [100]}) + "\n")
    with caplog.at_level(logging.WARNING):
        (kept,) = CallFile(tmp_path, Words()).read()  # type: ignore[arg-type]
    assert kept.tool == "open"
    assert "1 of 2 calls" in caplog.text


def test_the_file_stays_bounded_and_keeps_the_newest_calls(tmp_path: Path) -> None:
    memories = _memories(tmp_path)
    for number in range(200):
        memories.add(_call((number % 100,) * 4096, tool=f"tool{number}"))
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size <= 1 << 20
    assert CallFile(tmp_path, Words()).read()[-1].tool == "tool199"  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "calls").write_text("a file in the place of the folder")
    memories = _memories(tmp_path / "calls")
    with caplog.at_level(logging.WARNING):
        memories.add(_call())
        memories.add(_call())
    assert caplog.text.count("calls are not kept") == 1
    assert _knows(memories)


def test_an_erasure_reaches_the_file_and_what_a_running_worker_remembers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFAR_HOME", str(tmp_path))
    memories = _memories(calls_folder())
    memories.add(_call())
    (file,) = calls_folder().iterdir()
    with file.open("rb") as before:
        erase_calls()
        assert not before.read().strip(b"\0")
    assert not file.exists()
    memories.add(_call((1, 2, 3), tool="close"))
    assert not _knows(memories)
    assert not _knows(_memories(calls_folder()))


@pytest.mark.anyio
async def test_an_agent_with_a_folder_keeps_the_calls_that_it_makes(tmp_path: Path) -> None:
    request = ask(QUESTION, tools=(OPEN,), tool_choice=ToolChoice.REQUIRED)
    async with await LlamaAgent.load(NEAR, calls_folder=tmp_path / "calls") as agent:
        reply = await complete(agent, request)
    (file,) = (tmp_path / "calls").iterdir()
    (kept,) = map(KeptCall.model_validate_json, file.read_text().split())
    assert kept.tool == reply.tool_calls[0].name == "open"
    assert kept.sensitivity is Sensitivity.PRIVATE


def test_an_erasure_reaches_every_worker_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFAR_HOME", str(tmp_path))
    _memories(calls_folder()).add(_call())
    workers = [_memories(calls_folder()) for _ in range(3)]
    erase_calls()
    for worker in workers:  # all but the first find the file that another one has begun
        worker.add(_call((1, 2, 3), tool="close"))
        assert not _knows(worker)
    workers[0].add(_call())
    workers[0].add(_call((1, 2, 3), tool="close"))
    assert _knows(workers[0])
