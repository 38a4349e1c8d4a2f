"""The order in which waiting steps begin."""

from dataclasses import dataclass, field

import pytest
from llama_engine import require_llama

require_llama()

from nearfar.device.worker.admission import StepAdmission
from nearfar.device.worker.engine import Sequence, Sequences
from nearfar.protocols import FinishReason, Message, StepRequest, ToolCall, ToolResult


@dataclass
class _Generation:
    finished: FinishReason | None = FinishReason.TOOL_CALLS


@dataclass(eq=False)
class Step:
    """A step as its admission sees it."""

    identifier: int
    request: StepRequest
    prompt: list[int]
    most_tokens: int = 10
    generation: _Generation = field(default_factory=_Generation)
    overtaken: int = 0
    sequence: Sequence | None = None

    @property
    def prompt_size(self) -> int:
        return len(self.prompt)


class NoCache:
    def forget(self, sequence: int, start: int) -> bool:
        return True

    def share(self, source: int, target: int, end: int) -> bool:
        return False


class Desk:
    """An admission with a clock that stands until it is set, and a run of one task per number."""

    def __init__(self, *, sequences: int = 1) -> None:
        self.now = 0.0
        self.sequences = Sequences(NoCache(), count=sequences, cells=10_000)
        self.admission = StepAdmission(self.sequences, clock=lambda: self.now)

    def arrive(self, run: int, turn: int = 0) -> Step:
        messages = [Message.user(f"task {run}")]
        for number in range(turn):
            messages.append(Message.assistant("", (ToolCall(id=str(number), name="look"),)))
            messages.append(Message.tool(ToolResult(call_id=str(number), name="look", content="found")))
        step = Step(100 * run + turn, StepRequest(messages=tuple(messages)), [run] * (20 + 10 * turn))
        self.admission.add(step)  # type: ignore[arg-type]
        return step

    def next(self, *, engine_is_idle: bool = False) -> Step | None:
        return self.admission.next(engine_is_idle=engine_is_idle)  # type: ignore[return-value]

    def end(self, step: Step | None, *, seconds_per_token: float = 0.1) -> None:
        assert step is not None
        assert step.sequence is not None
        step.sequence.cells = list(step.prompt)
        self.sequences.release(step.sequence)
        self.admission.leave(step, step.sequence, seconds_per_token=seconds_per_token)  # type: ignore[arg-type]


def test_a_follow_up_whose_prefix_is_cached_goes_before_a_new_task() -> None:
    desk = Desk()
    desk.arrive(1)
    desk.end(desk.next())
    desk.arrive(2)
    follow_up = desk.arrive(1, turn=1)
    assert desk.next() is follow_up


def test_a_sequence_is_kept_for_the_next_turn_for_as_long_as_reading_it_again_takes() -> None:
    desk = Desk(sequences=2)
    running = desk.arrive(7)
    assert desk.next() is running
    desk.arrive(1)
    desk.end(desk.next(), seconds_per_token=0.1)
    new = desk.arrive(2)
    desk.now = 1.9
    assert desk.next() is None
    desk.now = 2.1
    assert desk.next() is new


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH, None])
def test_no_sequence_is_kept_for_a_run_that_called_no_tool(reason: FinishReason | None) -> None:
    desk = Desk()
    step = desk.arrive(1)
    step.generation.finished = reason
    desk.end(desk.next())
    new = desk.arrive(2)
    assert desk.next() is new


def test_an_engine_without_work_keeps_nothing_waiting() -> None:
    desk = Desk()
    desk.arrive(1)
    desk.end(desk.next())
    new = desk.arrive(2)
    assert desk.next(engine_is_idle=True) is new


def test_half_of_the_sequences_are_never_kept() -> None:
    desk = Desk(sequences=4)
    steps = [desk.arrive(run) for run in range(4)]
    for step in steps:
        assert desk.next() is step
    for step in steps:
        desk.end(step)
    new = [desk.arrive(run) for run in range(5, 8)]
    assert [desk.next() for _ in new] == [new[0], new[1], None]


def test_new_tasks_go_in_the_order_of_arrival() -> None:
    desk = Desk()
    arrived = [desk.arrive(run) for run in range(1, 6)]
    served = []
    while (step := desk.next()) is not None:
        served.append(step)
        desk.end(step, seconds_per_token=0.0)
    assert served == arrived


def test_nothing_is_overtaken_without_end() -> None:
    desk = Desk(sequences=2)
    desk.arrive(1)
    assert desk.next() is not None
    desk.arrive(2)
    desk.end(desk.next())
    new = desk.arrive(3)
    served: list[Step | None] = []
    while new not in served and len(served) < 20:
        desk.arrive(2, turn=len(served) + 1)
        served.append(desk.next())
        desk.end(served[-1])
    assert new.overtaken == len(served) - 1 == 4


def test_a_step_that_was_cancelled_waits_no_longer() -> None:
    desk = Desk()
    gone, new = desk.arrive(1), desk.arrive(2)
    desk.admission.remove(gone)  # type: ignore[arg-type]
    assert desk.next() is new
    assert len(desk.admission) == 0
