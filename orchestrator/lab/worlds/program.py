"""The solution of a task as a program of tool calls, and what a supervisor who knows it says about work in progress.

A step's arguments are either known from the task or revealed by an earlier step. From that follow the plan, the verdict on any
work, the plan of what remains, and a summary: what the models are trained to say, and what the oracle says.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass

from pydantic import JsonValue

from ....protocols import ToolCall
from ...task.task import call_text


@dataclass(frozen=True, slots=True)
class Argument:
    """A value; where an earlier step reveals it, `source` is that step's index and `name` what it is called there."""

    value: JsonValue
    name: str = ""
    source: int | None = None

    def text(self, done: Collection[int]) -> str:
        """Return the argument as a plan writes it: the value if it is known by now, else `<name>`."""
        return json.dumps(self.value, ensure_ascii=False) if self.is_known(done) else f"<{self.name}>"

    def plain(self, done: Collection[int]) -> str:
        """Return the argument without quotation marks, for an answer."""
        return str(self.value) if self.is_known(done) else f"<{self.name}>"

    def is_known(self, done: Collection[int]) -> bool:
        return self.source is None or self.source in done


@dataclass(frozen=True, slots=True)
class Step:
    """One call that the solution needs."""

    tool: str
    arguments: tuple[tuple[str, Argument], ...]

    def matches(self, call: ToolCall) -> bool:
        return call.name == self.tool and call.arguments == {name: argument.value for name, argument in self.arguments}

    def call(self, identifier: str) -> ToolCall:
        return ToolCall(id=identifier, name=self.tool, arguments={name: argument.value for name, argument in self.arguments})

    def text(self, done: Collection[int]) -> str:
        inner = ", ".join(f"{name}={argument.text(done)}" for name, argument in self.arguments)
        return f"{self.tool}({inner})"


@dataclass(frozen=True, slots=True)
class Ending:
    """The final answer: what to say, in terms of what the steps reveal."""

    parts: tuple[Argument, ...]
    is_comparison: bool = False
    """The answer is yes where all parts are equal, else no."""

    @property
    def answer(self) -> str:
        if self.is_comparison:
            return "yes" if len({part.value for part in self.parts}) == 1 else "no"
        return ", ".join(str(part.value) for part in self.parts)

    def text(self, done: Collection[int]) -> str:
        if not self.is_comparison or all(part.is_known(done) for part in self.parts):
            return "answer " + (self.answer if self.is_comparison else ", ".join(part.plain(done) for part in self.parts))
        return f"answer yes if {' and '.join(part.plain(done) for part in self.parts)} are the same, else no"


@dataclass(frozen=True, slots=True)
class Program:
    """The steps of a solution in a workable order, and its ending."""

    steps: tuple[Step, ...]
    ending: Ending

    def plan(self, done: Collection[int] = ()) -> str:
        """Return numbered lines for what remains after the steps in `done`."""
        lines = [step.text(done) for index, step in enumerate(self.steps) if index not in done]
        return "\n".join(f"{number}. {line}" for number, line in enumerate([*lines, self.ending.text(done)], start=1))

    def step_of(self, call: ToolCall, done: Collection[int]) -> int | None:
        """Return the remaining step that a call carries out, if any."""
        return next((index for index, step in enumerate(self.steps) if index not in done and step.matches(call)), None)

    def next_step(self, done: Collection[int]) -> int | None:
        """Return the first step that is still to do; None when only the answer is left."""
        return next((index for index in range(len(self.steps)) if index not in done), None)

    def facts(self, done: Collection[int]) -> list[str]:
        """Return the effects and findings of the done steps, a sentence each."""
        return [self._fact(index) for index in sorted(done)]

    def _fact(self, index: int) -> str:
        uses = [argument for step in self.steps for _, argument in step.arguments] + list(self.ending.parts)
        revealed = {argument.name: argument.value for argument in uses if argument.source == index}
        found = ", ".join(f"{name} {value}" for name, value in revealed.items())
        return f"{call_text(self.steps[index].call('step'))}: {found or 'done'}"


@dataclass(slots=True)
class Progress:
    """How far some work has come: the steps done, and whether the last thing that happened was right."""

    done: set[int]
    on_track: bool = True
    mistake: ToolCall | None = None
    """The last call, where it was a mistake."""

    def add(self, program: Program, call: ToolCall, *, failed: bool) -> None:
        """Count one more call. Only a call that carries out a new step is on track."""
        step = program.step_of(call, self.done)
        self.on_track = step is not None and not failed
        self.mistake = None if self.on_track else call
        if step is not None and not failed:
            self.done.add(step)

    def conclude(self, program: Program, answer: str) -> None:
        """Count the final answer, which must be right and must not come too early."""
        self.on_track = program.next_step(self.done) is None and answer == program.ending.answer
