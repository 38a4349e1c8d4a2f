"""What learns from its own choices does not give the best one up after a bad start, by the measures of arXiv 2403.15371."""

from collections.abc import Callable, Mapping
from random import Random

import pytest

from nearfar import Message, Policy, ScriptedAgent, Side, Strategy
from nearfar.device.worker.draft_payoff import DraftingTrial
from nearfar.orchestrator.agents import AgentHandle
from nearfar.orchestrator.routing import Router
from nearfar.orchestrator.routing.auto import Chooser
from nearfar.orchestrator.routing.habits import AgreementRates
from nearfar.orchestrator.routing.outcome_records import Outcome
from nearfar.orchestrator.routing.outcomes import OutcomeStore
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.decisions import Arm
from nearfar.orchestrator.task.modes import TaskProfile
from nearfar.orchestrator.task.policy import AutoConfig
from nearfar.orchestrator.task.results import JudgedProposal
from nearfar.protocols import Prices, Sensitivity

_PROFILE = TaskProfile.of("What is the capital of Peru?", ())
_ARMS = {name: Arm(strategy=Strategy(name)) for name in ("cascade", "device", "pevr", "cloud")}
_PUBLIC = Policy(sensitivity=Sensitivity.PUBLIC)


def _chooser(store: OutcomeStore, seed: int, share: float) -> Chooser:
    for arm in _ARMS.values():
        store.offer(arm)
    return Chooser(AutoConfig(explore_share=share), store, has_defaults=False, seed=seed)


def _outcome(arm: Arm, score: float) -> Outcome:
    return Outcome(task_class="towns", profile=_PROFILE, arm=arm, score=score, dollars=0.0)


def _chosen(choose: Callable[[], str], learn: Callable[[str, float], None], means: Mapping[str, float], *, seed: int) -> list[str]:
    """Return the choices of the second half of 400 rounds."""
    chance, chosen = Random(seed), list[str]()
    for _ in range(400):
        arm = choose()
        learn(arm, float(chance.random() < means[arm]))
        chosen.append(arm)
    return chosen[200:]


@pytest.mark.parametrize("seed", range(4))
def test_auto_comes_back_to_the_best_configuration_after_a_bad_start(seed: int) -> None:
    store = OutcomeStore([_outcome(_ARMS["cloud"], 0.0)] * 2 + [_outcome(_ARMS["device"], 1.0)] * 2)
    chooser = _chooser(store, seed, 0.2)
    chosen = _chosen(
        lambda: chooser.choose(_PROFILE, _PUBLIC).chosen.key,
        lambda arm, score: store.add(_outcome(_ARMS[arm], score)),
        {"cascade": 0.4, "device": 0.4, "pevr": 0.4, "cloud": 0.8},
        seed=seed,
    )
    assert chosen.count("cloud") > 100


def test_auto_tries_each_configuration_once_in_a_class_as_soon_as_it_may_explore() -> None:
    store = OutcomeStore([_outcome(arm, float(name == "device")) for name, arm in _ARMS.items() if name != "cloud"] * 30)
    chooser = _chooser(store, seed=1, share=0.1)
    decisions = [chooser.choose(_PROFILE, _PUBLIC) for _ in range(10)]
    assert [decision.chosen.key for decision in decisions if decision.explored] == ["cloud"]
    assert decisions[-1].propensity == 1.0


def test_auto_tries_nothing_out_unless_it_may() -> None:
    chooser = _chooser(OutcomeStore([_outcome(_ARMS["device"], 1.0)] * 30), seed=1, share=0.0)
    assert {chooser.choose(_PROFILE, _PUBLIC).chosen.key for _ in range(20)} == {"device"}


@pytest.mark.parametrize("best", ["near", "far"])
def test_a_router_that_explores_comes_back_to_the_better_agent_after_a_bad_start(best: str) -> None:
    router = Router(seed=3)
    agents = [AgentHandle(side.value, side, ScriptedAgent([], name=side.value, side=side, prices=Prices.free("a test"))) for side in Side]
    policy = Policy.model_validate({"strategy": "route", "sensitivity": "public", "router": {"explore_share": 0.2}})
    task = Task(messages=(Message.user("What is the capital of Peru?"),), policy=policy)
    decision = router.decide(task, agents)
    for agent in ("near", "far"):
        for _ in range(3):
            router.learn(task, decision, agent, score=float(agent != best))

    def choose() -> str:
        return router.decide(task, agents).candidates[0]

    means = {"near": 0.5, "far": 0.5, best: 0.85}
    chosen = _chosen(choose, lambda agent, score: router.learn(task, decision, agent, score=score), means, seed=5)
    assert chosen.count(best) > 100


def test_near_runs_ahead_although_its_first_step_took_long_and_its_first_proposals_were_wrong() -> None:
    rates, proposal = AgreementRates(), JudgedProposal(task_class="towns")
    rates.time(Side.NEAR, 10.0)
    assert rates.least_odds(0.4) > 1
    for number in range(40):
        rates.time(Side.NEAR, 0.1)
        rates.learn(proposal.model_copy(update={"confirmed": number > 3}))
    assert rates.odds((proposal,)) >= rates.least_odds(0.4)


def test_drafting_is_tried_again_however_often_it_has_failed() -> None:
    trial, drafted = DraftingTrial(), list[bool]()
    for number in range(60_000):
        if trial.rests():
            drafted.append(False)
        elif trial.drafts:
            trial.add_drafted(0.02 if number < 20_000 else 0.002, 1)  # it was slow once, and is not any more
            drafted.append(True)
        else:
            trial.add_plain(0.01, 1)
            drafted.append(False)
    assert sum(drafted[20_000:]) > 20_000
