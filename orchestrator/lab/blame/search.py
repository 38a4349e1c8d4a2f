"""Counterfactual blame: the decisive error of a failed run is its earliest step whose correction makes it succeed (AgenTracer, arXiv
2509.03312).

A later step that would mend it, too, is no evidence about the steps before it: correcting step 3 may do while correcting step 5 does not,
or the other way round. So a search by halves can miss the earliest one, and steps are tried one by one from the first.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from ....protocols import InvalidRequest, Message, Side
from ....protocols.messages import Value
from ...agents.pool import AgentHandle
from ...task.task import transcript
from .correction import Corrector
from .record import RecordedRun, RecordedStep, effects_of
from .replay import Branch, Judge, replay


class Trial(Value):
    """The outcome of correcting one step."""

    step: int
    """From 1, in the order of the trace."""
    agent: str
    side: Side
    role: str
    said: str
    corrected: str
    outcome: Literal["success", "failure", "unknown"]
    answer: str | None
    """Answer of the replay."""
    because: str = ""
    """Why the outcome is unknown."""


class Blame(Value):
    """Which step failed a run."""

    run: str
    corrector: str
    decisive: Trial | None
    """The earliest step whose correction makes the run succeed; None: there is none among those that could be tried."""
    trials: tuple[Trial, ...]
    """In order, up to the decisive one."""
    unchallenged: tuple[int, ...]
    """Steps before it that the corrector would not have done otherwise, or knows nothing of."""

    @property
    def replays(self) -> int:
        return len(self.trials)

    @property
    def is_certain(self) -> bool:
        """No earlier step might be it: none came to something unknown."""
        return self.decisive is not None and all(trial.outcome != "unknown" for trial in self.trials)


async def blame(
    run: RecordedRun, corrector: Corrector, judge: Judge, *, live: Mapping[str, AgentHandle], also: Sequence[RecordedRun] = ()
) -> Blame:
    """Correct one step after the other, and replay. Raises `InvalidRequest` where the run did not fail.

    Args:
        judge: whether an answer is right.
        live: the run's agents, which are asked what they would have done behind a correction.
        also: further runs of the same task, from the same state of the world, whose effects are on record.
    """
    if run.answer is not None and judge(run.answer, run.calls):
        raise InvalidRequest(
            f"run {run.name} did not fail: its answer is the expected one", hint="only a failed run can be blamed on a step"
        )
    effects = effects_of((run, *also))
    trials: list[Trial] = []
    unchallenged: list[int] = []
    for step in run.steps:
        correction = await corrector.correct(step)
        if correction is None:
            unchallenged.append(step.number)
            continue
        branch = Branch(run, effects, step, correction, live)
        answer = await replay(branch)
        trials.append(_trial(step, correction, branch, answer, judge))
        if trials[-1].outcome == "success":
            break
    decisive = trials[-1] if trials and trials[-1].outcome == "success" else None
    return Blame(run=run.name, corrector=corrector.name, decisive=decisive, trials=tuple(trials), unchallenged=tuple(unchallenged))


def _trial(step: RecordedStep, correction: Message, branch: Branch, answer: str | None, judge: Judge) -> Trial:
    is_right = answer is not None and judge(answer, branch.calls)
    outcome: Literal["success", "failure", "unknown"] = "unknown" if branch.unknown else "success" if is_right else "failure"
    said = step.error or transcript([step.reply])
    because = branch.unknown or ""
    return Trial(
        step=step.number,
        agent=step.agent,
        side=step.side,
        role=step.role,
        said=said,
        corrected=transcript([correction]),
        outcome=outcome,
        answer=answer,
        because=because,
    )
