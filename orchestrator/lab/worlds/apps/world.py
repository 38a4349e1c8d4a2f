"""`AppsWorld`: errands on stateful apps, checked by tests on the state that is left."""

import random
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from .....protocols import Agent, InvalidRequest
from ....task.tools import Tool
from ..oracle import OracleAgent
from ..program import Argument, Ending, Program, Step
from ..world import Grade, Split, WorldTask
from .errands import ERRANDS, Desk, Errand
from .functions import app_tools, run_now
from .state import AppState, Item

TEST_MIX: Final[Mapping[str, float]] = {
    "1 errand": 0.2,
    "2 errands": 0.2,
    "3 errands": 0.2,
    "4 errands": 0.1,
    "round of 2": 0.1,
    "round of 3": 0.1,
    "round of 4": 0.1,
}
"""Share of each kind of task."""


@dataclass(frozen=True)
class Assignment:
    """One task: a state to begin with, what to do, and the program that does it."""

    kind: str
    text: str
    state: AppState
    errands: tuple[Errand, ...]
    program: Program
    bounds: tuple[int, ...]
    """The index behind each errand's last step."""

    @property
    def difficulty(self) -> int:
        return len(self.errands)

    def advice(self, done: Collection[int]) -> str:
        """Return in words the errands that are still to be finished."""
        starts = (0, *self.bounds)
        left = [
            errand.phrase
            for errand, start, end in zip(self.errands, starts, self.bounds, strict=False)
            if any(step not in done for step in range(start, end))
        ]
        return f"{', then '.join(left)}." if left else "answer done."


def draw_assignment(random_: random.Random, split: Split, kind: str) -> Assignment:
    """Draw a task of a kind: `1 errand` ... `4 errands`, `round of 2` ... `round of 4`."""
    while True:
        desk = Desk(random_, split)
        try:
            text, errands = _errands(desk, random_, kind)
        except IndexError:  # nothing is left on this desk that no other errand touches
            continue
        program, bounds = _joined(errands)
        return Assignment(kind, f"Please {text}.", desk.state, tuple(errands), program, bounds)


def _errands(desk: Desk, random_: random.Random, kind: str) -> tuple[str, list[Errand]]:
    if kind.startswith("round of "):
        return desk.round(int(kind.removeprefix("round of ")))
    errands = [desk.errand(name) for name in random_.sample(tuple(ERRANDS), int(kind[0]))]
    return ", then ".join(errand.phrase for errand in errands), errands


def _joined(errands: Sequence[Errand]) -> tuple[Program, tuple[int, ...]]:
    steps: list[Step] = []
    bounds: list[int] = []
    for errand in errands:
        steps += [_shifted(step, len(steps)) for step in errand.steps]
        bounds.append(len(steps))
    return Program(tuple(steps), Ending((Argument("done"),))), tuple(bounds)


def _shifted(step: Step, offset: int) -> Step:
    moved = (
        (name, argument if argument.source is None else Argument(argument.value, argument.name, argument.source + offset))
        for name, argument in step.arguments
    )
    return Step(step.tool, tuple(moved))


class AppsWorld:
    """Errands on contacts, calendar, mail, notes and payments; task success and test pass ratio."""

    name = "apps"

    def __init__(self, split: Split = "test", mix: Mapping[str, float] = TEST_MIX) -> None:
        self._split: Split = split
        self._mix = dict(mix)
        self._draw = lru_cache(maxsize=4096)(self._draw_uncached)
        self._by_prompt: dict[str, Assignment] = {}

    def tasks(self, count: int, seed: int) -> Sequence[WorldTask]:
        """Draw `count` tasks; those of a smaller count come first."""
        return [self._task(seed, number) for number in range(count)]

    def reset(self, task: WorldTask) -> "AppsEpisode":
        """Set the apps up for the task. Raises `InvalidRequest` for a task of another world."""
        return AppsEpisode(self.assignment(task))

    def oracle(self) -> Agent:
        """Return the supervisor that knows every solution."""
        return OracleAgent(self.name, self._by_prompt.get)

    def assignment(self, task: WorldTask) -> Assignment:
        """Return the task with its solution. Raises `InvalidRequest` for a task of another world."""
        match = re.fullmatch(rf"apps-{self._split}-(-?\d+)-(\d+)", task.identifier)
        assignment = self._draw(int(match[1]), int(match[2])) if match else None
        if assignment is None or assignment.text != task.prompt:
            raise InvalidRequest(f"{task.identifier!r} is no task of this apps world", hint="take tasks from the world that resets them")
        self._by_prompt[assignment.text] = assignment
        return assignment

    def _task(self, seed: int, number: int) -> WorldTask:
        assignment = self._draw(seed, number)
        self._by_prompt[assignment.text] = assignment
        identifier = f"apps-{self._split}-{seed}-{number}"
        return WorldTask(identifier=identifier, prompt=assignment.text, kind=assignment.kind, difficulty=assignment.difficulty)

    def _draw_uncached(self, seed: int, number: int) -> Assignment:
        random_ = random.Random(f"apps/{self._split}/{seed}/{number}")
        kind = random_.choices(list(self._mix), list(self._mix.values()))[0]
        return draw_assignment(random_, self._split, kind)


class AppsEpisode:
    """One task being worked on, on a state of its own."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self.state = assignment.state.copy()
        self.tools: Sequence[Tool] = app_tools(self.state)

    def grade(self, answer: str) -> Grade:
        """Grade with one test per errand, and one that nothing else has changed; the answer itself is not looked at."""
        del answer
        passed = grade_state(self._assignment, self.state)
        ratio = sum(passed) / len(passed)
        return Grade(success=all(passed), score=ratio, measures={"test_pass_ratio": ratio, "task_success": float(all(passed))})

    def close(self) -> None:
        """Do nothing: the episode holds no resources."""


def grade_state(assignment: Assignment, state: AppState) -> list[bool]:
    """Return the outcome of each test on a final state."""
    before = Counter(assignment.state.items())
    now = Counter(state.items())
    effects = _effects(assignment)
    tests = [all(_has_happened(item, change, before, now) for item, change in effect.items()) for effect in effects]
    wanted = Counter({item for effect in effects for item in effect})
    changed = {item for item in before | now if before[item] != now[item]}
    return [*tests, changed <= set(wanted)]


def _effects(assignment: Assignment) -> list[dict[Item, int]]:
    """Return for each errand the items that it adds (+1) and removes (-1)."""
    state = assignment.state.copy()
    effects = []
    starts = (0, *assignment.bounds)
    for start, end in zip(starts, assignment.bounds, strict=False):
        before = Counter(state.items())
        for step in assignment.program.steps[start:end]:
            run_now(state, step.tool, {name: argument.value for name, argument in step.arguments})
        after = Counter(state.items())
        effects.append({item: after[item] - before[item] for item in before | after if after[item] != before[item]})
    return effects


def _has_happened(item: Item, change: int, before: Counter[Item], now: Counter[Item]) -> bool:
    """Return True if the change has happened exactly once: to pay twice is wrong."""
    return now[item] - before[item] == change
