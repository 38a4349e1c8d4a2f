"""A cached agent gives what was answered before, to whom it may be given, and asks the agent for the rest."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from stored_answers import PRICES, SAME_STRENGTH, STRENGTH, World, ask

from nearfar.orchestrator.cache.agent import CachedAgent
from nearfar.orchestrator.cache.thresholds import statistics
from nearfar.orchestrator.task import TaskScope, within_scope
from nearfar.protocols import (
    Agent,
    Finished,
    InvalidOutput,
    Limits,
    Message,
    NearfarError,
    RateLimited,
    ScriptedAgent,
    Side,
    StepReply,
    StepRequest,
    TextDelta,
    ToolCall,
    ToolResult,
    ToolSpec,
    Unavailable,
    Usage,
    complete,
    stream,
)
from nearfar.protocols.fakes import Reply
from nearfar.protocols.steps import Sensitivity

pytestmark = pytest.mark.anyio
TOOL = ToolSpec(name="look")


def numbered(**options: object) -> ScriptedAgent:
    """Says how many times it was asked, so that what comes from the cache can be told from what does not."""
    count = iter(range(1, 1000))
    return ScriptedAgent(lambda _: f"Answer {next(count)}.", prices=PRICES, **options)  # type: ignore[arg-type]  # options are free here


async def text_of(agent: Agent, request: StepRequest) -> str:
    return (await complete(agent, request)).text


async def test_the_same_request_is_answered_from_the_cache_and_says_so(tmp_path: Path) -> None:
    with World().cache(tmp_path / "answers.db") as cache:
        agent = CachedAgent(numbered(), cache)
        first, second = [await complete(agent, ask(STRENGTH)) for _ in range(2)]
    assert second.text == first.text == "Answer 1."
    assert first.finished.saved is None
    assert second.finished.usage == Usage()
    assert second.finished.saved == first.finished.usage
    assert second.finished.model == first.finished.model


async def test_a_stored_answer_streams_in_pieces(tmp_path: Path) -> None:
    long = "\n".join(f"Line {number}: \N{FAMILY} and more of it." for number in range(40))
    with World().cache(tmp_path / "answers.db") as cache:
        agent = CachedAgent(ScriptedAgent([long]), cache)
        await complete(agent, ask("long"))
        async with stream(agent, ask("long")) as events:
            heard = [event async for event in events]
    assert "".join(event.text for event in heard if isinstance(event, TextDelta)) == long
    assert len(heard) > 10
    assert isinstance(heard[-1], Finished)


async def test_a_question_in_other_words_is_answered_from_the_cache(tmp_path: Path) -> None:
    with World().cache(tmp_path / "answers.db") as cache:
        agent = CachedAgent(numbered(), cache)
        assert await text_of(agent, ask(STRENGTH)) == await text_of(agent, ask(SAME_STRENGTH))


async def test_a_question_that_a_guard_objects_to_is_not(tmp_path: Path) -> None:
    with World().cache(tmp_path / "answers.db", threshold=0.0) as cache:
        agent = CachedAgent(numbered(), cache)
        texts = {await text_of(agent, ask(prompt)) for prompt in (STRENGTH, "How can I not become physically strong?")}
    assert len(texts) == 2


CROSSINGS: dict[str, tuple[dict[str, object], dict[str, str]]] = {
    "user": ({}, {"user": "bea"}),
    "policy": ({}, {"policy": "other"}),
    "task_class": ({}, {"task_class": "health"}),
    "sensitivity": ({"sensitivity": Sensitivity.PRIVATE}, {}),
    "tools": ({"tools": (TOOL,)}, {}),
    "schema": ({"output_schema": {"type": "string"}}, {}),
    "limit": ({"max_output_tokens": 100}, {}),
    "adapter": ({"adapter": "formal"}, {}),
    "stop": ({"stop": ("never said",)}, {}),
    "system prompt": ({"messages": (Message.system("Be brief."), Message.user(SAME_STRENGTH))}, {}),
    "earlier turns": ({"messages": (Message.user("Hi"), Message.assistant("Hi"), Message.user(SAME_STRENGTH))}, {}),
}


@pytest.mark.parametrize("prompt", [STRENGTH, SAME_STRENGTH], ids=["same words", "other words"])
@pytest.mark.parametrize("crossing", CROSSINGS)
async def test_no_hit_crosses_the_partition(crossing: str, prompt: str, tmp_path: Path) -> None:
    fields, of = CROSSINGS[crossing]
    messages = fields.get("messages", (Message.user(SAME_STRENGTH),))
    assert isinstance(messages, tuple)
    changed = {**fields, "messages": (*messages[:-1], Message.user(prompt))}
    reply = '"strong"' if crossing == "schema" else "Answer."
    inner = ScriptedAgent(lambda _: reply, model="scripted")
    with World().cache(tmp_path / "answers.db", threshold=0.0) as cache:
        agent = CachedAgent(inner, cache)
        with within_scope(TaskScope(user="ada")):
            await complete(agent, ask(STRENGTH))
        with within_scope(TaskScope(**{"user": "ada", **of})):  # type: ignore[arg-type]  # all are texts
            try:
                again = await complete(agent, ask(prompt, **changed))
            except NearfarError:  # the agent knows no adapters
                again = None
    assert again is None or again.finished.saved is None
    assert len(inner.requests) == 2


async def test_no_hit_crosses_models(tmp_path: Path) -> None:
    with World().cache(tmp_path / "answers.db", threshold=0.0) as cache:
        await complete(CachedAgent(numbered(model="small"), cache), ask(STRENGTH))
        reply = await complete(CachedAgent(numbered(model="large"), cache), ask(SAME_STRENGTH))
    assert reply.finished.saved is None


async def test_ids_of_calls_are_chance_and_their_results_are_not(tmp_path: Path) -> None:
    def turns(identifier: str, result: str) -> StepRequest:
        call = ToolCall(id=identifier, name="look")
        said = Message.tool(ToolResult(call_id=identifier, name="look", content=result))
        return ask("", messages=(Message.user("Look."), Message.assistant("", (call,)), said), tools=(TOOL,))

    with World().cache(tmp_path / "answers.db") as cache:
        agent = CachedAgent(numbered(), cache)
        texts = [await text_of(agent, turns(*each)) for each in (("a", "sun"), ("b", "sun"), ("a", "rain"))]
    assert texts == ["Answer 1.", "Answer 1.", "Answer 2."]


NOT_STORED: dict[str, Callable[[], tuple[ScriptedAgent, StepRequest]]] = {
    "calls a tool": lambda: (ScriptedAgent(lambda _: ToolCall(id="1", name="look")), ask("Look.", tools=(TOOL,))),
    "cut off": lambda: (ScriptedAgent(lambda _: "one two three four"), ask("Count.", max_output_tokens=2)),
    "ended by a stop sequence": lambda: (ScriptedAgent(lambda _: "one two three"), ask("Count.", stop=("three",))),
    "unsure": lambda: (ScriptedAgent(lambda _: "Perhaps.", confidence=0.3), ask("Is it?")),
    "empty": lambda: (ScriptedAgent(lambda _: []), ask("Say nothing.")),
    "sampled": lambda: (numbered(), ask("Name a colour.", temperature=0.8)),
    "of the moment": lambda: (numbered(), ask("What is the weather in Ulm today?")),
}


@pytest.mark.parametrize("why", NOT_STORED)
async def test_what_may_not_be_stored_is_computed_again(why: str, tmp_path: Path) -> None:
    inner, request = NOT_STORED[why]()
    with World().cache(tmp_path / "answers.db") as cache:
        agent = CachedAgent(inner, cache)
        replies = [await complete(agent, request) for _ in range(2)]
    assert len(inner.requests) == 2
    assert all(reply.finished.saved is None for reply in replies)


async def test_an_answer_that_failed_is_computed_again(tmp_path: Path) -> None:
    inner = ScriptedAgent([["Half ", InvalidOutput("it broke")], "Whole."])
    with World().cache(tmp_path / "answers.db") as cache:
        agent = CachedAgent(inner, cache)
        with pytest.raises(InvalidOutput):
            await complete(agent, ask("Go."))
        assert await text_of(agent, ask("Go.")) == "Whole."


async def test_no_store_neither_reads_nor_writes(tmp_path: Path) -> None:
    with World().cache(tmp_path / "answers.db") as cache:
        agent = CachedAgent(numbered(), cache)
        with within_scope(TaskScope(caching="no-store")):
            assert [await text_of(agent, ask(STRENGTH)) for _ in range(2)] == ["Answer 1.", "Answer 2."]
        assert await text_of(agent, ask(STRENGTH)) == "Answer 3."
        with within_scope(TaskScope(caching="no-store")):
            assert await text_of(agent, ask(STRENGTH)) == "Answer 4."


async def test_a_far_agent_is_not_shielded_from_private_text(tmp_path: Path) -> None:
    inner = numbered(side=Side.FAR)
    with World().cache(tmp_path / "answers.db") as cache:
        agent = CachedAgent(inner, cache)
        await complete(agent, ask(STRENGTH))
        with pytest.raises(NearfarError, match="private"):
            await complete(agent, ask(STRENGTH, sensitivity=Sensitivity.PRIVATE))


async def test_of_identical_requests_at_the_same_time_one_is_computed(tmp_path: Path) -> None:
    go = anyio.Event()
    inner = ScriptedAgent(lambda _: ["Slow ", go, "answer."])
    replies: list[StepReply] = []
    with World().cache(tmp_path / "answers.db") as cache, anyio.fail_after(20):
        agent = CachedAgent(inner, cache)

        async def read() -> None:
            replies.append(await complete(agent, ask("Same.")))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(read)
            while inner.tokens_decoded == 0:  # noqa: ASYNC110 - the agent sets no event
                await anyio.sleep(0.001)
            go.set()
    assert len(inner.requests) == 1
    assert [reply.text for reply in replies] == ["Slow answer."] * 5
    assert sum(reply.finished.usage.total_tokens > 0 for reply in replies) == 1
    assert sum(reply.finished.saved is not None for reply in replies) == 4


async def test_where_the_first_of_them_leaves_the_others_hear_the_end(tmp_path: Path) -> None:
    go, heard, leave = anyio.Event(), anyio.Event(), anyio.CancelScope()
    inner = ScriptedAgent(lambda _: ["Slow ", go, "answer."])
    with World().cache(tmp_path / "answers.db") as cache, anyio.fail_after(20):
        agent = CachedAgent(inner, cache)

        async def first() -> None:
            with leave:
                async with stream(agent, ask("Same.")) as events:
                    async for _ in events:
                        heard.set()
            go.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first)
            await heard.wait()
            async with stream(agent, ask("Same.")) as staying:
                assert await anext(aiter(staying)) == TextDelta(text="Slow ")
                leave.cancel()
                rest = [event async for event in staying]
    assert len(inner.requests) == 1
    assert inner.cancelled_steps == 0
    assert rest[0] == TextDelta(text="answer.")
    assert isinstance(rest[-1], Finished)
    assert rest[-1].usage.total_tokens > 0


async def test_where_all_of_them_leave_the_computing_stops_and_nothing_is_stored(tmp_path: Path) -> None:
    never, heard = anyio.Event(), anyio.Event()
    replies: list[Reply] = [["Slow ", never], "Fresh."]
    inner = ScriptedAgent(replies)
    with World().cache(tmp_path / "answers.db") as cache, anyio.fail_after(20):
        agent = CachedAgent(inner, cache)

        async def read() -> None:
            async with stream(agent, ask("Same.")) as events:
                async for _ in events:
                    heard.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(read)
            await heard.wait()
            tasks.cancel_scope.cancel()
        assert inner.live_steps == 0
        assert inner.cancelled_steps == 1
        assert await text_of(agent, ask("Same.")) == "Fresh."


async def test_all_of_them_hear_of_a_failure(tmp_path: Path) -> None:
    go = anyio.Event()
    inner = ScriptedAgent(lambda _: [go, Unavailable("gone")])
    failed = 0
    with World().cache(tmp_path / "answers.db") as cache, anyio.fail_after(20):
        agent = CachedAgent(inner, cache)

        async def read() -> None:
            nonlocal failed
            try:
                await complete(agent, ask("Same."))
            except Unavailable:
                failed += 1

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(read)
            while inner.live_steps == 0:  # noqa: ASYNC110 - the agent sets no event
                await anyio.sleep(0.001)
            go.set()
    assert failed == 3
    assert len(inner.requests) == 1


@pytest.mark.parametrize("verdict", [False, True, Unavailable("the verifier is gone")])
async def test_an_answer_in_other_words_is_served_only_where_the_verifier_agrees(verdict: bool | NearfarError, tmp_path: Path) -> None:
    asked: list[tuple[str, str, str]] = []

    async def verify(question: str, stored: str, answer: str) -> bool:
        asked.append((question, stored, answer))
        if isinstance(verdict, NearfarError):
            raise verdict
        return verdict

    with World().cache(tmp_path / "answers.db") as cache:
        agent = CachedAgent(numbered(), cache, verifier=verify)
        await complete(agent, ask(STRENGTH))
        assert await text_of(agent, ask(SAME_STRENGTH)) == ("Answer 1." if verdict is True else "Answer 2.")
        assert await text_of(agent, ask(STRENGTH)) == "Answer 1."
    assert asked == [(SAME_STRENGTH, STRENGTH, "Answer 1.")]


async def test_a_shadow_check_answers_afresh_and_judges(tmp_path: Path) -> None:
    world = World()
    with world.cache(tmp_path / "answers.db", shadow_share=0.5) as cache:
        agent = CachedAgent(numbered(), cache)
        await complete(agent, ask(STRENGTH))
        world.chance = 0.4
        assert await text_of(agent, ask(SAME_STRENGTH)) == "Answer 2."
        judged = cache.thresholds.judgements("general")
    assert [judgement.is_same for judgement in judged] == [False]
    assert judged[0].similarity > 0.9


async def test_load_relaxes_no_further_than_its_own_budget_was_proved(tmp_path: Path) -> None:
    """350 pairs from 0.92 on prove 2 % there; the pairs between 0.89 and 0.92 prove no more than 5 %."""
    with World().cache(tmp_path / "answers.db", false_hit_budget=0.02, relaxed_budget=0.05) as cache:
        for similarity, count, false in ((0.96, 350, 0), (0.91, 200, 10), (0.86, 300, 150)):
            for number in range(count):
                cache.thresholds.add("general", similarity, was_served=True, is_same=number >= false)
        usual, loaded = cache.thresholds.of("general"), cache.thresholds.of("general", is_loaded=True)
    assert usual is not None
    assert loaded is not None
    assert 0.91 < usual <= 0.96
    assert 0.86 < loaded <= 0.91


async def test_an_agent_whose_provider_asks_to_slow_down_counts_as_loaded(tmp_path: Path) -> None:
    """At the usual budget nothing may be served any more; at the relaxed one it may."""
    inner = ScriptedAgent(["Answer 1.", RateLimited("slow down", retry_after=60.0), "Answer 2."], limits=Limits(concurrency=8))
    with World().cache(tmp_path / "answers.db", false_hit_budget=0.001, relaxed_budget=0.2, threshold=1.0) as cache:
        agent = CachedAgent(inner, cache)
        await complete(agent, ask(STRENGTH))
        for _ in range(50):
            cache.thresholds.add("general", 0.95, was_served=False, is_same=True)
        with pytest.raises(RateLimited):
            await complete(agent, ask(SAME_STRENGTH))
        assert await text_of(agent, ask(SAME_STRENGTH)) == "Answer 1."


async def test_a_closed_agent_serves_nothing(tmp_path: Path) -> None:
    with World().cache(tmp_path / "answers.db") as cache:
        agent = CachedAgent(numbered(), cache)
        await complete(agent, ask(STRENGTH))
        await agent.aclose()
        with pytest.raises(Unavailable):
            await complete(agent, ask(STRENGTH))


async def test_a_cache_that_cannot_be_opened_costs_no_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    with World().cache(tmp_path / "file" / "answers.db") as cache:
        agent = CachedAgent(numbered(), cache)
        assert [await text_of(agent, ask(STRENGTH)) for _ in range(2)] == ["Answer 1.", "Answer 2."]
    assert "without its cache" in caplog.text


async def test_each_of_those_who_share_an_answer_is_counted_once_whoever_hears_its_end_first(tmp_path: Path) -> None:
    inner = ScriptedAgent(lambda _: ["Slow ", "answer."])
    with World().cache(tmp_path / "answers.db", semantic=False) as cache, anyio.fail_after(20):
        agent = CachedAgent(inner, cache)
        async with stream(agent, ask("Same.")) as first:
            assert await anext(aiter(first)) == TextDelta(text="Slow ")
            joined = await complete(agent, ask("Same."))
            rest = [event async for event in first]
        (counted,) = statistics(cache.database)
    assert isinstance(rest[-1], Finished)
    assert sorted(saved is not None for saved in (rest[-1].saved, joined.finished.saved)) == [False, True]
    assert (counted.misses, counted.shared) == (1, 1)
