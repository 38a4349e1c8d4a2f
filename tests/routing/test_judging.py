"""How a cascade judges a draft: second opinions, learned escalation, drafts that are stopped."""

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import BaseModel
from situations import priced

from nearfar import Hybrid, Policy, Result, tool
from nearfar.orchestrator.routing.answers import Answer
from nearfar.orchestrator.routing.escalation import Escalation
from nearfar.orchestrator.routing.looks import Cost, free_findings, text_opinion
from nearfar.orchestrator.routing.traces import AgentOutcome, Trace, read_traces
from nearfar.orchestrator.routing.training import draft_examples_of, train_escalation
from nearfar.orchestrator.strategies.prompts import ANSWER_LINE
from nearfar.protocols import AgentCard, ConfigError, ScriptedAgent, Side, StepEvent, StepRequest, TextDelta, ToolCall, Unavailable
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio
ASKED = "How many sheep are on the meadow?"


class Trio:
    """Two agents on the device and one in the cloud."""

    def __init__(self, near: Sequence[Reply], second: Sequence[Reply], far: Sequence[Reply], *, confidence: float | None = None) -> None:
        self.near = ScriptedAgent(near, name="near", prices=priced(0), confidence=confidence)
        self.second = ScriptedAgent(second, name="second", prices=priced(0))
        self.far = ScriptedAgent(far, name="far", side=Side.FAR, prices=priced(10))

    async def ask(self, policy: dict[str, Any], **options: Any) -> Result:  # noqa: ANN401 - options of any task
        given = Policy.model_validate({"strategy": "cascade", "sensitivity": "public", **policy})
        async with Hybrid(near=self.near, far=self.far, agents={"second": self.second}, policy=given) as hybrid:
            return await hybrid.run(ASKED, **options)


SECOND = {"evidence": {"second_opinion": "second"}}


async def test_a_draft_that_a_second_agent_agrees_with_stands() -> None:
    trio = Trio(["12"], ["12.0"], [])
    result = await trio.ask(SECOND)
    assert (result.text, [call.role for call in result.calls]) == ("12", ["execute", "second_opinion"])
    assert result.attempts[0].opinions == {"second": "12.0"}


async def test_a_draft_that_a_second_agent_disagrees_with_goes_to_the_next_one() -> None:
    result = await Trio(["12"], ["13"], ["14"]).ask(SECOND)
    assert (result.text, result.side) == ("14", Side.FAR)
    assert "second answers otherwise: 13" in result.attempts[0].reason


async def test_a_second_agent_that_hangs_is_left_when_its_attempt_would_be() -> None:
    class Hanging(ScriptedAgent):
        async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
            await anyio.sleep_forever()
            yield TextDelta(text="never")

    trio = Trio(["12"], [], [])
    trio.second = Hanging([], name="second", prices=priced(0))
    with anyio.fail_after(30):
        result = await trio.ask({**SECOND, "attempt_timeout": 0.01})
    assert (result.text, [(call.role, call.error) for call in result.calls]) == (
        "12",
        [("execute", None), ("second_opinion", "DeadlineExceeded")],
    )


WORKED = ("We add 5 and 7 sheep.\n\nSo there are **12** on the meadow.", "First 7 goats, then 5.\n\nAnswer: 12")


async def test_drafts_agree_by_their_answers_and_the_attempt_tells_which_they_are() -> None:
    result = await Trio([WORKED[0]], [WORKED[1]], []).ask(SECOND)
    (attempt,) = result.attempts
    assert (result.text, attempt.cluster_share) == (WORKED[0], 1)
    assert attempt.extracted is not None
    assert (attempt.extracted.text, attempt.extracted.source) == ("12", "emphasis")
    assert {name: str(found) for name, found in attempt.extracted_opinions.items()} == {"second": "12 (answer line)"}


async def test_a_draft_that_means_the_same_in_other_words_stands_and_one_that_says_the_opposite_does_not() -> None:
    draft = "You should take the medicine together with food, since an empty stomach gets upset easily."
    assert not (await Trio([draft], [f"Certainly. {draft}"], []).ask(SECOND)).was_fallback
    assert (await Trio([draft], [draft.replace("should take", "should not take")], ["far"]).ask(SECOND)).was_fallback


async def test_the_field_of_the_answer_is_compared_where_there_is_an_output_schema() -> None:
    class Count(BaseModel):
        reasoning: str
        answer: int

    texts = [Count(reasoning=reasoning, answer=12).model_dump_json() for reasoning in ("5 and 7", "7 and 5")]
    trio = Trio(texts[:1], texts[1:], [])
    result = await trio.ask(SECOND, output=Count)
    assert [str(found) for found in result.attempts[0].extracted_opinions.values()] == ["12 (answer)"]
    assert "Answer:" not in trio.second.requests[0].messages[-1].text


async def test_a_general_model_is_asked_to_mark_the_answer_of_its_opinion_and_a_draft_is_not() -> None:
    trio = Trio(["12"], ["12"], [])
    await trio.ask(SECOND)
    asked, drafted = (agent.requests[0].messages[-1].text for agent in (trio.second, trio.near))
    assert (asked, drafted) == (f"{ASKED}\n\n{ANSWER_LINE}", ASKED)


async def test_a_model_of_a_single_world_is_asked_in_the_words_that_it_was_trained_on() -> None:
    class OfOneWorld(ScriptedAgent):
        @property
        def card(self) -> AgentCard:
            return super().card.model_copy(update={"world": "a small world"})

    trio = Trio(["12"], [], [])
    trio.second = OfOneWorld(["12"], name="second", prices=priced(0))
    await trio.ask(SECOND)
    assert trio.second.requests[0].messages[-1].text == ASKED


async def test_the_log_tells_the_answers_of_a_public_task_alone(tmp_path: Path) -> None:
    for sensitivity in ("public", "private"):
        log = tmp_path / f"{sensitivity}.jsonl"
        await Trio([WORKED[0]], [WORKED[1]], []).ask({**SECOND, "router": {"log": log}}, sensitivity=sensitivity)
        assert ("answer line" in log.read_text(encoding="utf-8")) == (sensitivity == "public")
    (trace,) = read_traces(tmp_path / "public.jsonl")
    found = {agent: outcome.extracted for agent, outcome in trace.outcomes.items()}
    assert {agent: each and each.text for agent, each in found.items()} == {"near": "12", "second": "12"}


async def test_a_second_agent_that_fails_speaks_neither_for_nor_against_a_draft() -> None:
    result = await Trio(["12"], [Unavailable("gone")], []).ask(SECOND)
    assert (result.text, result.calls[1].error) == ("12", "Unavailable")


async def test_an_agent_may_be_asked_twice_the_second_time_with_some_chance() -> None:
    trio = Trio(["12", "12"], [], [])
    assert (await trio.ask({"evidence": {"second_opinion": "near"}})).text == "12"
    assert [request.temperature for request in trio.near.requests] == [None, 0.7]


async def test_a_second_opinion_of_a_private_task_stays_on_the_device() -> None:
    trio = Trio(["12"], ["13", "13"], [])
    result = await trio.ask(SECOND, sensitivity="private")
    assert result.text == "13"
    assert trio.far.requests == []


async def test_a_second_opinion_acts_on_nothing() -> None:
    counted = []

    @tool(effect="read")
    async def count(what: str) -> str:
        """Count things."""
        counted.append(what)
        return "12 sheep"

    trio = Trio([ToolCall(id="1", name="count", arguments={"what": "sheep"}), "12 sheep"], ["12 sheep"], [])
    result = await trio.ask(SECOND, tools=[count])
    assert (result.text, counted) == ("12 sheep", ["sheep"])
    (request,) = trio.second.requests
    assert request.tool_choice == "none"
    assert request.messages[-1].role == "tool"


@pytest.mark.parametrize(("name", "problem"), [("nobody", "there is no agent 'nobody'"), ("far", "looks stay on this device")])
async def test_an_opinion_can_only_be_had_of_an_agent_on_the_device(name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        await Trio([], [], []).ask({"evidence": {"second_opinion": name}})


async def test_a_draft_whose_confidence_collapses_is_stopped_before_it_acts_further() -> None:
    acted = []

    @tool
    async def count(what: str) -> str:
        """Count things."""
        acted.append(what)
        return "12"

    trio = Trio([ToolCall(id="1", name="count", arguments={"what": "goats"})], [], ["14"], confidence=0.1)
    result = await trio.ask({"evidence": {"stop_below": 0.2}}, tools=[count])
    assert (result.text, acted) == ("14", [])
    assert "stopped at confidence 0.10" in result.attempts[0].reason


async def test_a_confident_draft_is_not_stopped() -> None:
    @tool
    async def count(what: str) -> str:
        """Count things."""
        return "12"

    trio = Trio([ToolCall(id="1", name="count", arguments={"what": "sheep"}), "12"], [], [], confidence=0.9)
    assert (await trio.ask({"evidence": {"stop_below": 0.2}}, tools=[count])).text == "12"


def learned(path: Path, *, draft: str = "near") -> Path:
    """An escalation from traces in which agreement tells right drafts from wrong ones, and far is nearly always right."""
    traces = []
    for number in range(400):
        is_right = number % 2 == 0
        answers = {draft: str(number), "second": str(number if is_right else number + 1), "far": str(number if is_right else number + 1)}
        scores = {draft: float(is_right), "second": None, "far": float(number % 40 != 1)}
        outcomes = {agent: AgentOutcome(score=scores[agent], answer=answers[agent]) for agent in answers}
        traces.append(Trace(prompt=f"Count number {number}.", outcomes=outcomes))
    examples = draft_examples_of(traces, draft=draft, far="far", opinions={"second": Cost(seconds=0.5)})
    Escalation(train_escalation(examples)).save(path)
    return path


async def test_a_learned_escalation_looks_before_it_decides(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    policy = {"evidence": {"escalation": learned(tmp_path / "escalation.json")}, "objective": {"dollars": 30}}
    agreed = await Trio(["12"], ["12"], []).ask(policy)
    assert (agreed.text, [call.role for call in agreed.calls]) == ("12", ["execute", "second_opinion"])
    disagreed = await Trio(["12"], ["13"], ["14"]).ask(policy)
    assert disagreed.text == "14"
    assert "the draft is right with" in disagreed.attempts[0].reason


def test_an_escalation_is_trained_on_what_a_strategy_measures(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    looks = {look.name: set(look.measures) for look in Escalation.load(learned(tmp_path / "escalation.json")).card.looks}
    found = free_findings(ASKED, "12", is_valid=None, is_grounded=None, confidence=None)
    taken = {
        name: set(signal.measures)
        for name, signal in {**found, "second": text_opinion(Answer.of_text("12"), "13", ASKED)}.items()
        if signal.measures
    }
    assert looks == taken


async def test_a_look_that_is_not_worth_its_price_is_not_taken(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    policy = {"evidence": {"escalation": learned(tmp_path / "escalation.json")}, "objective": {"dollars": 1e6, "seconds": 10}}
    result = await Trio(["12"], [], []).ask(policy)
    assert [call.role for call in result.calls] == ["execute"]


async def test_an_escalation_that_was_trained_for_other_agents_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    with pytest.raises(ConfigError, match="no such agent: somebody"):
        await Trio(["12"], [], []).ask({"evidence": {"escalation": learned(tmp_path / "escalation.json", draft="somebody")}})
    (tmp_path / "bad.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError):
        await Trio(["12"], [], []).ask({"evidence": {"escalation": tmp_path / "bad.json"}})


async def test_what_was_judged_can_be_learned_from_later(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    result = await Trio(["12"], ["13"], ["14"]).ask({**SECOND, "router": {"log": log}})
    assert result.was_fallback
    (trace,) = read_traces(log)
    assert {agent: outcome.answer for agent, outcome in trace.outcomes.items()} == {"near": "12", "second": "13", "far": "14"}


async def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(ConfigError, match="two agents"):
        Hybrid(near=ScriptedAgent([], name="near"), agents={"near": ScriptedAgent([], name="x")})
