"""`auto`: settles which strategy, with which knobs, serves each task, and learns from outcomes."""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from random import Random
from typing import Final, cast

from pydantic import JsonValue, ValidationError

from ...protocols import ConfigError, NearfarError, PrivacyViolation, Sensitivity, Side
from ..task import Task, last_words
from ..task.decisions import PROTECTIONS, RESERVED, Arm, ConsideredArm, SelectionDecision
from ..task.modes import ONLY_TEXT, TEXT_ONLY, Mode, Shape, Strategy, TaskProfile
from ..task.policy import AutoConfig, Policy
from ..task.results import Result
from .exploration import BetaWorth, chance_of_best
from .outcome_records import Outcome
from .outcomes import PRIOR_SCORE, Belief, OutcomeStore, beliefs_about, draw_score, groups_of, inner_mean, mix_beliefs
from .task_classes import ClassGuess
from .traces import append_outcome


def objection_to(arm: Arm, profile: TaskProfile, policy: Policy, *, sides: Collection[Side]) -> str | None:
    """Return why a task under `policy` may not be served by `arm`, given the available sides; None if it may."""
    reserved = sorted(set(arm.knobs) & set(RESERVED))
    if reserved:
        return f"it sets {reserved[0]}, which is the user's to say"
    if arm.strategy is Strategy.AUTO:
        return "it would choose again"
    if arm.strategy in TEXT_ONLY and profile.attachments:
        return ONLY_TEXT
    if arm.strategy is Strategy.MINIONS and (profile.tools or not profile.context_words):
        return "it reads a context, and uses no tools"
    objection = _objection_to_far(policy, sides) if arm.strategy is not Strategy.DEVICE else None
    if objection is None and arm.strategy is not Strategy.CLOUD:
        objection = _objection_to_near(policy, sides)
    return objection


def is_preferred(arm: Arm, mode: Mode) -> bool:
    """Return True if the arm uses the side that the mode prefers."""
    shunned = {Mode.PREFER_ON_DEVICE: Strategy.CLOUD, Mode.PREFER_IN_CLOUD: Strategy.DEVICE}
    return arm.strategy is not shunned.get(mode)


def _objection_to_far(policy: Policy, sides: Collection[Side]) -> str | None:
    """Return why the far side may not serve. Every strategy but `device` may show the task to the far side."""
    if policy.sensitivity is not Sensitivity.PUBLIC:
        return "the task is private and stays on this device"
    if policy.mode is Mode.ONLY_ON_DEVICE:
        return f"mode {policy.mode}"
    return None if Side.FAR in sides else "there is no far agent"


def _objection_to_near(policy: Policy, sides: Collection[Side]) -> str | None:
    """Return why the near side may not serve. Every strategy but `cloud` works on the near side."""
    if policy.mode is Mode.ONLY_IN_CLOUD:
        return f"mode {policy.mode}"
    return None if Side.NEAR in sides else "there is no near agent"


DEFAULTS: Final[Mapping[Shape, Strategy]] = {
    Shape.STATEFUL_TOOLS: Strategy.PEVR,
    Shape.READING_TOOLS: Strategy.EVA,
    Shape.LONG_CONTEXT: Strategy.MINIONS,
    Shape.PROMPT: Strategy.CASCADE,
}
"""Plans matter where wrong actions cannot be undone; searches want light advice; a long text is best read where it lies."""

FALLBACKS: Final = (Strategy.DEVICE, Strategy.CLOUD)
"""Strategies that remain where privacy, mode or a missing side rule the default out."""

DEFAULT_SCORE: Final = 0.6
"""Expected of the default before any outcome; other configurations are expected to score `PRIOR_SCORE`."""


def starting_points(shape: Shape) -> tuple[Arm, ...]:
    """Return the configurations that are candidates without any outcome, the default first."""
    return tuple(Arm(strategy=strategy) for strategy in dict.fromkeys((DEFAULTS[shape], *DEFAULTS.values(), *FALLBACKS)))


SideDollars = Mapping[Side, float | None]
"""Dollars that a whole task was seen to take of the agent of each side; None: unknown."""


FAR_SHARES: Final[Mapping[Strategy, float]] = {
    Strategy.DEVICE: 0.0,
    Strategy.CLOUD: 1.0,
    Strategy.SPECULATE: 1.4,
    Strategy.CASCADE: 1.0,
    Strategy.ROUTE: 0.5,
    Strategy.PEVR: 0.5,
    Strategy.EVA: 0.5,
    Strategy.MINIONS: 0.5,
    Strategy.SUBTASKS: 0.5,
}
"""Dollars of a strategy over those of far alone. Half is what the hybrids of docs/sweep.md take in the dearer world; a cascade may
end with far doing everything."""


_UNKNOWN_FAR: Final = 0.01
"""Dollars of a task that far does alone, where nothing at all tells: not nothing."""


def unmeasured_dollars(arms: Mapping[str, Arm], measured: Mapping[str, float], sides: SideDollars) -> dict[str, float]:
    """Return the dollars to expect of each configuration that is not among the `measured` ones, by key.

    Where nothing was measured, all are 0: there is no outcome yet that dollars could be weighed against, and the default serves.
    """
    unknown = {key: arm for key, arm in arms.items() if key not in measured}
    if not measured:
        return dict.fromkeys(unknown, 0.0)
    near = measured.get(Strategy.DEVICE, sides.get(Side.NEAR)) or 0.0
    far = _far(arms, measured, sides, near)
    return {key: (near if arm.strategy is not Strategy.CLOUD else 0.0) + FAR_SHARES[arm.strategy] * far for key, arm in unknown.items()}


def _far(arms: Mapping[str, Arm], measured: Mapping[str, float], sides: SideDollars, near: float) -> float:
    """Return the dollars of a task that far does alone: as measured, as its agent was seen to take, or as hybrids make likely."""
    known = measured.get(Strategy.CLOUD, sides.get(Side.FAR))
    if known is not None:
        return known
    hybrids = [(arms[key].strategy, dollars) for key, dollars in measured.items()]
    likely = [max(dollars - near, 0.0) / FAR_SHARES[strategy] for strategy, dollars in hybrids if FAR_SHARES.get(strategy)]
    return max(likely, default=_UNKNOWN_FAR)


_NO_DOLLARS: Final[SideDollars] = {}


class Chooser:
    """Chooses a configuration for each task whose strategy is `auto`.

    Args:
        settings: the `[policy.auto]` section.
        outcomes: the store that it learns from, or outcomes to start one with.
        has_defaults: whether the documented defaults are candidates too, measured or not.
        seed: seed of the exploration; None: a new one each time.
    """

    def __init__(
        self,
        settings: AutoConfig,
        outcomes: OutcomeStore | Iterable[Outcome] = (),
        *,
        has_defaults: bool = True,
        seed: int | None = None,
    ) -> None:
        self.settings = settings
        self.store = outcomes if isinstance(outcomes, OutcomeStore) else OutcomeStore(outcomes)
        self._has_defaults = has_defaults
        self._random = Random(seed)
        self._served = 0
        self._explored = 0
        self._tried: defaultdict[tuple[Shape, str], set[str]] = defaultdict(set)
        """By the shape and the class of the task: configurations that were tried once already."""

    def choose(
        self,
        profile: TaskProfile,
        policy: Policy,
        *,
        sides: Collection[Side] = tuple(Side),
        dollars: SideDollars = _NO_DOLLARS,
        dollar_price: float = 0.0,
    ) -> SelectionDecision:
        """Settle one task.

        Args:
            profile: of the task.
            policy: that it is served under.
            sides: that have an agent.
            dollars: what whole tasks were seen to take of the agents.
            dollar_price: score that a budget asks a dollar to bring at the moment, beyond `dollars_per_point`.

        Raises `PrivacyViolation` where only far agents could serve a private task, `ConfigError` where nothing can serve it.
        """
        best = self.explain(profile, policy, sides=sides, dollars=dollars, dollar_price=dollar_price)
        self._served += 1
        allowed = _allowed(best.candidates, policy)
        if not self._may_explore:
            return best
        tried = self._tried[profile.shape, best.task_class]
        # Each is tried once: by chance alone, the best one may never be where the wider group speaks against it.
        chosen = next((each for each in allowed if not each.similar and each.arm.key not in tried), None)
        if chosen is None:
            chosen = _drawn(allowed, self._random)
            chance = chance_of_best([_worth(each) for each in allowed], allowed.index(chosen))
            best = best.model_copy(update={"propensity": chance})
        tried.add(chosen.arm.key)
        if chosen is allowed[0]:
            return best
        self._explored += 1
        reasons = (best.reasons[0], _why(profile, chosen, allowed))
        return best.model_copy(update={"chosen": chosen.arm, "explored": True, "reasons": reasons})

    def explain(
        self,
        profile: TaskProfile,
        policy: Policy,
        *,
        sides: Collection[Side] = tuple(Side),
        dollars: SideDollars = _NO_DOLLARS,
        dollar_price: float = 0.0,
    ) -> SelectionDecision:
        """Return the best choice known, which `choose` makes unless it explores. Raises what `choose` raises."""
        guess = self.store.classes.guess(profile, minimum_familiarity=self.settings.minimum_familiarity)
        candidates = self._candidates(profile, guess, policy, sides, dollars, dollar_price)
        allowed = _allowed(candidates, policy)
        return SelectionDecision(
            profile=profile if policy.sensitivity is Sensitivity.PUBLIC else profile.model_copy(update={"prompt": ""}),
            task_class=guess.name,
            familiarity=guess.familiarity,
            candidates=candidates,
            chosen=allowed[0].arm,
            explored=False,
            reasons=(f"auto: {profile}; like {_likeness(guess)}", _why(profile, allowed[0], allowed)),
        )

    @property
    def _may_explore(self) -> bool:
        return self._explored + 1 <= self.settings.explore_share * self._served

    def _candidates(
        self,
        profile: TaskProfile,
        guess: ClassGuess,
        policy: Policy,
        sides: Collection[Side],
        dollars: SideDollars,
        dollar_price: float,
    ) -> tuple[ConsideredArm, ...]:
        """Return every arm as it is judged for the task, the best first."""
        arms = self._arms(profile)
        priors = {key: _prior(key, profile.shape) for key in arms}
        shares = guess.shares or {guess.name: 1.0}
        beliefs = mix_beliefs(
            [(share, beliefs_about(self.store.tallies, priors, groups_of(profile, name))) for name, share in shares.items()]
        )
        measured = {key: belief.dollars for key, belief in beliefs.items() if belief.dollars is not None}
        expected = {**unmeasured_dollars({key: arm for key, (arm, _) in arms.items()}, measured, dollars), **measured}
        price = max(1 / self.settings.dollars_per_score + dollar_price, 0.0)
        judged = (
            self._judged(arm, label, beliefs[key], paid=price * expected[key], objection=objection_to(arm, profile, policy, sides=sides))
            for key, (arm, label) in arms.items()
        )
        return tuple(sorted(judged, key=_rank))

    def _arms(self, profile: TaskProfile) -> dict[str, tuple[Arm, str]]:
        """Return every arm by its key, with its label."""
        defaults = starting_points(profile.shape) if self._has_defaults else ()
        return {**{default.key: (default, default.key) for default in defaults}, **self.store.arms}

    def _judged(self, arm: Arm, label: str, belief: Belief, *, paid: float, objection: str | None) -> ConsideredArm:
        return ConsideredArm(
            arm=arm,
            label=label,
            score=belief.score,
            deviation=belief.deviation,
            weight=belief.weight,
            dollars=belief.dollars,
            utility=belief.score - belief.deviation - paid,
            outcomes=belief.outcomes,
            similar=belief.similar,
            objection=objection,
        )


def _drawn(allowed: Sequence[ConsideredArm], random: Random) -> ConsideredArm:
    """Draw a score for each candidate from its belief and return the one that is then worth most (Thompson sampling)."""

    def drawn(candidate: ConsideredArm) -> float:
        return _worth(candidate).constant + draw_score(candidate.score, candidate.weight, random)

    return max(allowed, key=drawn)


def _worth(candidate: ConsideredArm) -> BetaWorth:
    return BetaWorth(candidate.utility - (candidate.score - candidate.deviation), inner_mean(candidate.score), candidate.weight)


def _prior(key: str, shape: Shape) -> float:
    return DEFAULT_SCORE if key == DEFAULTS[shape] else PRIOR_SCORE


def _rank(candidate: ConsideredArm) -> tuple[bool, float, float, str]:
    """Return the sort key of candidates: allowed ones first, then by utility, dollars and key, so that the order is deterministic."""
    dollars = float("inf") if candidate.dollars is None else candidate.dollars
    return (candidate.objection is not None, -candidate.utility, dollars, candidate.arm.key)


def _allowed(ranked: Sequence[ConsideredArm], policy: Policy) -> list[ConsideredArm]:
    allowed = [candidate for candidate in ranked if candidate.objection is None]
    if not allowed:
        hint = "; ".join(dict.fromkeys(candidate.objection for candidate in ranked if candidate.objection))
        if policy.sensitivity is Sensitivity.PRIVATE:
            raise PrivacyViolation("the task is private and no near agent can serve it", hint=hint)
        raise ConfigError("auto has no configuration left for this task", hint=hint or "give it outcomes")
    return [candidate for candidate in allowed if is_preferred(candidate.arm, policy.mode)] or allowed


def _likeness(guess: ClassGuess) -> str:
    """Describe the recorded tasks that a task is judged by."""
    if not guess.name:
        return "no recorded class"
    shares = sorted(guess.shares.items(), key=lambda item: -item[1])
    classes = " or ".join(f"{name} ({share:.0%})" for name, share in shares) if len(shares) > 1 else guess.name
    return f"recorded tasks of class {classes}, which know {guess.familiarity:.0%} of its words"


def _why(profile: TaskProfile, chosen: ConsideredArm, allowed: Sequence[ConsideredArm]) -> str:
    return f"auto chose {chosen.label}: {_ground(profile, chosen, allowed)}"


def _ground(profile: TaskProfile, chosen: ConsideredArm, allowed: Sequence[ConsideredArm]) -> str:
    best = allowed[0]
    if chosen is not best:
        return f"exploring; the best known is {best.label}"
    if len(allowed) == 1:
        return "privacy, mode and the agents that there are leave no other"
    if not chosen.outcomes:
        found = "nothing better was measured" if any(candidate.outcomes for candidate in allowed) else "nothing was measured yet"
        return f"{found}, and it is the default for tasks with {profile.shape}" if chosen.arm.strategy is DEFAULTS[profile.shape] else found
    price = "at an unknown price" if chosen.dollars is None else f"for ${chosen.dollars:.5f}"
    basis = f"from {chosen.outcomes} outcomes, {chosen.similar} of them on such tasks"
    return f"it is expected to score {_score(chosen)} {price}, {basis}; next best is {allowed[1].label} with {_score(allowed[1])}"


def _score(candidate: ConsideredArm) -> str:
    return f"{candidate.score:.2f} \u00b1 {candidate.deviation:.2f}"


def applied(arm: Arm, policy: Policy) -> Policy:
    """Return the policy that serves a task with an arm: the arm's knobs override the policy's own, except those that protect the user.

    Raises `ConfigError` for knobs that no policy has, and for those that are the user's alone.
    """
    reserved = sorted(set(arm.knobs) & set(RESERVED))
    if reserved:
        raise ConfigError(f"configuration {arm.key} sets {reserved[0]!r}", hint="that is for the policy to say, not for outcomes")
    current = cast("dict[str, JsonValue]", policy.model_dump(mode="json"))
    knobs = {name: value for name, value in arm.knobs.items() if name not in PROTECTIONS}
    try:
        return Policy.model_validate({**_merged(current, knobs), "strategy": arm.strategy})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        hint = "its outcomes were measured with another version; sweep again"
        raise ConfigError(f"configuration {arm.key} cannot be used: {where}: {first['msg']}", hint=hint) from error


def _merged(base: Mapping[str, JsonValue], over: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return `base` with the values of `over`, merged section by section."""
    merged = dict(base)
    for name, value in over.items():
        section = merged.get(name)
        merged[name] = _merged(section, value) if isinstance(section, dict) and isinstance(value, dict) else value
    return merged


logger = logging.getLogger(__name__)


class Selector:
    """Settles tasks whose strategy is `auto`, from the store of outcomes and the files that its configuration names.

    Files are read once, when first needed. Calls may come from any thread.
    """

    def __init__(self, store: OutcomeStore) -> None:
        self._store = store
        self._choosers: dict[AutoConfig, Chooser] = {}

    def settle(self, task: Task, *, tools: Sequence[str], sides: Collection[Side], dollars: SideDollars, dollar_price: float = 0.0) -> Task:
        """Return the task with a strategy, its knobs, and the reasons for them. The arguments are those of `Chooser.choose`.

        Raises `ConfigError` for outcomes that cannot be read or used, `PrivacyViolation` where only a far agent is left for a private task.
        """
        if task.policy.strategy is not Strategy.AUTO:
            return task
        decision = self._decision(task, tools, sides, dollars, dollar_price, explores=True)
        settled = {"policy": applied(decision.chosen, task.policy), "reasons": (*task.reasons, *decision.reasons), "selection": decision}
        return task.model_copy(update=settled)

    def explain(
        self, task: Task, *, tools: Sequence[str], sides: Collection[Side], dollars: SideDollars, dollar_price: float = 0.0
    ) -> SelectionDecision:
        """Return the decision for a task without settling it, whatever its strategy. Raises what `settle` raises."""
        return self._decision(task, tools, sides, dollars, dollar_price, explores=False)

    def report(self, result: Result, settings: AutoConfig, *, score: float, task_class: str = "") -> None:
        """Learn how well a result was whose strategy `auto` chose, and keep it where the settings name a file.

        Raises `ConfigError` where the file cannot be written.
        """
        assert result.selection is not None, "the caller has looked"
        outcome = _outcome(result, result.selection, score, task_class)
        with self._store.lock:
            self._chooser(settings)  # reads the file, before this outcome is in it, which would count twice
            if settings.reports is not None:
                append_outcome(settings.reports, outcome, setting="[policy.auto] reports")
            self._store.add(outcome)

    def _decision(
        self, task: Task, tools: Sequence[str], sides: Collection[Side], dollars: SideDollars, dollar_price: float, *, explores: bool
    ) -> SelectionDecision:
        """Return the chooser's decision, or the documented default where the chooser fails for a reason that is not the user's."""
        profile = _profile(task, tools)
        try:
            with self._store.lock:
                chooser = self._chooser(task.policy.auto)
                decide = chooser.choose if explores else chooser.explain
                return decide(profile, task.policy, sides=sides, dollars=dollars, dollar_price=dollar_price)
        except NearfarError:
            raise
        except Exception as error:  # the boundary of a task: what was learned may not keep it from being served
            logger.warning("auto failed and the default serves: %r", error)
            default = Chooser(AutoConfig()).explain(profile, task.policy, sides=sides)
            return default.model_copy(update={"reasons": (*default.reasons, f"auto failed ({error!r}), so the default serves")})

    def _chooser(self, settings: AutoConfig) -> Chooser:
        if settings not in self._choosers:
            if settings.outcomes is not None:
                self._store.read(settings.outcomes)
            if settings.reports is not None:
                self._store.read(settings.reports, may_be_missing=True)
            self._choosers[settings] = Chooser(settings, self._store)
        return self._choosers[settings]


def _profile(task: Task, tools: Sequence[str]) -> TaskProfile:
    attachments = sum(len(message.attachments) for message in task.messages)
    return TaskProfile.of(last_words(task.messages), tools, context_words=len((task.context or "").split()), attachments=attachments)


def _outcome(result: Result, selection: SelectionDecision, score: float, task_class: str) -> Outcome:
    return Outcome(
        task_class=task_class or selection.task_class,
        profile=selection.profile,
        arm=selection.chosen,
        label=selection.winner.label,
        score=score,
        dollars=None if result.dollars is None else float(result.dollars),
    )
