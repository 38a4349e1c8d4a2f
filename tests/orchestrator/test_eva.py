"""`eva` against the pseudocode of its paper (arXiv 2605.30102), call by call."""

from collections.abc import Sequence

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linked import LINKS
from supervised_pair import TASK, Pair, looks_at, supervised, turn_of, working

from nearfar.orchestrator.strategies.prompts import verify_progress_request, with_guidance
from nearfar.protocols import InvalidOutput, Message
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

ANSWER = "The emblem is a bridge."
Journal = list[tuple[str, tuple[Message, ...]]]


def advice(number: int) -> str:
    return f"Page {number} was read.\nRead the next one."


def pseudocode(*, acting: int, verdicts: Sequence[bool], turns: int, interval: int) -> Journal:
    """Who is shown what, as the paper's algorithm has it, except that a check also sees the last summary and advice."""
    journal: Journal = []
    guidance = ""
    context: list[Message] = []
    left = iter(enumerate(verdicts))
    for turn in range(1, turns + 1):
        journal.append(("executor", (Message.user(with_guidance(TASK, guidance)), *context)))
        if turn > acting:
            break
        context = [*context, *turn_of(turn)]
        if turn % interval == 0 and turn < turns:
            journal.append(("supervisor", verify_progress_request(TASK, guidance, context)))
            number, intervenes = next(left)
            if intervenes:
                guidance, context = advice(number), []
    return journal


def scripted(*, acting: int, verdicts: Sequence[bool]) -> Pair:
    executor: list[Reply] = [*(looks_at(turn) for turn in range(1, acting + 1)), ANSWER]
    return Pair(executor, [f"INTERVENE\n{advice(number)}" if intervenes else "CONTINUE" for number, intervenes in enumerate(verdicts)])


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(
    ("interval", "acting", "turns", "verdicts"),
    [
        (1, 3, 10, [True, True, False]),
        (2, 5, 10, [False, True]),
        (3, 6, 10, [True, False]),
        (8, 7, 40, []),
        (5, 0, 10, []),
    ],
)
async def test_every_call_is_the_one_of_the_pseudocode(link: str, interval: int, acting: int, turns: int, verdicts: Sequence[bool]) -> None:
    pair = scripted(acting=acting, verdicts=verdicts)
    with anyio.fail_after(120):
        async with working(pair, supervised("eva", turns=turns, interval=interval), link=link) as hybrid:
            result = await hybrid.run(TASK)
    assert pair.journal == pseudocode(acting=acting, verdicts=verdicts, turns=turns, interval=interval)
    assert (result.text, result.interventions, result.far.steps) == (ANSWER, sum(verdicts), acting // interval)


@given(data=st.data(), interval=st.integers(1, 6), turns=st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_the_far_agent_is_called_once_per_interval(data: st.DataObject, interval: int, turns: int) -> None:
    acting = data.draw(st.integers(0, turns))
    checks = min(acting, turns - 1) // interval
    verdicts = data.draw(st.lists(st.booleans(), min_size=checks, max_size=checks))
    pair = scripted(acting=acting, verdicts=verdicts)
    anyio.run(run_whatever_comes, pair, interval, turns)
    assert pair.journal == pseudocode(acting=acting, verdicts=verdicts, turns=turns, interval=interval)
    assert pair.roles.count("supervisor") == checks


async def run_whatever_comes(pair: Pair, interval: int, turns: int) -> None:
    async with working(pair, supervised("eva", turns=turns, interval=interval)) as hybrid:
        try:
            await hybrid.run(TASK)
        except InvalidOutput:
            assert pair.roles.count("executor") == turns


async def test_a_second_reset_sees_what_the_first_one_kept() -> None:
    pair = scripted(acting=2, verdicts=[True, True])
    async with working(pair, supervised("eva", interval=1)) as hybrid:
        await hybrid.run(TASK)
    second_check = [messages for role, messages in pair.journal if role == "supervisor"][1]
    assert advice(0) in second_check[1].text
    assert "page=1" not in second_check[1].text, "the context before the reset is forgotten"


@pytest.mark.parametrize("verdict", ["INTERVENE", "INTERVENE\n  \n", "INTERVENE\n" + "more " * 1000, "Hm.", "CONTINUOUS"])
async def test_an_intervention_without_advice_that_can_be_used_changes_nothing(verdict: str) -> None:
    pair = Pair([looks_at(1), ANSWER], [verdict])
    async with working(pair, supervised("eva", interval=1)) as hybrid:
        result = await hybrid.run(TASK)
    assert pair.journal[-1] == ("executor", (Message.user(TASK), *turn_of(1)))
    assert [call.verdict for call in result.calls if call.role == "verify"] == ["unreadable"]
    assert any("unreadable" in reason for reason in result.reasons)
