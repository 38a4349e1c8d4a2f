"""Streams of turns: nothing of a rejected draft reaches the caller, and a caller that leaves ends the work."""

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress

import anyio
import pytest

from nearfar import (
    DeadlineExceeded,
    Hybrid,
    InternalError,
    InvalidOutput,
    Message,
    NearfarError,
    RateLimited,
    ScriptedAgent,
    Side,
    Speaker,
    StepLost,
    Strategy,
    ToolCall,
    ToolSpec,
    Turn,
    TurnCall,
    TurnEvent,
    TurnFinished,
    TurnText,
    Unavailable,
    tool,
)
from nearfar.protocols.fakes import Reply, ScriptItem

pytestmark = pytest.mark.anyio

LOOK = ToolSpec(name="look", parameters={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]})
FAR = Speaker(agent="far", side=Side.FAR, model="scripted", strategy=Strategy.CASCADE)
ERRORS = (Unavailable, StepLost, InternalError, RateLimited, DeadlineExceeded, InvalidOutput)
STRATEGIES = ("cascade", "cascade", "cascade", "route", "cloud", "device", "auto", "eva", "pevr")


async def events_of(hybrid: Hybrid, prompt: str | Sequence[Message] = "Look at it.", **options: object) -> list[TurnEvent]:
    given = {"tools": [LOOK], "sensitivity": "public", **options}
    return [event async for event in hybrid.stream_turn(prompt, **given)]  # type: ignore[arg-type]  # options of turns


def text_of(events: Sequence[TurnEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TurnText))


def turn_in(events: Sequence[TurnEvent]) -> Turn:
    last = events[-1]
    assert isinstance(last, TurnFinished)
    return last.turn


@tool(effect="read")
def clock() -> str:
    """Tell the time."""
    return "noon"


class World:
    """A random pair of agents, each of whose words names it, and options of a turn."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.near = self._agent("near", Side.NEAR)
        self.second = self._agent("second", Side.NEAR)
        self.far = self._agent("far", Side.FAR)
        after = self.random.choice(("never", "never", "restart"))
        self.policy = {"fallback": {"after_first_token": after}, "evidence": {"before_acts": self.random.random() < 0.7}}
        tools = self.random.choice(([], [LOOK], [LOOK]))
        strategy = self.random.choice(STRATEGIES if tools else (*STRATEGIES, "subtasks"))
        self.options = {"strategy": strategy, "tools": tools}
        self.own = [clock] if self.random.random() < 0.4 else []

    def _agent(self, name: str, side: Side) -> ScriptedAgent:
        confidence = self.random.choice((None, 0.1, 0.5, 0.9, 0.99))
        return ScriptedAgent(lambda _: self._reply(name), name=name, side=side, model=f"model of {name}", confidence=confidence)

    def _reply(self, name: str) -> Reply:
        said: list[ScriptItem] = [self.random.choice((f"{name} ", " ", f"{name}\n")) for _ in range(self.random.randrange(4))]
        match self.random.randrange(8):
            case 0 | 1:
                said.append(self.random.choice(ERRORS)(f"{name} failed"))
            case 2 | 3:
                said.append(ToolCall(id=f"{name}-1", name="look", arguments={"at": name} if self.random.random() < 0.7 else {}))
            case 4 if self.own:
                said.append(ToolCall(id=f"{name}-2", name="clock"))
            case 5 if self.own:
                said += [ToolCall(id=f"{name}-3", name="clock"), ToolCall(id=f"{name}-4", name="look", arguments={"at": name})]
        return said


async def test_nothing_of_a_rejected_draft_reaches_the_caller() -> None:
    finished = 0
    for seed in range(1000):
        world = World(seed)
        agents = {"second": world.second} if world.random.random() < 0.3 else {}
        heard: list[TurnEvent] = []
        async with Hybrid(near=world.near, far=world.far, agents=agents, policy=world.policy, tools=world.own) as hybrid:
            try:
                async for event in hybrid.stream_turn("Look at it.", sensitivity="public", **world.options):  # type: ignore[arg-type]  # options of turns
                    heard.append(event)
            except NearfarError:
                speakers = {name for name in ("near", "second", "far") if name in text_of(heard)}
                assert len(speakers) <= 1, f"seed {seed}: two agents were heard of a turn that failed"
                continue
        finished += 1
        turn = turn_in(heard)
        assert text_of(heard) == turn.text, f"seed {seed}"
        assert {event.by for event in heard if isinstance(event, TurnText)} <= {turn.speaker}, f"seed {seed}"
        assert turn.model == f"model of {turn.agent}", f"seed {seed}"
        assert not any(other in turn.text for other in {"near", "second", "far"} - {turn.agent}), f"seed {seed}: {turn.text!r}"
        assert tuple(event.call for event in heard if isinstance(event, TurnCall)) == turn.calls, f"seed {seed}"
        assert all(made.id.startswith(turn.agent) and made.name == "look" for made in turn.calls), f"seed {seed}"
    assert finished > 500


async def test_nothing_of_a_rejected_draft_is_in_a_turn_that_is_not_streamed() -> None:
    finished = 0
    for seed in range(300):
        world = World(seed)
        async with Hybrid(near=world.near, far=world.far, policy=world.policy, tools=world.own) as hybrid:
            with suppress(NearfarError):
                turn = await hybrid.turn("Look at it.", sensitivity="public", **world.options)  # type: ignore[arg-type]  # options of turns
                finished += 1
                assert turn.model == f"model of {turn.agent}", f"seed {seed}"
                assert not any(other in turn.text for other in {"near", "far"} - {turn.agent}), f"seed {seed}: {turn.text!r}"
                assert all(made.id.startswith(turn.agent) for made in turn.calls), f"seed {seed}"
    assert finished > 150


async def test_text_that_nothing_can_replace_is_told_as_it_comes() -> None:
    gate = anyio.Event()
    far = ScriptedAgent([["One ", gate, "two."]], name="far", side=Side.FAR)
    async with Hybrid(far=far) as hybrid:
        events = hybrid.stream_turn("Count.", sensitivity="public", tools=[LOOK])
        assert await anext(events) == TurnText(text="One ", by=FAR)
        gate.set()
        assert [event.type async for event in events] == ["text", "turn_finished"]


async def test_the_agent_that_took_over_is_heard_as_it_speaks() -> None:
    gate = anyio.Event()
    far = ScriptedAgent([["One ", gate, "two."]], name="far", side=Side.FAR)
    async with Hybrid(near=ScriptedAgent(["Zero."], name="near", confidence=0.1), far=far) as hybrid:
        events = hybrid.stream_turn("Count.", sensitivity="public")
        first = await anext(events)
        assert isinstance(first, TurnText)
        assert (first.text, first.by.agent) == ("One ", "far")
        gate.set()
        assert [event.type async for event in events] == ["text", "turn_finished"]


async def test_a_draft_is_held_until_the_evidence_has_accepted_it() -> None:
    near = ScriptedAgent([["One ", "two."]], name="near", confidence=0.9)
    async with Hybrid(near=near, far=ScriptedAgent([], name="far", side=Side.FAR)) as hybrid:
        assert [event.type for event in await events_of(hybrid)] == ["text", "turn_finished"]


async def test_a_hedged_turn_tells_the_text_of_the_winner_alone() -> None:
    replies: Iterator[Reply] = iter(["Quick.", "Quick.", ["Slow ", anyio.Event()]])
    near = ScriptedAgent(lambda _: next(replies), name="near", model="small", confidence=0.9)
    far = ScriptedAgent(["Hedged."], name="far", side=Side.FAR, model="big")
    policy = {"strategy": "route", "hedge": {"enabled": True, "observations": 1, "least_seconds": 0}}
    async with Hybrid(near=near, far=far, policy=policy) as hybrid:
        events = [await events_of(hybrid) for _ in range(3)][-1]
    assert (text_of(events), turn_in(events).model) == ("Hedged.", "big")


async def test_a_failure_after_the_first_words_ends_the_turn() -> None:
    far = ScriptedAgent([["One ", StepLost("gone")]], name="far", side=Side.FAR)
    near = ScriptedAgent(["Two."], name="near", confidence=0.1)
    async with Hybrid(near=near, far=far) as hybrid:
        events = hybrid.stream_turn("Count.", sensitivity="public")
        assert await anext(events) == TurnText(text="One ", by=FAR)
        with pytest.raises(StepLost):
            await anext(events)


async def test_a_caller_that_leaves_cancels_its_turn_within_one_chunk() -> None:
    far = ScriptedAgent([["One ", "two ", "three ", "four "]], name="far", side=Side.FAR, pace=anyio.lowlevel.checkpoint)
    async with Hybrid(far=far) as hybrid:
        events = hybrid.stream_turn("Count.", sensitivity="public")
        await anext(events)
        said = far.tokens_decoded
        await events.aclose()
    assert (far.cancelled_steps, far.live_steps) == (1, 0)
    assert far.tokens_decoded <= said + 1


async def test_a_caller_that_leaves_while_a_draft_is_held_cancels_it() -> None:
    is_at_work = anyio.Event()

    async def wait() -> None:
        if near.tokens_decoded:
            is_at_work.set()
            await anyio.sleep_forever()

    near = ScriptedAgent([["One ", "two."]], name="near", confidence=0.9, pace=wait)
    async with (
        Hybrid(near=near, far=ScriptedAgent([], name="far", side=Side.FAR)) as hybrid,
        anyio.create_task_group() as running,
    ):
        running.start_soon(events_of, hybrid)
        await is_at_work.wait()
        running.cancel_scope.cancel()
    assert (near.cancelled_steps, near.live_steps) == (1, 0)
