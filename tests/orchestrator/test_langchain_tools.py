"""Tools of LangChain wherever tools of ours are taken."""

import threading
from typing import Annotated, Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, ToolException
from langchain_core.tools import Tool as TextTool
from langchain_core.tools import tool as langchain_tool
from langgraph.prebuilt import InjectedState
from langgraph.types import Command

from nearfar import ConfigError, Effect, Hybrid, Role, ScriptedAgent, Source, Tier, ToolCall, tool

pytestmark = pytest.mark.anyio


@langchain_tool
def capital(country: str, *, formal: bool = False) -> str:
    """Look up a country's capital."""
    return f"{'The City of ' if formal else ''}Orb, capital of {country}, by {threading.current_thread().name}"


@langchain_tool
async def population(city: str) -> dict[str, int]:
    """Count the people of a city."""
    return {city: 12}


class Weather(BaseTool):
    """A tool as packages bring them."""

    name: str = "weather"
    description: str = "Tell the weather."

    def _run(self, place: str) -> str:
        raise ToolException(f"no weather for {place}")


async def answer(given: Any, **arguments: Any) -> tuple[str, bool]:  # noqa: ANN401 - a tool of either kind, and its arguments
    """What one call comes to, and whether it is an error."""
    result = await tool(given).run(ToolCall(id="c1", name=given.name, arguments=arguments))
    return result.content, result.is_error


async def test_a_plain_one_runs_in_a_thread_of_its_own() -> None:
    assert await answer(capital, country="Aldara", formal=True) == ("The City of Orb, capital of Aldara, by nearfar tool", False)


async def test_an_async_one_is_awaited_and_its_result_is_told_as_json() -> None:
    assert await answer(population, city="Orb") == ('{"Orb": 12}', False)


async def test_its_failure_is_told_to_the_model() -> None:
    assert await answer(Weather(), place="Orb") == ("ToolException: no weather for Orb", True)


async def test_a_failure_that_it_handles_is_a_failure_all_the_same() -> None:
    assert await answer(Weather(handle_tool_error="none today"), place="Orb") == ("ToolException: none today", True)


async def test_models_see_its_schema_and_arguments_that_do_not_fit_are_refused() -> None:
    made = tool(capital)
    assert (made.name, made.spec.description) == ("capital", "Look up a country's capital.")
    assert made.spec.parameters["required"] == ["country"]
    assert made.spec.parameters["properties"]["formal"]["default"] is False
    result = await made.run(ToolCall(id="c1", name="capital", arguments={"country": 5}))
    assert result.is_error
    assert result.content.startswith("invalid arguments: ")


def test_it_is_taken_for_one_that_acts_and_whose_words_are_strangers() -> None:
    declared = tool(capital).declared
    assert (declared.effect, declared.source, declared.sends) == (Effect.AT_MOST_ONCE, Source.EXTERNAL_TOOL, Tier.SHARED)
    assert declared.sinks == {"country", "formal"}


def test_the_app_may_declare_better() -> None:
    made = tool(capital, name="lookup", effect="read", source="internal_tool", sends="device", keys=["country"])
    assert (made.name, made.declared.effect, made.declared.keys) == ("lookup", Effect.READ, frozenset({"country"}))
    assert made.declared.sinks == frozenset()
    assert made(country="Aldara").startswith("Orb, capital of Aldara")


async def test_it_gets_the_id_of_its_call() -> None:
    @langchain_tool
    def which(call_id: Annotated[str, InjectedToolCallId]) -> str:
        """Tell the call."""
        return call_id

    assert await answer(which) == ("c1", False)


def test_one_that_needs_the_state_of_an_agent_of_langgraph_is_refused() -> None:
    @langchain_tool
    def peek(state: Annotated[dict[str, Any], InjectedState]) -> str:
        """Look at the state."""
        return str(state)

    with pytest.raises(ConfigError, match="'peek' needs 'state', which only a LangGraph agent"):
        Hybrid(near=ScriptedAgent([]), tools=[peek])


async def test_a_result_that_is_no_text_is_told_as_a_failure() -> None:
    @langchain_tool
    def go() -> Command[Any]:
        """Go elsewhere."""
        return Command(goto="elsewhere")

    @langchain_tool
    def draw() -> ToolMessage:
        """Draw."""
        return ToolMessage([{"type": "image", "url": "https://example.org/a.png"}], tool_call_id="c1")

    assert await answer(go) == ("ToolException: the tool returned a Command, which only a LangGraph agent can follow", True)
    assert await answer(draw) == ("ToolException: the tool returned something other than text", True)


async def test_one_of_a_single_text_has_an_argument_too() -> None:
    assert await answer(TextTool(name="echo", description="Say it.", func=lambda text: text), __arg1="hi") == ("hi", False)


async def test_a_schema_that_is_a_mapping_will_do() -> None:
    async def call(**arguments: Any) -> str:  # noqa: ANN401 - those of the schema
        return str(arguments)

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    made = StructuredTool(name="count", description="Count.", args_schema=schema, coroutine=call)
    assert await answer(made, n=3) == ("{'n': 3}", False)


def test_a_name_that_no_model_can_call_is_refused_until_it_gets_another() -> None:
    spaced = StructuredTool.from_function(func=lambda: "x", name="my tool", description="x")
    with pytest.raises(ConfigError, match="'my tool' is no name") as failure:
        tool(spaced)
    assert "tool(given, name=...)" in str(failure.value.hint)
    assert tool(spaced, name="mine").name == "mine"


async def test_it_serves_hybrids_tasks_and_roles() -> None:
    call = ToolCall(id="c1", name="population", arguments={"city": "Orb"})
    agent = ScriptedAgent([call, "12"] * 3)
    counter = Role(instructions="Count.", tools=(population,))  # type: ignore[arg-type]  # it is made one of ours
    async with Hybrid(near=agent, agents={"counter": counter}, policy={"sensitivity": "public"}) as hybrid:
        assert (await hybrid.run("How many?", tools=[population])).text == "12"
        assert (await hybrid.run("How many?", role="counter")).text == "12"
    async with Hybrid(near=agent, tools=[population, capital], policy={"sensitivity": "public"}) as hybrid:
        assert (await hybrid.run("How many?")).label.origins == ("tool population",)
    told = [request.messages[-1].tool_result for request in agent.requests[1::2]]
    assert ['{"Orb": 12}' in result.content for result in told if result is not None] == [True] * 3


async def test_it_may_be_a_callers_tool_of_a_turn() -> None:
    call = ToolCall(id="c1", name="capital", arguments={"country": "Aldara"})
    agent = ScriptedAgent([call])
    async with Hybrid(near=agent) as hybrid:
        assert (await hybrid.turn("Which?", tools=[capital])).calls == (call,)
    assert agent.requests[0].tools[0].description == "Look up a country's capital."


async def test_a_private_task_asks_before_it_shows_it_what_the_user_did_not_say() -> None:
    agent = ScriptedAgent([ToolCall(id="c1", name="population", arguments={"city": "Orb"}), "unknown"])
    async with Hybrid(near=agent, tools=[population]) as hybrid:
        await hybrid.run("How many live in the capital?")
    told = agent.requests[1].messages[-1].tool_result
    assert told is not None
    assert told.content.startswith("not run: population: it would show city")
