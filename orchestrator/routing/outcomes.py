"""The store of outcomes, from which the router's estimates of agents and `auto`'s estimates of configurations are computed.

Tasks are in nested groups: all tasks, the kind of tools, the class and those above it, the features within it. Each estimate of a narrow
group starts from the one around it. For a configuration it is moved by how much easier or harder the group's tasks are for all of them, and
is replaced by the group's own outcomes the faster, the more the groups were seen to differ (`Tallies.credibility`). A score is a share, so
the belief about its mean is a Beta distribution.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from random import Random
from threading import RLock
from typing import Final

from ...protocols.items import Tier
from ..agents import PaceSource, no_pace
from ..task.decisions import Arm
from ..task.modes import TaskProfile
from ..task.results import JudgedProposal
from .costs import Group, RunningEstimates, lineage, nested
from .habits import AgreementRates, Efforts, ReasonedStep
from .outcome_records import EscalatedDraft, Faults, Outcome, ReportedFault, ScoredDraft, correction_for
from .success import Correction, Drift, DriftDetector
from .task_classes import Familiarity, TaskClasses
from .traces import Known, ScoredAnswer, read_outcomes

logger = logging.getLogger(__name__)

USUAL_CREDIBILITY: Final = 20.0
"""Outcomes that the wider group counts for, before anything is known of how groups differ."""
MOST_CREDIBILITY: Final = 10_000.0
"""Upper bound of the credibility, reached where groups do not differ in which configuration is better."""
_PRIOR_OUTCOMES: Final = 400.0
"""Outcomes by which the usual credibility is outweighed by what the groups show."""
_GROWTH: Final = 1.2
"""Growth of the number of outcomes after which the credibility is computed again."""


@dataclass(slots=True)
class Tally:
    """Sums over the outcomes of one configuration in one group."""

    outcomes: int = 0
    score: float = 0.0
    priced: int = 0
    """Outcomes whose dollars are known."""
    dollars: float = 0.0

    def add(self, score: float, dollars: float | None) -> None:
        self.outcomes += 1
        self.score += score
        if dollars is not None:
            self.priced += 1
            self.dollars += dollars

    def less(self, part: "Tally") -> "Tally":
        """Return the tally without a part of it. Sums are rounded, so that a difference of nothing may come out below 0."""
        score, dollars = max(self.score - part.score, 0.0), max(self.dollars - part.dollars, 0.0)
        return Tally(self.outcomes - part.outcomes, score, self.priced - part.priced, dollars)

    @property
    def mean(self) -> float:
        return self.score / self.outcomes


@dataclass(slots=True)
class _Differences:
    """Evidence from the groups of one depth about how much the advantage of a configuration depends on the group."""

    between: float = 0.0
    """Squared differences, less what chance alone would make, weighted by outcomes."""
    within: float = 0.0
    """Variance of single outcomes, weighted by outcomes."""
    outcomes: float = 0.0

    @property
    def credibility(self) -> float:
        """Bühlmann's k: the variance of outcomes over the variance between groups."""
        if not self.outcomes or not self.within:
            return USUAL_CREDIBILITY
        within = self.within / self.outcomes
        usual = within / USUAL_CREDIBILITY
        between = (self.between + _PRIOR_OUTCOMES * usual) / (self.outcomes + _PRIOR_OUTCOMES)
        return min(within / max(between, 1e-12), MOST_CREDIBILITY)


@dataclass(slots=True)
class Tallies:
    """The outcomes of all configurations in all groups.

    Groups that differ little in which configuration is better are hardly told apart by few outcomes: choosing the best of many by them
    means choosing the luckiest. How much they differ is estimated from the outcomes, by depth (Bühlmann's credibility theory, the
    empirical-Bayes form of shrinkage).
    """

    _groups: dict[Group, dict[str, Tally]] = field(default_factory=dict)
    _outcomes: int = 0
    _fitted: int = 0
    """Outcomes when the credibility was computed."""
    _credibility: dict[int, float] = field(default_factory=dict)

    def add(self, arm: str, groups: Sequence[Group], *, score: float, dollars: float | None) -> None:
        """Count an outcome in each of its groups, the widest first."""
        self._outcomes += 1
        for group in groups:
            self._groups.setdefault(group, {}).setdefault(arm, Tally()).add(score, dollars)

    def of(self, group: Group, *, without: Group | None = None) -> Mapping[str, Tally]:
        """Return the tallies of a group by configuration, without those of a group inside it."""
        whole = self._groups.get(group, {})
        if without is None or without not in self._groups:
            return whole
        inner = self._groups[without]
        return {arm: tally.less(inner[arm]) if arm in inner else tally for arm, tally in whole.items()}

    def shift(self, group: Group, parent: Group) -> float:
        """Return how much better the tasks of a group go than the others around it, whatever the configuration."""
        pairs = [(_comparable(own, other), own.mean - other.mean) for own, other in self._pairs(group, parent).values()]
        outcomes = sum(count for count, _ in pairs)
        return sum(count * difference for count, difference in pairs) / (outcomes + USUAL_CREDIBILITY)

    def credibility(self, depth: int) -> float:
        """Return the number of outcomes that the wider group counts for in the groups of a depth."""
        if self._outcomes > _GROWTH * self._fitted:
            self._fit()
        return self._credibility.get(depth, USUAL_CREDIBILITY)

    def _fit(self) -> None:
        differences: defaultdict[int, _Differences] = defaultdict(_Differences)
        for group in filter(None, self._groups):
            found = differences[len(group)]
            for between, within, outcomes in self._residuals(group, group[:-1]):
                found.between += between * outcomes
                found.within += within * outcomes
                found.outcomes += outcomes
        self._credibility = {depth: found.credibility for depth, found in differences.items()}
        self._fitted = self._outcomes

    def _residuals(self, group: Group, parent: Group) -> Iterator[tuple[float, float, float]]:
        """Yield for each configuration the squared interaction less its noise, the variance of its outcomes, and their comparable
        number."""
        pairs, shift = self._pairs(group, parent), self.shift(group, parent)
        if len(pairs) < 2:
            return
        for own, other in pairs.values():
            mean = (own.score + other.score) / (own.outcomes + other.outcomes)
            within = mean * (1 - mean)  # the most that it can be: scores lie between 0 and 1
            outcomes = _comparable(own, other)
            noise = (1 - 1 / len(pairs)) * within / outcomes
            yield (own.mean - other.mean - shift) ** 2 - noise, within, outcomes

    def _pairs(self, group: Group, parent: Group) -> dict[str, tuple[Tally, Tally]]:
        """Return the configurations that were measured both in a group and in the rest of the one around it, with both tallies."""
        rest = self.of(parent, without=group)
        return {arm: (own, rest[arm]) for arm, own in self.of(group).items() if rest[arm].outcomes}


def _comparable(own: Tally, other: Tally) -> float:
    """Return the number of outcomes whose mean is as uncertain as the difference of the two means."""
    return 1 / (1 / own.outcomes + 1 / other.outcomes)


PRIOR_SCORE: Final = 0.5
PRIOR_WEIGHT: Final = 2.0
"""Outcomes that the belief before any outcome counts for."""
_NOTHING: Final = Tally()
_LEAST_MEAN: Final = 1e-6
"""A mean of exactly 0 or 1 has no Beta distribution."""


@dataclass(frozen=True, slots=True)
class Belief:
    """The belief about a configuration on a task."""

    score: float
    """Expected, between 0 and 1."""
    weight: float
    """Outcomes that the belief is worth: the more, the surer."""
    dollars: float | None
    """Expected; None where no outcome has a known price."""
    outcomes: int
    """Recorded for the configuration, on whatever tasks."""
    similar: int
    """Outcomes of the configuration in the narrowest groups that the task is in."""

    @property
    def deviation(self) -> float:
        """Standard deviation of the Beta distribution of the mean score."""
        return sqrt(self.score * (1 - self.score) / (self.weight + 1))


def beliefs_about(tallies: Tallies, priors: Mapping[str, float], groups: Sequence[Group]) -> dict[str, Belief]:
    """Return the belief about each configuration on a task of these groups, the widest first.

    `priors` are the scores expected before any outcome. Each outcome counts once, in the narrowest group that it shares with the task.
    """
    levels = [_Level.of(tallies, groups, depth) for depth in range(len(groups))]
    return {arm: _estimate(tallies, levels, groups, arm=arm, prior=prior) for arm, prior in priors.items()}


def mix_beliefs(beliefs: Sequence[tuple[float, Mapping[str, Belief]]]) -> dict[str, Belief]:
    """Return the belief about each configuration on a task that may be of several classes, each with its share of 1.

    It is a belief about the mean over such tasks, so that not knowing the class of this one does not make it less sure.
    """
    (_, first), *_ = beliefs
    return {arm: _mixed([(share, belief[arm]) for share, belief in beliefs]) for arm in first}


def _mixed(parts: Sequence[tuple[float, Belief]]) -> Belief:
    prices = [(share, part.dollars) for share, part in parts]
    known = [share * dollars for share, dollars in prices if dollars is not None]
    return Belief(
        score=min(sum(share * part.score for share, part in parts), 1.0),  # shares are rounded
        weight=sum(share * part.weight for share, part in parts),
        dollars=sum(known) if len(known) == len(parts) else None,
        outcomes=parts[0][1].outcomes,
        similar=sum(part.similar for _, part in parts),
    )


@dataclass(frozen=True, slots=True)
class _Level:
    """The contribution of one of the nested groups to an estimate."""

    tallies: Mapping[str, Tally]
    """Tallies of the group's outcomes outside the next narrower group."""
    shift: float
    """How much better its tasks go than the others around it."""
    credibility: float
    """Outcomes that the belief from the wider groups counts for at most."""

    @classmethod
    def of(cls, tallies: Tallies, groups: Sequence[Group], depth: int) -> "_Level":
        inner = groups[depth + 1] if depth + 1 < len(groups) else None
        shift = tallies.shift(groups[depth], groups[depth - 1]) if depth else 0.0
        return cls(tallies.of(groups[depth], without=inner), shift, tallies.credibility(depth) if depth else PRIOR_WEIGHT)


def _estimate(tallies: Tallies, levels: Sequence[_Level], groups: Sequence[Group], *, arm: str, prior: float) -> Belief:
    score, weight, dollars = prior, PRIOR_WEIGHT, None
    for level in levels:
        tally = level.tallies.get(arm, _NOTHING)
        inherited = min(weight, level.credibility)
        score = min(max((inherited * (score + level.shift) + tally.score) / (inherited + tally.outcomes), 0.0), 1.0)
        dollars = _shrunk_dollars(dollars, tally, inherited)
        weight = inherited + tally.outcomes
    recorded, similar = (tallies.of(group).get(arm, _NOTHING).outcomes for group in (groups[0], groups[-1]))
    return Belief(score=score, weight=weight, dollars=dollars, outcomes=recorded, similar=similar)


def _shrunk_dollars(wider: float | None, tally: Tally, inherited: float) -> float | None:
    if not tally.priced:
        return wider
    if wider is None:
        return tally.dollars / tally.priced
    return (inherited * wider + tally.dollars) / (inherited + tally.priced)


def inner_mean(mean: float) -> float:
    """Return the mean, or the next one that a Beta distribution can have."""
    return min(max(mean, _LEAST_MEAN), 1 - _LEAST_MEAN)


def draw_score(mean: float, weight: float, random: Random) -> float:
    """Draw a mean score from the Beta distribution of the belief, as in Thompson sampling (arXiv 1111.1797)."""
    inner = inner_mean(mean)
    return random.betavariate(inner * weight, (1 - inner) * weight)


_RETRAIN: Final = "a card that is trained on these agents would fit better: `nearfar policy train`"


class OutcomeStore:
    """All that is known of how tasks went: what agents took and how well they did, and how configurations of `auto` did.

    It holds what happened in this process and what stands in the files that it was told to read. The router's estimates of agents and
    those of `auto` are computed from it. Calls may come from any thread; `lock` is to be held while the tallies are read.

    Args:
        outcomes: of configurations, to start from.
        paces: returns the pace of an agent measured before this process began, by its name.
    """

    def __init__(self, outcomes: Iterable[Outcome] = (), *, paces: PaceSource = no_pace) -> None:
        self.lock = RLock()
        self.running = RunningEstimates(paces)
        """The costs of each agent's steps and tasks."""
        self.classes = TaskClasses()
        self.tallies = Tallies()
        self.efforts = Efforts()
        """How long steps of each agent reason."""
        self.arms: dict[str, tuple[Arm, str]] = {}
        """Every configuration met, by its key, with its label."""
        self.corrections: dict[Path | None, Correction] = {}
        self._cards: dict[str, Correction] = {}
        """Corrections of the probabilities of each card."""
        self.faults = Faults()
        self._confirmations: dict[tuple[str, str], DriftDetector] = {}
        """Watch over the far agents' verdicts, by the card and the agent that drafted."""
        self.by_length: dict[Path, Correction] = {}
        """The correction of what prompt length predicts, by the head that it goes with."""
        self.familiarity: dict[Path, Familiarity] = {}
        self.agreement = AgreementRates()
        """How often far confirms what near proposes in `speculate`."""
        self._files: set[Path] = set()
        for outcome in outcomes:
            self.add(outcome)

    def read(self, path: Path, *, may_be_missing: bool = False) -> None:
        """Take in what a file tells, once. Raises `ConfigError` for a file that cannot be read, and nothing of it counts."""
        with self.lock:
            if path in self._files or (may_be_missing and not path.exists()):
                self._files.add(path)
                return
            known = read_outcomes(path)
            self._files.add(path)
            for each in known:
                self.add(each)

    def add(self, outcome: Known) -> None:
        """Take in how a task went."""
        with self.lock:
            if isinstance(outcome, JudgedProposal):
                self.agreement.learn(outcome)
                return
            if isinstance(outcome, ReasonedStep):
                self.efforts.learn(outcome)
                return
            if isinstance(outcome, ReportedFault):
                self.faults.add(outcome)
                return
            if isinstance(outcome, ScoredDraft):
                self._add_draft(outcome)
                return
            if isinstance(outcome, EscalatedDraft):
                self._watch(outcome)
                return
            if isinstance(outcome, ScoredAnswer):
                self._add_answer(outcome)
                return
            self.classes.add(outcome.task_class, outcome.profile)
            self.offer(outcome.arm, outcome.label)
            groups = groups_of(outcome.profile, outcome.task_class)
            self.tallies.add(outcome.arm.key, groups, score=outcome.score, dollars=outcome.dollars)

    def offer(self, arm: Arm, label: str = "") -> None:
        """Make a configuration known, measured or not."""
        self.arms.setdefault(arm.key, (arm, label or arm.key))

    def correction(self, head: Path | None) -> Correction:
        """Return the correction of the predictions of one head; None: of the prior."""
        with self.lock:
            return self.corrections.setdefault(head, Correction())

    def card_correction(self, card: str) -> Correction:
        """Return the correction of the probabilities of one card, or of a verifier (`verdicts_of`); empty: of the default card."""
        with self.lock:
            return self._cards.setdefault(card, correction_for(card))

    def reported_faults(self, task_class: str, *, user: str, reach: Tier) -> list[str]:
        """Return the faults that reports have named most often in a class, and that a run of this user and privacy may be told."""
        with self.lock:
            return self.faults.of(task_class, user=user, reach=reach)

    def _add_draft(self, draft: ScoredDraft) -> None:
        drift = self.card_correction(draft.card).learn(draft.subject, draft.task_class, draft.predicted, draft.score)
        if drift is not None:
            logger.warning("%s; %s", drift, _RETRAIN)

    def _watch(self, draft: EscalatedDraft) -> None:
        """Notice when far answers confirm an agent's drafts more or less often than they used to.

        The card is not moved by that: two right answers may differ in form, and labels of doubtful drafts alone made it rank worse.
        """
        detector = self._confirmations.setdefault((draft.card, draft.agent), DriftDetector())
        drift = detector.observe(float(draft.confirmed) - draft.expected)
        if drift is not None:
            often = "more" if drift is Drift.BETTER else "less"
            logger.warning("far answers confirm drafts of %s %s often than they used to; %s", draft.agent, often, _RETRAIN)

    def _add_answer(self, answer: ScoredAnswer) -> None:
        decision = answer.decision
        estimate = decision.estimate_of(answer.agent)
        if estimate is None:
            return
        task_class = answer.task_class or decision.task_class
        head = answer.head if decision.predictor == "head" or estimate.by_length is not None else None
        if head is not None and estimate.by_length is not None:
            self._compare(head, answer, task_class, predicted=estimate.predicted, by_length=estimate.by_length)
        drift = self.correction(head).learn(answer.agent, task_class, estimate.predicted, answer.score)
        if drift is not None:
            logger.warning("%s", drift)

    def _compare(self, head: Path, answer: ScoredAnswer, task_class: str, *, predicted: float, by_length: float) -> None:
        """Learn whether the head or prompt length was nearer to an outcome, both as corrected before it."""
        length = self.by_length.setdefault(head, Correction())
        self.familiarity.setdefault(head, Familiarity()).learn(
            task_class,
            by_head=self.correction(head).corrected(answer.agent, task_class, predicted).probability,
            by_length=length.corrected(answer.agent, task_class, by_length).probability,
            outcome=answer.score,
        )
        length.learn(answer.agent, task_class, by_length, answer.score)


def groups_of(profile: TaskProfile, task_class: str) -> tuple[Group, ...]:
    """Return the nested groups of tasks that a task is in, the widest first.

    A group is named by the path to it, so that a class met with other tools is another group and no name can stand for two.
    """
    return nested((f"shape: {profile.shape}", *(f"class: {name}" for name in lineage(task_class)), f"form: {profile.form}"))
