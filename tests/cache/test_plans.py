"""Plans that worked serve later tasks of the same intent; those that did not are dropped."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_answers import PRICES

from nearfar import Hybrid, Policy, Records
from nearfar.orchestrator.cache import AnswerCache
from nearfar.orchestrator.cache.plans import TaskIntent, is_complete
from nearfar.orchestrator.cache.thresholds import PLANS, CategoryStatistics, statistics
from nearfar.orchestrator.task.stores import CacheConfig
from nearfar.protocols import DeadlineExceeded, ScriptedAgent, Side, StepRequest, Unavailable
from nearfar.protocols.fakes import Reply

PEVR = Policy.model_validate({"strategy": "pevr", "sensitivity": "public"})
PLAN = '1. search(query="East Calder")\n2. open the page of East Calder\n3. answer'


class Agents:
    """A supervisor that plans and an executor that answers, both noting what they were asked."""

    def __init__(self, path: Path, *, plan: str = PLAN, near: Callable[[StepRequest], Reply] = lambda _: "A bridge.") -> None:
        self.near = ScriptedAgent(near, name="near", prices=PRICES)
        self.far = ScriptedAgent(lambda _: plan, name="far", side=Side.FAR, prices=PRICES)
        self.cache = AnswerCache(CacheConfig(path=path, plans=True, sides=()))

    @asynccontextmanager
    async def working(self, policy: Policy = PEVR) -> AsyncGenerator[Hybrid]:
        async with Hybrid(near=self.near, far=self.far, policy=policy, records=Records(cache=self.cache)) as both:
            yield both
        self.cache.close()

    @property
    def shown(self) -> list[str]:
        """The prompts of the executor."""
        return [request.messages[-1].text for request in self.near.requests]

    @property
    def counted(self) -> CategoryStatistics:
        return next(each for each in statistics(self.cache.database) if each.category == PLANS)


@pytest.mark.anyio
async def test_a_plan_serves_a_task_that_names_something_else(tmp_path: Path) -> None:
    agents = Agents(tmp_path / "answers.db")
    async with agents.working() as both:
        await both.run("Find the emblem of East Calder.")
        result = await both.run("Find the emblem of Much Wenlock.")
        assert agents.counted.exact == agents.counted.misses == 1
        assert agents.counted.saved_tokens > 0
        assert agents.counted.saved_dollars > 0
    assert len(agents.far.requests) == 1
    assert agents.shown[1].endswith(PLAN.replace("East Calder", "Much Wenlock"))
    assert "the plan is that of an earlier task of the same intent" in result.reasons


@pytest.mark.anyio
@pytest.mark.parametrize("other", ["Find the motto of East Calder.", "Find the emblem of East Calder, not of Ulm."])
async def test_a_task_that_wants_something_else_has_a_plan_of_its_own(other: str, tmp_path: Path) -> None:
    agents = Agents(tmp_path / "answers.db")
    async with agents.working() as both:
        await both.run("Find the emblem of East Calder.")
        await both.run(other)
    assert len(agents.far.requests) == 2


@pytest.mark.anyio
async def test_users_and_no_store_keep_plans_apart(tmp_path: Path) -> None:
    agents = Agents(tmp_path / "answers.db")
    async with agents.working() as both:
        await both.run("Find the emblem of East Calder.", user="ada")
        await both.run("Find the emblem of East Calder.", user="bea")
        await both.run("Find the emblem of East Calder.", user="ada", cache="no-store")
        assert len(agents.far.requests) == 3
        await both.run("Find the emblem of East Calder.", user="ada")
    assert len(agents.far.requests) == 3


@pytest.mark.anyio
async def test_the_near_model_fits_a_plan_that_the_task_does_not_fill(tmp_path: Path) -> None:
    fitted = '1. search(query="Ulm")\n2. answer'
    agents = Agents(tmp_path / "answers.db", near=lambda request: fitted if request.messages[0].role == "system" else "A bridge.")
    async with agents.working() as both:
        await both.run("Find the emblem of East Calder.")
        result = await both.run("Find the emblem of East Calder in 1950.")
    assert len(agents.far.requests) == 1
    assert [call.role for call in result.calls] == ["adapt", "execute"]
    assert agents.shown[-1].endswith(fitted)


@pytest.mark.anyio
async def test_where_the_near_model_cannot_fit_it_the_plan_is_made_anew(tmp_path: Path) -> None:
    def answer(request: StepRequest) -> Reply:
        return Unavailable("busy") if request.messages[0].role == "system" else "A bridge."

    agents = Agents(tmp_path / "answers.db", near=answer)
    async with agents.working() as both:
        await both.run("Find the emblem of East Calder.")
        await both.run("Find the emblem of East Calder in 1950.")
    assert len(agents.far.requests) == 2


@pytest.mark.anyio
async def test_a_plan_whose_task_fails_is_dropped(tmp_path: Path) -> None:
    outcomes: list[Reply] = ["A bridge.", Unavailable("gone"), "A bridge."]
    replies = iter(outcomes)
    agents = Agents(tmp_path / "answers.db", near=lambda _: next(replies))
    async with agents.working() as both:
        await both.run("Find the emblem of East Calder.")
        await both.run("Find the emblem of East Calder.")  # the near agent is gone, and the far one answers in its place
        planned = len(agents.far.requests)
        await both.run("Find the emblem of East Calder.")
    assert len(agents.far.requests) == planned + 1


@pytest.mark.anyio
async def test_a_plan_whose_task_runs_out_of_time_is_dropped(tmp_path: Path) -> None:
    outcomes: list[Reply] = ["A bridge.", anyio.Event(), "A bridge."]
    replies = iter(outcomes)
    agents = Agents(tmp_path / "answers.db", near=lambda _: next(replies))
    async with agents.working() as both:
        await both.run("Find the emblem of East Calder.")
        with pytest.raises(DeadlineExceeded):
            await both.run("Find the emblem of East Calder.", timeout=0.5)
        planned = len(agents.far.requests)
        await both.run("Find the emblem of East Calder.")
    assert len(agents.far.requests) == planned + 1


@pytest.mark.anyio
async def test_subtasks_begin_with_an_earlier_cut(tmp_path: Path) -> None:
    parts: list[dict[str, object]] = [{"id": part, "task": f"Find the {part} of Ulm.", "needs": []} for part in ("mayor", "river")]
    cut = json.dumps({"subtasks": parts})

    def far(request: StepRequest) -> Reply:
        return cut if request.output_schema is not None else "Both."

    agents = Agents(tmp_path / "answers.db")
    agents.far = ScriptedAgent(far, name="far", side=Side.FAR, prices=PRICES)
    policy = Policy.model_validate({"strategy": "subtasks", "sensitivity": "public"})
    async with agents.working(policy) as both:
        first = await both.run("Find mayor and river of Ulm.")
        second = await both.run("Find mayor and river of Bonn.")
    assert [call.role for call in first.calls].count("plan") == 1
    assert [call.role for call in second.calls].count("plan") == 0
    asked = [request.messages[-1].text for request in (*agents.near.requests, *agents.far.requests)]
    assert any("Find the river of Bonn." in text for text in asked)


def test_an_intent_is_what_is_wanted_without_what_is_named() -> None:
    first = TaskIntent.of('Book a table for 4 at "Da Mario" on 2026-03-01 for Ada Lovelace.')
    second = TaskIntent.of('Book a table for 12 at "Zum Ochsen" on 2027-11-30 for Max Born.')
    assert first.words == second.words
    assert first.specifics == ("4", '"Da Mario"', "2026-03-01", "Ada Lovelace")
    assert TaskIntent.of("Cancel a table for 4.").words != TaskIntent.of("Book a table for 4.").words


def test_numbers_that_only_count_the_steps_stay() -> None:
    intent = TaskIntent.of("Send 2 letters to Bonn.")
    template = intent.template("1. write 2 letters\n2. send 2 letters to Bonn")
    assert TaskIntent.of("Send 7 letters to Ulm.").fill(template) == "1. write 7 letters\n2. send 7 letters to Ulm"


@given(st.lists(st.from_regex(r"[A-Z][a-z]{3,8}", fullmatch=True), min_size=1, max_size=4, unique=True))
def test_a_plan_comes_back_for_the_task_that_it_was_made_for(names: list[str]) -> None:
    intent = TaskIntent.of("we compare " + " with ".join(names))
    plan = "\n".join(f"{number}. open {name}" for number, name in enumerate(names, start=1))
    template = intent.template(plan)
    assert not is_complete(template)
    assert not any(name in template for name in names)
    assert intent.fill(template) == plan


@given(st.text(), st.text())
def test_no_text_is_too_strange_for_an_intent(task: str, plan: str) -> None:
    intent = TaskIntent.of(task)
    assert isinstance(intent.fill(intent.template(plan)), str)
