"""`Chooser`: settles `auto` for each task, and learns from what came of it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from random import Random
from typing import Final

from ...protocols import ConfigError, PrivacyViolation, Sensitivity, Side
from ..task import Policy
from .arm import Arm
from .classes import ClassGuess, TaskClasses, lineage
from .decision import Candidate, SelectionDecision
from .defaults import DEFAULT_SCORE, DEFAULTS, starting_points
from .estimates import PRIOR_SCORE, Estimate, Estimates
from .outcomes import Outcome
from .profile import Shape, TaskProfile
from .rules import is_preferred, objection_to
from .settings import AutoPolicy

_EVERYTHING: Final = ""
"""The group of all tasks."""


class Chooser:
    """What was learned so far, and the choices made from it.

    Args:
        settings: the knobs.
        outcomes: what is known from the start.
        defaults: whether configurations without outcomes are candidates; where the candidates must have been measured, they are not.
        seed: of the exploration; None: another one each time.
    """

    def __init__(
        self, settings: AutoPolicy, outcomes: Iterable[Outcome] = (), *, has_defaults: bool = True, seed: int | None = None
    ) -> None:
        self.settings = settings
        self._classes = TaskClasses()
        self._estimates = Estimates(shrinkage=settings.shrinkage)
        self._known: dict[str, tuple[Arm, str]] = {}
        self._has_defaults = has_defaults
        self._random = Random(seed)
        self._served = 0
        self._explored = 0
        for outcome in outcomes:
            self.learn(outcome)

    def learn(self, outcome: Outcome) -> None:
        """Take an outcome into account."""
        profile, key = outcome.profile, outcome.arm.key
        self._classes.add(outcome.task_class, profile)
        self.offer(outcome.arm, outcome.label)
        groups = _groups(profile, outcome.task_class)
        self._estimates.add(key, groups, score=outcome.score, dollars=outcome.dollars)

    def offer(self, arm: Arm, label: str = "") -> None:
        """Make an arm a candidate, measured or not."""
        self._known.setdefault(arm.key, (arm, label or arm.key))

    def choose(self, profile: TaskProfile, policy: Policy, *, sides: Collection[Side] = tuple(Side)) -> SelectionDecision:
        """Settle one task.

        Raises `PrivacyViolation` where only far agents could serve a private task, `ConfigError` where nothing can serve it.
        """
        guess = self._classes.guess(profile, minimum_familiarity=self.settings.minimum_familiarity)
        groups = _groups(profile, guess.name)
        arms = self._arms(profile)
        objections = {key: objection_to(arm, policy, sides=sides) for key, (arm, _) in arms.items()}
        estimates = {key: self._estimates.estimate(key, groups, prior=_prior(key, profile.shape)) for key in arms}
        priced = _priced(estimates)
        judged = [
            self._judged(arm, label, estimates[key], dollars=priced[key], objection=objections[key]) for key, (arm, label) in arms.items()
        ]
        ranked = sorted(judged, key=_rank)
        allowed = _allowed(ranked, policy)
        chosen = self._explore(allowed, estimates, priced)
        return SelectionDecision(
            profile=profile if policy.sensitivity is Sensitivity.PUBLIC else profile.model_copy(update={"prompt": ""}),
            task_class=guess.name,
            familiarity=guess.familiarity,
            candidates=tuple(ranked),
            chosen=chosen.arm,
            explored=chosen is not allowed[0],
            reasons=_reasons(profile, guess, chosen, allowed),
        )

    def _arms(self, profile: TaskProfile) -> dict[str, tuple[Arm, str]]:
        """Every arm by its key, with its label."""
        defaults = starting_points(profile.shape) if self._has_defaults else ()
        return {**{default.key: (default, default.key) for default in defaults}, **self._known}

    def _judged(self, arm: Arm, label: str, estimate: Estimate, *, dollars: float, objection: str | None) -> Candidate:
        return Candidate(
            arm=arm,
            label=label,
            score=estimate.score,
            deviation=estimate.deviation,
            dollars=estimate.dollars,
            utility=self._worth(estimate.score - estimate.deviation, dollars),
            outcomes=estimate.outcomes,
            similar=estimate.similar,
            objection=objection,
        )

    def _worth(self, score: float, dollars: float) -> float:
        return score - dollars / self.settings.dollars_per_score

    def _explore(self, allowed: Sequence[Candidate], estimates: Mapping[str, Estimate], priced: Mapping[str, float]) -> Candidate:
        """The best candidate, or the one that Thompson sampling wants to try while the bound on exploration leaves room."""
        self._served += 1
        best = allowed[0]
        if self._explored + 1 > self.settings.explore_share * self._served:
            return best

        def drawn(candidate: Candidate) -> float:
            key = candidate.arm.key
            return self._worth(estimates[key].draw(self._random), priced[key])

        chosen = max(allowed, key=drawn)
        self._explored += chosen is not best
        return chosen


def _groups(profile: TaskProfile, task_class: str) -> tuple[str, ...]:
    """The nested groups of tasks that a task is in, the widest first."""
    classes = lineage(task_class)
    narrowest = classes[-1] if classes else profile.shape
    return (_EVERYTHING, f"shape: {profile.shape}", *classes, f"{narrowest}: {profile.form}")


def _prior(key: str, shape: Shape) -> float:
    return DEFAULT_SCORE if key == DEFAULTS[shape] else PRIOR_SCORE


def _priced(estimates: Mapping[str, Estimate]) -> dict[str, float]:
    """The expected dollars; an unknown price counts as the dearest one that is known, since it is not free."""
    known = [estimate.dollars for estimate in estimates.values() if estimate.dollars is not None]
    dearest = max(known, default=0.0)
    return {key: dearest if estimate.dollars is None else estimate.dollars for key, estimate in estimates.items()}


def _rank(candidate: Candidate) -> tuple[bool, float, float, str]:
    """What may be chosen first, then the more useful, the cheaper, and the name, so that the order never hangs on chance."""
    dollars = float("inf") if candidate.dollars is None else candidate.dollars
    return (candidate.objection is not None, -candidate.utility, dollars, candidate.arm.key)


def _allowed(ranked: Sequence[Candidate], policy: Policy) -> list[Candidate]:
    allowed = [candidate for candidate in ranked if candidate.objection is None]
    if not allowed:
        hint = "; ".join(dict.fromkeys(candidate.objection for candidate in ranked if candidate.objection))
        if policy.sensitivity is Sensitivity.PRIVATE:
            raise PrivacyViolation("the task is private and no near agent can serve it", hint=hint)
        raise ConfigError("auto has no configuration left for this task", hint=hint or "give it outcomes")
    return [candidate for candidate in allowed if is_preferred(candidate.arm, policy.mode)] or allowed


def _reasons(profile: TaskProfile, guess: ClassGuess, chosen: Candidate, allowed: Sequence[Candidate]) -> tuple[str, ...]:
    known = f"recorded tasks of class {guess.name}, which know {guess.familiarity:.0%} of its words" if guess.name else "no recorded class"
    return (f"auto: {profile}; like {known}", f"auto chose {chosen.label}: {_why(profile, chosen, allowed)}")


def _why(profile: TaskProfile, chosen: Candidate, allowed: Sequence[Candidate]) -> str:
    best = allowed[0]
    if chosen is not best:
        return f"exploring; the best known is {best.label}"
    if len(allowed) == 1:
        return "privacy, mode and the agents that there are leave no other"
    if not chosen.outcomes:
        found = "nothing better was measured" if any(candidate.outcomes for candidate in allowed) else "nothing was measured yet"
        return f"{found}, and it is the default for {profile.shape}" if chosen.arm.strategy is DEFAULTS[profile.shape] else found
    price = "at an unknown price" if chosen.dollars is None else f"for ${chosen.dollars:.5f}"
    basis = f"from {chosen.outcomes} outcomes, {chosen.similar} of them on such tasks"
    second = allowed[1]
    return f"it is expected to score {_score(chosen)} {price}, {basis}; next best is {second.label} with {_score(second)}"


def _score(candidate: Candidate) -> str:
    return f"{candidate.score:.2f} \u00b1 {candidate.deviation:.2f}"
