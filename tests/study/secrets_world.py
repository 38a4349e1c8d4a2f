"""A user's own world and agents: what sweeps are tested on. Every task has a secret that one tool reveals."""

import os
from collections.abc import Sequence
from pathlib import Path

import anyio

from nearfar import Tool, tool
from nearfar.orchestrator.lab.worlds import Grade, WorldTask
from nearfar.orchestrator.strategies.prompts import PLAN, VERIFY_PLAN, VERIFY_PROGRESS
from nearfar.protocols import NotFound, ScriptedAgent, Side, StepRequest, ToolCall

GATE = "SECRETS_GATE"
"""Environment variable: a file without which tasks from the third on wait."""
GATED_FROM = 3


class SecretsWorld:
    """Tasks numbered through; the odd ones are hard, and the near agent gets them wrong."""

    name = "secrets"

    def tasks(self, count: int, seed: int) -> Sequence[WorldTask]:
        return [
            WorldTask(
                identifier=f"secret-{seed}-{number}",
                prompt=f"What is the secret of item {seed}-{number}?",
                kind="hard" if number % 2 else "easy",
                difficulty=1 + number % 2,
            )
            for number in range(count)
        ]

    def reset(self, task: WorldTask) -> "SecretsEpisode":
        return SecretsEpisode(task)


class SecretsEpisode:
    """One secret to be found."""

    def __init__(self, task: WorldTask) -> None:
        self._item = task.identifier.removeprefix("secret-")
        self.is_closed = False

        @tool(time_limit=600)
        async def reveal(item: str) -> str:
            """The secret of an item."""
            gate = os.environ.get(GATE)
            while gate and int(item.partition("-")[2]) >= GATED_FROM and not Path(gate).exists():  # noqa: ASYNC110 - across processes
                await anyio.sleep(0.02)
            return f"secret {item}"

        self.tools: Sequence[Tool] = (reveal,)

    def grade(self, answer: str) -> Grade:
        found = answer == f"secret {self._item}"
        return Grade(success=found, score=1.0 if found else 0.25, measures={"exact_match": float(found)})

    def close(self) -> None:
        self.is_closed = True


class BrokenWorld(SecretsWorld):
    """Cannot start over on any task."""

    def reset(self, task: WorldTask) -> SecretsEpisode:
        raise NotFound("the items are gone")


class HalfBrokenWorld(SecretsWorld):
    """Cannot start over on hard tasks, and fails like a program and not like nearfar."""

    def reset(self, task: WorldTask) -> SecretsEpisode:
        if task.kind == "hard":
            raise ZeroDivisionError("one over nothing")
        return super().reset(task)


class DeadlyWorld(SecretsWorld):
    """Takes its process along on hard tasks, as a crash in native code does."""

    def reset(self, task: WorldTask) -> SecretsEpisode:
        if task.kind == "hard":
            os._exit(1)
        return super().reset(task)


class UngradedEpisode(SecretsEpisode):
    """Breaks the contract of episodes."""

    def grade(self, answer: str) -> Grade:
        return None  # type: ignore[return-value]  # what a user may forget


class UngradedWorld(SecretsWorld):
    """Forgets to return the grade."""

    def reset(self, task: WorldTask) -> SecretsEpisode:
        return UngradedEpisode(task)


def agents() -> tuple[ScriptedAgent, ScriptedAgent]:
    """A near agent that is wrong about odd numbers, and a far one that is always right."""
    near = ScriptedAgent(lambda request: _work(request, is_careful=False), name="near", confidence=0.9)
    far = ScriptedAgent(_advise_or_work, name="far", side=Side.FAR)
    return near, far


def near_only() -> tuple[ScriptedAgent, None]:
    """No far agent at all."""
    return agents()[0], None


def not_agents() -> str:
    return "no agents"


def _advise_or_work(request: StepRequest) -> str | ToolCall:
    match request.messages[0].text:
        case text if text == PLAN:
            return '1. reveal(item="...")\n2. answer'
        case text if text in (VERIFY_PLAN, VERIFY_PROGRESS):
            return "CONTINUE"
    return _work(request, is_careful=True)


def _work(request: StepRequest, *, is_careful: bool) -> str | ToolCall:
    if "reveal" not in {tool.name for tool in request.tools}:
        return "no idea"
    result = request.messages[-1].tool_result
    if result is not None:
        is_hard = int(result.content[-1]) % 2
        return result.content if is_careful or not is_hard else "no idea"
    asked = next(message.text for message in request.messages if message.role == "user")
    item = asked.partition("item ")[2].partition("?")[0]
    return ToolCall(id="1", name="reveal", arguments={"item": item})
