"""Checks that are asked for by an event in the executor's work."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue, ValidationError
from supervised_pair import TASK, Pair, supervised, working

from nearfar import tool
from nearfar.orchestrator.compose.config import parse_config
from nearfar.orchestrator.strategies.oversight import Evidence, canonical, cause_of_check
from nearfar.orchestrator.task.policy import SupervisionConfig, Trigger
from nearfar.protocols import ConfigError, Finished, FinishReason, Message, ToolCall, ToolResult, Unavailable, Usage
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

ANSWER = "The emblem is a bridge."
CONTINUES = ["CONTINUE"] * 20
Check = tuple[int, str]


@tool(effect="read", source="internal_tool")
async def read(page: int, note: str = "") -> str:
    """Read a page, which may be missing (above 90) or long (above 80)."""
    if page > 90:
        raise LookupError(f"there is no page {page}")
    return "word " * 1000 if page > 80 else f"Page {page} says word{page}."


def reads(page: int, note: str = "") -> ToolCall:
    return ToolCall(id=f"{page}", name="read", arguments={"page": page, "note": note})


async def checks(work: Sequence[Reply], *, turns: int = 30, **knobs: object) -> list[Check]:
    """The turns after which the work is checked, and why, where every verdict is CONTINUE."""
    pair = Pair([*work, ANSWER], CONTINUES)
    async with working(pair, supervised("eva", turns=turns, **{"interval": None, **knobs}), read) as hybrid:
        result = await hybrid.run(TASK)
    assert result.far.steps == sum(call.role == "verify" for call in result.calls)
    return [(call.turn, str(call.trigger)) for call in result.calls if call.role == "verify"]


async def test_without_interval_and_triggers_nothing_is_checked() -> None:
    assert await checks([reads(page) for page in range(1, 15)]) == []


async def test_a_tool_error_is_checked_once() -> None:
    work = [reads(1), reads(91), reads(2), reads(92), reads(3)]
    assert await checks(work, triggers=["tool_error"]) == [(2, "tool_error"), (4, "tool_error")]


async def test_a_call_to_a_tool_with_wrong_arguments_is_an_error_too() -> None:
    wrong = ToolCall(id="1", name="read", arguments={"page": 1, "note": "x"}), ToolCall(id="2", name="read", arguments={"page": 99})
    assert await checks([list(wrong)], triggers=["tool_error"]) == [(1, "tool_error")]


async def test_the_same_call_again_is_a_loop_and_only_new_calls_count_after_the_check() -> None:
    work = [reads(1), reads(2), reads(1), reads(1), reads(1), reads(3)]
    assert await checks(work, triggers=["loop"]) == [(3, "loop"), (5, "loop")]


async def test_a_loop_may_need_more_calls() -> None:
    assert await checks([reads(1)] * 7, triggers=["loop"], loop_calls=3) == [(3, "loop"), (6, "loop")]


async def test_the_same_call_twice_in_one_turn_is_a_loop() -> None:
    assert await checks([[reads(1), reads(1).model_copy(update={"id": "again"})]], triggers=["loop"]) == [(1, "loop")]


async def test_turns_that_tell_nothing_new_are_a_stall() -> None:
    work = [reads(1), reads(2), reads(1, "a"), reads(2, "b"), reads(1, "c"), reads(3), reads(1)]
    assert await checks(work, triggers=["stall"], stall_turns=2) == [(4, "stall")]


async def test_a_stall_fires_again_only_after_as_many_further_turns() -> None:
    work = [reads(1), *(reads(1, note) for note in "abcdef")]
    assert await checks(work, triggers=["stall"], stall_turns=3) == [(4, "stall"), (7, "stall")]


async def test_errors_are_no_news() -> None:
    assert await checks([reads(page) for page in (91, 92, 93)], triggers=["stall"], stall_turns=3) == [(3, "stall")]


async def test_what_was_read_before_a_reset_is_news_after_it() -> None:
    """The executor has forgotten it, so reading it once more brings it forward."""
    pair = Pair([reads(1), reads(1, "a"), reads(1, "b"), ANSWER], ["INTERVENE\nNothing was found.\nRead page 1."])
    async with working(pair, supervised("eva", interval=None, triggers=["stall"], stall_turns=1), read) as hybrid:
        result = await hybrid.run(TASK)
    assert [call.turn for call in result.calls if call.role == "verify"] == [2]


async def test_a_long_observation_is_checked_once() -> None:
    assert await checks([reads(1), reads(81), reads(2)], triggers=["long_observation"]) == [(2, "long_observation")]


async def test_the_length_that_is_long_is_a_knob() -> None:
    assert await checks([reads(81)], triggers=["long_observation"], observation_characters=5000) == []
    assert await checks([reads(1)], triggers=["long_observation"], observation_characters=5) == [(1, "long_observation")]


def unsure(call: ToolCall, confidence: float | None) -> list[Reply]:
    done = Finished(reason=FinishReason.TOOL_CALLS, usage=Usage(), model="scripted", confidence=confidence)
    return [[call, done]]


async def test_low_confidence_is_that_of_the_last_step() -> None:
    steps = [(0.9, 1), (0.2, 2), (0.6, 3), (0.49, 4), (None, 5)]
    work = [item for confidence, page in steps for item in unsure(reads(page), confidence)]
    assert await checks(work, triggers=["low_confidence"]) == [(2, "low_confidence"), (4, "low_confidence")]
    assert await checks(work, triggers=["low_confidence"], minimum_confidence=0.1) == []


async def test_half_of_the_turns_is_spent_once() -> None:
    work = [reads(page) for page in range(1, 9)]
    assert await checks(work, turns=10, triggers=["half_spent"]) == [(5, "half_spent")]


async def test_a_reset_does_not_make_half_of_the_turns_unspent() -> None:
    pair = Pair([*(reads(page) for page in range(1, 9)), ANSWER], ["INTERVENE\nDone nothing.\nGo on."])
    async with working(pair, supervised("eva", turns=10, interval=None, triggers=["half_spent"]), read) as hybrid:
        result = await hybrid.run(TASK)
    assert [call.turn for call in result.calls if call.role == "verify"] == [5]


async def test_half_of_the_timeout_counts_as_well() -> None:
    pair = Pair([reads(1), ANSWER], CONTINUES)
    policy = supervised("eva", interval=None, triggers=["half_spent"])
    async with working(pair, policy, read) as hybrid:
        relaxed = await hybrid.run(TASK, timeout=10_000)
    assert [call.role for call in relaxed.calls] == ["execute", "execute"]
    spent = Evidence(turn=1, covered=(), fresh=(), confidence=None, share_spent=0.5, half_was_covered=False)
    assert cause_of_check(policy.supervision, spent) is Trigger.HALF_SPENT


async def test_schedule_and_triggers_make_one_check_of_a_turn_and_the_schedule_is_named() -> None:
    work = [reads(91), reads(92), reads(93), reads(1), reads(2)]
    expected = [(1, "tool_error"), (2, "interval"), (3, "tool_error"), (4, "interval")]
    assert await checks(work, interval=2, triggers=["loop", "tool_error"]) == expected


async def test_of_several_triggers_the_first_in_the_list_is_named() -> None:
    work = [reads(91), reads(2), reads(91, "")]
    assert await checks(work[:1], triggers=["long_observation", "tool_error"], observation_characters=5) == [(1, "long_observation")]
    assert await checks(work[:1], triggers=["tool_error", "long_observation"], observation_characters=5) == [(1, "tool_error")]


async def test_a_check_on_schedule_uses_up_the_evidence_of_the_triggers() -> None:
    """Two equal calls are a loop, but the check after the first turn has seen one of them."""
    assert await checks([reads(1), reads(1), reads(1)], interval=1, triggers=["loop"], turns=30) == [
        (1, "interval"),
        (2, "interval"),
        (3, "interval"),
    ]
    assert await checks([reads(1), reads(2), reads(3), reads(1), reads(4)], interval=3, triggers=["loop"]) == [(3, "interval")]


async def test_no_event_is_checked_when_no_turn_is_left() -> None:
    pair = Pair([reads(1), reads(91)], [])
    async with working(pair, supervised("eva", turns=2, interval=2, triggers=["tool_error"]), read) as hybrid:
        with pytest.raises(Exception, match="2 turns"):
            await hybrid.run(TASK)
    assert pair.roles == ["executor", "executor"]


@pytest.mark.parametrize(
    "knobs",
    [{"interval": 0}, {"loop_calls": 1}, {"stall_turns": 0}, {"triggers": ["panic"]}, {"minimum_confidence": 2}, {"every": 3}],
)
def test_knobs_out_of_range_are_refused(knobs: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SupervisionConfig.model_validate(knobs)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(arguments=st.dictionaries(st.text(min_size=1, max_size=4), JSON, max_size=4), seed=st.randoms())
def test_the_order_of_arguments_makes_no_difference(arguments: dict[str, JsonValue], seed: object) -> None:
    names = list(arguments)
    seed.shuffle(names)  # type: ignore[attr-defined]  # a random.Random of hypothesis
    one = ToolCall(id="1", name="f", arguments=arguments)
    other = ToolCall(id="2", name="f", arguments={name: arguments[name] for name in names})
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": 2}, {"a": 2.0}, True),
        ({"a": " two  words "}, {"a": "two words"}, True),
        ({"a": [1, {"b": 2, "c": 3}]}, {"a": [1, {"c": 3, "b": 2}]}, True),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": True}, {"a": 1}, False),
        ({}, {"a": None}, False),
    ],
)
def test_calls_are_the_same_where_their_arguments_mean_the_same(
    one: dict[str, JsonValue], other: dict[str, JsonValue], *, same: bool
) -> None:
    first, second = (canonical(ToolCall(id="1", name="f", arguments=arguments)) for arguments in (one, other))
    assert (first == second) is same


@given(
    results=st.lists(st.tuples(st.sampled_from(["alpha", "beta", "gamma", "delta"]), st.booleans()), min_size=1, max_size=12),
    stall_turns=st.integers(1, 4),
)
def test_a_stall_is_a_row_of_turns_without_a_new_word(results: list[tuple[str, bool]], stall_turns: int) -> None:
    """Against a plain count of turns since the last news."""
    messages = [message for index, (word, is_error) in enumerate(results) for message in seen(index, word, is_error=is_error)]
    known: set[str] = set()
    quiet = 0
    for word, is_error in results:
        quiet = quiet + 1 if is_error or word in known else 0
        known |= set() if is_error else {word}
    evidence = Evidence(
        turn=len(results), covered=(Message.user(TASK),), fresh=messages, confidence=None, share_spent=0, half_was_covered=False
    )
    supervision = SupervisionConfig(interval=None, triggers=(Trigger.STALL,), stall_turns=stall_turns)
    assert (cause_of_check(supervision, evidence) is Trigger.STALL) == (quiet >= stall_turns)


def seen(index: int, word: str, *, is_error: bool) -> list[Message]:
    call = ToolCall(id=str(index), name="read", arguments={})
    return [
        Message.assistant(tool_calls=(call,)),
        Message.tool(ToolResult(call_id=call.id, name="read", content=word, is_error=is_error)),
    ]


def test_a_file_can_leave_the_checks_to_the_triggers() -> None:
    config = parse_config('[policy.supervision]\ninterval = "none"\ntriggers = ["loop"]', "nearfar.toml")
    assert config.policy.supervision == SupervisionConfig(interval=None, triggers=(Trigger.LOOP,))
    with pytest.raises(ConfigError, match="line 2: policy.supervision.interval"):
        parse_config('[policy.supervision]\ninterval = "never"', "nearfar.toml")


def test_the_default_is_a_schedule_alone() -> None:
    assert SupervisionConfig().interval == 8
    assert SupervisionConfig().triggers == ()


@pytest.mark.parametrize("strategy", ["pevr", "eva"])
async def test_an_answer_is_checked_before_it_is_accepted_where_that_is_asked_for(strategy: str) -> None:
    plan = ["1. read(page=1)"] if strategy == "pevr" else []
    pair = Pair([reads(1), "A tower.", reads(2), ANSWER], [*plan, "INTERVENE\n1. read(page=2)", "CONTINUE"])
    async with working(pair, supervised(strategy, interval=None, triggers=["answer"]), read) as hybrid:
        result = await hybrid.run(TASK)
    assert (result.text, result.interventions) == (ANSWER, 1)
    assert [(call.turn, call.trigger, call.verdict) for call in result.calls if call.role == "verify"] == [
        (1, "answer", "intervene"),
        (2, "answer", "continue"),
    ]
    assert pair.roles[len(plan) :] == ["executor", "executor", "supervisor", "executor", "executor", "supervisor"]
    first_check = [messages for role, messages in pair.journal if role == "supervisor"][len(plan)]
    assert first_check[-1].text.endswith("A tower."), "the supervisor sees the answer"


@pytest.mark.parametrize("reply", ["Hm.", Unavailable("gateway down"), "INTERVENE\n1. read(page=2)"])
async def test_an_answer_stands_where_the_check_of_it_changes_nothing(reply: Reply) -> None:
    pair = Pair([reads(1), ANSWER], [reply])
    policy = supervised("eva", interval=None, triggers=["answer"], shadow=isinstance(reply, str) and reply.startswith("INTERVENE"))
    async with working(pair, policy, read) as hybrid:
        result = await hybrid.run(TASK)
    assert (result.text, result.interventions) == (ANSWER, 0)


async def test_an_answer_in_the_last_turn_is_not_checked() -> None:
    pair = Pair([reads(1), ANSWER], [])
    async with working(pair, supervised("eva", turns=2, interval=None, triggers=["answer"]), read) as hybrid:
        assert (await hybrid.run(TASK)).text == ANSWER


async def test_each_check_is_a_request_of_its_own() -> None:
    """A check of the answer follows one of the turn before it, when no further turn has acted."""
    pair = Pair([reads(1), ANSWER], ["CONTINUE", "CONTINUE"])
    async with working(pair, supervised("eva", interval=1, triggers=["answer"]), read) as hybrid:
        await hybrid.run(TASK)
    keys = [request.idempotency_key for _, request in pair.requests]
    assert len(set(keys)) == len(keys) == 4
