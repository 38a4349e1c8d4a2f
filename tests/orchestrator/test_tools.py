"""Tools: typed functions that models call."""

import anyio
import pytest
from pydantic import BaseModel

from nearfar.orchestrator import tool
from nearfar.orchestrator.tools import Tool, run_tool_call
from nearfar.protocols import ConfigError, ToolCall

pytestmark = pytest.mark.anyio


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall.model_validate({"id": "1", "name": name, "arguments": arguments})


async def test_a_typed_function_becomes_a_schema_with_its_docstring() -> None:
    @tool
    def add(first: int, second: int = 2) -> int:
        """Add two numbers."""
        return first + second

    assert add.spec.description == "Add two numbers."
    assert add.spec.parameters["required"] == ["first"]
    assert add.spec.parameters["properties"]["first"] == {"type": "integer"}
    assert (await add.run(call("add", first=3))).content == "5"
    assert add(3, 4) == 7


async def test_a_coroutine_runs_on_the_event_loop() -> None:
    @tool(name="wait_for")
    async def wait(seconds: float) -> str:
        await anyio.lowlevel.checkpoint()
        return f"waited {seconds}"

    assert (await wait.run(call("wait_for", seconds=0.5))).content == "waited 0.5"


async def test_pydantic_arguments_and_results_travel_as_json() -> None:
    class Person(BaseModel):
        name: str
        age: int

    @tool
    def older(person: Person) -> Person:
        return Person(name=person.name, age=person.age + 1)

    result = await older.run(call("older", person={"name": "Mira", "age": 40}))
    assert result.content == '{"name":"Mira","age":41}'


async def test_invalid_arguments_go_back_to_the_model_with_their_names() -> None:
    @tool
    def add(first: int) -> int:
        raise NotImplementedError

    result = await add.run(call("add", first="many", third=1))
    assert result.is_error
    assert "first" in result.content
    assert "third" in result.content


async def test_an_exception_goes_back_to_the_model() -> None:
    @tool
    def fail() -> str:
        raise LookupError("no such entry")

    result = await fail.run(call("fail"))
    assert result.is_error
    assert result.content == "LookupError: no such entry"


async def test_a_hanging_coroutine_is_stopped_at_its_time_limit() -> None:
    stopped = anyio.Event()

    @tool(time_limit=0.05)
    async def hang() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        raise NotImplementedError

    result = await hang.run(call("hang"))
    assert result.is_error
    assert "0.05 s" in result.content
    assert stopped.is_set()


async def test_a_hanging_thread_does_not_hold_up_the_task() -> None:
    import threading

    release = threading.Event()

    @tool(time_limit=0.05)
    def hang() -> str:
        release.wait(30)
        return "late"

    try:
        result = await hang.run(call("hang"))
    finally:
        release.set()
    assert result.is_error


async def test_ten_megabytes_are_cut_and_the_cut_is_stated() -> None:
    @tool(result_limit=100)
    def flood() -> str:
        return "x" * 10_000_000

    result = await flood.run(call("flood"))
    assert len(result.content) < 200
    assert "10,000,000 characters" in result.content


@pytest.mark.parametrize("value", [object(), b"bytes", {1, object()}])
async def test_what_is_not_json_goes_back_as_an_error(value: object) -> None:
    @tool
    def odd() -> object:
        return value

    assert (await odd.run(call("odd"))).is_error


async def test_an_unknown_tool_is_answered_with_the_known_ones() -> None:
    @tool
    def known() -> str:
        raise NotImplementedError

    result = await run_tool_call(call("unknown"), {"known": known})
    assert result.is_error
    assert "known" in result.content


def test_an_argument_without_a_type_is_refused_when_the_tool_is_made() -> None:
    def untyped(value):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - the mistake under test
        raise NotImplementedError

    with pytest.raises(ConfigError, match="value"):
        Tool(untyped, name=None, time_limit=1, result_limit=1)


def test_a_type_that_json_cannot_express_is_refused() -> None:
    with pytest.raises(ConfigError, match="JSON"):

        @tool
        def odd(value: type(pytest)) -> str:  # type: ignore[valid-type]  # the mistake under test
            raise NotImplementedError


def test_variable_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="values"):

        @tool
        def odd(*values: int) -> str:
            raise NotImplementedError
