"""Runs of the search world with a known fault: an executor that does the task by its program, but for one step that it gets wrong."""

import random
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from nearfar.orchestrator.lab.worlds import Argument, Program, Step
from nearfar.protocols import (
    AgentCard,
    Capabilities,
    Finished,
    FinishReason,
    Limits,
    Message,
    Side,
    StepEvent,
    StepRequest,
    TextDelta,
    ToolCall,
    ToolCalled,
    Usage,
)

_ORDINALS = ("first", "second", "third", "fourth")


@dataclass(frozen=True)
class Fault:
    """What goes wrong, and whenever the executor comes to the place again, as with a model that does not know better."""

    place: int
    """The program's step that it gets wrong; behind the last one: the answer."""
    kind: str
    """`argument`: another value; `early`: an answer before its time."""
    detour: int | None = None
    """A place at which it looks up something needless, which does no harm."""


class ProgramExecutor:
    """Carries a program out on what tools really return, so that a wrong step leads to further wrong ones."""

    def __init__(self, program: Program, fault: Fault | None, wrong: str) -> None:
        self._program = program
        self._fault = fault
        self._wrong = wrong
        self._idle = f"anything about {wrong}"
        capabilities = Capabilities(tools=True)
        limits = Limits(concurrency=64)
        self.card = AgentCard(
            name="near", side=Side.NEAR, model="program", description="a program with a fault", capabilities=capabilities, limits=limits
        )

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        """The next step of the program, or the fault."""
        said = self._next(request.messages)
        reason = FinishReason.STOP if isinstance(said, str) else FinishReason.TOOL_CALLS
        yield TextDelta(text=said) if isinstance(said, str) else ToolCalled(call=said)
        yield Finished(reason=reason, usage=Usage(input_tokens=1, output_tokens=1), model=self.card.model)

    async def aclose(self) -> None:
        """Nothing is held."""

    def _next(self, messages: Sequence[Message]) -> str | ToolCall:
        calls = [call for message in messages for call in message.tool_calls]
        results = [message.tool_result.content for message in messages if message.tool_result is not None]
        detours = [place for place, call in enumerate(calls) if call.arguments.get("query") == self._idle]
        results = [result for place, result in enumerate(results) if place not in detours]
        place, fault = len(results), self._fault
        identifier = f"call-{len(calls)}"
        if fault is not None and fault.detour == place and not detours:
            return ToolCall(id=identifier, name="search", arguments={"query": self._idle})
        is_faulty = fault is not None and fault.place == place
        if place >= len(self._program.steps):
            return self._wrong if is_faulty else self._answer(results)
        if is_faulty and fault is not None and fault.kind == "early":
            return self._wrong
        step = self._program.steps[place]
        arguments: dict[str, JsonValue] = {name: self._value(argument, results) for name, argument in step.arguments}
        if is_faulty:
            arguments[self._corrupted(step)] = self._wrong
        return ToolCall(id=identifier, name=step.tool, arguments=arguments)

    def _corrupted(self, step: Step) -> str:
        return "title" if step.tool == "open" else "query"

    def _answer(self, results: Sequence[str]) -> str:
        ending = self._program.ending
        values = [self._value(part, results) for part in ending.parts]
        if ending.is_comparison:
            return "yes" if len(set(values)) == 1 else "no"
        return ", ".join(values)

    def _value(self, argument: Argument, results: Sequence[str]) -> str:
        """As it was read, right or wrong."""
        if argument.source is None or argument.source >= len(results):
            return str(argument.value)
        found, result = results[argument.source], str(argument.value)
        names = found.split("; ")
        place = next((index for index, word in enumerate(_ORDINALS) if argument.name.startswith(word)), None)
        if place is not None:
            return names[place] if place < len(names) else found
        return "unknown" if found == "not stated" else result if found == result else found


def draw_fault(program: Program, random_: random.Random, kinds: Sequence[str] = ("argument", "early")) -> Fault:
    """A fault at a random place, in half of all cases behind a detour that does no harm.

    The detour is at an earlier place: to put the right step where a detour stands at the same place is to put it where the fault is.
    """
    place = random_.randint(0, len(program.steps))
    detour = random_.randint(0, place - 1) if place and random_.random() < 0.5 else None
    return Fault(place, random_.choice(kinds), detour)


def wrong_value(right: Sequence[str], names: Sequence[str], random_: random.Random) -> str:
    """A name that stands nowhere in the solution."""
    return random_.choice([name for name in names if name not in right])
