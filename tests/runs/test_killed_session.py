"""A conversation of 50 turns over both sides, whose process is killed again and again."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from killed_session import DIARY, MAIL, TURNS, tool_of

from nearfar.orchestrator.safety.plan_matching import is_quoted
from nearfar.protocols import Message

PROGRAM = Path(__file__).with_name("killed_session.py")
DEATHS = ["near:9", "tool:12", "far:20", "far:30", "near:45"]


def live(folder: Path, *dies_at: str) -> int:
    done = subprocess.run([sys.executable, PROGRAM, folder, *dies_at], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode in (0, -9), done.stderr
    return done.returncode


def turns_of(messages: list[Message]) -> dict[int, list[Message]]:
    found: dict[int, list[Message]] = {}
    for message in messages:
        if message.role == "user":
            found[len(found) + 1] = []
        found[len(found)].append(message)
    return found


def test_fifty_turns_with_tools_on_both_sides_are_told_exactly_whatever_kills_the_process(tmp_path: Path) -> None:
    assert [live(tmp_path, death) for death in DEATHS] == [-9] * len(DEATHS)
    assert live(tmp_path) == 0
    conversation = [Message.model_validate(message) for message in json.loads((tmp_path / "conversation").read_text(encoding="utf-8"))]
    for turn, messages in turns_of(conversation).items():
        check_turn(turn, messages)
    assert len(turns_of(conversation)) == TURNS
    check_wire([json.loads(line) for line in (tmp_path / "wire").read_text(encoding="utf-8").splitlines()], conversation)
    noted = Counter((tmp_path / "notes").read_text(encoding="utf-8").split())
    assert noted == Counter(str(turn) for turn in range(1, TURNS + 1) if tool_of(turn) == "note")
    label = json.loads((tmp_path / "label").read_text(encoding="utf-8"))
    assert (label["tier"], label["integrity"]) == ("device", "untrusted")
    assert {"tool read_mail", "tool read_diary"} <= set(label["origins"])


def check_turn(turn: int, messages: list[Message]) -> None:
    """Each turn is whole: its prompt, a call with its result where a tool is called, and the answer of one side."""
    name = tool_of(turn)
    assert [message.role for message in messages] == (["user", "assistant"] if name is None else ["user", "assistant", "tool", "assistant"])
    assert messages[0].text == f"turn {turn}"
    side = messages[-1].text.split()[0]
    assert messages[-1].text == f"{side} answers {turn}"
    assert side == "near" or turn < DIARY
    if name is None:
        return
    (call,), result = messages[1].tool_calls, messages[2].tool_result
    assert result is not None
    assert (call.id, call.name, call.arguments, result.call_id) == (f"{side}-{turn}", name, {"turn": turn}, call.id)
    assert is_quoted(result) == (turn >= MAIL)  # a note after that may carry what the mail said, and come back by any tool
    if turn != 12:  # its process died before it knew what came of the call
        assert {"note": f"noted {turn}", "read_mail": "ten crowns", "read_diary": "the vault opens at nine"}[name] in result.content


def check_wire(requests: list[dict[str, Any]], conversation: list[Message]) -> None:
    """Each agent was told the conversation up to that point and nothing else, and the far one nothing of the diary."""
    sides = Counter(request["side"] for request in requests)
    assert min(sides["near"], sides["far"]) > 20
    whole = [message.model_dump(mode="json") for message in conversation]
    for request in requests:
        told = request["messages"]
        assert told == whole[: len(told)]
        assert request["side"] == "near" or "the vault opens" not in json.dumps(told)
