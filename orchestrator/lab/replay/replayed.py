"""Recorded tasks, put to the real router one by one and as a stream: what it thinks of each, and whom it would have asked."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Self

from ....protocols import ConfigError, Side
from ....protocols.steps import Value
from ...routing import Router
from ...routing.budget import TOLERANCE
from ...routing.escalation import Escalation, price
from ...routing.traces import AgentOutcome, Trace
from ...routing.training import FOLDS, folds_of
from ...task.decisions import RouteDecision
from ...task.modes import Strategy
from ...task.policy import Policy
from ...util.embedding import MiniLmEmbedder
from . import (
    NO_BUDGET,
    REFUSALS,
    CascadeRoles,
    DraftReplay,
    HeldOutPart,
    Progress,
    RecordedAgent,
    RecordedCascade,
    Recording,
    hold_out,
    learn_costs,
    leave_to_router,
    mean_cost,
    task_of,
    with_router,
)

if TYPE_CHECKING:
    from ..statistics import Floats

_WINDOW: Final = 500
"""Window of the running share: the one over which the controller holds it; a short stream has a shorter one."""
_SHORTEST_WINDOW: Final = 50
_WINDOWS: Final = 5
"""In a short stream."""


@dataclass(frozen=True, slots=True)
class RoutedTask:
    """One task, and what the router thinks of it."""

    trace: Trace
    part: int
    """Number of the recording's part that the task belongs to."""
    near: str
    """Whom the near side would send: the most useful of its agents, or the one that drafts."""
    far: str
    """The most useful far agent; equal to `near` where the threshold does not decide who serves."""
    advantage: float
    """By how much the far agent is expected to be more useful, by the prompt or by the evidence about the draft."""
    chosen: str
    """The agent that serves under the policy as it is written."""
    draft: str | None = None
    """The near agent whose draft is judged before a far one serves, and has its price; None: there is no draft."""

    @property
    def is_free(self) -> bool:
        """The threshold decides."""
        return self.near != self.far

    def served_by(self, threshold: float) -> str:
        """Return the agent that would serve under another threshold."""
        return self.far if self.advantage > threshold else self.near


class Online(Value):
    """How a budget held over the stream. Tasks that the policy refuses are not part of it."""

    target: float
    """Share of tasks that were to go far."""
    far_share: float
    """Share of tasks that went far."""
    window: int
    """Tasks over which the running share is taken."""
    running: tuple[float, ...]
    """Share of the last `window` tasks that went far, after each task from the end of the first window on."""
    score: float
    """Mean over the tasks."""
    chosen: tuple[str, ...]
    """The agents that answered the tasks."""

    @classmethod
    def of(cls, target: float, chosen: Sequence[str], went_far: Sequence[bool], scores: Sequence[float]) -> Self:
        """Sum up a stream of at least one task."""
        window = min(len(went_far), max(_SHORTEST_WINDOW, min(_WINDOW, len(went_far) // _WINDOWS)))
        return cls(
            target=target,
            far_share=sum(went_far) / len(went_far),
            window=window,
            running=_running(went_far, window),
            score=sum(scores) / len(scores),
            chosen=tuple(chosen),
        )

    @property
    def tolerance(self) -> float:
        """How far a running share may be from the target: as many tasks in each window as in the controller's."""
        return TOLERANCE * _WINDOW / self.window

    @property
    def worst_miss(self) -> float:
        """The largest distance of a running share from the target."""
        return max(abs(share - self.target) for share in self.running)


@dataclass(frozen=True, slots=True)
class Replayed:
    """All tasks of a replay; at least one was free to go to either side."""

    tasks: tuple[RoutedTask, ...]
    """In the order in which they were recorded."""
    sides: Mapping[str, Side]
    """Side of each agent, by name."""
    parts: int
    policy: Policy
    """The policy as it is written."""
    incomplete: int
    """Traces that lack the score of an agent, and were left out."""
    refused: Mapping[str, int]
    """Tasks that the policy turns away, by the reason; left out too."""
    online: Online | None = None
    """The tasks as a stream over which a budget is held; None where the policy has none."""
    is_predicted_afresh: bool = False
    """A head made the predictions that was there before these tasks, so that none of them was learned from."""

    @property
    def knows_evidence(self) -> bool:
        """The traces tell anything by which drafts can be judged."""
        outcomes = (outcome for task in self.tasks for outcome in task.trace.outcomes.values())
        return any(outcome.answer is not None or outcome.confidence is not None for outcome in outcomes)

    @property
    def near(self) -> list[str]:
        """Whom the near side would send, per task."""
        return [task.near for task in self.tasks]

    @property
    def far(self) -> list[str]:
        """Whom the far side would send."""
        return [task.far for task in self.tasks]

    @property
    def chosen(self) -> list[str]:
        """The agent that serves under the policy as it is written."""
        return [task.chosen for task in self.tasks]

    @property
    def advantages(self) -> "Floats":
        """Advantages of the tasks that were free to go to either side."""
        import numpy

        return numpy.array([task.advantage for task in self.tasks if task.is_free])

    @property
    def knows_dollars(self) -> bool:
        """The price of every far outcome was recorded."""
        outcomes = (item for task in self.tasks for item in task.trace.outcomes.items())
        return all(outcome.dollars is not None for agent, outcome in outcomes if self.sides[agent] is Side.FAR)

    def served_by(self, threshold: float) -> list[str]:
        """Return the agent that serves each task under a threshold."""
        return [task.served_by(threshold) for task in self.tasks]

    def scores(self, agents: Sequence[str]) -> "Floats":
        """Return the score of one agent for each task."""
        import numpy

        scores = (task.trace.outcomes[agent].score for task, agent in zip(self.tasks, agents, strict=True))
        return numpy.array(list(scores), dtype=numpy.float64)

    def dollars(self, agents: Sequence[str], *, with_drafts: bool = False) -> "Floats":
        """Return the dollars of one agent for each task; a near agent without a price costs nothing.

        `with_drafts`: of a task with a draft that another agent serves, the draft is paid as well.
        """
        import numpy

        def paid(task: RoutedTask, agent: str) -> float:
            drafted = with_drafts and task.draft is not None and task.draft != agent
            return sum(task.trace.outcomes[name].dollars or 0.0 for name in (agent, *([task.draft] if drafted and task.draft else [])))

        return numpy.array([paid(task, agent) for task, agent in zip(self.tasks, agents, strict=True)])

    def is_far(self, agents: Sequence[str]) -> "Floats":
        """Return 1 for each far agent, 0 for each near one."""
        import numpy

        return numpy.array([float(self.sides[agent] is Side.FAR) for agent in agents])


def replay(
    traces: Sequence[Trace],
    policy: Policy,
    *,
    sides: Mapping[str, Side],
    embedder: MiniLmEmbedder | None,
    folds: int = 5,
    seed: int = 0,
    far_share: float | None = None,
    progress: Progress = lambda _: None,
) -> Replayed:
    """Ask the router about every task that all agents were tried on.

    What agents take, and where the policy names no head also how well they do, is learned from other parts of the tasks.

    Args:
        policy: as it is written. Its threshold is varied in mode `auto`, for tasks that may leave the device: over drafts where its
            strategy is `cascade`, else over prompts as strategy `route` has it.
        sides: of the agents that take part, by name; outcomes of others are passed over.
        embedder: of the heads that are trained where the policy names none; None: they look at words and classes alone.
        folds: parts of the tasks; at least 2.
        seed: of the split into parts, and of exploration.
        far_share: budget to hold over the stream, instead of the policy's.
        progress: is told in a sentence what is being done.

    Raises `ConfigError` where there is an agent without outcomes, a side without agents, too few tasks with an outcome of every agent, or
    no task that may go to either side; and what training a head raises.
    """
    recording = Recording.of(traces, sides)
    with hold_out(recording, head=policy.router.head, embedder=embedder, folds=folds, seed=seed, progress=progress) as parts:
        replayed = _ask(recording, parts, policy, progress)
        share = policy.router.far_share if far_share is None else far_share
        if share is None:
            return replayed
        progress(f"holding {share:.0%} of far tasks over a stream of {len(recording.cases):,}")
        return replace(replayed, online=stream(recording, parts, policy, far_share=share, seed=seed))


def _ask(recording: Recording, parts: Sequence[HeldOutPart], policy: Policy, progress: Progress) -> Replayed:
    """Ask the router about every task. Raises `ConfigError` where no task may go to either side."""
    asked: dict[int, RoutedTask] = {}
    refused: Counter[str] = Counter()
    for number, part in enumerate(parts):
        progress(f"part {number + 1} of {len(parts)}: asking the router about {len(part.places):,} tasks")
        panel = _Panel.of(recording, part, policy)
        for place in part.places:
            try:
                asked[place] = panel.ask(recording.cases[place], number, place)
            except REFUSALS as error:
                refused[error.message] += 1
    tasks = tuple(asked[place] for place in sorted(asked))
    if not any(task.is_free for task in tasks):
        raise ConfigError("no recorded task is free to go to either side", hint="rules or limits of the policy settle them all")
    is_afresh = policy.router.head is not None
    return Replayed(tasks, recording.sides, len(parts), policy, len(recording.incomplete), dict(refused), is_predicted_afresh=is_afresh)


@dataclass(frozen=True, slots=True)
class _Panel:
    """The router, and the agents between which it decides."""

    router: Router
    agents: Sequence[RecordedAgent]
    written: Policy
    """The policy as it is written, but with the part's head, and without what changes from task to task or writes to a file."""
    freed: Policy
    """The written policy with the choice between the sides left to the threshold."""
    drafts: DraftReplay

    @classmethod
    def of(cls, recording: Recording, part: HeldOutPart, policy: Policy) -> Self:
        router = Router()
        for place in part.others:
            learn_costs(router.running, recording.cases[place], recording.sides)
        written = with_router(policy, head=part.head, **NO_BUDGET, explore_share=0.0, shadow=False, log=None)
        return cls(router, recording.agents, written, leave_to_router(written), DraftReplay(recording, written))

    def ask(self, case: Trace, part: int, place: int) -> RoutedTask:
        """Ask the router about a task, the one at a place of the recording."""
        decision = self._explain(case, self.freed)
        judged = self.drafts.judge(self.router, task_of(case, self.freed), decision, place)
        first = decision.candidates[0] if judged is None or not judged.escalates else judged.far
        chosen = first if self.written == self.freed else self._chosen(case, place)
        if judged is not None:
            return RoutedTask(case, part, judged.near, judged.far, judged.advantage, chosen, draft=judged.near)
        stands = decision.strategy is Strategy.CASCADE and decision.considered[0].side is Side.NEAR  # else no draft was worth its price
        if stands or not self._is_free(case, decision):
            return RoutedTask(case, part, near=first, far=first, advantage=0.0, chosen=chosen)
        near, far = (_most_useful(decision, side) for side in (Side.NEAR, Side.FAR))
        return RoutedTask(case, part, near, far, decision.advantage or 0.0, chosen)

    def _chosen(self, case: Trace, place: int) -> str:
        decision = self._explain(case, self.written)
        judged = self.drafts.judge(self.router, task_of(case, self.written), decision, place)
        return decision.candidates[0] if judged is None or not judged.escalates else judged.far

    def _explain(self, case: Trace, policy: Policy) -> RouteDecision:
        task = self.router.apply_rules(task_of(case, policy), tools=case.tools)
        return self.router.explain(task, self.agents, tools=case.tools)

    def _is_free(self, case: Trace, decision: RouteDecision) -> bool:
        """Return True if another threshold would let the other side go first. Without rules that is so wherever both sides remain."""
        if decision.advantage is None or not self.freed.rules:
            return decision.advantage is not None
        is_far = decision.considered[0].side is Side.FAR
        threshold = decision.advantage + (1 if is_far else -1)
        moved = self._explain(case, with_router(self.freed, threshold=threshold))
        return moved.considered[0].side is not decision.considered[0].side


def _most_useful(decision: RouteDecision, side: Side) -> str:
    """Return the most useful candidate of a side that has at least one."""
    known = [(each.utility, each.agent) for each in decision.considered if each.side is side and each.utility is not None]
    return max(known, key=lambda pair: pair[0])[1]


def stream(recording: Recording, parts: Sequence[HeldOutPart], policy: Policy, *, far_share: float, seed: int) -> Online | None:
    """Serve the tasks one after the other as they were recorded, holding a share of far tasks. None where each of them is refused.

    What agents take is learned on the way, as are corrections of the predictions, as far as the policy wants that. In a cascade the share
    is that of the escalations, else the router chooses by prompts, whatever strategy the policy has.

    Raises `ConfigError` for a share outside 0 to 1.
    """
    heads = {place: part.head for part in parts for place in part.places}
    changes = {**NO_BUDGET, "far_share": far_share, "shadow": False, "log": None}
    policies = [with_router(leave_to_router(policy), head=heads[place], **changes) for place in range(len(recording.cases))]
    served = _Stream(Router(seed=seed), recording, policies, DraftReplay(recording, with_router(policy, **changes)))
    chosen = {place: agent for place in range(len(recording.cases)) if (agent := served.serve(place)) is not None}
    if not chosen:
        return None
    went_far = [recording.sides[agent] is Side.FAR for agent in chosen.values()]
    scores = [recording.cases[place].outcomes[agent].score or 0.0 for place, agent in chosen.items()]
    return Online.of(far_share, list(chosen.values()), went_far, scores)


@dataclass(slots=True)
class _Stream:
    router: Router
    recording: Recording
    policies: Sequence[Policy]
    """For each task, with a head that has not seen it."""
    drafts: DraftReplay

    def serve(self, place: int) -> str | None:
        """Serve a task: return the agent that answers it, and let the router learn from it. None if it is refused."""
        case = self.recording.cases[place]
        try:
            task = self.router.apply_rules(task_of(case, self.policies[place]), tools=case.tools)
            decision = self.router.decide(task, self.recording.agents, tools=case.tools)
        except REFUSALS:
            return None
        judged = self.drafts.judge(self.router, task, decision, place)
        agent = decision.candidates[0] if judged is None or not judged.escalates else judged.far
        score = case.outcomes[agent].score
        if score is not None:
            self.router.learn(task, decision, agent, score=score)
        learn_costs(self.router.running, case, [agent])
        return agent


def _running(went_far: Sequence[bool], window: int) -> tuple[float, ...]:
    sums = list(accumulate(went_far, initial=0))
    return tuple((end - start) / window for start, end in zip(sums, sums[window:], strict=False))


def replay_cascade(cascade: RecordedCascade, policy: Policy, escalation: Escalation | None, *, seed: int = 0) -> Replayed:
    """Return the tasks of a cascade as the router's replay has them: the advantage is what escalating is worth over accepting the draft,
    and each outcome carries the dollars of the draft and of the opinions. All looks are taken. Raises what `RecordedCascade.gains` raises.
    """
    objective, roles = policy.objective, cascade.roles
    far_price = price(mean_cost(cascade.traces, roles.far), objective)
    advantages = (objective.quality * cascade.gains(escalation, seed=seed) - far_price).tolist()
    parts = folds_of([trace.prompt for trace in cascade.traces], FOLDS, seed).tolist()
    tasks = tuple(
        RoutedTask(
            _billed(trace, roles),
            part,
            near=roles.draft,
            far=roles.far,
            advantage=advantage,
            chosen=roles.far if advantage > policy.router.threshold else roles.draft,
        )
        for trace, part, advantage in zip(cascade.traces, parts, advantages, strict=True)
    )
    return Replayed(tasks, {roles.draft: Side.NEAR, roles.far: Side.FAR}, FOLDS, policy, cascade.incomplete, {})


def _billed(trace: Trace, roles: CascadeRoles) -> Trace:
    """Return the trace with what a cascade takes: the draft and the opinions are paid for either way."""
    looks = sum(_dollars(trace, agent) for agent in (roles.draft, *roles.opinions))
    far = trace.outcomes[roles.far]
    outcomes: dict[str, AgentOutcome] = {
        roles.draft: trace.outcomes[roles.draft].model_copy(update={"dollars": looks}),
        roles.far: far.model_copy(update={"dollars": None if far.dollars is None else far.dollars + looks}),
    }
    return trace.model_copy(update={"outcomes": outcomes})


def _dollars(trace: Trace, agent: str) -> float:
    return trace.outcomes[agent].dollars or 0.0 if agent in trace.outcomes else 0.0
