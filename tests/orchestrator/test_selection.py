"""What `auto` chooses: from nothing, from outcomes, within the rules, and while it explores."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_runs import APPS_TOOLS, PUBLIC, SEARCH_TOOLS, outcome, outcomes, runs

from nearfar.orchestrator.routing.auto import Chooser, applied, unmeasured_dollars
from nearfar.orchestrator.routing.outcome_records import outcomes_of
from nearfar.orchestrator.routing.outcomes import Belief, mix_beliefs
from nearfar.orchestrator.task.decisions import Arm, SelectionDecision
from nearfar.orchestrator.task.modes import Mode, Strategy, TaskProfile
from nearfar.orchestrator.task.policy import AutoConfig, Policy
from nearfar.protocols import ConfigError, PrivacyViolation, Sensitivity, Side

SEARCH = TaskProfile.of("What is the mentor of the ceo of Orbix Labs?", SEARCH_TOOLS)
APPS = TaskProfile.of("Please pay Mira Falk 20, then delete the note Blue List.", APPS_TOOLS)
QUESTION = TaskProfile.of("Is Port Selby larger than Upper Ravel?")
LONG = TaskProfile.of("Sum it up.", context_words=2000)
FREE = AutoConfig(dollars_per_point=1.0)
"""Dollars hardly matter."""


def strategy_of(chooser: Chooser, profile: TaskProfile, policy: Policy = PUBLIC) -> Strategy:
    return chooser.choose(profile, policy).chosen.strategy


@pytest.mark.parametrize(
    ("profile", "strategy"),
    [(APPS, Strategy.PEVR), (SEARCH, Strategy.EVA), (QUESTION, Strategy.CASCADE), (LONG, Strategy.MINIONS)],
    ids=["stateful tools", "reading tools", "prompt alone", "long context"],
)
def test_without_outcomes_the_documented_default_serves(profile: TaskProfile, strategy: Strategy) -> None:
    decision = Chooser(AutoConfig()).choose(profile, PUBLIC)
    assert decision.chosen == Arm(strategy=strategy)
    assert f"default for tasks with {profile.shape}" in decision.reasons[-1]
    assert decision.winner.outcomes == 0


def test_each_world_gets_what_was_measured_best_in_it() -> None:
    chooser = Chooser(AutoConfig(), outcomes_of(runs(60)))
    assert strategy_of(chooser, SEARCH) is Strategy.EVA
    assert strategy_of(chooser, APPS) is Strategy.PEVR


def test_outcomes_stand_above_the_defaults() -> None:
    reversed_odds = {"search": {"pevr": 0.9, "eva": 0.1}, "apps": {"pevr": 0.1, "eva": 0.9}}
    chooser = Chooser(AutoConfig(), outcomes_of(runs(60, odds=reversed_odds, arms=("pevr", "eva"))))
    assert strategy_of(chooser, SEARCH) is Strategy.PEVR
    assert strategy_of(chooser, APPS) is Strategy.EVA


def test_speculate_is_an_arm_once_it_was_measured() -> None:
    known = outcomes(60, {Strategy.SPECULATE: 0.9, Strategy.EVA: 0.5}, profile=SEARCH, draw=random.Random(1).random)
    assert strategy_of(Chooser(FREE, known), SEARCH) is Strategy.SPECULATE


def test_a_few_lucky_outcomes_do_not_mislead() -> None:
    draw = random.Random(1).random
    chooser = Chooser(FREE, outcomes(200, {Strategy.EVA: 0.8, Strategy.PEVR: 0.5}, profile=SEARCH, draw=draw))
    for _ in range(2):
        chooser.store.add(outcome(Strategy.PEVR, 1.0, profile=SEARCH, task_class="search/new"))
        chooser.store.add(outcome(Strategy.EVA, 0.0, profile=SEARCH, task_class="search/new"))
    decision = chooser.choose(SEARCH, PUBLIC)
    assert decision.task_class == "search/new"
    assert decision.chosen.strategy is Strategy.EVA


def test_a_task_that_may_be_of_two_classes_is_judged_by_both() -> None:
    profile = TaskProfile.of("sell the item", ["look_up"])
    scores = {"shop/red": {Strategy.EVA: 1.0, Strategy.PEVR: 0.6}, "shop/green": {Strategy.EVA: 0.0, Strategy.PEVR: 0.6}}
    known = [
        outcome(strategy, float(number < 100 * chance), profile=profile, task_class=name)
        for name, odds in scores.items()
        for strategy, chance in odds.items()
        for number in range(100)
    ]
    decision = Chooser(FREE, known, has_defaults=False).choose(profile, PUBLIC)
    assert {each.arm.strategy: round(each.score, 1) for each in decision.candidates} == {Strategy.PEVR: 0.6, Strategy.EVA: 0.5}


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12), st.floats(0.0, 1.0))
def test_a_mixture_of_beliefs_stays_a_belief(weights: list[float], score: float) -> None:
    belief = {"arm": Belief(score=score, weight=10.0, dollars=0.01, outcomes=10, similar=3)}
    mixture = mix_beliefs([(weight / sum(weights), belief) for weight in weights])["arm"]
    assert mixture.score == pytest.approx(score)
    assert 0 <= mixture.deviation <= 0.5
    assert (mixture.outcomes, mixture.similar) == (10, 3 * len(weights))


def test_dollars_count_as_much_as_the_user_says() -> None:
    odds = {Strategy.CLOUD: 0.9, Strategy.DEVICE: 0.7}
    known = [
        outcome(strategy, float(number < 100 * chance), profile=QUESTION, dollars=0.05 * (strategy is Strategy.CLOUD))
        for strategy, chance in odds.items()
        for number in range(100)
    ]
    assert strategy_of(Chooser(AutoConfig(dollars_per_point=0.0001), known), QUESTION) is Strategy.DEVICE
    assert strategy_of(Chooser(AutoConfig(dollars_per_point=0.01), known), QUESTION) is Strategy.CLOUD


def test_an_unknown_price_is_not_free() -> None:
    known = [outcome(Strategy.DEVICE, float(number % 2), profile=QUESTION) for number in range(40)]
    known += [outcome(Strategy.EVA, float(number % 2), profile=QUESTION, dollars=0.02) for number in range(40)]
    known += [outcome(Strategy.CLOUD, float(number % 2), profile=QUESTION, dollars=None) for number in range(40)]
    decision = Chooser(AutoConfig(), known).choose(QUESTION, PUBLIC)
    utility = {candidate.arm.strategy: candidate.utility for candidate in decision.candidates}
    assert utility[Strategy.CLOUD] < utility[Strategy.EVA] < utility[Strategy.DEVICE]


def test_the_same_outcomes_give_the_same_choice() -> None:
    known = list(outcomes_of(runs(20)))
    first, second = (Chooser(AutoConfig(), known) for _ in range(2))
    decisions = [first.choose(profile, PUBLIC) for profile in (SEARCH, APPS, QUESTION) for _ in range(5)]
    assert decisions == [second.choose(profile, PUBLIC) for profile in (SEARCH, APPS, QUESTION) for _ in range(5)]
    assert not any(decision.explored for decision in decisions)


def test_the_choice_is_explained_with_its_figures() -> None:
    decision = Chooser(AutoConfig(), outcomes_of(runs(40))).choose(SEARCH, PUBLIC)
    likeness, choice = decision.reasons
    assert "class search" in likeness
    assert "auto chose eva: it is expected to score 0." in choice
    assert "from 160 outcomes" in choice
    assert "next best is" in choice
    utilities = [candidate.utility for candidate in decision.candidates if candidate.objection is None]
    assert utilities == sorted(utilities, reverse=True)
    assert SelectionDecision.model_validate_json(decision.model_dump_json()) == decision


ARMS = [*Strategy]


@given(
    profile=st.sampled_from([SEARCH, APPS, QUESTION, LONG]),
    mode=st.sampled_from([mode for mode in Mode if mode is not Mode.ONLY_IN_CLOUD]),
    known=st.lists(st.tuples(st.sampled_from([*Strategy]), st.floats(0, 1), st.booleans()), max_size=30),
    share=st.sampled_from([0.0, 1.0]),
)
@settings(deadline=None)
def test_a_private_task_never_meets_the_far_side(
    profile: TaskProfile, mode: Mode, known: list[tuple[Strategy, float, bool]], share: float
) -> None:
    knobs = {"sensitivity": "public"}
    chooser = Chooser(
        AutoConfig(explore_share=share),
        [outcome(strategy, score, profile=profile, knobs=knobs if opens else None) for strategy, score, opens in known],
    )
    policy = Policy(mode=mode)
    decision = chooser.choose(profile, policy)
    assert decision.chosen.strategy is Strategy.DEVICE
    assert applied(decision.chosen, policy).sensitivity is Sensitivity.PRIVATE
    assert decision.profile.prompt == ""


@pytest.mark.parametrize("policy", [Policy(mode=Mode.ONLY_IN_CLOUD), Policy()], ids=["only in the cloud", "no near agent"])
def test_a_private_task_that_only_the_far_side_could_serve_is_refused(policy: Policy) -> None:
    with pytest.raises(PrivacyViolation):
        Chooser(AutoConfig()).choose(SEARCH, policy, sides=[Side.FAR])


@pytest.mark.parametrize(
    ("mode", "sides", "allowed"),
    [
        (Mode.ONLY_ON_DEVICE, tuple(Side), {Strategy.DEVICE}),
        (Mode.ONLY_IN_CLOUD, tuple(Side), {Strategy.CLOUD}),
        (Mode.AUTO, (Side.NEAR,), {Strategy.DEVICE}),
        (Mode.AUTO, (Side.FAR,), {Strategy.CLOUD}),
    ],
)
def test_mode_and_sides_come_before_utility(mode: Mode, sides: tuple[Side, ...], allowed: set[Strategy]) -> None:
    decision = Chooser(AutoConfig(), outcomes_of(runs(20))).choose(SEARCH, PUBLIC.model_copy(update={"mode": mode}), sides=sides)
    assert {candidate.arm.strategy for candidate in decision.candidates if candidate.objection is None} == allowed
    assert {decision.chosen.strategy} == allowed


@pytest.mark.parametrize(
    ("mode", "best", "chosen"),
    [(Mode.PREFER_IN_CLOUD, Strategy.DEVICE, Strategy.CLOUD), (Mode.PREFER_ON_DEVICE, Strategy.CLOUD, Strategy.DEVICE)],
)
def test_a_preferred_side_takes_part(mode: Mode, best: Strategy, chosen: Strategy) -> None:
    known = [outcome(strategy, 0.9 if strategy is best else 0.6, profile=QUESTION) for strategy in (best, chosen) for _ in range(50)]
    assert strategy_of(Chooser(AutoConfig(), known), QUESTION) is best
    assert strategy_of(Chooser(AutoConfig(), known), QUESTION, PUBLIC.model_copy(update={"mode": mode})) is chosen


@pytest.mark.parametrize("profile", [SEARCH, QUESTION], ids=["tools", "no context"])
def test_minions_needs_a_context_and_no_tools(profile: TaskProfile) -> None:
    known = [outcome(Strategy.MINIONS, 1.0, profile=profile) for _ in range(50)]
    assert strategy_of(Chooser(AutoConfig(), known), profile) is not Strategy.MINIONS


def test_nothing_left_says_why() -> None:
    policy = PUBLIC.model_copy(update={"mode": Mode.ONLY_ON_DEVICE})
    with pytest.raises(ConfigError, match="there is no near agent"):
        Chooser(AutoConfig()).choose(SEARCH, policy, sides=[Side.FAR])


def test_the_chosen_knobs_stand_above_the_policys() -> None:
    arm = Arm(strategy=Strategy.PEVR, knobs={"supervision": {"interval": 4}, "maximum_turns": 20})
    policy = applied(arm, Policy(strategy=Strategy.AUTO, temperature=0.5, maximum_turns=8))
    assert (policy.strategy, policy.temperature, policy.maximum_turns) == (Strategy.PEVR, 0.5, 20)
    assert (policy.supervision.interval, policy.supervision.stall_turns) == (4, Policy().supervision.stall_turns)


@pytest.mark.parametrize(
    "knobs",
    [
        {"guard": {"tools": "allow"}},
        {"limits": {"day": {"dollars": 100}}},
        {"privacy": {"findings": "allow", "placeholders": True}},
        {"rules": []},
    ],
    ids=str,
)
def test_no_outcome_takes_away_what_protects_the_user(knobs: dict[str, object]) -> None:
    rule = {"name": "patients stay", "when": {"tags": ["medical"]}, "mode": "only_on_device"}
    policy = Policy.model_validate({"preset": "private", "limits": {"day": {"dollars": 1}}, "rules": [rule]})
    served = applied(Arm.model_validate({"strategy": "eva", "knobs": {**knobs, "maximum_turns": 20}}), policy)
    assert served == policy.model_copy(update={"strategy": Strategy.EVA, "maximum_turns": 20})


@pytest.mark.parametrize(
    "knobs", [{"no_such_knob": 1}, {"supervision": {"interval": -1}}, {"mode": "auto"}, {"sensitivity": "public"}], ids=str
)
def test_knobs_that_no_outcome_may_set_are_refused(knobs: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        applied(Arm.model_validate({"strategy": "eva", "knobs": knobs}), Policy())


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_exploration_keeps_its_bound_at_every_moment(share: float) -> None:
    chooser = Chooser(AutoConfig(explore_share=share), seed=1)
    explored = 0
    for served in range(1, 301):
        explored += chooser.choose(SEARCH, PUBLIC).explored
        assert explored <= share * served
    assert (explored > 0) == (share > 0)


def test_exploring_says_so_and_names_the_best_known() -> None:
    chooser = Chooser(AutoConfig(explore_share=1.0), seed=1)
    decision = next(decision for decision in (chooser.choose(SEARCH, PUBLIC) for _ in range(100)) if decision.explored)
    assert "exploring; the best known is eva" in decision.reasons[-1]


def regret_of(odds: dict[Strategy, float], *, tasks: int, seed: int, learns: bool) -> list[float]:
    """The regret after each task of a bandit with known odds, played by Thompson sampling or by lot."""
    draws, chooser, regret = random.Random(seed), Chooser(AutoConfig(explore_share=1.0), has_defaults=False, seed=seed), [0.0]
    for strategy in odds:
        chooser.store.offer(Arm(strategy=strategy))
    for _ in range(tasks):
        chosen = chooser.choose(SEARCH, PUBLIC).chosen.strategy if learns else draws.choice(list(odds))
        if learns:
            chooser.store.add(outcome(chosen, float(draws.random() < odds[chosen]), profile=SEARCH))
        regret.append(regret[-1] + max(odds.values()) - odds[chosen])
    return regret


@given(
    odds=st.permutations([0.25, 0.35, 0.5, 0.75]).map(lambda chances: dict(zip(ARMS, chances, strict=False))),
    seed=st.integers(0, 2**16),
)
@settings(deadline=None, max_examples=4)
def test_the_regret_of_exploring_grows_ever_slower_and_stays_below_chance(odds: dict[Strategy, float], seed: int) -> None:
    """In the mean over twelve streams: a single one may be unlucky, which is what regret is a mean over."""
    streams = [regret_of(odds, tasks=400, seed=seed + number, learns=True) for number in range(12)]
    chance = [regret_of(odds, tasks=400, seed=seed + number, learns=False) for number in range(12)]
    early, late = (sum(regret[tasks] for regret in streams) for tasks in (200, 400))
    assert late < 0.3 * sum(regret[400] for regret in chance)
    assert late - early < 0.5 * early


def test_exploring_ends_with_the_best_arm() -> None:
    odds = {Strategy.DEVICE: 0.3, Strategy.CASCADE: 0.5, Strategy.EVA: 0.8}
    draws, chooser = random.Random(3), Chooser(AutoConfig(explore_share=1.0), has_defaults=False, seed=3)
    for strategy in odds:
        chooser.store.offer(Arm(strategy=strategy))
    served: list[Strategy] = []
    for _ in range(300):
        served.append(strategy_of(chooser, SEARCH))
        chooser.store.add(outcome(served[-1], float(draws.random() < odds[served[-1]]), profile=SEARCH))
    assert Counter(served[-100:])[Strategy.EVA] >= 80


def test_what_was_never_measured_costs_what_its_agents_do() -> None:
    measured = [outcome(Strategy.CLOUD, 0.9, profile=SEARCH, dollars=0.5) for _ in range(30)]
    chooser = Chooser(AutoConfig(), measured)
    utilities = {each.label: each.utility + each.deviation - each.score for each in chooser.explain(SEARCH, PUBLIC).candidates}
    assert utilities["device"] == 0
    assert utilities["eva"] == pytest.approx(-0.25)
    assert utilities["cascade"] == utilities["cloud"] == pytest.approx(-0.5)


@pytest.mark.parametrize(
    ("sides", "far"), [({Side.FAR: 0.2, Side.NEAR: 0.0}, 0.2), ({Side.FAR: None}, 0.08), ({Side.FAR: 0.2, Side.NEAR: 0.1}, 0.2)]
)
def test_agents_tell_what_a_strategy_costs_and_hybrids_where_they_do_not(sides: dict[Side, float | None], far: float) -> None:
    arms = {str(strategy): Arm(strategy=strategy) for strategy in (Strategy.DEVICE, Strategy.CLOUD, Strategy.PEVR, Strategy.EVA)}
    near = sides.get(Side.NEAR) or 0.0
    found = unmeasured_dollars(arms, {Strategy.PEVR: 0.04}, sides)
    assert found == pytest.approx({"device": near, "cloud": far, "eva": near + far / 2})


def test_without_any_measured_dollars_the_default_serves_however_dear_the_agents_are() -> None:
    decision = Chooser(AutoConfig()).choose(APPS, PUBLIC, dollars={Side.FAR: 50.0, Side.NEAR: 0.0})
    assert decision.chosen.strategy is Strategy.PEVR


def test_the_device_is_explored_within_the_bound_beside_a_dear_cloud() -> None:
    chooser = Chooser(AutoConfig(explore_share=0.1), [outcome(Strategy.CLOUD, 1.0, profile=SEARCH, dollars=0.45)] * 40, seed=3)
    explored: Counter[Strategy] = Counter()
    for served in range(1, 601):
        decision = chooser.choose(SEARCH, PUBLIC)
        explored.update([decision.chosen.strategy] * decision.explored)
        assert explored.total() <= 0.1 * served
    assert explored[Strategy.DEVICE] >= 5


def test_a_free_device_that_does_as_well_is_found_and_kept() -> None:
    chooser = Chooser(AutoConfig(explore_share=0.2), [outcome(Strategy.CLOUD, 0.95, profile=SEARCH, dollars=0.3)] * 40, seed=3)
    served = []
    for _ in range(300):
        chosen = chooser.choose(SEARCH, PUBLIC).chosen.strategy
        served.append(chosen)
        dollars = {Strategy.DEVICE: 0.0, Strategy.CLOUD: 0.3}.get(chosen, 0.15)
        chooser.store.add(outcome(chosen, 0.95 if chosen in (Strategy.DEVICE, Strategy.CLOUD) else 0.2, profile=SEARCH, dollars=dollars))
    assert served[-50:].count(Strategy.DEVICE) >= 40
