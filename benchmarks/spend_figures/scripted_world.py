"""A scripted task in which near proposes far's next step with a set probability, which may depend on the tool that ran last."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nearfar import Message, ScriptedAgent, Side, StepRequest, ToolCall, Unavailable, tool
from nearfar.orchestrator.task.tools import Tool
from nearfar.protocols.fakes import Pace, Reply

_PLACES: Final = 1000


@dataclass
class ScriptedWorld:
    """Tools over one number, and a list of what was done to it."""

    tells: bool = True
    """What changes the number tells it; False: that it was done, which near can guess."""
    file: Path | None = None
    """Keeps the list, so that it outlives the process; None: it need not."""
    _effects: list[int] = field(default_factory=list)

    @property
    def effects(self) -> list[int]:
        """Return what was done, in order."""
        return self._effects if self.file is None else [int(line) for line in self.file.read_text(encoding="utf-8").split()]

    @property
    def value(self) -> int:
        """Return the number. What was done again after a kill counts once."""
        return sum(set(self.effects))

    def add(self, effect: int) -> None:
        """Note that something was done."""
        self._effects.append(effect)
        if self.file is not None:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(f"{effect}\n")

    @property
    def tools(self) -> list[Tool]:
        """Return two tools that read, and one that changes the number."""

        @tool(effect="read", source="internal_tool")
        async def find(at: int) -> str:
            """Find something."""
            return f"found place{at} in state{self.value}"

        @tool(effect="read", source="internal_tool")
        async def look(at: int) -> str:
            """Look at something."""
            return f"saw place{at} in state{self.value}"

        @tool(effect="idempotent", source="internal_tool")
        async def put(at: int) -> str:
            """Change something."""
            self.add(at)
            return f"state{self.value}" if self.tells else "put"

        return [find, look, put]


@dataclass(frozen=True)
class ScriptedTask:
    """What far does in one task, and how often near says the same."""

    seed: str
    steps: int
    agreement: Mapping[str, float]
    """By the tool that ran last; empty: none has."""
    changing: float = 0.0
    """Share of far's calls that change something."""
    fails_at: int | None = None
    """Step that far fails at; None: it never does."""

    def far(self, request: StepRequest) -> Reply:
        """Return far's step."""
        number, results, _ = self._seen(request)
        if number == self.fails_at:
            return Unavailable("far is away")
        return self._step(number, results, "far")

    def near(self, request: StepRequest) -> Reply:
        """Return near's step: far's, or another one."""
        number, results, last = self._seen(request)
        chance = random.Random(f"near {self.seed} {number} {results}")
        if chance.random() < self.agreement[last]:
            return self._step(number, results, "near")
        return ToolCall(id=f"near-{number}", name=chance.choice(("find", "look")), arguments={"at": _PLACES + chance.randrange(_PLACES)})

    def _seen(self, request: StepRequest) -> tuple[int, list[str], str]:
        results = [message.tool_result for message in request.messages if message.tool_result is not None]
        return len(results), [result.content for result in results], results[-1].name if results else ""

    def _step(self, number: int, results: list[str], side: str) -> Reply:
        chance = random.Random(f"{self.seed} {number} {results}")
        if number >= self.steps:
            return f"The answer is {chance.randrange(_PLACES)}."
        name = "put" if chance.random() < self.changing else chance.choice(("find", "look"))
        return ToolCall(id=f"{side}-{number}", name=name, arguments={"at": chance.randrange(_PLACES)})

    def agents(self, far_pace: Pace, near_pace: Pace) -> tuple[ScriptedAgent, ScriptedAgent]:
        """Return the near and the far agent."""
        far = ScriptedAgent(self.far, name="far", side=Side.FAR, pace=far_pace)
        return ScriptedAgent(self.near, name="near", pace=near_pace), far


def without_ids(messages: tuple[Message, ...]) -> list[object]:
    """Return a conversation without the ids of its calls."""
    return [(message.role, message.text, [(call.name, call.arguments) for call in message.tool_calls]) for message in messages]
