"""Recorded drafts as a cascade judges them: what the evidence says of each, and what escalating it would have come to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Final, Self

from ....protocols import Side
from ...routing.escalation import Escalation, price
from ...routing.looks import Cost, Signal
from ...routing.success import length_gain
from ...routing.traces import AgentOutcome, Trace
from ...routing.training import FOLDS, DraftExamples, draft_examples_of, folds_of, out_of_fold_gains
from ...task.policy import Policy
from .replayed import Replayed, RoutedTask

if TYPE_CHECKING:
    from ..statistics import Floats

_TIE: Final = 1e-3
"""Weight of the gain by length among drafts of which the same opinions disagree."""


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

    def replayed(self, policy: Policy, escalation: Escalation | None, *, seed: int = 0) -> Replayed:
        """Return the tasks as the router's replay has them: the advantage is what escalating is worth over accepting the draft, and each
        outcome carries the dollars of the draft and of the opinions. All looks are taken. Raises what `gains` raises.
        """
        objective, roles = policy.objective, self.roles
        far_price = price(mean_cost(self.traces, roles.far), objective)
        advantages = (objective.quality * self.gains(escalation, seed=seed) - far_price).tolist()
        parts = folds_of([trace.prompt for trace in self.traces], FOLDS, seed).tolist()
        tasks = tuple(
            RoutedTask(
                _billed(trace, roles),
                part,
                near=roles.draft,
                far=roles.far,
                advantage=advantage,
                chosen=roles.far if advantage > policy.router.threshold else roles.draft,
            )
            for trace, part, advantage in zip(self.traces, parts, advantages, strict=True)
        )
        return Replayed(tasks, {roles.draft: Side.NEAR, roles.far: Side.FAR}, FOLDS, policy, self.incomplete, {})


def mean_cost(traces: Sequence[Trace], agent: str) -> Cost:
    """Return the mean recorded cost of asking an agent; 0 for a measure that was never recorded."""
    outcomes = [trace.outcomes[agent] for trace in traces if agent in trace.outcomes]

    def mean(name: str) -> float:
        return fmean(known) if (known := [value for outcome in outcomes if (value := getattr(outcome, name)) is not None]) else 0.0

    return Cost(dollars=mean("dollars"), seconds=mean("seconds"), joules=mean("joules"))


def _score(trace: Trace, agent: str) -> float | None:
    return trace.outcomes[agent].score if agent in trace.outcomes else None


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
