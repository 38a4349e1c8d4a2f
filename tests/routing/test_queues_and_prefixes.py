"""Calls under way, and conversations that an agent was sent before, in what a task is expected to take."""

from decimal import Decimal

import pytest
from situations import NOON, priced, task

from nearfar import Hybrid, Policy
from nearfar.orchestrator.agents import Prefixes
from nearfar.orchestrator.routing.costs import RunningEstimates, StepTaken
from nearfar.orchestrator.strategies.graphs import _taken
from nearfar.orchestrator.task.decisions import AgentEstimate, RouteDecision
from nearfar.orchestrator.task.results import Call
from nearfar.protocols import (
    Finished,
    FinishReason,
    Limits,
    Message,
    Performance,
    Prices,
    ScriptedAgent,
    Sensitivity,
    Side,
    StepRequest,
    Usage,
)
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

ASKED = "What is the capital of Peru?"


def expected(decision: RouteDecision, agent: str) -> AgentEstimate:
    found = decision.estimate_of(agent)
    assert found is not None
    return found


class Busy:
    """A `Hybrid` whose agents ask it, while they work, what it would do with another task."""

    def __init__(self, *, far_slots: int = 1024, seconds_weight: float = 0.0) -> None:
        policy = {"strategy": "route", "sensitivity": "public", "objective": {"seconds": seconds_weight}}
        self.meanwhile: list[RouteDecision] = []
        near = ScriptedAgent(self._look, name="near", prices=priced(0), limits=Limits(concurrency=4))
        far = ScriptedAgent(self._look, name="far", side=Side.FAR, prices=priced(1), limits=Limits(concurrency=far_slots))
        self.hybrid = Hybrid(near=near, far=far, policy=Policy.model_validate(policy))
        for agent, seconds in (("near", 2.0), ("far", 3.0)):
            for _ in range(5):
                self.hybrid._router.running.add_step(agent, StepTaken(input_tokens=10, output_tokens=5, seconds=seconds))

    def _look(self, request: StepRequest) -> Reply:
        self.meanwhile.append(self.hybrid.explain_route(ASKED))
        return "Lima."


async def test_a_second_task_expects_longer_while_the_near_worker_is_busy() -> None:
    busy = Busy()
    async with busy.hybrid as hybrid:
        await hybrid.run(ASKED, strategy="device")
        after = expected(hybrid.explain_route(ASKED), "near")
    meanwhile = expected(busy.meanwhile[0], "near")
    assert (meanwhile.seconds.value, meanwhile.queue_seconds) == pytest.approx((4.0, 2.0))
    assert meanwhile.first_token_seconds.value == pytest.approx(after.first_token_seconds.value + 2.0, abs=0.5)
    assert after.queue_seconds == 0


async def test_a_far_agent_has_a_queue_only_beyond_the_calls_that_it_works_on_at_a_time() -> None:
    for slots, queue in ((1024, 0.0), (1, 3.0)):
        busy = Busy(far_slots=slots)
        async with busy.hybrid as hybrid:
            await hybrid.run(ASKED, strategy="cloud")
        assert expected(busy.meanwhile[0], "far").queue_seconds == pytest.approx(queue)


async def test_a_busy_near_agent_loses_a_task_to_the_far_one_where_seconds_count() -> None:
    for weight, first in ((0.0, "near"), (0.5, "far")):
        busy = Busy(seconds_weight=weight)
        async with busy.hybrid as hybrid:
            decision = hybrid.explain_route(ASKED)
            for agent in ("near", "far") * 20:
                hybrid._router.learn(task(ASKED), decision, agent, score=1.0)
            assert hybrid.explain_route(ASKED).candidates[0] == "near"
            await hybrid.run(ASKED, strategy="device")
        assert busy.meanwhile[0].candidates[0] == first


def test_several_calls_ahead_take_as_long_as_all_their_steps() -> None:
    running = RunningEstimates()
    for seconds in (1.0, 3.0) * 5:
        running.add_step("near", StepTaken(input_tokens=10, output_tokens=5, seconds=seconds))
    free, third = (running.costs("near", Side.NEAR, tokens=10, prices=None, ahead=ahead) for ahead in (0, 2))
    assert (free.seconds.value, third.seconds.value, third.queue_seconds) == pytest.approx((2.0, 6.0, 4.0))
    assert third.seconds.deviation == pytest.approx(free.seconds.deviation * 3**0.5)


def test_time_in_a_queue_is_not_taken_for_time_of_work() -> None:
    measured = Performance(first_token_seconds=0.5, decode_tokens_per_second=20.0)
    call = Call(role="execute", agent="near", side=Side.NEAR, model="m", turn=0, usage=Usage(output_tokens=10), seconds=7.0)
    queued = call.model_copy(update={"performance": measured, "first_token_seconds": 6.5})
    assert queued.queued_seconds == pytest.approx(6.0)
    taken = _taken(queued)
    assert (taken.seconds, taken.first_token_seconds) == pytest.approx((1.0, 0.5))
    assert _taken(call).seconds == 7.0, "a provider does not tell how long it computed"


def conversation(topic: str, *, turns: int) -> list[Message]:
    said = [Message.user(f"Tell me of {topic}."), Message.assistant("It is far away."), Message.user("How far?")]
    return said[: 2 * turns - 1]


def caching(request: StepRequest) -> Reply:
    """Answer as a provider does that has the conversation in its cache from the second turn on."""
    cached = 900 if len(request.messages) > 1 else 0
    usage = Usage(input_tokens=1000, cached_tokens=cached, output_tokens=4)
    return ["It is far away.", Finished(reason=FinishReason.STOP, usage=usage, model="scripted")]


async def test_a_follow_up_is_cheaper_with_the_agent_that_has_its_beginning_in_the_cache() -> None:
    prices = Prices(input=Decimal(10), cached_input=Decimal(1), output=Decimal(10), source="a test", as_of=NOON.date())
    far = ScriptedAgent(caching, name="far", side=Side.FAR, prices=prices)
    async with Hybrid(near=ScriptedAgent(["-"], prices=priced(0)), far=far, policy=Policy(sensitivity=Sensitivity.PUBLIC)) as hybrid:
        for topic in ("Lima", "Quito", "Bogota", "Caracas", "Sucre", "Santiago"):
            await hybrid.run(conversation(topic, turns=1), strategy="cloud")
            await hybrid.run(conversation(topic, turns=2), strategy="cloud")
        await hybrid.run(conversation("Asuncion", turns=1), strategy="cloud")
        known, unknown = (expected(hybrid.explain_route(conversation(topic, turns=2)), "far") for topic in ("Asuncion", "Paris"))
    assert known.cached_share == pytest.approx(0.9)
    assert unknown.cached_share == 0
    assert known.dollars is not None
    assert unknown.dollars is not None
    assert known.dollars.value < 0.3 * unknown.dollars.value


def test_a_conversation_counts_as_cached_for_five_minutes_and_with_those_who_were_sent_its_beginning() -> None:
    moment = [0.0]
    prefixes = Prefixes(lambda: moment[0])
    prefixes.note(conversation("Lima", turns=1), ["far"])
    assert prefixes.holders(conversation("Lima", turns=2)) == {"far"}
    assert prefixes.holders(conversation("Quito", turns=2)) == frozenset()
    prefixes.note(conversation("Lima", turns=2), ["near"])
    assert prefixes.holders(conversation("Lima", turns=1)) == {"far"}
    moment[0] = 301.0
    assert prefixes.holders(conversation("Lima", turns=2)) == frozenset()


def test_the_conversations_that_were_silent_longest_are_forgotten() -> None:
    prefixes = Prefixes(lambda: 0.0)
    for number in range(10_001):
        prefixes.note([Message.user(str(number))], ["far"])
    assert prefixes.holders([Message.user("0")]) == frozenset()
    assert prefixes.holders([Message.user("1")]) == {"far"}
