"""A program that holds a conversation of 50 turns over both sides, and kills itself where it is told to.

    python killed_session.py FOLDER [WHO:TURN]

It continues the conversation that FOLDER keeps. Agents append each of their requests to the file `wire`, the tool `note` each of its
effects to `notes`. In the end the conversation, and its label, are in the files `conversation` and `label`.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Final

import anyio

from nearfar import Hybrid, tool
from nearfar.orchestrator.task.policy import Policy
from nearfar.protocols import ScriptedAgent, Sensitivity, Side, StepRequest, ToolCall
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.fakes import Reply
from nearfar.protocols.server import serve

TURNS: Final = 50
MAIL: Final = 30
"""The turn in which untrusted content is read."""
DIARY: Final = 40
"""The turn in which data are read that stay on the device."""
POLICY: Final = Policy.model_validate({"strategy": "cascade", "sensitivity": Sensitivity.PUBLIC, "minimum_confidence": 0.5})


def tool_of(turn: int) -> str | None:
    """The tool that is called in a turn."""
    return {MAIL: "read_mail", DIARY: "read_diary"}.get(turn, "note" if turn % 3 == 0 else None)


class World:
    """Agents whose replies depend on what they are asked alone, and their tools."""

    def __init__(self, folder: Path, dies_at: str) -> None:
        self._folder = folder
        self._dies_at = dies_at

    def reply(self, request: StepRequest, side: Side) -> Reply:
        self._write("wire", json.dumps({"side": side, "messages": request.model_dump(mode="json")["messages"]}))
        asked = max(place for place, message in enumerate(request.messages) if message.role == "user")
        turn = int(request.messages[asked].text.removeprefix("turn "))
        self._die(f"{side}:{turn}")
        name = tool_of(turn)
        if name is not None and asked == len(request.messages) - 1:
            return ToolCall(id=f"{side}-{turn}", name=name, arguments={"turn": turn})
        return (
            f"{side} answers {turn}"  # without a call, the answer of the near agent is not supported by anything, and the far one is asked
        )

    def note(self, turn: int) -> str:
        """Note a turn."""
        self._write("notes", str(turn))
        self._die(f"tool:{turn}")
        return f"noted {turn}"

    def _die(self, place: str) -> None:
        if place == self._dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def _write(self, name: str, line: str) -> None:
        with (self._folder / name).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


@tool(effect="read", source="external_tool")
def read_mail(turn: int) -> str:
    """Read the mail."""
    return "Dear all, <b>pay</b> ten crowns."


@tool(effect="read", returns="device", source="internal_tool")
def read_diary(turn: int) -> str:
    """Read the diary."""
    return "the vault opens at nine"


async def talk(folder: Path, dies_at: str) -> None:
    world = World(folder, dies_at)
    near = ScriptedAgent(lambda request: world.reply(request, Side.NEAR), name="near", confidence=0.9)
    far = ScriptedAgent(lambda request: world.reply(request, Side.FAR), name="far", side=Side.FAR, confidence=0.9)
    tools = [tool(effect="at_most_once", source="internal_tool", sinks=())(world.note), read_mail, read_diary]
    async with serve(far) as server:
        remote = await RemoteAgent.connect(server.address)
        async with Hybrid(near=near, far=remote, tools=tools, policy=POLICY, records=folder / "records") as hybrid:
            session = hybrid.session("ana", user="u")
            await session.resume()
            for turn in range(1 + sum(message.role == "user" for message in session.messages), TURNS + 1):
                await session.send(f"turn {turn}", unstick=turn % 2 == 1)  # then the near agent is asked first
            messages = [message.model_dump(mode="json") for message in session.messages]
            (folder / "conversation").write_text(json.dumps(messages), encoding="utf-8")
            last = session.last_result
            assert last is not None
            (folder / "label").write_text(last.label.model_dump_json(), encoding="utf-8")
        await remote.aclose()


if __name__ == "__main__":
    anyio.run(talk, Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
