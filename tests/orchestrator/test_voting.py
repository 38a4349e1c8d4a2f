"""Votes of several samples on an answer."""

from collections.abc import Sequence

import pytest

from nearfar import Hybrid, ScriptedAgent, Side, tool
from nearfar.orchestrator.routing.answers import Answer
from nearfar.orchestrator.strategies.verifying import Ballot
from nearfar.protocols import Finished, FinishReason, ToolCall, Unavailable, Usage
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio
QUESTION = "How many moons has Mars?"


def near_of(*answers: Reply, confidence: float | None = 0.7) -> ScriptedAgent:
    return ScriptedAgent(answers, name="near", confidence=confidence)


def _end(confidence: float) -> Finished:
    return Finished(model="scripted", reason=FinishReason.STOP, usage=Usage(output_tokens=1), confidence=confidence)


def policy_of(votes: int, **more: object) -> dict[str, object]:
    return {"strategy": "device", "evidence": {"votes": votes}, **more}


async def test_the_answer_that_most_samples_give_stands() -> None:
    near = near_of("1", "2", "2", "2", "1")
    async with Hybrid(near=near, policy=policy_of(5)) as hybrid:
        result = await hybrid.run(QUESTION)
    assert (result.text, result.attempts[-1].answer) == ("2", "2")
    assert [call.role for call in result.calls][:2] == ["execute", "vote"]
    assert {request.temperature for request in near.requests[1:]} == {0.7}


async def test_sampling_stops_once_an_answer_is_three_votes_ahead() -> None:
    near = near_of("2", "two", "2", "2", "2", "2")
    async with Hybrid(near=near, policy=policy_of(8)) as hybrid:
        await hybrid.run(QUESTION)
    assert len(near.requests) == 3


async def test_sampling_stops_once_the_rest_cannot_change_the_election() -> None:
    near = near_of("2", "1", "2", "2", "2", confidence=None)
    async with Hybrid(near=near, policy=policy_of(5)) as hybrid:
        await hybrid.run(QUESTION)
    assert len(near.requests) == 4


async def test_two_sure_samples_that_agree_need_no_third() -> None:
    near = near_of("2", "2", "1", "1", confidence=0.95)
    async with Hybrid(near=near, policy=policy_of(4)) as hybrid:
        assert (await hybrid.run(QUESTION)).text == "2"
    assert len(near.requests) == 2


async def test_a_sample_that_fails_is_no_vote() -> None:
    near = near_of("2", Unavailable("gone"), "", "1", "1", "1")
    async with Hybrid(near=near, policy=policy_of(4)) as hybrid:
        assert (await hybrid.run(QUESTION)).text == "2"


async def test_a_streamed_answer_is_not_voted_on() -> None:
    near = near_of("2", "1", "1")
    async with Hybrid(near=near, policy=policy_of(3)) as hybrid:
        async for _ in hybrid.stream(QUESTION):
            pass
    assert len(near.requests) == 1


async def test_a_turn_that_was_heard_as_it_was_said_is_not_voted_on() -> None:
    near = near_of("2", "1", "1", confidence=0.4)
    async with Hybrid(near=near, policy=policy_of(3)) as hybrid:
        async for _ in hybrid.stream_turn(QUESTION):
            pass
    assert len(near.requests) == 1


async def test_an_answer_with_a_schema_or_after_tools_or_of_a_far_agent_is_not_voted_on() -> None:
    @tool(effect="read")
    async def count(planet: str) -> int:
        """Count moons."""
        return 2

    near = near_of(ToolCall(id="1", name="count", arguments={"planet": "Mars"}), "2", '{"moons": 2}')
    far = ScriptedAgent(["2", "1"], name="far", side=Side.FAR, confidence=0.6)
    async with Hybrid(near=near, far=far, policy=policy_of(3, sensitivity="public")) as hybrid:
        await hybrid.run(QUESTION, tools=[count])
        await hybrid.run(QUESTION, output={"type": "object", "properties": {"moons": {"type": "integer"}}})
        await hybrid.run(QUESTION, strategy="cloud")
    assert (len(near.requests), len(far.requests)) == (3, 1)


async def test_the_confidence_is_that_of_the_answer_that_was_elected() -> None:
    samples = [(text, _end(sure)) for text, sure in (("1", 0.6), *[("2", 0.95)] * 4)]
    far = ScriptedAgent(["3"], name="far", side=Side.FAR)
    policy = {"strategy": "cascade", "sensitivity": "public", "evidence": {"votes": 5}}
    async with Hybrid(near=ScriptedAgent(samples, name="near"), far=far, policy=policy) as hybrid:
        result = await hybrid.run(QUESTION)
    assert (result.text, result.confidence) == ("2", 0.95)


async def test_the_evidence_judges_the_answer_that_was_elected() -> None:
    near = near_of("1", "2", "2", "2", "2")
    far = ScriptedAgent(["Right: Yes"], name="far", side=Side.FAR, confidence=0.9)
    policy = {"strategy": "cascade", "sensitivity": "public", "evidence": {"votes": 5, "verifiers": ["outcome"]}}
    async with Hybrid(near=near, far=far, policy=policy) as hybrid:
        assert (await hybrid.run(QUESTION)).text == "2"
    assert far.requests[0].messages[-1].text.endswith("Work:\n2")


@pytest.mark.parametrize(
    ("votes", "leader", "is_settled"),
    [
        ([("a", 0.999)], 0, False),
        ([("a", 0.8), ("a", 0.8)], 0, False),
        ([("a", 0.95), ("a", 0.9)], 0, True),
        ([("a", None), ("a", None)], 0, False),
        ([("a", None), ("a", None), ("a", 0.1)], 0, True),
        ([("b", 0.99), ("a", 0.9), ("a", 0.9), ("a", 0.9)], 1, False),
        ([("b", 0.9999), ("a", 0.5), ("a", 0.5), ("a", 0.5)], 1, False),
        ([("b", 0.8), ("a", 0.9), ("a", 0.9), ("a", 0.9)], 1, True),
        ([("a", 0.9), ("b", 0.9)], 0, False),
        ([("b", 0.1), ("b", 0.1), ("a", 0.9), ("a", 0.9), ("a", 0.9), ("a", 0.9), ("b", 0.1)], 2, False),
        ([("b", 0.1), ("b", 0.1), ("a", 0.1), ("a", 0.1), ("a", 0.1), ("a", 0.1), ("c", 0.1)], 2, True),
    ],
)
def test_a_clear_lead_settles_a_vote_of_eight(votes: Sequence[tuple[str, float | None]], leader: int, is_settled: bool) -> None:
    ballot = Ballot(most=8)
    for text, confidence in votes:
        ballot.add(Answer.of_text(text), confidence)
    assert (ballot.leader, ballot.is_settled) == (leader, is_settled)
