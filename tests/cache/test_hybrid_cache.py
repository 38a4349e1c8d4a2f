"""`Hybrid` with a cache in front of its far agents."""

from decimal import Decimal
from pathlib import Path

import pytest
from stored_answers import PRICES, SAME_STRENGTH, STRENGTH

from nearfar import Hybrid, Policy, Records
from nearfar.orchestrator.cache import AnswerCache
from nearfar.orchestrator.compose.config import parse_config
from nearfar.orchestrator.task.stores import CacheConfig
from nearfar.protocols import ConfigError, ScriptedAgent, Side

pytestmark = pytest.mark.anyio
PUBLIC = Policy.model_validate({"strategy": "cloud", "sensitivity": "public"})


def numbered(side: Side) -> ScriptedAgent:
    count = iter(range(1, 1000))
    return ScriptedAgent(lambda _: f"Answer {next(count)}.", name=side.value, side=side, prices=PRICES)


def hybrid(path: Path, **options: object) -> Hybrid:
    settings = CacheConfig.model_validate({"path": path, "shadow_share": 0.0, **options})
    return Hybrid(near=numbered(Side.NEAR), far=numbered(Side.FAR), policy=PUBLIC, records=Records(cache=settings))


async def test_the_result_says_what_came_from_the_cache_and_what_that_saved(tmp_path: Path) -> None:
    async with hybrid(tmp_path / "answers.db") as both:
        first, second = await both.run(STRENGTH), await both.run(SAME_STRENGTH)
    assert second.text == first.text
    assert second.calls[0].saved == first.calls[0].usage
    assert second.saved_dollars == first.dollars
    assert second.dollars == Decimal(0)
    assert first.saved_dollars == Decimal(0)


async def test_what_is_stored_outlives_the_process_that_stored_it(tmp_path: Path) -> None:
    for expected in (False, True):
        async with hybrid(tmp_path / "answers.db") as both:
            assert ((await both.run(STRENGTH)).calls[0].saved is not None) is expected


async def test_one_user_is_never_served_what_another_asked(tmp_path: Path) -> None:
    async with hybrid(tmp_path / "answers.db") as both:
        texts = [
            (await both.run(prompt, user=user)).text for prompt, user in ((STRENGTH, "ada"), (STRENGTH, "bea"), (SAME_STRENGTH, "bea"))
        ]
    assert texts == ["Answer 1.", "Answer 2.", "Answer 2."]


async def test_a_task_may_ask_for_no_store(tmp_path: Path) -> None:
    async with hybrid(tmp_path / "answers.db") as both:
        texts = [(await both.run(STRENGTH, cache="no-store")).text for _ in range(2)]
    assert texts == ["Answer 1.", "Answer 2."]


async def test_another_policy_has_answers_of_its_own(tmp_path: Path) -> None:
    async with hybrid(tmp_path / "answers.db") as both:
        await both.run(STRENGTH)
        other = await both.run(STRENGTH, policy=PUBLIC.model_copy(update={"maximum_turns": 3}))
    assert other.calls[0].saved is None


async def test_the_near_agent_is_cached_only_where_its_side_is_named(tmp_path: Path) -> None:
    async with hybrid(tmp_path / "far.db") as both:
        texts = [(await both.run(STRENGTH, strategy="device", sensitivity="private")).text for _ in range(2)]
    assert texts == ["Answer 1.", "Answer 2."]
    async with hybrid(tmp_path / "both.db", sides=("near", "far")) as both:
        texts = [(await both.run(STRENGTH, strategy="device", sensitivity="private")).text for _ in range(2)]
    assert texts == ["Answer 1.", "Answer 1."]


async def test_a_cache_that_was_passed_in_is_left_open(tmp_path: Path) -> None:
    cache = AnswerCache(CacheConfig(path=tmp_path / "answers.db"))
    async with Hybrid(far=numbered(Side.FAR), policy=PUBLIC, records=Records(cache=cache)) as one:
        await one.run(STRENGTH)
    assert cache.clear() == 1
    cache.close()


async def test_an_answer_that_was_reported_wrong_is_given_no_more(tmp_path: Path) -> None:
    async with hybrid(tmp_path / "answers.db") as both:
        await both.run("Why is the sky blue?")
        await both.run(STRENGTH)
        wrong = await both.run(SAME_STRENGTH)
        both.report(wrong, score=0.0)
        assert (await both.run(STRENGTH)).text == "Answer 3."
        assert (await both.run("Why is the sky blue?")).text == "Answer 1."


@pytest.mark.parametrize(("says", "expected"), [("Yes.", "Answer 1."), ("No.", "Answer 2.")])
async def test_an_agent_on_this_device_may_verify(says: str, expected: str, tmp_path: Path) -> None:
    settings = CacheConfig(path=tmp_path / "answers.db", shadow_share=0.0, verifier="near")
    near = ScriptedAgent(lambda _: says, name="near")
    async with Hybrid(near=near, far=numbered(Side.FAR), policy=PUBLIC, records=Records(cache=settings)) as both:
        await both.run(STRENGTH)
        assert (await both.run(SAME_STRENGTH)).text == expected
    assert near.requests[0].messages[-1].text == f"1. {SAME_STRENGTH}\n2. {STRENGTH}"


async def test_a_verifier_has_to_be_on_this_device(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no agent 'far' on this device"):
        Hybrid(far=numbered(Side.FAR), records=Records(cache=CacheConfig(path=tmp_path / "answers.db", verifier="far")))


def test_the_section_is_read_and_mistakes_in_it_are_named() -> None:
    config = parse_config(
        '[near]\nmodel = "near"\n[cache]\nsides = ["near"]\n[cache.categories.billing]\nthreshold = 0.95\nentries = 10\n', "a.toml"
    )
    assert config.cache is not None
    rules = config.cache.of_category("billing")
    assert (rules.threshold, rules.entries, rules.time_to_live) == (0.95, 10, config.cache.time_to_live)
    with pytest.raises(ConfigError, match=r"a.toml, line 2: cache.treshold: unknown key; did you mean 'threshold'"):
        parse_config("[cache]\ntreshold = 0.9\n", "a.toml")
    with pytest.raises(ConfigError, match="relaxed_budget is below"):
        parse_config("[cache]\nrelaxed_budget = 0.001\n", "a.toml")
