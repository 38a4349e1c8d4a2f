"""Recorded tasks that a replay can use, in parts, each with a head that has not seen it; and recorded drafts as a cascade judges them."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Self

from ....protocols import BudgetExceeded, Capabilities, ConfigError, PermissionDenied, Prices, Sensitivity, Side, Unsupported
from ...routing import Router
from ...routing.answers import agree
from ...routing.call_looks import judges_texts
from ...routing.costs import RunningEstimates, TaskKind, TaskTaken
from ...routing.drafts import DraftChoice, first_day_escalation, unlearned_chances
from ...routing.escalation import Action, Escalation
from ...routing.looks import PROMPT, Cost, Signal, prompt_surface
from ...routing.success import length_gain
from ...routing.traces import AgentOutcome, Trace, agents_of
from ...routing.training import DraftExamples, Examples, draft_examples_of, examples_of, folds_of, out_of_fold_gains
from ...task import Task, as_messages, tokens_by_length
from ...task.decisions import RouteDecision
from ...task.modes import Mode, Strategy
from ...task.policy import Policy
from ...task.routing_policy import BUDGETS
from ...util.embedding import MiniLmEmbedder
from ..training import train_head, write_head

if TYPE_CHECKING:
    from ..statistics import Floats


LEAST_TASKS: Final = 20
"""Tasks below which a replay says nothing."""
REFUSALS: Final = (PermissionDenied, BudgetExceeded, Unsupported)
"""With which the router turns a single task away; any other error speaks of the policy as a whole."""
Progress = Callable[[str], None]
"""Is told in a sentence what is being done."""
_TIE: Final = 1e-3
"""Weight of the gain by length among drafts of which the same opinions disagree."""


@dataclass(frozen=True, slots=True)
class RecordedAgent:
    """An agent of which nothing is left but what it came to."""

    name: str
    side: Side
    capabilities: Capabilities | None = None
    prices: Prices | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """Tasks with what the agents of both sides came to."""

    cases: tuple[Trace, ...]
    """Tasks for which the score of every agent is known, with the outcomes of these agents alone."""
    incomplete: tuple[Trace, ...]
    """The others: a head can learn from them, and nothing can be judged on them."""
    sides: Mapping[str, Side]
    """Side of each agent, by name."""

    @classmethod
    def of(cls, traces: Sequence[Trace], sides: Mapping[str, Side]) -> Self:
        """Split traces into those that a replay can use and those that it cannot.

        Args:
            sides: side of each agent that takes part, by name; outcomes of other agents are ignored.

        Raises `ConfigError` for an agent without outcomes, a side without agents, and too few tasks that all agents were tried on.
        """
        _check_sides(sides, known=agents_of(traces))
        restricted = [_restrict(trace, sides) for trace in traces if not sides.keys().isdisjoint(trace.outcomes)]
        complete = [trace for trace in restricted if not _missing(trace, sides)]
        if len(complete) < LEAST_TASKS:
            raise _too_few(len(complete), restricted, sides)
        return cls(tuple(complete), tuple(trace for trace in restricted if _missing(trace, sides)), dict(sides))

    @property
    def agents(self) -> list[RecordedAgent]:
        return [RecordedAgent(name, side) for name, side in self.sides.items()]


def task_of(case: Trace, policy: Policy) -> Task:
    """Return the recorded task as an app would pass it."""
    return Task(messages=as_messages(case.prompt), task_class=case.task_class, policy=policy)


NO_BUDGET: Final[Mapping[str, None]] = dict.fromkeys(BUDGETS)
"""Changes to the router's settings that leave no budget."""


def with_router(policy: Policy, **changes: object) -> Policy:
    """Return the policy with other settings of its router."""
    return policy.model_copy(update={"router": policy.router.model_copy(update=changes)})


def leave_to_router(policy: Policy) -> Policy:
    """Return the policy with the choice between the sides left to the router: by drafts in a cascade, else by prompts."""
    strategy = policy.strategy if policy.strategy is Strategy.CASCADE else Strategy.ROUTE
    return policy.model_copy(update={"strategy": strategy, "mode": Mode.AUTO, "sensitivity": Sensitivity.PUBLIC})


def learn_costs(running: RunningEstimates, case: Trace, agents: Collection[str]) -> None:
    """Report what agents took for a task, as far as it was recorded. A recorded task counts as one step."""
    for agent in agents:
        running.add_task(agent, _cost_of(case, case.outcomes[agent]), kind=TaskKind(case.task_class, bool(case.tools)))


def _cost_of(case: Trace, outcome: AgentOutcome) -> TaskTaken:
    prompt_tokens = tokens_by_length(case.prompt)
    return TaskTaken(
        prompt_tokens=prompt_tokens,
        steps=1,
        input_tokens=prompt_tokens if outcome.input_tokens is None else outcome.input_tokens,
        cached_tokens=0,
        cache_write_tokens=0,
        # If the output tokens were not counted, the price is learned per input token.
        output_tokens=outcome.output_tokens or 0,
        seconds=outcome.seconds,
        dollars=outcome.dollars,
        joules=outcome.joules,
    )


def _check_sides(sides: Mapping[str, Side], *, known: Sequence[str]) -> None:
    for agent in sides:
        if agent not in known:
            raise ConfigError(f"the traces hold no outcome of {agent!r}", hint=f"they tell of {', '.join(known)}")
    for side in Side:
        if side not in sides.values():
            raise ConfigError(
                f"no {side} agent takes part", hint="a replay compares both sides: name an agent of each that the traces tell of"
            )


def _restrict(trace: Trace, sides: Mapping[str, Side]) -> Trace:
    return trace.model_copy(update={"outcomes": {agent: trace.outcomes[agent] for agent in sides if agent in trace.outcomes}})


def _missing(trace: Trace, sides: Mapping[str, Side]) -> list[str]:
    """Return the agents whose score is unknown."""
    return [agent for agent in sides if agent not in trace.outcomes or trace.outcomes[agent].score is None]


def _too_few(count: int, traces: Sequence[Trace], sides: Mapping[str, Side]) -> ConfigError:
    missing = [agent for trace in traces for agent in _missing(trace, sides)]
    shares = ", ".join(f"{agent} on {len(traces) - missing.count(agent):,}" for agent in sides)
    return ConfigError(
        f"the scores of all agents are known on {count:,} of {len(traces):,} tasks, and a replay needs {LEAST_TASKS} ({shares})",
        hint="run the same tasks with each agent and record the scores, or leave an agent out",
    )


@dataclass(frozen=True, slots=True)
class HeldOutPart:
    """Some tasks of a recording."""

    places: tuple[int, ...]
    """Places of its tasks among the recording's cases."""
    others: tuple[int, ...]
    """Places of the tasks that may be learned from."""
    head: Path
    """Folder of a head that was trained on the others, or of the one that the policy names."""


@contextmanager
def hold_out(
    recording: Recording, *, head: Path | None, embedder: MiniLmEmbedder | None, folds: int, seed: int, progress: Progress
) -> Iterator[list[HeldOutPart]]:
    """Split a recording into parts. Yield them with a head for each that has not seen it; heads last as long as the context.

    Args:
        head: that the policy names and that is used for all parts, whatever it has seen; None: one is trained for each part.
        embedder: of the heads that are trained; None: they look at words and classes alone.
        folds: number of parts; tasks with the same prompt are in the same one.
        seed: of the split.

    Raises `ConfigError` for less than two parts or more parts than prompts, and what training raises.
    """
    with TemporaryDirectory(prefix="nearfar-heads-") as folder:
        split = _split(recording, folds, seed)
        if head is not None:
            yield [_part(recording, places, head) for places in split]
            return
        examples = _examples(recording, embedder, progress)
        parts = []
        for fold, places in enumerate(split):
            progress(f"training a head for part {fold + 1} of {folds} on the others")
            parts.append(_part(recording, places, Path(folder) / str(fold)))
            held = {recording.cases[place].prompt for place in places}
            write_head(train_head(_without(examples, held), seed=seed), parts[-1].head)
        yield parts


def _split(recording: Recording, folds: int, seed: int) -> list[tuple[int, ...]]:
    """Return places of the cases of each part."""
    prompts = [case.prompt for case in recording.cases]
    if not 2 <= folds <= len(set(prompts)):
        raise ConfigError(f"{len(set(prompts)):,} different prompts cannot be split into {folds} parts", hint="5 parts are usual")
    fold_of = folds_of(prompts, folds, seed)
    return [tuple(place for place, found in enumerate(fold_of) if found == fold) for fold in range(folds)]


def _part(recording: Recording, places: Sequence[int], head: Path) -> HeldOutPart:
    held = set(places)
    return HeldOutPart(tuple(places), tuple(place for place in range(len(recording.cases)) if place not in held), head)


def _examples(recording: Recording, embedder: MiniLmEmbedder | None, progress: Progress) -> Examples:
    """Return all examples that a head can be trained on. Raises `ConfigError` where torch is not installed."""
    try:
        import torch  # noqa: F401 - asked for here, before anything takes long
    except ImportError as error:
        hint = "pip install 'nearfar[train]', or name a trained head as policy.router.head"
        raise ConfigError("a replay trains heads, and needs torch for it", hint=hint) from error
    examples = examples_of([*recording.cases, *recording.incomplete], list(recording.sides))
    if embedder is None:
        return examples
    progress(f"embedding {len(examples.prompts):,} prompts")
    return replace(examples, embeddings=embedder.early_all(examples.prompts))


def _without(examples: Examples, prompts: set[str]) -> Examples:
    import numpy

    return examples.part(numpy.array([row for row, prompt in enumerate(examples.prompts) if prompt not in prompts], dtype=numpy.int64))


@dataclass(frozen=True, slots=True)
class JudgedDraft:
    """A draft, and the choice about it."""

    near: str
    """The agent that has drafted."""
    far: str
    """The agent that would take over."""
    advantage: float
    """Utility that the far agent is ahead by, by the evidence that was looked at."""
    escalates: bool


class DraftReplay:
    """Judges the drafts of a recording. Only what the traces tell is looked at: answers, confidences, and what checks found.

    Args:
        recording: whose drafts are judged.
        policy: that names the evidence.

    Raises `ConfigError` where the policy's escalation cannot be loaded.
    """

    def __init__(self, recording: Recording, policy: Policy) -> None:
        self._recording = recording
        self._policy = policy
        self._evidence = policy.evidence
        self._minimum_confidence = policy.minimum_confidence
        named = None if policy.evidence.escalation is None else Escalation.load(policy.evidence.escalation)
        self._card = named if named is not None and judges_texts(named.card.looks) else None
        self._findings: dict[tuple[str, str], list[Mapping[str, Signal]]] = {}

    def judge(self, router: Router, task: Task, decision: RouteDecision, place: int) -> JudgedDraft | None:
        """Judge the draft of the case at a place as the router's budget asks for; None where the first agent's answer stands anyway.

        Raises `ConfigError` for a card that was trained for other agents or looks.
        """
        near, far = decision.candidates[0], decision.candidates[1] if len(decision.candidates) > 1 else ""
        sides = self._recording.sides
        if not decision.judged or sides[near] is not Side.NEAR or sides.get(far) is not Side.FAR:
            return None
        choice = DraftChoice(router.drafts, task, decision, far)
        case = self._recording.cases[place]
        if self._is_unusable(case.outcomes[near]):
            choice.force()
            return JudgedDraft(near, far, choice.advantage(0.0, 1.0), escalates=True)
        known = self._known(near, far)[place]
        card = self._weighing(decision, known, far)
        return self._checked(choice, case, near, far) if card is None else self._learned(card, choice, decision, place, far)

    def _weighing(self, decision: RouteDecision, known: Mapping[str, Signal], far: str) -> Escalation | None:
        """Return the card that weighs the evidence; None: the fixed checks decide."""
        near = decision.candidates[0]
        if self._card is not None:
            self._card.require(draft=near, far=far, looks=[*known, *self._card.looks])
            return self._card
        second = self._evidence.second_opinion
        asked = self._others(near) if second is None else [second]
        return first_day_escalation(self._policy, decision, draft=near, far=far, others=[name for name in asked if name in known])

    def _checked(self, choice: DraftChoice, case: Trace, near: str, far: str) -> JudgedDraft:
        draft = case.outcomes[near]
        objection, agrees = self._objection(case, draft)
        verdict = choice.weigh_checks(objection, agrees=agrees, confidence=draft.confidence)
        chances = unlearned_chances(agrees if objection is None else False, confidence=draft.confidence, prompt=case.prompt)
        return JudgedDraft(near, far, choice.advantage(*chances), verdict.escalates)

    def _learned(self, card: Escalation, choice: DraftChoice, decision: RouteDecision, place: int, far: str) -> JudgedDraft:
        near = decision.candidates[0]
        known = self._known(near, far)[place]
        predicted = {each.agent: each.estimate.predicted for each in decision.considered if each.estimate is not None}
        found = {**known, PROMPT: prompt_surface(self._recording.cases[place].prompt, predicted)}
        seen = {look.name: found.get(look.name, Signal()) for look in card.card.looks if look.is_free}
        while (verdict := choice.weigh(card, seen)).look is not None:
            seen[verdict.look] = found.get(verdict.look, Signal())
        return JudgedDraft(near, far, choice.advantage(verdict.p_draft, verdict.p_far), verdict.action is Action.ESCALATE)

    def _known(self, near: str, far: str) -> list[Mapping[str, Signal]]:
        """Return what all looks would find, for each case."""
        if (near, far) not in self._findings:
            opinions = {agent: Cost() for agent in self._others(near)}
            examples = draft_examples_of(self._recording.cases, draft=near, far=far, opinions=opinions)
            self._findings[near, far] = list(examples.findings)
        return self._findings[near, far]

    def _others(self, near: str) -> list[str]:
        return [agent for agent, side in self._recording.sides.items() if side is Side.NEAR and agent != near]

    def _objection(self, case: Trace, draft: AgentOutcome) -> tuple[str | None, bool | None]:
        """Return the objection of the fixed checks, and whether the second agent agrees; None: it was not asked, or is not on record."""
        if draft.confidence is not None and draft.confidence < self._minimum_confidence:
            return f"confidence {draft.confidence:.2f} is below {self._minimum_confidence:.2f}", None
        if case.tools and draft.is_grounded is False:
            return "the answer occurs in no tool result", None
        second = case.outcomes.get(self._evidence.second_opinion or "")
        if second is None or second.answer is None or draft.answer is None:
            return None, None
        agrees = agree(draft.answer, second.answer)
        return None if agrees else "the second opinion is another", agrees

    @staticmethod
    def _is_unusable(draft: AgentOutcome) -> bool:
        return draft.is_valid is False or (draft.answer is not None and not draft.answer.strip())


@dataclass(frozen=True, slots=True)
class CascadeRoles:
    """The agents of a cascade, in the order in which they were named: the first near one drafts, the others give opinions."""

    draft: str
    far: str
    opinions: tuple[str, ...]

    @classmethod
    def of(cls, sides: Mapping[str, Side]) -> Self:
        """Take the roles from the sides of the agents, at least one of each side."""
        near, far = ([agent for agent, side in sides.items() if side is wanted] for wanted in (Side.NEAR, Side.FAR))
        return cls(near[0], far[0], tuple(near[1:]))


def has_drafts(traces: Sequence[Trace], roles: CascadeRoles) -> bool:
    """Return whether any trace holds the answer of the drafting agent."""
    return any(roles.draft in trace.outcomes and trace.outcomes[roles.draft].answer is not None for trace in traces)


@dataclass(frozen=True)
class RecordedCascade:
    """Traces in which both the draft and the far agent have a score."""

    traces: tuple[Trace, ...]
    roles: CascadeRoles
    incomplete: int
    """Traces that lack one of the two scores."""

    @classmethod
    def of(cls, traces: Sequence[Trace], sides: Mapping[str, Side]) -> Self:
        """Keep the traces that can be judged."""
        roles = CascadeRoles.of(sides)
        known = tuple(trace for trace in traces if all(_score(trace, agent) is not None for agent in (roles.draft, roles.far)))
        return cls(known, roles, len(traces) - len(known))

    @cached_property
    def examples(self) -> DraftExamples:
        """The drafts with all findings, in the order of the traces."""
        opinions = {agent: mean_cost(self.traces, agent) for agent in self.roles.opinions}
        return draft_examples_of(self.traces, draft=self.roles.draft, far=self.roles.far, opinions=opinions)

    def gains(self, escalation: Escalation | None, *, seed: int = 0) -> "Floats":
        """Return P(far right) - P(draft right) of each task after all looks. None: by regressions that have not seen it.

        Raises `ConfigError` for too few tasks or outcomes that are all the same, and an escalation for other agents or looks.
        """
        import numpy

        if escalation is None:
            return out_of_fold_gains(self.examples, seed=seed)
        looks = [*(look.name for look in escalation.card.looks if look.is_free), *(look.name for look in self.examples.looks)]
        escalation.require(draft=self.roles.draft, far=self.roles.far, looks=looks)
        known = [{look: each.get(look, Signal()) for look in escalation.looks} for each in self.examples.findings]
        chances = [escalation.probabilities(findings) for findings in known]
        return numpy.array([far - draft for draft, far in chances])

    def disagreement(self) -> "Floats | None":
        """Return how many opinions disagree with each draft, ties by prompt length: the rule that needs no label. None without opinions."""
        import numpy

        if not self.roles.opinions:
            return None
        agree = [[found[agent].measures.get("agrees", 0.0) for agent in self.roles.opinions] for found in self.examples.findings]
        lengths = numpy.array([length_gain(trace.prompt) for trace in self.traces])
        found: Floats = 1 - numpy.mean(agree, axis=1) + _TIE * lengths
        return found


def mean_cost(traces: Sequence[Trace], agent: str) -> Cost:
    """Return the mean recorded cost of asking an agent; 0 for a measure that was never recorded."""
    outcomes = [trace.outcomes[agent] for trace in traces if agent in trace.outcomes]

    def mean(name: str) -> float:
        return fmean(known) if (known := [value for outcome in outcomes if (value := getattr(outcome, name)) is not None]) else 0.0

    return Cost(dollars=mean("dollars"), seconds=mean("seconds"), joules=mean("joules"))


def _score(trace: Trace, agent: str) -> float | None:
    return trace.outcomes[agent].score if agent in trace.outcomes else None
