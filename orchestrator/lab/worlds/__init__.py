"""`World`: tasks, the environment they are worked on in, and how an outcome is graded. Implement it to measure on tasks of your own. The
shipped worlds are made of names: two words each, shared by both splits, in combinations that are not. A hash of the name decides which
split may use it, so a model trained on the "train" split meets only unseen names in the "test" split.

The solution of a task is a program of tool calls: the arguments of a step are either known from the task or revealed by an earlier
step. From that follow the plan, the verdict on any work, the plan of what remains, and a summary: what the models are trained to say, and
what the oracle says.
"""

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, Protocol, runtime_checkable

from pydantic import Field, JsonValue

from ....protocols import (
    Agent,
    AgentCard,
    Finished,
    FinishReason,
    InvalidRequest,
    Limits,
    Side,
    StepEvent,
    StepRequest,
    TextDelta,
    ToolCall,
    Usage,
)
from ....protocols.steps import Value
from ...strategies.prompts import CONTINUE, INTERVENE, PLAN, VERIFY_PLAN, VERIFY_PROGRESS
from ...task import call_text
from ...task.tools import Tool

Split = Literal["train", "test"]
SPLITS: Final[tuple[Split, ...]] = ("train", "test")
_TEST_SHARE: Final = 0.2
_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "person": (
        (
            "Mira Tomas Elin Jonas Ruth Pavel Ines Oskar Lena Hugo Vera Marek Anya Felix Nora Ivan Clara "
            "Emil Dora Stefan Greta Anton Irma Lukas Tess Viktor Alma Boris Edith Conrad Maya Otto Sonja "
            "Albert Livia Bruno Hanna Leo Petra Samuel"
        ),
        (
            "Falk Berg Novak Lind Weiss Orlov Silva Holm Kramer Duarte Voss Nemec Aalto Brandt Costa Dahl "
            "Engel Farkas Gruber Hansen Ivanov Jansen Keller Larsen Moreau Nilsen Olsen Petrov Quinn Rossi "
            "Stark Tanaka Urban Vogel Winter Young Zeman Marsh Pike Thorn"
        ),
    ),
    "company": (
        (
            "Orbix Lumen Vertex Halcyon Quanta Nimbus Cobalt Zephyr Aurora Beacon Crestline Delta Ember "
            "Fathom Granite Horizon Ionic Juniper Kestrel Lattice Meridian Northwind Onyx Pinnacle Quartz "
            "Redwood Summit Tidal Umbra Vantage"
        ),
        "Labs Works Group Systems Foods Mills Press Motors Freight Optics",
    ),
    "city": (
        "Port New East West Upper Lower Saint Fort Lake Mount",
        (
            "Alder Bram Corvin Dunmore Elster Farrow Galen Hollis Istria Jarrow Kelso Lorne Merrow Norden "
            "Oslen Parma Querin Ravel Selby Torren Ulmar Verin Wexley Yarrow Zadar Ashby Birk Calder Doran "
            "Esker"
        ),
    ),
    "country": (
        ("Velden Sorra Kaltia Morvan Tavira Ostrava Belmar Carinth Drusia Estova Ferrin Galdor Helvar Istmar Jutria Korvia"),
        "Republic Kingdom Union Isles League Federation",
    ),
    "thing": (
        ("Amber Silent Crimson Hollow Golden Paper Velvet Frozen Copper Gentle Broken Silver Wooden Distant Painted Marble"),
        ("Kettle Lantern Compass Anchor Violin Mirror Falcon Garden Bridge Ladder Candle Feather Hammer Engine Basket Window"),
    ),
    "event": (
        ("Spring Budget Annual Weekly Harvest Winter Staff Board Summer Project Team Autumn"),
        ("Review Lunch Walk Concert Meeting Workshop Dinner Call Party Lesson Visit Rehearsal"),
    ),
    "note": (
        ("Blue Green Urgent Private Travel Kitchen Office Weekend Music Sports School Family"),
        ("List Plan Idea Code Number Budget Fee Draft Record Sheet Memo File"),
    ),
}
_CALL = re.compile(r"(\w+)\((.*)\)")
_ARGUMENT = re.compile(r"(?:, )?(\w+)=")
_JSON = json.JSONDecoder()
_FAILURE = re.compile(r"= (\w+Error: |there is no tool |invalid arguments: )")


class WorldTask(Value):
    """One task of a world."""

    identifier: str = Field(min_length=1)
    """Names the same task in every process and every run."""
    prompt: str = Field(min_length=1)
    """Text that the agents are given."""
    kind: str
    """Its class, for comparing like with like: `hops`, `payment` ..."""
    difficulty: int = Field(ge=1)
    """1 is the easiest of its world."""
    context: str | None = None
    """A long text that the task is about, which `minions` keep on the device and other strategies put behind the prompt."""


class Grade(Value):
    """How well a task was done."""

    success: bool
    """The task was done."""
    score: float = Field(ge=0, le=1)
    """Partial credit: 1 is perfect."""
    measures: Mapping[str, float] = {}
    """The world's own figures by name, such as `exact_match` and `f1`, or `test_pass_ratio`."""


@runtime_checkable
class Episode(Protocol):
    """One task being worked on, with a state of its own."""

    @property
    def tools(self) -> Sequence[Tool]:
        """Tools that the agents may call; they act on this episode's state."""
        ...

    def grade(self, answer: str) -> Grade:
        """Grade the final answer together with the state that the tools left behind."""
        ...

    def close(self) -> None:
        """Free what the episode holds."""
        ...


@runtime_checkable
class World(Protocol):
    """A source of tasks. The same arguments always give the same tasks."""

    @property
    def name(self) -> str: ...

    def tasks(self, count: int, seed: int) -> Sequence[WorldTask]:
        """Draw `count` tasks."""
        ...

    def reset(self, task: WorldTask) -> Episode:
        """Start over on a task that this world drew. Raises a `NearfarError` where it cannot."""
        ...


@runtime_checkable
class SolvableWorld(World, Protocol):
    """A world that knows its own solutions."""

    def oracle(self) -> Agent:
        """Return a far supervisor that plans, verifies, replans and advises by the world's own solver: a ceiling, not a model."""
        ...


def split_of(name: str) -> Split:
    """Return the only split in which a name may occur."""
    digest = hashlib.sha256(name.encode()).digest()
    return "test" if digest[0] < 256 * _TEST_SHARE else "train"


@lru_cache(maxsize=32)
def names(kind: str, split: Split) -> tuple[str, ...]:
    """Return every name of a kind that a split may use."""
    firsts, seconds = (words.split() for words in _WORDS[kind])
    combinations = (f"{first} {second}" for first in firsts for second in seconds)
    return tuple(name for name in combinations if split_of(name) == split)


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
class FinalAnswer:
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
    ending: FinalAnswer

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


class Solution(Protocol):
    """A task's program, and how a person would put what is left of it."""

    @property
    def program(self) -> Program: ...

    def advice(self, done: Collection[int]) -> str: ...


def verdict_on_plan(solution: Solution, state: Progress) -> str:
    """Return the right verdict of a check under a plan."""
    return CONTINUE if state.on_track else f"{INTERVENE}\n{solution.program.plan(state.done)}"


def verdict_on_progress(solution: Solution, state: Progress) -> str:
    """Return the right verdict of a check without a plan."""
    return CONTINUE if state.on_track else f"{INTERVENE}\n{guidance(solution, state.done, state.mistake)}"


def guidance(solution: Solution, done: Collection[int], avoid: ToolCall | None) -> str:
    """Return a summary and advice."""
    summary = "; ".join(solution.program.facts(done)) or "nothing yet"
    warning = f" Avoid {call_text(avoid)}." if avoid is not None else ""
    return f"Summary: {summary}.\nAdvice: {solution.advice(done)}{warning}"


class OracleAgent:
    """Answers the supervisor's prompts from the world's solutions; any other request is an `InvalidRequest`."""

    def __init__(self, world: str, solution_of: Callable[[str], Solution | None]) -> None:
        self._solution_of = solution_of
        self._card = AgentCard(
            name="oracle",
            side=Side.FAR,
            model=f"oracle of {world}",
            description="knows every solution of its world: a ceiling for supervisors, not a model",
            world=world,
            limits=Limits(concurrency=1024),
        )

    @property
    def card(self) -> AgentCard:
        return self._card

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        """Plan, or judge the work."""
        reply = self._reply(request)
        yield TextDelta(text=reply)
        usage = Usage(input_tokens=sum(_words(message.text) for message in request.messages), output_tokens=_words(reply))
        yield Finished(reason=FinishReason.STOP, usage=usage, model=self._card.model)

    async def aclose(self) -> None:
        """Do nothing: the oracle holds no resources."""

    def _reply(self, request: StepRequest) -> str:
        role = request.messages[0].text
        task, *parts = request.messages[-1].text.split("\n\n")
        solution = self._solution_of(task)
        if solution is None or role not in (PLAN, VERIFY_PLAN, VERIFY_PROGRESS):
            raise InvalidRequest("the oracle only supervises tasks of its own world", hint="use it as the far agent of pevr and eva")
        if role == PLAN:
            return solution.program.plan()
        state = parse_work(solution.program, parts[-1], _find_known(solution.program, parts[:-1]))
        return verdict_on_plan(solution, state) if role == VERIFY_PLAN else verdict_on_progress(solution, state)


def parse_work(program: Program, text: str, known: Collection[int] = ()) -> Progress:
    """Judge a transcript of work that began when the steps in `known` had been done."""
    state = Progress(set(known))
    lines = text.splitlines()
    turns = (list(turn) for _, turn in itertools.groupby(lines, key=lambda line: line.startswith("= ")))
    said: list[ToolCall] = []
    for turn in turns:
        calls = [call for line in turn if (call := _parse_call(line)) is not None]
        # Words of the executor may read like a call; results belong to the last lines before them.
        for call, result in zip(said[-len(turn) :], turn, strict=False):
            state.add(program, call, failed=_FAILURE.match(result) is not None)
        said = calls
    if lines and not lines[-1].startswith("= "):
        state.conclude(program, lines[-1])
    return state


def _parse_call(line: str) -> ToolCall | None:
    match = _CALL.fullmatch(line)
    if match is None:
        return None
    arguments = _parse_arguments(match[2])
    return ToolCall(id=line, name=match[1], arguments=arguments) if arguments is not None else None


def _parse_arguments(text: str) -> dict[str, JsonValue] | None:
    """Parse the arguments that `call_text` writes between the brackets; None if the text is something else."""
    arguments: dict[str, JsonValue] = {}
    place = 0
    while place < len(text):
        name = _ARGUMENT.match(text, place)
        if name is None:
            return None
        try:
            arguments[name[1]], place = _JSON.raw_decode(text, name.end())
        except json.JSONDecodeError:
            return None
    return arguments


def _find_known(program: Program, carried: Iterable[str]) -> set[int]:
    """Return the steps done before the context was last reset: those missing from the plan, or told of in the summary."""
    text = "\n\n".join(carried)
    if text.startswith("Plan:\n"):
        return _missing_from(program, [line.partition(". ")[2] for line in text.splitlines()[1:]])
    return {index for index, step in enumerate(program.steps) if f"{call_text(step.call('step'))}: " in text}


def _missing_from(program: Program, lines: Collection[str]) -> set[int]:
    left = Counter(lines)
    missing = set()
    # Steps that read alike are done from the first to the last, so those that a plan still has are the last ones.
    for index in reversed(range(len(program.steps))):
        found = next((form for form in _forms(program.steps[index]) if left[form]), None)
        if found is None:
            missing.add(index)
        else:
            left[found] -= 1
    return missing


def _forms(step: Step) -> Iterable[str]:
    """Yield every way in which a plan may write the step, with or without what earlier ones reveal."""
    sources = sorted({argument.source for _, argument in step.arguments if argument.source is not None})
    for size in range(len(sources) + 1):
        for done in itertools.combinations(sources, size):
            yield step.text(done)


def _words(text: str) -> int:
    return len(re.findall(r"\w+|[^\w\s]", text))
