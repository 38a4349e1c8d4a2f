"""Episodes: conversations of one role on one problem, as segments of which only the assistant's own are learned."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from nearfar.orchestrator.lab.worlds import Progress, guidance, verdict_on_plan, verdict_on_progress
from nearfar.orchestrator.lab.worlds.questions import chain_text
from nearfar.orchestrator.strategies.prompts import (
    SubtaskResult,
    aggregate_request,
    plan_request,
    plan_subtasks_request,
    verify_plan_request,
    verify_progress_request,
    with_guidance,
    with_plan,
    with_results,
)
from nearfar.protocols import Message, ToolCall, ToolResult

from .problems import AppsProblem, Problem, SearchProblem, wrong_call

BOS: Final = "<|bos|>"
END: Final = "<|end|>"
TOOL_CALL: Final = ("<tool_call>", "</tool_call>")

_SLIP_RATE: Final = 0.04
"""Share of turns of an executor's episode before which something goes wrong, to teach the model to recover."""
_ERROR_RATE: Final = 0.15
"""Share of wrong turns in work that a supervisor checks, besides the last one."""
_WRONG_PLAN_RATE: Final = 0.15
_ANSWERED_RATE: Final = 0.25
"""Share of checks that come after the executor's answer."""
_LAST_WRONG: Final = 0.5
"""Share of checks whose last turn is wrong, so that both verdicts are equally common."""


READ: Final = 0.0
LEARNED: Final = 1.0
VERDICT: Final = 5.0
"""A verdict is one token among many, and everything hangs on it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of an episode. ``weight`` is what a token of it counts in the loss; 0 for what the model only reads."""

    text: str
    weight: float


@dataclass(slots=True)
class Work:
    """What an executor did since its context was last cleared."""

    calls: list[ToolCall]
    messages: list[Message]
    state: Progress

    def add(self, problem: Problem, call: ToolCall) -> tuple[str, bool]:
        """Carry out one more call and return its outcome."""
        is_needed = problem.solution.program.step_of(call, self.state.done) is not None
        text, failed = problem.run(call) if is_needed else problem.pretend(call)
        self.calls.append(call)
        result = ToolResult(call_id=call.id, name=call.name, content=text, is_error=failed)
        self.messages += [Message.assistant(tool_calls=(call,)), Message.tool(result)]
        self.state.add(problem.solution.program, call, failed=failed)
        return text, failed


def call_segment(call: ToolCall) -> str:
    """A call exactly as the models write it."""
    body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"{TOOL_CALL[0]}{body}{TOOL_CALL[1]}"


def conversation(messages: Sequence[Message]) -> list[Segment]:
    """The messages that a step begins with."""
    return [Segment(BOS, READ), *(Segment(f"<|{message.role}|>{message.text}{END}", READ) for message in messages)]


def execute(problem: Problem, random_: random.Random) -> list[Segment]:
    """Solve the problem from its text alone."""
    return _carried_out(problem, problem.text, set(), random_)


def execute_plan(problem: Problem, random_: random.Random) -> list[Segment]:
    """Solve it, or what is left of it, from a plan."""
    done = _head_start(problem, random_)
    return _carried_out(problem, with_plan(problem.text, problem.solution.program.plan(done)), done, random_)


def execute_own_plan(problem: Problem, random_: random.Random) -> list[Segment]:
    """Solve it by a plan that the first turn writes in front of its call."""
    segments = execute(problem, random_)
    first = next(index for index, segment in enumerate(segments) if segment.text == "<|assistant|>")
    return [*segments[: first + 1], Segment(problem.solution.program.plan(), LEARNED), *segments[first + 1 :]]


def execute_advice(problem: Problem, random_: random.Random) -> list[Segment]:
    """Solve what is left of it from a summary and advice."""
    done = _head_start(problem, random_)
    wrong = wrong_call(problem, done, [], random_)
    return _carried_out(problem, with_guidance(problem.text, guidance(problem.solution, done, wrong)), done, random_)


def plan(problem: Problem, random_: random.Random) -> list[Segment]:
    """Write the plan."""
    del random_
    return _reply(plan_request(problem.text), problem.solution.program.plan())


def check_plan(problem: Problem, random_: random.Random) -> list[Segment]:
    """Check work against a plan, which may itself be wrong."""
    known = _head_start(problem, random_) if random_.random() < 0.3 else set()
    text = problem.solution.program.plan(known)
    work = _some_work(problem, known, random_)
    if random_.random() < _WRONG_PLAN_RATE:
        text = _damaged(text, problem, random_)
    return _judged(verify_plan_request(problem.text, text, work.messages), verdict_on_plan(problem.solution, work.state))


def check_progress(problem: Problem, random_: random.Random) -> list[Segment]:
    """Judge progress, with or without an earlier summary."""
    known = _head_start(problem, random_) if random_.random() < 0.3 else set()
    before = guidance(problem.solution, known, wrong_call(problem, known, [], random_)) if known else ""
    work = _some_work(problem, known, random_)
    verdict = verdict_on_progress(problem.solution, work.state)
    return _judged(verify_progress_request(problem.text, before, work.messages), verdict)


def cut(problem: Problem, random_: random.Random) -> list[Segment]:
    """Cut the problem into subtasks."""
    del random_
    reply = json.dumps({"subtasks": subtasks(problem)}, ensure_ascii=False)
    return _reply(plan_subtasks_request(problem.text, maximum_subtasks=8), reply)


def combine(problem: Problem, random_: random.Random) -> list[Segment]:
    """Answer a question from the results of its subtasks."""
    parts = subtasks(problem)[:-1]
    if not parts or isinstance(problem, AppsProblem):
        return execute(problem, random_)
    ending = problem.solution.program.ending
    results = [SubtaskResult(task=str(part["task"]), answer=str(value.value)) for part, value in zip(parts, ending.parts, strict=False)]
    return _reply((Message.user(with_results(problem.text, results)),), ending.answer)


def aggregate(problem: Problem, random_: random.Random) -> list[Segment]:
    """Say that all errands are done."""
    del random_
    results = [SubtaskResult(task=str(part["task"]), answer="done") for part in subtasks(problem)]
    return _reply(aggregate_request(problem.text, results), "done")


ROLES: Final[dict[str, Callable[[Problem, random.Random], list[Segment]]]] = {
    "execute": execute,
    "execute_plan": execute_plan,
    "execute_advice": execute_advice,
    "execute_own_plan": execute_own_plan,
    "plan": plan,
    "check_plan": check_plan,
    "check_progress": check_progress,
    "cut": cut,
    "combine": combine,
    "aggregate": aggregate,
}


def subtasks(problem: Problem) -> list[dict[str, object]]:
    """The subtasks of a problem: one question per target and the question itself, or one errand each; else the problem as it is."""
    if isinstance(problem, AppsProblem):
        return [_subtask(number, f"Please {errand.phrase}.", []) for number, errand in enumerate(problem.assignment.errands)]
    assert isinstance(problem, SearchProblem), "there are two worlds"
    question = problem.question
    if len(question.targets) == 1 or question.targets[0].search is not None:
        return [_subtask(0, question.text, [])]
    asked = [f"What is {chain_text((question.attribute,), target.text())}?" for target in question.targets]
    parts = [_subtask(number, text, []) for number, text in enumerate(asked)]
    return [*parts, _subtask(len(parts), question.text, [str(part["id"]) for part in parts])]


def _subtask(number: int, task: str, needs: list[str]) -> dict[str, object]:
    return {"id": "abcdefgh"[number], "task": task, "needs": needs}


def _reply(messages: Sequence[Message], text: str) -> list[Segment]:
    return [*conversation(messages), Segment("<|assistant|>", READ), Segment(f"{text}{END}", LEARNED)]


def _judged(messages: Sequence[Message], text: str) -> list[Segment]:
    verdict, newline, guidance_ = text.partition("\n")
    said = [Segment(verdict, VERDICT), Segment(f"{newline}{guidance_}{END}", LEARNED)]
    return [*conversation(messages), Segment("<|assistant|>", READ), *said]


def _carried_out(problem: Problem, prompt: str, done: set[int], random_: random.Random) -> list[Segment]:
    program = problem.solution.program
    segments = conversation([Message.user(prompt)])
    work = Work([], [], Progress(set(done)))
    while (index := program.next_step(work.state.done)) is not None:
        if random_.random() < _SLIP_RATE:
            slip = wrong_call(problem, work.state.done, work.calls, random_)
            # A slip is shown as context only: the model must learn to recover from it, not to make it.
            segments += _turn(slip, work.add(problem, slip)[0], learned=False)
            continue
        call = program.steps[index].call(f"call{len(work.calls)}")
        text, failed = work.add(problem, call)
        assert not failed, f"the solution fails at {call}: {text}"
        segments += _turn(call, text, learned=True)
    return [*segments, Segment("<|assistant|>", READ), Segment(f"{program.ending.answer}{END}", LEARNED)]


def _turn(call: ToolCall, result: str, *, learned: bool) -> list[Segment]:
    said = Segment(f"{call_segment(call)}{END}", LEARNED if learned else READ)
    return [Segment("<|assistant|>", READ), said, Segment(f"<|tool|>{result}{END}", READ)]


def _head_start(problem: Problem, random_: random.Random) -> set[int]:
    """Steps done before the context was cleared, with their effects; none in a good part of the cases."""
    count = random_.choice((0, random_.randint(0, len(problem.solution.program.steps))))
    for step in problem.solution.program.steps[:count]:
        problem.run(step.call("before"))
    return set(range(count))


def _some_work(problem: Problem, known: set[int], random_: random.Random) -> Work:
    """Work of random length, now and then wrong, whose last turn is as often right as wrong."""
    program = problem.solution.program
    work = Work([], [], Progress(set(known)))
    turns = random_.randint(1, min(len(program.steps) - len(known) + 2, 14))
    for turn in range(turns):
        rate = _LAST_WRONG if turn == turns - 1 else _ERROR_RATE
        index = program.next_step(work.state.done)
        if index is None or random_.random() < rate:
            work.add(problem, wrong_call(problem, work.state.done, work.calls, random_))
        else:
            work.add(problem, program.steps[index].call(f"call{turn}"))
    if random_.random() < _ANSWERED_RATE:
        _conclude(work, problem, random_)
    return work


def _conclude(work: Work, problem: Problem, random_: random.Random) -> None:
    """End the work with an answer: the right one where all is done, or else one too many, too early or off the point."""
    program = problem.solution.program
    is_complete = program.next_step(work.state.done) is None
    values = [str(value) for call in work.calls for value in call.arguments.values()]
    is_right = is_complete and random_.random() < 0.8
    answer = program.ending.answer if is_right or program.ending.answer == "done" else random_.choice(values)
    work.messages.append(Message.assistant(answer))
    work.state.conclude(program, answer)


def _damaged(text: str, problem: Problem, random_: random.Random) -> str:
    """A plan with a line missing or a line of its own repeated out of place."""
    del problem
    lines = [line.partition(". ")[2] for line in text.splitlines()]
    position = random_.randrange(len(lines))
    lines[position : position + 1] = random_.choice(([], [random_.choice(lines)]))
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, start=1))
