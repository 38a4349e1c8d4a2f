"""Problems of the two worlds to train on: a solution, an environment that answers calls, and plausible wrong calls."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from nearfar.orchestrator.lab.worlds import Solution, Split
from nearfar.orchestrator.lab.worlds.app_functions import DAYS, run_now
from nearfar.orchestrator.lab.worlds.apps import Assignment, draw_assignment
from nearfar.orchestrator.lab.worlds.questions import RELATIONS, Author, Facts, PassageIndex, SearchQuestion
from nearfar.protocols import ToolCall

Outcome = tuple[str, bool]
"""What a call returned, and whether it failed."""

_QUESTIONS_PER_TABLE: Final = 12


class Problem(Protocol):
    """One task with everything that an episode about it is written from."""

    text: str

    @property
    def solution(self) -> Solution:
        """What has to be done, and in which order."""
        ...

    def run(self, call: ToolCall) -> Outcome:
        """Carry out a call, as the world's tools would."""
        ...

    def pretend(self, call: ToolCall) -> Outcome:
        """What the call would return; it leaves no trace, so that what is still needed stays possible."""
        ...

    def other(self, name: str, value: object, random_: random.Random) -> object:
        """A plausible wrong value for an argument."""
        ...


class SearchProblem:
    """A question on passages."""

    def __init__(self, question: SearchQuestion, facts: Facts, index: PassageIndex) -> None:
        self.text = question.text
        self.solution = self.question = question
        self._facts = facts
        self._index = index
        self._seen: list[str] = list(question.targets[0].entities[:1])

    def run(self, call: ToolCall) -> Outcome:
        try:
            if call.name == "search":
                return self._index.search(str(call.arguments["query"])), False
            text = self._index.open(str(call.arguments["title"]), str(call.arguments["section"]))
        except LookupError as error:
            return f"LookupError: {error}", True
        self._seen += [text] if text in self._facts.kind_of else []
        return text, False

    def pretend(self, call: ToolCall) -> Outcome:
        return self.run(call)

    def other(self, name: str, value: object, random_: random.Random) -> object:
        if name == "query":
            return f"{random_.choice(('employer', 'birthplace', 'mentor', 'city'))} {random_.choice(self._seen)}"
        if name == "section":
            return random_.choice([attribute for relations in RELATIONS.values() for attribute in relations])
        draw = random_.random()
        if draw < 0.6:
            return random_.choice(self._seen)
        if draw < 0.8:
            first, second = random_.choice(self._seen).split()[0], random_.choice(self._seen).split()[1]
            return f"{first} {second}"
        return random_.choice(list(self._facts.kind_of))


class AppsProblem:
    """Errands on apps."""

    def __init__(self, assignment: Assignment) -> None:
        self.text = assignment.text
        self.solution = self.assignment = assignment
        self.state = assignment.state.copy()

    def run(self, call: ToolCall) -> Outcome:
        return run_now(self.state, call.name, call.arguments)

    def pretend(self, call: ToolCall) -> Outcome:
        return run_now(self.state.copy(), call.name, call.arguments)

    def other(self, name: str, value: object, random_: random.Random) -> object:
        if isinstance(value, int):
            return random_.randint(8, 20) if name == "hour" else random_.randint(10, 99)
        if name == "day":
            return random_.choice(DAYS)
        if re.fullmatch(r"[em]\d+", str(value)):
            return f"{str(value)[0]}{random_.randint(1, 15)}"
        if str(value).isdigit():
            return str(random_.randint(1000, 9999))
        state = self.assignment.state
        pools = (list(state.contacts), [event.title for event in state.events.values()], list(state.notes))
        pool = next((pool for pool in pools if value in pool), pools[0])
        return random_.choice(pool)


def draw_search(random_: random.Random, split: Split, mix: Mapping[str, float]) -> list[SearchProblem]:
    """Problems on one fresh table of facts."""
    facts = Facts(random_.getrandbits(48), split)
    index = PassageIndex(facts.passages)
    author = Author(facts, index, random_)
    kinds = random_.choices(list(mix), list(mix.values()), k=_QUESTIONS_PER_TABLE)
    return [SearchProblem(author.question(kind), facts, index) for kind in kinds]


def draw_apps(random_: random.Random, split: Split, mix: Mapping[str, float]) -> list[AppsProblem]:
    """Problems on a fresh desk each."""
    kinds = random_.choices(list(mix), list(mix.values()), k=_QUESTIONS_PER_TABLE)
    return [AppsProblem(draw_assignment(random_, split, kind)) for kind in kinds]


def wrong_call(problem: Problem, done: set[int], earlier: Sequence[ToolCall], random_: random.Random) -> ToolCall:
    """A mistake: a call made before, or a needed one with an argument that is off."""
    program = problem.solution.program
    while True:
        call = random_.choice(earlier) if earlier and random_.random() < 0.3 else _distorted(problem, done, random_)
        # By chance it may be what is needed; done out of turn, that could make other steps impossible.
        if program.step_of(call, done) is None:
            return call


def _distorted(problem: Problem, done: set[int], random_: random.Random) -> ToolCall:
    steps = problem.solution.program.steps
    following = problem.solution.program.next_step(done)
    step = steps[following] if following is not None and random_.random() < 0.8 else random_.choice(steps)
    call = step.call("call")
    name = random_.choice(list(call.arguments))
    return call.model_copy(update={"arguments": {**call.arguments, name: problem.other(name, call.arguments[name], random_)}})
