"""The log of decisions, and the traces that are read from it."""

import json
from pathlib import Path

import pytest

from nearfar import tool
from nearfar.orchestrator.hybrid import Hybrid
from nearfar.orchestrator.routing.auto import Chooser
from nearfar.orchestrator.routing.traces import read_traces
from nearfar.orchestrator.task.modes import TaskProfile
from nearfar.orchestrator.task.policy import AutoConfig, Policy
from nearfar.protocols import ConfigError, ScriptedAgent, Side, ToolCall

pytestmark = pytest.mark.anyio


def pair(log: Path, *, near: list[str], far: list[str], strategy: str = "route", sensitivity: str = "public") -> Hybrid:
    policy = Policy.model_validate({"strategy": strategy, "sensitivity": sensitivity, "router": {"log": log}})
    agents = ScriptedAgent(near, name="near", confidence=0.4), ScriptedAgent(far, name="far", side=Side.FAR)
    return Hybrid(near=agents[0], far=agents[1], policy=policy)


async def test_reported_tasks_become_traces(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    async with pair(log, near=["a", "b"], far=["c"], strategy="cascade") as hybrid:
        result = await hybrid.run("What is it?", task_class="quiz/easy")
        hybrid.report(result, score=1.0)
        await hybrid.run("And this?", strategy="device")
    first, second = read_traces(log)
    assert (first.prompt, first.task_class, set(first.outcomes)) == ("What is it?", "quiz/easy", {"near", "far"})
    assert (first.outcomes["far"].score, first.outcomes["near"].score) == (1.0, None)
    assert first.outcomes["near"].confidence == pytest.approx(0.4)
    assert second.outcomes["near"].score is None


async def test_the_words_of_a_private_task_are_not_written(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    async with pair(log, near=["Yes."], far=[], sensitivity="private") as hybrid:
        result = await hybrid.run("Is my secret safe?")
        hybrid.report(result, score=1.0)
    assert "secret" not in log.read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match="no traces"):
        read_traces(log)


async def test_the_words_of_a_public_task_that_read_something_private_are_not_written(tmp_path: Path) -> None:
    @tool(returns="device", effect="read")
    def read_diary() -> str:
        """What was written."""
        return "the vault"

    log = tmp_path / "decisions.jsonl"
    policy = Policy.model_validate({"strategy": "device", "sensitivity": "public", "router": {"log": log}})
    near = ScriptedAgent([ToolCall(id="1", name="read_diary", arguments={}), "It is about the vault."], name="near")
    async with Hybrid(near=near, tools=[read_diary], policy=policy) as hybrid:
        await hybrid.run("What does it say?")
    assert "vault" not in log.read_text(encoding="utf-8")
    assert log.stat().st_mode & 0o077 == 0


async def test_an_answer_stands_where_its_record_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with pair(tmp_path / "missing" / "decisions.jsonl", near=["a"], far=[]) as hybrid:
        result = await hybrid.run("What is it?")
        assert result.text == "a"
        assert "decisions.jsonl cannot be written" in caplog.text
        with pytest.raises(ConfigError, match=r"decisions.jsonl cannot be written"):
            hybrid.report(result, score=1.0)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("noise", "line 1"),
        ('{"prompt": "a"}', "line 1: outcomes"),
        ('{"prompt": "", "outcomes": {"near": {"score": 1}}}', "line 1: prompt"),
        ('{"prompt": "a", "outcomes": {"near": {"score": 2}}}', "line 1: outcomes.near.score"),
        ('{"prompt": "a", "outcomes": {"near": {"scores": 1}}}', "line 1: outcomes.near.scores"),
        ('{"type": "score", "id": "1"}', "line 1: agent"),
    ],
)
async def test_a_line_that_is_no_trace_is_named(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=problem):
        read_traces(path)


async def test_traces_that_are_not_there_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_traces(tmp_path / "none.jsonl")
    (tmp_path / "bad.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_traces(tmp_path / "bad.jsonl.gz")


async def test_a_later_process_knows_what_was_reported_to_an_earlier_one(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    async with pair(log, near=["a"] * 15, far=["b"] * 15) as hybrid:
        for _ in range(15):
            hybrid.report(await hybrid.run("Is it legal?", task_class="law", sensitivity="private"), score=0.0)
        taught = hybrid.explain_route("Is it legal?", task_class="law").estimate_of("near")
    async with pair(log, near=[], far=[]) as later:
        known = later.explain_route("Is it legal?", task_class="law").estimate_of("near")
        fresh = later.explain_route("Is it raining?", task_class="weather").estimate_of("near")
    assert taught is not None
    assert known is not None
    assert fresh is not None
    assert known.success == taught.success
    assert known.success.value < fresh.success.value


async def test_a_damaged_log_is_named_before_a_task_is_served(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    log.write_text("noise\n", encoding="utf-8")
    async with pair(log, near=["a"], far=[]) as hybrid:
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"decisions.jsonl, line 1"):
                await hybrid.run("What is it?")


async def test_the_propensity_of_an_explored_choice_is_on_record_and_traces_are_read_all_the_same(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    policy = Policy.model_validate({"strategy": "route", "sensitivity": "public", "router": {"log": log, "explore_share": 1.0}})
    agents = ScriptedAgent(["a"] * 5, name="near"), ScriptedAgent(["b"] * 5, name="far", side=Side.FAR)
    async with Hybrid(near=agents[0], far=agents[1], policy=policy) as hybrid:
        results = [await hybrid.run(f"What is {number}?") for number in range(5)]
    logged = [json.loads(line)["decision"]["propensity"] for line in log.read_text(encoding="utf-8").splitlines()]
    assert logged == [result.decision.propensity for result in results]
    assert all(0 < propensity < 1 for propensity in logged)
    assert len(read_traces(log)) == 5


def test_auto_tells_with_which_probability_it_drew_a_configuration() -> None:
    chooser = Chooser(AutoConfig(explore_share=1.0), seed=1)
    policy = Policy.model_validate({"strategy": "auto", "sensitivity": "public"})
    offered = chooser.explain(TaskProfile.of("Is it open?", ()), policy).candidates
    tried = [chooser.choose(TaskProfile.of("Is it open?", ()), policy) for _ in offered]
    assert tried[0].propensity == 1  # each is tried once, which is no matter of chance
    chosen = [chooser.choose(TaskProfile.of("Is it open?", ()), policy) for _ in range(300)]
    for arm in {each.chosen.key for each in chosen}:
        drawn = [each for each in chosen if each.chosen.key == arm]
        assert drawn[0].propensity == pytest.approx(len(drawn) / len(chosen), abs=0.1)
    assert chooser.explain(TaskProfile.of("Is it open?", ()), policy).propensity == 1
