"""Tools: typed functions that models call."""

import asyncio
import dataclasses
import enum
import threading
from typing import Annotated, Literal

import anyio
import pytest
from pydantic import BaseModel, Field

from nearfar import tool
from nearfar.orchestrator.task.tools import Tool, run_tool_call
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


@pytest.mark.parametrize("name", ["_private", "schema", "model_config", "model_dump", "json", "title"])
async def test_a_parameter_may_have_any_name(name: str) -> None:
    namespace: dict[str, object] = {}
    exec(f"def echo({name}: str) -> str:\n    return {name}", namespace)
    made = Tool(namespace["echo"], name=None, time_limit=5, result_limit=100)  # type: ignore[arg-type]  # it is the function
    assert list(made.spec.parameters["properties"]) == [name]
    assert (await made.run(call("echo", **{name: "heard"}))).content == "heard"


async def test_described_constrained_and_optional_parameters_keep_their_schema() -> None:
    class Unit(enum.Enum):
        METRE = "m"
        MILE = "mi"

    @dataclasses.dataclass
    class Point:
        x: int
        y: int = 0

    @tool
    def measure(
        start: Point,
        count: Annotated[int, Field(description="how often", ge=1)] = 1,
        unit: Unit = Unit.METRE,
        note: str | None = None,
        kind: Literal["air", "road"] = "air",
    ) -> list[object]:
        return [start.x, start.y, count, unit.name, note, kind]

    schema = measure.spec.parameters["properties"]
    assert schema["count"] == {"default": 1, "description": "how often", "minimum": 1, "type": "integer"}
    assert schema["kind"]["enum"] == ["air", "road"]
    result = await measure.run(call("measure", start={"x": 3}, unit="mi"))
    assert result.content == '[3,0,1,"MILE",null,"air"]'
    assert (await measure.run(call("measure", start={"x": 3}, count=0))).is_error


async def test_a_bound_method_is_a_tool() -> None:
    class Shop:
        def __init__(self) -> None:
            self.sold = 0

        def sell(self, pieces: int) -> int:
            """Sell some."""
            self.sold += pieces
            return self.sold

    sell = tool(Shop().sell)
    assert (await sell.run(call("sell", pieces=2))).content == "2"
    assert (await sell.run(call("sell", pieces=3))).content == "5"


def test_a_method_decorated_in_its_class_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match="bound method"):

        class Shop:
            @tool
            def sell(self, pieces: int) -> int:
                raise NotImplementedError


async def test_a_time_out_inside_the_tool_is_not_taken_for_its_time_limit() -> None:
    @tool
    def ask() -> str:
        raise TimeoutError("the database took too long")

    assert (await ask.run(call("ask"))).content == "TimeoutError: the database took too long"


async def test_a_validation_error_inside_the_tool_does_not_blame_the_arguments() -> None:
    class Row(BaseModel):
        number: int

    @tool
    def read() -> Row:
        return Row.model_validate({"number": "x"})

    assert "invalid arguments" not in (await read.run(call("read"))).content


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration("x"), asyncio.CancelledError(), ValueError()])
async def test_what_a_tool_throws_at_the_program_stays_a_result(error: BaseException) -> None:
    @tool
    def odd() -> str:
        raise error

    @tool
    async def odd_too() -> str:
        raise error

    assert (await odd.run(call("odd"))).is_error
    if not isinstance(error, StopIteration):  # which a coroutine cannot raise
        assert (await odd_too.run(call("odd_too"))).is_error


async def test_cancelling_a_task_stops_its_tool() -> None:
    started = anyio.Event()

    @tool
    async def wait() -> str:
        started.set()
        await anyio.sleep_forever()
        raise NotImplementedError

    running = asyncio.create_task(wait.run(call("wait")))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_half_of_a_surrogate_pair_can_be_sent_on() -> None:
    @tool
    def odd() -> str:
        return "\ud800 text"

    assert (await odd.run(call("odd"))).content.encode() == b"\\ud800 text"


async def test_hanging_tools_leave_room_for_others() -> None:
    release = threading.Event()

    @tool(time_limit=0.05)
    def hang() -> str:
        release.wait(60)
        return "late"

    @tool
    def work() -> str:
        return "done"

    try:
        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(hang.run, call("hang"))
        assert (await work.run(call("work"))).content == "done"
    finally:
        release.set()


def test_limits_that_allow_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="above 0"):
        tool(time_limit=0)(threading.active_count)


def test_a_name_that_models_cannot_use_is_refused() -> None:
    with pytest.raises(ConfigError, match="bad name"):
        tool(name="bad name")(threading.active_count)
