"""Recorded tasks for tests of the replay: easy ones that both sides get right, and hard ones that take the far side."""

from collections.abc import Sequence
from random import Random

from nearfar.orchestrator.routing.traces import AgentOutcome, Trace
from nearfar.orchestrator.task.modes import Strategy
from nearfar.orchestrator.task.policy import Policy
from nearfar.protocols import Sensitivity, Side

NEAR, FAR = "phi", "gpt"
SIDES = {NEAR: Side.NEAR, FAR: Side.FAR}
PUBLIC = Policy(strategy=Strategy.ROUTE, sensitivity=Sensitivity.PUBLIC)
FAR_DOLLARS = 0.002
_EASY = ("add up the prices", "count the words", "list the colours", "spell the name")
_HARD = ("prove the theorem", "derive the bound", "refute the lemma", "solve the integral")


def recorded(count: int, *, seed: int = 0) -> list[Trace]:
    """Tasks of which half are hard: the near agent gets nine of ten easy ones right and two of ten hard ones, the far one most."""
    random = Random(seed)
    return [_recorded(number, random) for number in range(count)]


def with_outcomes(trace: Trace, **outcomes: AgentOutcome) -> Trace:
    """The same task with other outcomes of some agents."""
    return trace.model_copy(update={"outcomes": {**trace.outcomes, **outcomes}})


def without(traces: Sequence[Trace], agent: str) -> list[Trace]:
    """The same tasks, not tried with an agent."""
    return [
        trace.model_copy(update={"outcomes": {name: outcome for name, outcome in trace.outcomes.items() if name != agent}})
        for trace in traces
    ]


def _recorded(number: int, random: Random) -> Trace:
    is_hard = random.random() < 0.5
    words = random.choice(_HARD if is_hard else _EASY)
    near, far = (float(random.random() < chance) for chance in ((0.2, 0.9) if is_hard else (0.9, 0.92)))
    return Trace(
        id=str(number),
        prompt=f"Please {words} of number {number} and of {random.randrange(1000)}.",
        task_class="logic" if is_hard else "chores",
        outcomes={
            NEAR: AgentOutcome(score=near, seconds=1.0, input_tokens=20, output_tokens=10),
            FAR: AgentOutcome(score=far, seconds=2.0, input_tokens=20, output_tokens=10, dollars=FAR_DOLLARS),
        },
    )
