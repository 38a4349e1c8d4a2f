"""The default card under a budget, arbitration by the far agent's answer, and what is learned from both."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from situations import priced

from nearfar import Hybrid, Policy, Result, TaskFinished, tool
from nearfar.orchestrator.routing.outcome_records import drafts_of, escalated_to
from nearfar.orchestrator.routing.traces import LoggedScore, LoggedTask, read_outcomes, read_traces
from nearfar.protocols import ScriptedAgent, Side, ToolCall
from nearfar.protocols.fakes import Reply

pytest.importorskip("numpy")
pytestmark = pytest.mark.anyio
ASKED = "How many sheep are on the meadow?"
BUDGET = {"far_share": 0.9}


class Trio:
    """Two agents on the device and one in the cloud, under a budget that lets nearly all doubtful drafts go far."""

    def __init__(self, near: Sequence[Reply], second: Sequence[Reply], far: Sequence[Reply], **router: Any) -> None:  # noqa: ANN401 - settings
        agents = {"second": ScriptedAgent(second, name="second", prices=priced(0))}
        self.second = agents["second"]
        self.far = ScriptedAgent(far, name="far", side=Side.FAR, prices=priced(0.001))
        policy = Policy.model_validate({"strategy": "cascade", "sensitivity": "public", "router": {**BUDGET, **router}})
        self.hybrid = Hybrid(near=ScriptedAgent(near, name="near", prices=priced(0)), far=self.far, agents=agents, policy=policy)
        self.hybrid._router.steering._seed = 0  # by whose chance the first task may go far

    async def ask(self, **options: Any) -> Result:  # noqa: ANN401 - options of any task
        return await self.hybrid.run(ASKED, **options)

    def offset(self, subject: str, task_class: str = "") -> float:
        """Return by how much outcomes have moved the default card."""
        return self.hybrid._router.outcomes.card_correction("").offset(subject, task_class)


async def test_under_a_budget_the_default_card_asks_the_other_near_agent_and_escalates_where_it_disagrees() -> None:
    trio = Trio(["12"], ["13"], ["14"])
    async with trio.hybrid:
        result = await trio.ask()
    assert (result.text, result.side) == ("14", Side.FAR)
    draft = result.attempts[0]
    assert draft.weighed is not None
    assert (draft.weighed.card, draft.opinions) == ("", {"second": "13"})
    assert draft.weighed.p_draft < draft.weighed.p_far


async def test_without_a_budget_the_fixed_checks_decide_and_no_other_agent_is_asked() -> None:
    trio = Trio(["12"], [], [], far_share=None)
    async with trio.hybrid:
        result = await trio.ask()
    assert (result.text, trio.second.requests, result.attempts[0].weighed) == ("12", [], None)


async def test_a_draft_ships_whose_marked_answer_the_far_agent_gives_in_other_words() -> None:
    trio = Trio(["I count them. Answer: 12"], ["13"], ["There are four by three. Answer: 12 sheep"])
    async with trio.hybrid:
        result = await trio.ask()
    assert (result.text, result.side) == ("I count them. Answer: 12", Side.NEAR)


async def test_a_last_number_that_is_the_same_confirms_no_draft() -> None:
    trio = Trio(["We saw them in May 2024."], ["13"], ["It was founded in June 2024."])
    async with trio.hybrid:
        result = await trio.ask()
    assert result.side is Side.FAR


async def test_a_draft_that_the_far_agent_confirms_ships() -> None:
    trio = Trio(["12"], ["13"], ["12.0"])
    async with trio.hybrid:
        result = await trio.ask()
    assert (result.text, result.agent, result.served_on_device) == ("12", "near", True)
    draft, far = result.attempts
    assert draft.arbitration is not None
    assert (draft.arbitration.confirmed, draft.arbitration.draft_weight, draft.arbitration.opinions) == (True, 1.0, {"second": False})
    assert "far gives the same answer" in draft.reason
    assert "confirms the draft of near" in far.reason
    assert result.messages[-1].text == "12"


async def test_a_far_answer_that_differs_labels_the_draft_wrong_with_a_weight_below_one() -> None:
    trio = Trio(["12"], ["13"], ["14"])
    async with trio.hybrid:
        result = await trio.ask()
    ruling = result.attempts[0].arbitration
    assert ruling is not None
    assert not ruling.confirmed
    assert 0 < ruling.far_weight < ruling.draft_weight < 1


async def test_a_far_answer_that_was_shown_while_it_streamed_stands_and_still_confirms_the_draft() -> None:
    trio = Trio(["12"], ["13"], ["12.0"])
    async with trio.hybrid:
        events = [event async for event in trio.hybrid.stream(ASKED)]
    finished = events[-1]
    assert isinstance(finished, TaskFinished)
    assert (finished.result.text, finished.result.agent) == ("12.0", "far")
    ruling = finished.result.attempts[0].arbitration
    assert ruling is not None
    assert ruling.confirmed


async def test_a_far_answer_after_tool_calls_stands_though_it_confirms_the_draft() -> None:
    @tool
    async def count(what: str) -> str:
        """Count things."""
        return "12"

    trio = Trio(["12"], ["13"], [ToolCall(id="1", name="count", arguments={"what": "sheep"}), "12"])
    async with trio.hybrid:
        result = await trio.ask(tools=[count])
    assert (result.agent, [outcome.call.name for outcome in result.tool_calls]) == ("far", ["count"])


async def test_a_report_moves_the_card_and_what_was_learned_survives_a_restart(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    trio = Trio(["12"] * 20, ["12"] * 20, ["14"] * 20, log=log, far_share=0.01)
    async with trio.hybrid:
        for _ in range(20):
            trio.hybrid.report(await trio.ask(task_class="sheep"), score=0.0)
        learned = trio.offset(drafts_of("near"), "sheep")
    assert learned < -0.5
    again = Trio(["12"], ["12"], ["14"], log=log)
    async with again.hybrid:
        result = await again.ask(task_class="sheep")
        assert again.offset(drafts_of("near"), "sheep") == pytest.approx(learned, abs=0.05)
    draft = result.attempts[0]
    assert draft.weighed is not None
    assert draft.p_right is not None
    assert draft.p_right < draft.weighed.p_draft


async def test_the_verdict_of_the_far_agent_does_not_move_the_card_but_a_report_does() -> None:
    trio = Trio(["12"], ["13"], ["14"])
    async with trio.hybrid:
        result = await trio.ask()
        assert trio.offset(drafts_of("near")) == 0
        trio.hybrid.report(result, score=1.0)
        assert trio.offset(drafts_of("near")) < 0 < trio.offset(escalated_to("far"))


async def test_a_far_answer_that_was_wrong_says_nothing_of_the_draft_that_differs_from_it() -> None:
    trio = Trio(["12"], ["13"], ["14"])
    async with trio.hybrid:
        trio.hybrid.report(await trio.ask(), score=0.0)
        assert trio.offset(drafts_of("near")) == 0
        assert trio.offset(escalated_to("far")) < 0


async def test_drafts_that_are_no_longer_confirmed_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    trio = Trio(["12"] * 120, ["13"] * 120, ["12"] * 60 + ["14"] * 60)
    async with trio.hybrid:
        for _ in range(120):
            await trio.ask()
    assert "far answers confirm drafts of near less often than they used to" in caplog.text


async def test_a_report_takes_the_place_of_a_label_by_arbitration_in_the_traces(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    trio = Trio(["12"], ["13"], ["14"], log=log)
    async with trio.hybrid:
        result = await trio.ask()
        (before,) = read_traces(log)
        trio.hybrid.report(result, score=0.25)
    (after,) = read_traces(log)
    ruling = result.attempts[0].arbitration
    assert ruling is not None
    assert before.outcomes["near"].score == pytest.approx((1 - ruling.draft_weight) / 2)
    assert after.outcomes["far"].score == 0.25


async def test_labels_of_arbitration_are_on_record_as_such_and_carry_no_text(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    trio = Trio(["12"], ["13"], ["12"], log=log)
    async with trio.hybrid:
        await trio.ask()
    lines = log.read_text().splitlines()
    task = LoggedTask.model_validate_json(lines[0])
    scores = [LoggedScore.model_validate_json(line) for line in lines[1:]]
    assert [(each.agent, each.score, each.source) for each in scores] == [
        ("near", 1.0, "arbitration"),
        ("far", 1.0, "arbitration"),
        ("second", 0.0, "arbitration"),
    ]
    assert all(set(each.model_dump()) == {"type", "id", "agent", "task_class", "score", "source", "weight", "because"} for each in scores)
    assert {each.because for each in scores} == {""}
    assert len(read_outcomes(log)) == 1
    assert task.attempts[0].arbitration is not None


async def test_a_private_task_is_neither_escalated_nor_labelled() -> None:
    trio = Trio(["12"], ["13"] * 2, [])
    async with trio.hybrid:
        result = await trio.ask(sensitivity="private")
    assert (result.side, trio.far.requests) == (Side.NEAR, [])
    assert all(attempt.arbitration is None for attempt in result.attempts)


async def test_a_far_answer_is_no_draft_that_the_budget_weighs_again() -> None:
    trio = Trio(["12"], ["13"], ["14"])
    other = ScriptedAgent(["15"], name="other", side=Side.FAR, prices=priced(0.001))
    agents = {"second": trio.second, "other": other}
    near = ScriptedAgent(["12"], name="near", prices=priced(0))
    hybrid = Hybrid(near=near, far=trio.far, agents=agents, policy=trio.hybrid.policy)
    hybrid._router.steering._seed = 0
    async with hybrid:
        result = await hybrid.run(ASKED)
    assert [attempt.side for attempt in result.attempts] == [Side.NEAR, Side.FAR]
    assert result.attempts[1].p_right is None


async def test_a_budget_that_does_not_steer_sends_no_sure_draft_far() -> None:
    policy = Policy.model_validate({"mode": "prefer_on_device", "sensitivity": "public", "router": BUDGET})
    near = ScriptedAgent(["12"], name="near", prices=priced(0), confidence=0.99)
    async with Hybrid(near=near, far=ScriptedAgent(["14"], name="far", side=Side.FAR), policy=policy) as hybrid:
        assert (await hybrid.run(ASKED)).side is Side.NEAR
