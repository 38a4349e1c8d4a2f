"""`pevr` under a navigator, which chooses when the far side plans and checks, and under chance."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from navigators import card_of, evidence, written
from supervised_pair import TASK, Pair, looks_at, supervised, turn_of, working

from nearfar import ConfigError, InvalidOutput, Message, ToolCall, tool
from nearfar.orchestrator.routing.navigator import NavigatorCard
from nearfar.orchestrator.strategies.prompts import plan_request, verify_plan_request, with_plan
from nearfar.orchestrator.task.events import EVIDENCE, Move, Navigated, TaskFinished
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

PLAN = "1. look(page=1)\n2. <the word>"
ANSWER = "The emblem is a bridge."
PLANS_WHAT_IS_LEFT = card_of({Move.PLAN: evidence(words_of_the_prompt_that_are_not=1.0)}, {Move.STEP: 1.0})
CHECKS_ANSWERS = card_of({Move.CHECK: evidence(answers=1.0)}, {Move.STEP: 0.5, Move.PLAN: -1.0})
ALWAYS_PLANS = card_of({}, {Move.PLAN: 1.0})
CHECKS_AT_ONCE = card_of({Move.CHECK: evidence(far_calls=-2.0)}, {Move.CHECK: 1.0, Move.PLAN: -1.0})


async def asked(executor: Sequence[Reply], supervisor: Sequence[Reply], card: Path, **knobs: int) -> tuple[Pair, str]:
    """The two agents after the task, and its answer."""
    pair = Pair(executor, supervisor, confidence=0.9)
    async with working(pair, supervised("pevr", navigator=card, **knobs)) as hybrid:
        return pair, (await hybrid.run(TASK)).text


async def test_the_executor_starts_over_from_a_plan_where_the_navigator_wants_one(tmp_path: Path) -> None:
    pair, answer = await asked([looks_at(9), looks_at(1), ANSWER], [PLAN], written(tmp_path, PLANS_WHAT_IS_LEFT))
    assert answer == ANSWER
    assert pair.journal[0] == ("executor", (Message.user(TASK),)), "no plan comes before the first step"
    assert pair.journal[1] == ("supervisor", plan_request(TASK))
    assert pair.journal[2] == ("executor", (Message.user(with_plan(TASK, PLAN)),))
    assert pair.roles == ["executor", "supervisor", "executor", "executor"]


async def test_the_far_side_is_not_asked_where_the_step_covers_the_prompt(tmp_path: Path) -> None:
    pair, answer = await asked([f"{TASK} It is a bridge."], [], written(tmp_path, PLANS_WHAT_IS_LEFT))
    assert (pair.roles, answer) == (["executor"], f"{TASK} It is a bridge.")


async def test_an_answer_is_checked_where_the_navigator_wants_that(tmp_path: Path) -> None:
    replies: Sequence[Reply] = [looks_at(1), "A heron.", ANSWER]
    pair, answer = await asked(replies, [f"INTERVENE\n{PLAN}", "CONTINUE"], written(tmp_path, CHECKS_ANSWERS))
    said = (*turn_of(1), Message.assistant("A heron."))
    assert pair.journal[2] == ("supervisor", verify_plan_request(TASK, "", said))
    assert pair.roles == ["executor", "executor", "supervisor", "executor", "supervisor"]
    assert answer == ANSWER


async def test_a_step_is_checked_after_it_has_run(tmp_path: Path) -> None:
    pair, _ = await asked([looks_at(1), ANSWER], ["CONTINUE"], written(tmp_path, CHECKS_AT_ONCE))
    assert pair.journal[1] == ("supervisor", verify_plan_request(TASK, "", turn_of(1)))
    assert pair.roles == ["executor", "supervisor", "executor"]


async def test_schedule_and_triggers_have_no_say_beside_a_navigator(tmp_path: Path) -> None:
    pair, _ = await asked([looks_at(1), looks_at(1), ANSWER], [], written(tmp_path, card_of({}, {Move.STEP: 1.0})), interval=1)
    assert pair.roles == ["executor"] * 3


async def test_what_was_changed_is_not_planned_again(tmp_path: Path) -> None:
    pages: list[int] = []

    @tool
    async def turn(page: int) -> str:
        """Turn a page."""
        pages.append(page)
        return "turned"

    def turns(page: int) -> ToolCall:
        return ToolCall(id=f"turn-{page}", name="turn", arguments={"page": page})

    card = written(tmp_path, card_of({Move.PLAN: evidence(turns=2.0)}, {Move.STEP: 2.0}))  # from the second step on
    pair = Pair([turns(1), turns(2), ANSWER], [PLAN])
    async with working(pair, supervised("pevr", navigator=card), turn) as hybrid:
        await hybrid.run(TASK)
    assert (pair.roles, pages) == (["executor"] * 3, [1, 2])


async def test_nothing_is_asked_after_the_last_turn(tmp_path: Path) -> None:
    pair = Pair([looks_at(1)], [PLAN])
    async with working(pair, supervised("pevr", turns=1, navigator=written(tmp_path, ALWAYS_PLANS))) as hybrid:
        with pytest.raises(InvalidOutput, match="1 turns"):
            await hybrid.run(TASK)
    assert pair.roles == ["executor"]


async def test_each_move_left_to_chance_is_told_with_evidence_and_probability() -> None:
    executor: list[Reply] = [looks_at(1), looks_at(1), "It is word1.", *["It is word1."] * 40]
    pair = Pair(executor, [PLAN, *["CONTINUE"] * 40], confidence=0.99)
    async with working(pair, supervised("pevr", explore=1.0)) as hybrid:
        events = [event async for event in hybrid.stream(TASK)]
    moves = [event for event in events if isinstance(event, Navigated)]
    assert len(moves) == pair.roles.count("executor")
    assert all(0 < move.probability < 1 for move in moves)
    first = dict(zip(EVIDENCE, moves[0].seen, strict=True))
    assert first["lowest confidence"] == pytest.approx(2)
    assert (first["answers"], first["far calls"], first["repeated calls"]) == (0, 0, 0)
    finished = events[-1]
    assert isinstance(finished, TaskFinished)
    assert sum(call.trigger == "navigator" for call in finished.result.calls) == sum(move.move is Move.CHECK for move in moves)


async def test_a_navigator_that_cannot_be_read_ends_the_task(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no navigator"):
        await asked([ANSWER], [], tmp_path / "none.json")


def test_the_hand_written_cards_are_navigators() -> None:
    assert all(NavigatorCard.model_validate(card.model_dump()) == card for card in (PLANS_WHAT_IS_LEFT, CHECKS_AT_ONCE))
