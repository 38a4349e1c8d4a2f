"""Counterfactual blame: the decisive error of a failed run is its earliest step whose correction makes it succeed (AgenTracer, arXiv
2509.03312). A corrector is the source of the reply that an agent should have given.

A later step that would mend it, too, is no evidence about the steps before it: correcting step 3 may do while correcting step 5 does not,
or the other way round. So a search by halves can miss the earliest one, and steps are tried one by one from the first.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from ...protocols import ConfigError, InvalidRequest, Message, Sensitivity, Side, StepRequest, ToolCall, complete
from ...protocols.steps import Value
from ..agents import AgentHandle, AgentPool
from ..safety.placeholders import map_message_texts
from ..safety.privacy import RunPrivacy
from ..task import transcript
from .blame_replay import Branch, Judge, RecordedRun, RecordedStep, action_of, effects_of, replay


class CorrectedStep(Value):
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
    decisive: CorrectedStep | None
    """The earliest step whose correction makes the run succeed; None: there is none among those that could be tried."""
    trials: tuple[CorrectedStep, ...]
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


class Corrector(Protocol):
    """Knows better than the agents of a run."""

    @property
    def name(self) -> str:
        """Name of the corrector in reports."""
        ...

    async def correct(self, step: RecordedStep) -> Message | None:
        """Return the reply that the agent should have given; None if its reply was right, or the corrector knows nothing about such a
        step."""
        ...


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
    trials: list[CorrectedStep] = []
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


def _trial(step: RecordedStep, correction: Message, branch: Branch, answer: str | None, judge: Judge) -> CorrectedStep:
    is_right = answer is not None and judge(answer, branch.calls)
    outcome: Literal["success", "failure", "unknown"] = "unknown" if branch.unknown else "success" if is_right else "failure"
    said = step.error or transcript([step.reply])
    because = branch.unknown or ""
    return CorrectedStep(
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


@dataclass(frozen=True)
class Reference:
    """A known solution of the task. Agents asked the same as in `run` should reply the same; an executor may make the calls in any
    order."""

    name: str
    calls: Sequence[ToolCall]
    answer: str
    run: RecordedRun | None = None
    """One that went well; it also knows what others than executors should have said."""

    @classmethod
    def of(cls, run: RecordedRun) -> "Reference":
        """Make a reference of a run that went well."""
        return cls(f"run {run.name}", run.solutions.get("", ()), run.answer or "", run)

    async def correct(self, step: RecordedStep) -> Message | None:
        known = self._find_reply(step)
        if step.role == "execute" and not step.scope:
            return _correct(step, self.calls, self.answer)
        if known is None:
            return None
        if step.role == "execute":
            return _correct(step, *self._part(step.scope))
        return None if _says_the_same(step.reply, known) else known

    def _find_reply(self, step: RecordedStep) -> Message | None:
        """Return the reply that `run` has to the same request, or, for an executor, to the same opening."""
        steps = () if self.run is None else self.run.steps
        if step.role == "execute":
            fitting = (each for each in steps if (each.scope, each.role, _opening(each)) == (step.scope, step.role, _opening(step)))
        else:
            fitting = (each for each in steps if (each.role, each.messages, each.error) == (step.role, step.messages, None))
        return next((each.reply for each in fitting), None)

    def _part(self, scope: str) -> tuple[Sequence[ToolCall], str]:
        assert self.run is not None, "it knows the part"
        last = [each for each in self.run.steps if each.scope == scope][-1]
        return self.run.solutions.get(scope, ()), last.reply.text


def _correct(step: RecordedStep, calls: Sequence[ToolCall], answer: str) -> Message | None:
    """Return the reply that leads an executor to the answer by these calls, in any order; None if its own reply does."""
    left = _calls_left(step.done, calls)
    wanted = Counter(map(action_of, left))
    made = Counter(map(action_of, step.reply.tool_calls))
    if made and made <= wanted:
        return None
    if not made and not left and same(step.reply.text, answer):
        return None
    if not left:
        return Message.assistant(answer)
    return Message.assistant("", (left[0].model_copy(update={"id": f"corrected-{step.number}"}),))


def _calls_left(made: Sequence[ToolCall], wanted: Sequence[ToolCall]) -> list[ToolCall]:
    """Return the wanted calls that were not made yet."""
    done = Counter(map(action_of, made))
    left = []
    for call in wanted:
        if done[action_of(call)]:
            done[action_of(call)] -= 1
        else:
            left.append(call)
    return left


def _opening(step: RecordedStep) -> Sequence[Message]:
    """Return the system and user messages that the agent's request starts with."""
    return tuple(itertools.takewhile(lambda message: message.role in ("system", "user"), step.messages))


class StrongerAgent:
    """An agent that is asked what each agent of the run was asked, as far as that may go."""

    def __init__(self, member: AgentHandle, run: RecordedRun) -> None:
        self._member = member
        self._label = run.label
        self._tools = tuple(traced.spec for traced in run.tools)
        self._privacy = RunPrivacy.of(run.task)

    @property
    def name(self) -> str:
        return f"agent {self._member.name}"

    async def correct(self, step: RecordedStep) -> Message | None:
        """Raises `PrivacyViolation` where the agent may not be told what the run has seen."""
        is_kept_here = step.sensitivity is Sensitivity.PRIVATE and self._label.sensitivity is Sensitivity.PUBLIC
        if is_kept_here and self._member.side is Side.FAR:
            return None  # of a long context that stays here it knows nothing
        tools = self._tools if step.role == "execute" else ()
        asked = StepRequest(messages=step.messages, tools=tools, sensitivity=Sensitivity.PUBLIC)
        outbound = await self._privacy.filter_request(self._member, asked, self._label, role="correct")
        with outbound.inspect_bytes():
            reply = await outbound.check_reply(await complete(await self._member.open(), outbound.request))
        said = map_message_texts(reply.message, self._privacy.placeholders.fill)
        return None if _says_the_same(said, step.reply) else said


def _says_the_same(first: Message, second: Message) -> bool:
    calls = [[action_of(call) for call in message.tool_calls] for message in (first, second)]
    return first.text.strip() == second.text.strip() and calls[0] == calls[1]


def same(answer: str, expected: str) -> bool:
    """Return True if two answers agree but for case, spacing and a final full stop."""
    first, second = (" ".join(text.split()).casefold().removesuffix(".") for text in (answer, expected))
    return first == second


async def find_blame(pool: AgentPool, failed: RecordedRun, better: RecordedRun | str, expected: str, *, ask_far: bool = False) -> Blame:
    """Find the step that failed a run by the corrections of a better run, or of the agent with that name.

    Args:
        pool: the agents that continue the run after a correction.
        failed: the run that failed.
        better: a run of the same task that went well, or the name of an agent that says what each agent should have done.
        expected: the right answer.
        ask_far: far agents continue, too, at their price; else only near ones do.

    Raises `ConfigError` if there is no such agent.
    """
    good = None if isinstance(better, str) else better

    def judge(answer: str, calls: Sequence[ToolCall]) -> bool:
        return same(answer, expected) and (good is None or failed.changes_of(calls) == good.changes_of(good.calls))

    members = (member for member in pool if member.name in failed.agents)
    live = {member.name: member for member in members if ask_far or member.side is Side.NEAR}
    if good is not None:
        return await blame(failed, replace(Reference.of(good), answer=expected), judge, live=live, also=[good])
    known = [member.name for member in pool]
    if better not in known:
        raise ConfigError(f"there is no agent {better!r}", hint=f"the agents are {', '.join(known)}")
    return await blame(failed, StrongerAgent(pool[str(better)], failed), judge, live=live)
