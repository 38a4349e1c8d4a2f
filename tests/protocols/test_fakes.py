"""ScriptedAgent and ReplayAgent beyond what the conformance suite asks."""

from pathlib import Path

import anyio
import pytest

from nearfar.protocols import (
    ConfigError,
    DeadlineExceeded,
    FinishReason,
    InvalidOutput,
    Limits,
    Message,
    NotFound,
    PrivacyViolation,
    RateLimited,
    ReplayAgent,
    ScriptedAgent,
    Side,
    StepRequest,
    TextDelta,
    ToolCall,
    ToolChoice,
    ToolSpec,
    Unavailable,
    complete,
    record,
    stream,
)
from nearfar.protocols.testing import eventually

pytestmark = pytest.mark.anyio

CALL = ToolCall(id="1", name="find", arguments={"key": "x"})
FIND = ToolSpec(name="find", parameters={"type": "object", "properties": {"key": {"type": "string"}}})


def ask(text: str = "go", /, **fields: object) -> StepRequest:
    return StepRequest.model_validate({"messages": (Message.user(text),), **fields})


async def test_replies_come_in_order_and_run_out() -> None:
    agent = ScriptedAgent(["one", ["t", "wo"]])
    assert [(await complete(agent, ask())).text for _ in range(2)] == ["one", "two"]
    with pytest.raises(NotFound):
        await complete(agent, ask())


async def test_an_empty_reply_says_nothing() -> None:
    assert (await complete(ScriptedAgent([""]), ask())).text == ""


async def test_scripted_error_comes_after_the_text_before_it() -> None:
    agent = ScriptedAgent([["partial", RateLimited("slow down", retry_after=3.0)]])
    events = []
    async with stream(agent, ask()) as incoming:
        events.append(await anext(aiter(incoming)))
        with pytest.raises(RateLimited):
            await anext(aiter(incoming))
    assert events == [TextDelta(text="partial")]


async def test_text_stops_before_a_stop_sequence_that_spans_pieces() -> None:
    reply = await complete(ScriptedAgent([["abc<en", "d>", "more", CALL]]), ask(stop=("<end>",), tools=(FIND,)))
    assert (reply.text, reply.tool_calls, reply.finished.reason) == ("abc", (), FinishReason.STOP)


@pytest.mark.parametrize(("limit", "text"), [(1, "one"), (2, "one two"), (3, "one two three")])
async def test_text_is_cut_at_the_output_limit(limit: int, text: str) -> None:
    reply = await complete(ScriptedAgent([["one ", "two three"]]), ask(max_output_tokens=limit))
    assert reply.text == text
    assert reply.finished.reason is (FinishReason.LENGTH if limit < 3 else FinishReason.STOP)


@pytest.mark.parametrize(
    ("script", "fields"),
    [
        (CALL, {}),
        (CALL, {"tools": (FIND,), "tool_choice": ToolChoice.NONE}),
        (ToolCall(id="1", name="find", arguments={"key": 1}), {"tools": (FIND,)}),
        ("no call", {"tools": (FIND,), "tool_choice": ToolChoice.REQUIRED}),
        ("no JSON", {"output_schema": {"type": "object"}}),
    ],
    ids=["tool not offered", "tool not allowed", "wrong arguments", "no call", "no JSON"],
)
async def test_script_that_breaks_the_contract_is_invalid_output(script: str | ToolCall, fields: dict[str, object]) -> None:
    with pytest.raises(InvalidOutput):
        await complete(ScriptedAgent([script]), ask("go", **fields))


async def test_gate_holds_the_step_until_it_is_set() -> None:
    gate = anyio.Event()
    agent = ScriptedAgent([["before ", gate, "after"]])
    with anyio.fail_after(30):
        async with stream(agent, ask()) as incoming:
            assert await anext(aiter(incoming)) == TextDelta(text="before ")
            assert agent.live_steps == 1
            gate.set()
            assert await anext(aiter(incoming)) == TextDelta(text="after")
    assert (agent.live_steps, agent.cancelled_steps) == (0, 1)


async def test_collected_step_does_not_count_as_cancelled() -> None:
    agent = ScriptedAgent(["done"])
    await complete(agent, ask())
    assert (agent.live_steps, agent.cancelled_steps) == (0, 0)


async def test_steps_beyond_the_concurrency_wait_for_a_slot_or_their_deadline() -> None:
    gate = anyio.Event()
    agent = ScriptedAgent(lambda request: gate if request.timeout is None else "never", limits=Limits(concurrency=1))
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(complete, agent, ask())
            await eventually(lambda: agent.live_steps == 1)
            with pytest.raises(DeadlineExceeded):
                await complete(agent, ask(timeout=0.05))
            gate.set()
    assert agent.live_steps == 0


async def test_recorded_outcomes_are_replayed_without_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    original = ScriptedAgent([["line\u2028one ", "a"], CALL, RateLimited("slow down", hint="wait", retry_after=2.0)], confidence=0.5)
    recorder = record(original, path)
    first = await complete(recorder, ask("one"))
    second = await complete(recorder, ask("two", tools=(FIND,)))
    with pytest.raises(RateLimited):
        await complete(recorder, ask("three"))

    replay = ReplayAgent.load(path)
    assert replay.card == original.card
    assert await complete(replay, ask("two", tools=(FIND,))) == second
    assert await complete(replay, ask("one")) == first
    with pytest.raises(RateLimited) as failure:
        await complete(replay, ask("three"))
    assert (failure.value.hint, failure.value.retry_after) == ("wait", 2.0)


async def test_outcomes_of_one_request_come_in_turn_and_the_last_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    recorder = record(ScriptedAgent(["first", "second"]), path)
    for _ in range(2):
        await complete(recorder, ask())
    replay = ReplayAgent.load(path)
    assert [(await complete(replay, ask())).text for _ in range(3)] == ["first", "second", "second"]


async def test_outcome_without_fingerprint_answers_by_task(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    card = ScriptedAgent([]).card.model_dump_json()
    finished = '{"type": "finished", "reason": "stop", "usage": {}, "model": "m"}'
    outcome = '{"task": "capital?", "events": [{"type": "text", "text": "Paris"}, ' + finished + "]}"
    path.write_text(f"{card}\n{outcome}\n", encoding="utf-8")
    replay = ReplayAgent.load(path)
    assert (await complete(replay, ask("capital?", temperature=1.0))).text == "Paris"
    with pytest.raises(NotFound, match="river"):
        await complete(replay, ask("river?"))


async def test_replayed_far_agent_still_refuses_private_text(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    record(ScriptedAgent([], side=Side.FAR), path)
    with pytest.raises(PrivacyViolation):
        await complete(ReplayAgent.load(path), ask())


async def test_closed_replay_agent_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    record(ScriptedAgent([]), path)
    replay = ReplayAgent.load(path)
    await replay.aclose()
    with pytest.raises(Unavailable):
        await complete(replay, ask())


def test_missing_recording_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="record"):
        ReplayAgent.load(tmp_path / "absent.jsonl")


@pytest.mark.parametrize(
    ("line", "number"),
    [("not JSON", 1), ('{"task": "x", "events": [{}]}', 2), ('{"task": "x", "error": {"reason": "Oops", "message": ""}}', 2)],
)
def test_malformed_recording_names_the_line(tmp_path: Path, line: str, number: int) -> None:
    path = tmp_path / "recording.jsonl"
    card = ScriptedAgent([]).card.model_dump_json()
    path.write_text(line if number == 1 else f"{card}\n{line}", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"line {number}"):
        ReplayAgent.load(path)
