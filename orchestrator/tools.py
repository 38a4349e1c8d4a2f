"""Tools: typed Python functions that a model may call."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast, overload

import anyio
import anyio.to_thread
from pydantic import BaseModel, ConfigDict, PydanticSchemaGenerationError, ValidationError, create_model
from pydantic_core import PydanticSerializationError, to_json

from ..protocols import ConfigError, JsonSchema, ToolCall, ToolResult, ToolSpec

DEFAULT_TIME_LIMIT = 30.0
"""Seconds a tool may run."""
DEFAULT_RESULT_LIMIT = 20_000
"""Characters of a result that the model gets to see."""

ToolFunction = Callable[..., object]


class Tool:
    """A function with the schema that models see and the limits that it runs under.

    Made by `@tool`; still callable like the function itself.
    """

    def __init__(self, function: ToolFunction, *, name: str | None, time_limit: float, result_limit: int) -> None:
        self.function = function
        self.time_limit = time_limit
        self.result_limit = result_limit
        self._arguments = _arguments_model(function)
        self.spec = ToolSpec(
            name=name or function.__name__,
            description=inspect.getdoc(function) or "",
            parameters=_parameters(self._arguments),
        )
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - keeps the wrapped function's own signature
        return self.function(*args, **kwargs)

    async def run(self, call: ToolCall) -> ToolResult:
        """Run the call; whatever goes wrong inside the tool becomes an error result that the model can react to."""
        try:
            with anyio.fail_after(self.time_limit):
                value = await self._invoke(call)
            return self._result(call, _to_text(value))
        except ValidationError as error:
            return self._result(call, _explain(error), is_error=True)
        except TimeoutError:
            return self._result(call, f"the tool took longer than its limit of {self.time_limit:g} s and was stopped", is_error=True)
        except PydanticSerializationError as error:
            return self._result(call, f"the tool returned something that is not JSON: {error}", is_error=True)
        except Exception as error:  # a task boundary: the tool is somebody else's code, and its failure is the model's to handle
            return self._result(call, f"{type(error).__name__}: {error}", is_error=True)

    async def _invoke(self, call: ToolCall) -> object:
        arguments = self._arguments.model_validate(call.arguments)
        keywords = {name: getattr(arguments, name) for name in type(arguments).model_fields}
        if inspect.iscoroutinefunction(self.function):
            return await cast(Awaitable[object], self.function(**keywords))
        # A thread cannot be stopped; abandoning it keeps the time limit for the caller.
        return await anyio.to_thread.run_sync(functools.partial(self.function, **keywords), abandon_on_cancel=True)

    def _result(self, call: ToolCall, text: str, *, is_error: bool = False) -> ToolResult:
        if len(text) > self.result_limit:
            text = f"{text[: self.result_limit]}\n[cut: {len(text):,} characters, the first {self.result_limit:,} are shown]"
        return ToolResult(call_id=call.id, name=call.name, content=text, is_error=is_error)


@overload
def tool(function: ToolFunction, /) -> Tool: ...
@overload
def tool(
    *, name: str | None = None, time_limit: float = DEFAULT_TIME_LIMIT, result_limit: int = DEFAULT_RESULT_LIMIT
) -> Callable[[ToolFunction], Tool]: ...


def tool(
    function: ToolFunction | None = None,
    /,
    *,
    name: str | None = None,
    time_limit: float = DEFAULT_TIME_LIMIT,
    result_limit: int = DEFAULT_RESULT_LIMIT,
) -> Tool | Callable[[ToolFunction], Tool]:
    """Make a typed function, sync or async, a tool. Its annotations become the schema, its docstring the description.

    Args:
        name: what models call it; the function's name unless given.
        time_limit: seconds it may run before the model gets a time-out result.
        result_limit: characters of its result that the model sees; the rest is cut and the cut is stated.

    Raises `ConfigError` where an argument has no annotation, or one that JSON cannot express.
    """
    make = functools.partial(Tool, name=name, time_limit=time_limit, result_limit=result_limit)
    return make if function is None else make(function)


async def run_tool_call(call: ToolCall, tools: Mapping[str, Tool]) -> ToolResult:
    """Run a call by its tool, or tell the model which tools there are."""
    known = tools.get(call.name)
    if known is None:
        message = f"there is no tool {call.name!r}; the tools are: {', '.join(sorted(tools)) or 'none'}"
        return ToolResult(call_id=call.id, name=call.name, content=message, is_error=True)
    return await known.run(call)


def _arguments_model(function: ToolFunction) -> type[BaseModel]:
    name = function.__name__
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigError(f"tool {name!r}: parameter {parameter.name!r} must be an ordinary named parameter")
        if parameter.annotation is parameter.empty:
            raise ConfigError(f"tool {name!r}: parameter {parameter.name!r} has no type", hint=f"write `{parameter.name}: str` or the like")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (parameter.annotation, default)
    try:
        return create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
    except PydanticSchemaGenerationError as error:
        raise ConfigError(f"tool {name!r}: a parameter's type cannot be expressed in JSON: {error}") from error


def _parameters(model: type[BaseModel]) -> JsonSchema:
    schema = model.model_json_schema()
    schema.pop("title", None)
    for field in schema.setdefault("properties", {}).values():
        field.pop("title", None)
    return schema


def _to_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        raise TypeError("the tool returned bytes; return text or JSON")
    return to_json(value).decode()


def _explain(error: ValidationError) -> str:
    """The arguments that are wrong and how, without pydantic's links and echoes."""
    problems = [f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}" for item in error.errors(include_url=False)]
    return "invalid arguments: " + "; ".join(problems)
