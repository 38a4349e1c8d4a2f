"""Energy: what a result says of it, and what it does to routing and limits."""

from dataclasses import dataclass

import pytest
from situations import FAR, NEAR, NOON, Stand, priced, task

from nearfar import Hybrid, Policy
from nearfar.orchestrator.budgets import BudgetBook, Spent
from nearfar.orchestrator.budgets.account import Account
from nearfar.orchestrator.budgets.storage import MemoryStorage
from nearfar.orchestrator.cli.run import summary
from nearfar.orchestrator.routing import Router
from nearfar.orchestrator.routing.costs import RunningEstimates, StepTaken
from nearfar.orchestrator.task.decisions import EstimateSource
from nearfar.orchestrator.task.results import UNKNOWN_ENERGY, Energy
from nearfar.orchestrator.task.routing_policy import AmountsConfig, LimitsConfig
from nearfar.protocols import (
    AgentCard,
    BudgetExceeded,
    EnergySource,
    Finished,
    FinishReason,
    Message,
    Performance,
    ScriptedAgent,
    Side,
    StepRequest,
    Unavailable,
    Usage,
)
from nearfar.protocols.fakes import ScriptItem

pytestmark = pytest.mark.anyio

MEASURED, ESTIMATED = EnergySource.MEASURED, EnergySource.ESTIMATED


def drawing(joules: float | None, source: EnergySource = MEASURED, *, text: str = "Lima.") -> tuple[ScriptItem, ...]:
    """A reply whose agent says what energy it took."""
    drawn = Performance() if joules is None else Performance(joules=joules, joules_source=source)
    usage = Usage(input_tokens=10, output_tokens=2)
    return (text, Finished(reason=FinishReason.STOP, usage=usage, model="scripted", performance=drawn))


def near(*replies: tuple[ScriptItem, ...], name: str = "near") -> ScriptedAgent:
    return ScriptedAgent(replies, name=name, prices=priced(0))


def far(*replies: str) -> ScriptedAgent:
    return ScriptedAgent(replies, name="far", side=Side.FAR, prices=priced(10))


def hybrid(near_side: ScriptedAgent, far_side: ScriptedAgent | None = None, **policy: object) -> Hybrid:
    given = Policy.model_validate({"strategy": "route", "sensitivity": "public", **policy})
    return Hybrid(near=near_side, far=far_side, policy=given)


@pytest.mark.parametrize(
    ("parts", "total"),
    [
        ((), Energy()),
        (((2.0, MEASURED), (3.0, MEASURED)), Energy(joules=5.0, source=MEASURED)),
        (((2.0, MEASURED), (3.0, ESTIMATED)), Energy(joules=5.0, source=ESTIMATED)),
        (((2.0, MEASURED), (None, EnergySource.UNAVAILABLE), (3.0, ESTIMATED)), UNKNOWN_ENERGY),
    ],
)
def test_a_sum_of_energies_is_known_as_well_as_its_least_known_part(
    parts: tuple[tuple[float | None, EnergySource], ...], total: Energy
) -> None:
    assert sum((Energy(joules=joules, source=source) for joules, source in parts), Energy()) == total


async def test_a_result_sums_the_energy_of_the_device() -> None:
    async with hybrid(near(drawing(4.0)), far()) as served:
        result = await served.run("What is the capital of Peru?")
    assert result.energy == Energy(joules=4.0, source=MEASURED)
    assert result.attempts[0].energy == result.energy
    assert result.far.energy == Energy(), "nothing was asked of it"
    performance = result.calls[0].performance
    assert performance is not None
    assert performance.joules == 4.0


async def test_the_last_line_of_a_run_tells_known_energy_with_its_label_and_no_unknown_one() -> None:
    async with hybrid(near(drawing(0.0421, ESTIMATED), drawing(None))) as served:
        known, unknown = await served.run("What is the capital of Peru?"), await served.run("What is the capital of Chile?")
    assert ", 0.0421 J estimated," in summary(known)
    assert " J " not in summary(unknown)


async def test_energy_that_nobody_measured_is_unavailable_and_no_zero() -> None:
    async with hybrid(near(drawing(None))) as served:
        result = await served.run("What is the capital of Peru?")
    assert result.energy == UNKNOWN_ENERGY


async def test_a_call_that_failed_leaves_the_sum_unknown() -> None:
    async with hybrid(near(("Lim", Unavailable("gone"))), far("Lima.")) as served:
        result = await served.run("What is the capital of Peru?")
    assert result.agent == "far"
    assert result.energy == UNKNOWN_ENERGY


async def test_when_the_day_s_joules_are_spent_the_far_side_serves() -> None:
    async with hybrid(near(drawing(30.0), drawing(30.0)), far("Lima."), limits={"day": {"joules": 50}}) as served:
        first = await served.run("What is the capital of Peru?")
        second = await served.run("What is the capital of Chile?")
    assert (first.agent, second.agent) == ("near", "far")
    assert any("joules" in reason for reason in second.reasons)


async def test_when_the_joules_are_spent_and_there_is_no_far_side_the_task_is_refused() -> None:
    async with hybrid(near(drawing(30.0), drawing(30.0)), limits={"day": {"joules": 20}}) as served:
        await served.run("What is the capital of Peru?")
        with pytest.raises(BudgetExceeded, match="joules"):
            await served.run("What is the capital of Chile?")


async def test_joules_that_nobody_knows_are_held_against_no_limit_but_known_ones_still_are() -> None:
    async with hybrid(near(drawing(None), drawing(30.0), drawing(1.0)), limits={"day": {"joules": 20}}) as served:
        await served.run("What is the capital of Peru?")
        await served.run("What is the capital of Chile?")
        with pytest.raises(BudgetExceeded, match="joules"):
            await served.run("What is the capital of Bolivia?")


async def test_the_weight_of_a_joule_moves_tasks_to_the_more_frugal_agent() -> None:
    policy = Policy.model_validate({"strategy": "device", "objective": {"joules": 0.01}})
    frugal = near(drawing(2.0), name="frugal")
    async with Hybrid(near=near(drawing(90.0), name="hungry"), agents={"frugal": frugal}, policy=policy) as served:
        first = await served.run("What is the capital of Peru?")
        second = await served.run("What is the capital of Chile?")
    assert (first.agent, second.agent) == ("hungry", "frugal")
    estimate = second.decision.estimate_of("hungry")
    assert estimate is not None
    assert estimate.joules is not None
    assert (estimate.joules.value, estimate.joules.source) == (90.0, EstimateSource.MEASURED)


async def test_a_call_of_the_far_side_takes_none_of_the_device_s_joules() -> None:
    account = Account(BudgetBook(MemoryStorage()), LimitsConfig(day=AmountsConfig(joules=10)), task="one")
    request = StepRequest(messages=(Message.user("What is the capital of Peru?"),))
    near, far = AgentCard(name="near", side=Side.NEAR, model="m"), AgentCard(name="far", side=Side.FAR, model="m", prices=priced(1))
    await (await account.reserve(request, near)).settle(Spent(joules=11.0))
    assert (await account.reserve(request, far)).request == request
    with pytest.raises(BudgetExceeded, match="joules"):
        await account.reserve(request, near)


@dataclass(frozen=True)
class SteadyPace:
    """A model with these seconds per token."""

    prefill: float = 0.001
    decode: float = 0.1
    watts: float | None = 5.0

    def first_token_seconds(self, prompt_tokens: int) -> float:
        return prompt_tokens * self.prefill

    def seconds(self, prompt_tokens: int, output_tokens: float) -> float:
        return prompt_tokens * self.prefill + output_tokens * self.decode


def test_before_an_agent_was_seen_its_profile_stands_in() -> None:
    costs = RunningEstimates({"near": SteadyPace()}.get).costs("near", Side.NEAR, tokens=100, prices=None)
    assert {costs.first_token_seconds.source, costs.seconds.source} == {EstimateSource.PROFILE}
    assert costs.first_token_seconds.value == pytest.approx(0.096), "64 to 127 tokens are of one size"
    assert costs.seconds.value == pytest.approx(0.096 + 300 * 0.1)
    assert costs.joules is not None
    assert costs.joules.value == pytest.approx(5.0 * costs.seconds.value)
    assert costs.joules.source is EstimateSource.PROFILE


def test_a_profile_without_a_power_leaves_the_joules_unknown() -> None:
    costs = RunningEstimates({"near": SteadyPace(watts=None)}.get).costs("near", Side.NEAR, tokens=100, prices=None)
    assert costs.seconds.source is EstimateSource.PROFILE
    assert costs.joules is None


def test_what_was_seen_of_an_agent_stands_above_its_profile() -> None:
    running = RunningEstimates({"near": SteadyPace()}.get)
    running.add_step("near", StepTaken(input_tokens=100, output_tokens=10, seconds=2.0, first_token_seconds=0.5, joules=7.0))
    costs = running.costs("near", Side.NEAR, tokens=100, prices=None)
    assert (costs.seconds.value, costs.seconds.source) == (2.0, EstimateSource.MEASURED)
    assert costs.joules is not None
    assert costs.joules.value == 7.0


def test_a_profile_holds_an_agent_to_the_limits_before_its_first_step() -> None:
    router = Router(now=lambda: NOON, paces={"near": SteadyPace()}.get)
    asked = task(policy={"limits": {"task": {"joules": 100}}})
    decision = router.explain(asked, (NEAR, FAR))
    assert decision.candidates == ("far",)
    slow = Stand("slow", Side.NEAR, prices=priced(0))
    assert router.explain(asked, (slow, FAR)).candidates[0] == "slow", "nothing is known of it"
