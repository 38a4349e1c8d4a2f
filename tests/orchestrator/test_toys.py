"""The shipped models refuse what is not theirs, and an answer that nobody doubts aloud says how sure it is."""

import pytest

from nearfar import Hybrid, tool
from nearfar.orchestrator.compose.config import parse_config
from nearfar.orchestrator.lab.worlds.apps import AppsWorld
from nearfar.orchestrator.lab.worlds.loading import SearchWorld
from nearfar.orchestrator.strategies.prompts import WORLD_TOOLS, require_own_tools
from nearfar.orchestrator.task.policy import Policy
from nearfar.protocols import AgentCard, ConfigError, ScriptedAgent, Sensitivity, Side, ToolSpec, Unsupported

TOY = AgentCard(name="near", side=Side.NEAR, model="nearfar-near", world="search, apps")


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def tools_of(world: SearchWorld | AppsWorld) -> list[ToolSpec]:
    return [each.spec for each in world.reset(world.tasks(1, seed=1)[0]).tools]


def test_the_table_holds_every_tool_of_the_worlds() -> None:
    worlds: dict[str, SearchWorld | AppsWorld] = {"search": SearchWorld(), "apps": AppsWorld()}
    found = {name: {spec.name: frozenset(spec.parameters["properties"]) for spec in tools_of(world)} for name, world in worlds.items()}
    assert found == WORLD_TOOLS


def test_a_shipped_model_takes_the_tools_of_its_worlds_and_no_others() -> None:
    require_own_tools(TOY, [*tools_of(SearchWorld()), *tools_of(AppsWorld())])
    require_own_tools(TOY, [])
    with pytest.raises(Unsupported, match="cannot use weather") as refused:
        require_own_tools(TOY, [*tools_of(SearchWorld()), weather.spec])
    assert "near=" in refused.value.hint
    require_own_tools(TOY.model_copy(update={"world": None}), [weather.spec])


def test_a_tool_of_the_same_name_with_other_parameters_is_refused() -> None:
    @tool
    def open(path: str) -> str:
        """Open a file."""
        return path

    with pytest.raises(Unsupported, match="cannot use open"):
        require_own_tools(TOY, [open.spec])


@pytest.mark.anyio
async def test_a_task_with_tools_of_ones_own_is_refused_by_the_toys_and_served_by_a_real_agent() -> None:
    async with Hybrid(near="near", tools=[weather]) as hybrid:
        with pytest.raises(Unsupported, match="demonstration model"):
            await hybrid.run("What is the weather in Rome?", strategy="device")
    far = ScriptedAgent(["sunny"], name="far", side=Side.FAR)
    async with Hybrid(near="near", far=far, tools=[weather], policy=Policy(sensitivity=Sensitivity.PUBLIC)) as hybrid:
        result = await hybrid.run("What is the weather in Rome?")
    assert (result.agent, result.was_fallback) == ("far", True)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[near]\nthreads = 1\n", "line 1: near.model is missing"),
        ('[far]\nprovider = "llama"\n', "line 1: far.model is missing"),
        ('[near]\nmodel = "near"\n[other_near.phi]\nthreads = 1\n', "line 3: other_near.phi.model is missing"),
    ],
)
def test_a_file_names_its_models(text: str, where: str) -> None:
    with pytest.raises(ConfigError, match=where) as refused:
        parse_config(text, "nearfar.toml")
    assert "demonstration models" in refused.value.hint


@pytest.mark.anyio
async def test_a_draft_that_stands_because_nobody_else_may_be_asked_says_so() -> None:
    far = ScriptedAgent([], name="far", side=Side.FAR)
    async with Hybrid(near=ScriptedAgent(["maybe"] * 2, name="near", confidence=0.3), far=far) as hybrid:
        private = await hybrid.run("Who?", strategy="cascade")
        alone = await hybrid.run("Who?", strategy="device")
    assert (private.text, private.low_confidence, private.confidence) == ("maybe", True, 0.3)
    assert any("confidence 0.30 is below 0.70" in reason and "no other agent may be asked" in reason for reason in private.reasons)
    assert not alone.low_confidence


@pytest.mark.anyio
async def test_a_sure_draft_says_nothing_of_the_kind() -> None:
    async with Hybrid(near=ScriptedAgent(["surely"], name="near", confidence=0.9)) as hybrid:
        result = await hybrid.run("Who?", strategy="cascade")
    assert not result.low_confidence
    assert not any("is below" in reason for reason in result.reasons)
