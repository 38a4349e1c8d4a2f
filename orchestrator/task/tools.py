"""Tools: typed Python functions that a model may call, what is declared of them, and outcomes of their calls."""

import asyncio
import functools
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypedDict, TypeVar, Unpack, cast, overload

import anyio
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic_core import PydanticCustomError, PydanticSerializationError, to_json

from ...protocols import ApprovalRequest, ConfigError, InvalidOutput, ToolCall, ToolResult, ToolSpec
from ...protocols.items import Source, Tier
from ...protocols.validation import check_arguments
from ..util.runtime import run_in_daemon_thread
from ..util.settings import as_tuple, require, wrong_type
from .context import context_parameter, current_context
from .labels import OPEN, Integrity, Label, is_prose, takes_addresses

if TYPE_CHECKING:
    from .foreign import ForeignTool

NOT_RUN: Final = "not run: "
"""Prefix of an error result whose tool was not started."""
UNKNOWN: Final = "outcome unknown: "
"""Prefix of an error result of a call that may or may not have taken effect."""
LOOKED_UP: Final = "[this call was made earlier in this run, and is not made again: this is what it came to]"
"""Last line of the result of an equal earlier call."""


logger = logging.getLogger(__name__)
DEFAULT_TIME_LIMIT = 30.0
"""Seconds that a tool may run."""
DEFAULT_RESULT_LIMIT = 20_000
"""Characters of a result that the model sees."""
_CUT: Final = "[cut: {:,} characters, the first {:,} are shown]"
_IS_CUT: Final = re.compile(r"\n\[cut: [\d,]+ characters, the first [\d,]+ are shown\]\Z", re.ASCII)
ToolFunction = Callable[..., object]
_Choice = TypeVar("_Choice", bound=StrEnum)
Approver = Callable[[Sequence[ApprovalRequest]], Awaitable[Mapping[str, bool]]]
"""Decides about tool calls that need approval; returns, by the request's id, whether the call may run. A missing id means no."""


class Effect(StrEnum):
    """The declared effect of a tool on the world. It decides what happens to a call whose outcome is unknown."""

    READ = "read"
    """No effect: the call can be repeated at any time."""
    IDEMPOTENT = "idempotent"
    """A second run of the same call changes nothing more: the call is repeated."""
    AT_MOST_ONCE = "at_most_once"
    """The effect must not happen twice: the call is not repeated, and the model is told that its outcome is unknown."""
    TRANSACTIONAL = "transactional"
    """Writes through `effect_transaction()`, which are committed together with the record of the call, or not at all."""


def outcome_of(result: ToolResult) -> Literal["done", "failed", "not_run", "unknown"]:
    """Return the outcome of the call, by its result."""
    if not result.is_error:
        return "done"
    if result.content.startswith(NOT_RUN):
        return "not_run"
    return "unknown" if result.content.startswith(UNKNOWN) else "failed"


class ToolOptions(TypedDict, total=False):
    """Declarations of a tool, in addition to its function."""

    name: str | None
    """Name that models use; by default the function's name."""
    time_limit: float
    """Seconds that it may run before the model gets a time-out result."""
    result_limit: int
    """Characters of its result that the model sees; the rest is cut, and the result says so."""
    effect: Effect | str
    """Effect of running it; by default `at_most_once`."""
    approval: bool
    """Each call needs approval."""
    returns: Tier | str
    """Privacy tier of its results: after one that is not `shared`, the task goes no further either. By default `shared`."""
    source: Source | str
    """Author of its results. `external_tool` and `document` bring in untrusted content, which causes no action.

    By default, a tool is an `external_tool` if an argument is named like a network address (`url`, `host`), and so is each result with a
    text of more than four words; everything else is an `internal_tool`. The log says so once for each tool.
    """
    sends: Tier | str
    """Privacy tier to which its arguments go: `shared` for a tool that shows them to others, as a web search does. By default `shared` if
    `source` is not given either and an argument is named like a network address; else `device`.
    """
    sinks: Sequence[str]
    """Arguments that decide what is done, and to whom. By default all of them, and none of a tool that only reads on this device. A tool
    with arguments but no sinks may be called because of untrusted content.
    """
    keys: Sequence[str]
    """Arguments that name a record of the user's own data, which is read and returned as it is stored: `order` of `read_order`. A record is
    trusted after the run has read untrusted content if all its keys come from the user or trusted data. By default none. A tool that
    searches, lists or computes has none.
    """


@dataclass(frozen=True, slots=True)
class ToolDeclaration:
    """The declared effects and data flows of a tool."""

    effect: Effect = Effect.AT_MOST_ONCE
    """The kind of change that a call makes, which decides whether it may be repeated."""
    approval: bool = False
    """Each call needs approval."""
    returns: Tier = Tier.SHARED
    """Privacy tier of its results."""
    source: Source = Source.INTERNAL_TOOL
    """Author of its results."""
    sends: Tier = Tier.DEVICE
    """Privacy tier to which its arguments go."""
    sinks: frozenset[str] = frozenset()
    """Arguments that decide what is done, and to whom."""
    keys: frozenset[str] = frozenset()
    """Arguments that name a record of the user's own data."""
    has_source: bool = True
    """Its source was declared."""

    def label(self, name: str, result: str = "") -> Label:
        """Return the label of the results of the tool called `name`. `result`: one of them, which matters if no source was declared."""
        is_foreign = self.source in (Source.EXTERNAL_TOOL, Source.DOCUMENT) or (not self.has_source and is_prose(result))
        if self.returns is Tier.SHARED and not is_foreign:
            return OPEN
        return Label(tier=self.returns, integrity=Integrity.UNTRUSTED if is_foreign else Integrity.TRUSTED, origins=(f"tool {name}",))


class Tool:
    """A function with the schema that models see, the limits that it runs under, and what is declared of it.

    Made by `@tool`; still callable like the function itself.
    """

    is_external = False
    """Another program runs it, such as the server of an MCP tool."""
    _arguments_type: type[BaseModel] | None = None
    """None: the tool has a schema that was made elsewhere, and no Python signature."""

    def __init__(self, function: ToolFunction, **options: Unpack[ToolOptions]) -> None:
        """Make a tool of a typed `function`, sync or async; `options` are those of `ToolOptions`. The decorator `tool` does the same."""
        _check_options(function, options)
        name = options.get("name") or _name_of(function)
        parameters = _parameters(function, name)
        self._context = context_parameter(parameters, name)
        self._parameters = [each for each in parameters if self._context is None or each.name != self._context.name]
        self._arguments_type = _arguments_model(self._parameters, name)
        self._describe(function, _spec(name, inspect.getdoc(function) or "", self._arguments_type), options)

    def _describe(self, function: ToolFunction, spec: ToolSpec, options: ToolOptions) -> None:
        """Set what models see of the tool, the limits that it runs under, and what is declared of it."""
        self.name = spec.name
        self.spec = spec
        self.function = function
        self._is_async = _is_async(function)
        self.time_limit = options.get("time_limit", DEFAULT_TIME_LIMIT)
        self.result_limit = options.get("result_limit", DEFAULT_RESULT_LIMIT)
        _check_limits(self.name, self.time_limit, self.result_limit)
        self.declared = _declared(self.name, list(spec.parameters["properties"]), options)
        functools.update_wrapper(self, function)
        self._was_told = False
        if self.declared.source is Source.EXTERNAL_TOOL and not self.declared.has_source:
            self._tell("it takes an address of the network")

    @property
    def needs_dependencies(self) -> bool:
        """It takes a `Context` whose dependencies must be given with each task."""
        return self._context is not None and self._context.needs_dependencies

    @property
    def settles(self) -> frozenset[str]:
        """Return the arguments in which two calls have to agree to do the same."""
        return self.declared.sinks

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - keeps the wrapped function's own signature
        """Call the function itself, with `args` and `kwargs` as it takes them."""
        return self.function(*args, **kwargs)

    def label_of(self, result: ToolResult) -> Label:
        """Return the label of one `result` of the tool."""
        said = "" if result.is_error else result.content.removesuffix(LOOKED_UP)  # errors are a program's words, nearfar's or the tool's
        label = self.declared.label(self.name, said)
        if label.integrity is Integrity.UNTRUSTED and not self.declared.has_source and not self._was_told:
            self._tell("it has returned a text of several words")
        return label

    def _tell(self, reason: str) -> None:
        """Log once that the tool counts as a source of untrusted content."""
        self._was_told = True
        advice = 'declare source="internal_tool" if no one else writes its results, or source="external_tool"'
        logger.warning("tool %r has no source, and %s: its results count as untrusted content; %s", self.name, reason, advice)

    def arguments(self, call: ToolCall) -> dict[str, object]:
        """Return the arguments of a `call` as the function takes them. Raises pydantic's `ValidationError` if the call does not fit."""
        if self._arguments_type is None:
            return _fitting(call, self.spec)
        arguments = self._arguments_type.model_validate(call.arguments)
        return {parameter.name: getattr(arguments, f"argument_{number}") for number, parameter in enumerate(self._parameters)}

    async def run(
        self, call: ToolCall, *, effect_key: str = "", overdue: Callable[["asyncio.Task[ToolResult]"], None] | None = None
    ) -> ToolResult:
        """Run the `call`. Any failure inside the tool becomes an error result that the model can react to.

        `effect_key` names the effect for the tool's context. `overdue` takes the task of a plain function that ran past the limit, or was
        to be cancelled: it runs in a thread, which cannot be stopped.
        """
        try:
            keywords = self.arguments(call)
        except ValidationError as error:
            return self._result(call, explain_arguments(error), is_error=True)
        if self._context is not None:
            context = current_context().of_call(call.id, effect_key)
            if self.needs_dependencies and context.dependencies is None:
                return self._result(call, "the app has not given the tool its dependencies", is_error=True)
            keywords[self._context.name] = context
        if not self._is_async:
            return await self._run_in_thread(call, keywords, overdue)
        with anyio.move_on_after(self.time_limit) as scope:
            return await self._outcome(call, keywords)
        assert scope.cancelled_caught, "nothing else leaves the block without a result"
        return self._past_limit(call, "was stopped, perhaps after it had acted")

    async def _run_in_thread(
        self, call: ToolCall, keywords: dict[str, object], overdue: Callable[["asyncio.Task[ToolResult]"], None] | None
    ) -> ToolResult:
        task = asyncio.create_task(self._outcome(call, keywords))
        try:
            await asyncio.wait({task}, timeout=self.time_limit)
        except asyncio.CancelledError:
            if overdue is None:
                task.cancel()
            else:
                overdue(task)
            raise
        if task.done():
            return task.result()
        if overdue is not None:
            overdue(task)
        return self._past_limit(call, "still runs: equal calls wait for it")

    def _past_limit(self, call: ToolCall, state: str) -> ToolResult:
        """Return the result of a call that ran past its limit. It is never cut: the outcome is read off its first words."""
        told = f"the tool took longer than its limit of {self.time_limit:g} s"
        if self.declared.effect is Effect.READ:
            told += ", and its result is not waited for"
        elif self.declared.effect is Effect.TRANSACTIONAL:
            told += ", and its writes are dropped"
        else:
            told = f"{UNKNOWN}{told} and {state}. It is not known whether it took effect; find out before you try the same in another way"
        return ToolResult(call_id=call.id, name=call.name, content=told, is_error=True)

    async def _outcome(self, call: ToolCall, keywords: dict[str, object]) -> ToolResult:
        try:
            return self._result(call, _to_text(await self._invoke(keywords)))
        except PydanticSerializationError as error:
            return self._result(call, f"the tool returned something that is not JSON: {error}", is_error=True)
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            return self._result(call, "the tool cancelled itself", is_error=True)
        # A task boundary: the tool is the app's code, and the model handles its failure. `sys.exit` is one too.
        except (Exception, SystemExit) as error:
            return self._result(call, f"{type(error).__name__}: {error}".removesuffix(": "), is_error=True)

    async def _invoke(self, keywords: dict[str, object]) -> object:
        if self._is_async:
            return await cast(Awaitable[object], self.function(**keywords))
        return await run_in_daemon_thread(functools.partial(self.function, **keywords))

    def _result(self, call: ToolCall, text: str, *, is_error: bool = False) -> ToolResult:
        if len(text) > self.result_limit:
            text = f"{text[: self.result_limit]}\n{_CUT.format(len(text), self.result_limit)}"
        text = text.encode(errors="backslashreplace").decode()  # half of a surrogate pair could not be sent on
        return ToolResult(call_id=call.id, name=call.name, content=text, is_error=is_error)


@overload
def tool(function: "ToolFunction | ForeignTool", /, **options: Unpack[ToolOptions]) -> Tool: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> "Callable[[ToolFunction | ForeignTool], Tool]": ...


def tool(
    function: "ToolFunction | ForeignTool | None" = None, /, **options: Unpack[ToolOptions]
) -> "Tool | Callable[[ToolFunction | ForeignTool], Tool]":
    """Make a tool of a typed `function`, sync or async. Its annotations become the schema, its docstring the description.

    The `options` are those of `ToolOptions`: limits, effects, and where its data come from and go to. A tool of LangChain keeps its own
    schema: `tool(given, effect="read", ...)` declares what it does.

    Raises `ConfigError` if an argument has no annotation, or one that JSON cannot express, and for unknown options.
    """
    unknown = sorted(set(options) - ToolOptions.__optional_keys__)
    if unknown:
        known = ", ".join(sorted(ToolOptions.__optional_keys__))
        raise ConfigError(f"a tool has no option {unknown[0]!r}", hint=f"the options are {known}")
    make = functools.partial(_make, options)
    return make if function is None else make(function)


def _make(options: ToolOptions, given: "ToolFunction | ForeignTool") -> Tool:
    from .foreign import LangChainTool, is_langchain_tool

    if is_langchain_tool(given):
        return LangChainTool(given, **options)
    return Tool(cast(ToolFunction, given), **options)


def is_cut(content: str) -> bool:
    """Return whether the end of a result was cut off by its tool's limit."""
    return _IS_CUT.search(content) is not None


async def run_tool_call(call: ToolCall, tools: Mapping[str, Tool]) -> ToolResult:
    """Run a call by its tool, or tell the model which tools there are."""
    known = tools.get(call.name)
    if known is None:
        message = f"there is no tool {call.name!r}; the tools are: {', '.join(sorted(tools)) or 'none'}"
        return ToolResult(call_id=call.id, name=call.name, content=message, is_error=True)
    return await known.run(call)


@dataclass
class Repetition:
    """Notes whether the tool call under way has to be made again by a resumed run."""

    is_wanted: bool = False


_current: Final[ContextVar[Repetition | None]] = ContextVar("nearfar_repetition", default=None)


def make_again() -> None:
    """Have a resumed run repeat the running tool call, because the call tells the task more than its result says.

    Does nothing outside of a tool, and for tools that may not be run again.
    """
    repetition = _current.get()
    if repetition is not None:
        repetition.is_wanted = True


@contextmanager
def track_repetition(repetition: Repetition) -> Iterator[None]:
    """Let tools within the block set `repetition` with `make_again`."""
    token = _current.set(repetition)
    try:
        yield
    finally:
        _current.reset(token)


def _name_of(function: ToolFunction) -> str:
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        raise ConfigError(f"{function!r} has no name", hint="give the tool one: tool(name=...)(function)")
    return name


def _check_options(function: object, options: ToolOptions) -> None:
    """Raise `ConfigError` for an object that is no function, and for options of a wrong type."""
    if not callable(function):
        raise wrong_type("tool", function, "a function", hint="@tool above a function, or @tool(name=...)")
    require("name", options.get("name"), str, "a text")
    require("time_limit", options.get("time_limit"), (int, float), "a number of seconds")
    require("result_limit", options.get("result_limit"), int, "a whole number of characters")
    require("approval", options.get("approval"), bool, "True or False")
    for option, example in (("sinks", '["path"]'), ("keys", '["order"]')):
        if option in options:
            hint = f"{option}={example}"
            as_tuple(option, options.get(option), lambda part: isinstance(part, str), "a list of names of arguments", hint=hint)


def _check_limits(name: str, time_limit: float, result_limit: int) -> None:
    if not time_limit > 0 or not result_limit > 0:
        raise ConfigError(f"tool {name!r}: time_limit and result_limit must be above 0")


def _declared(name: str, parameters: Sequence[str], options: ToolOptions) -> ToolDeclaration:
    effect = _choice(name, "effect", Effect, options.get("effect", Effect.AT_MOST_ONCE))
    has_source = "source" in options
    is_network = not has_source and takes_addresses(parameters)
    sends = _choice(name, "sends", Tier, options.get("sends", Tier.SHARED if is_network else Tier.DEVICE))
    source = _choice(name, "source", Source, options.get("source", Source.EXTERNAL_TOOL if is_network else Source.INTERNAL_TOOL))
    harmless = effect is Effect.READ and sends is Tier.DEVICE
    sinks = options.get("sinks", () if harmless else parameters)
    keys = options.get("keys", ())
    for role, arguments in (("sink", sinks), ("key", keys)):
        for argument in arguments:
            if argument not in parameters:
                known = ", ".join(parameters) or "none"
                raise ConfigError(f"tool {name!r}: it has no argument {argument!r} to be a {role}", hint=f"it has: {known}")
    if keys and effect is not Effect.READ:
        raise ConfigError(f"tool {name!r}: only a tool that reads has keys", hint='declare effect="read", or no keys')
    return ToolDeclaration(
        effect=effect,
        approval=bool(options.get("approval", False)),
        returns=_choice(name, "returns", Tier, options.get("returns", Tier.SHARED)),
        source=source,
        sends=sends,
        sinks=frozenset(sinks),
        keys=frozenset(keys),
        has_source=has_source,
    )


def _choice(name: str, option: str, kind: type[_Choice], value: str) -> _Choice:
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"tool {name!r}: {option} cannot be {value!r}", hint=f"it is one of {', '.join(kind)}") from None


def _parameters(function: ToolFunction, name: str) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"tool {name!r}: its parameters cannot be read: {error}", hint="name types that its module knows") from error
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigError(f"tool {name!r}: parameter {parameter.name!r} must be an ordinary named parameter")
        if parameter.annotation is parameter.empty:
            is_method = parameter.name in ("self", "cls")
            advice = "make the tool of the bound method: tool(thing.method)" if is_method else f"write `{parameter.name}: str` or the like"
            raise ConfigError(f"tool {name!r}: parameter {parameter.name!r} has no type", hint=advice)
    return parameters


def _arguments_model(parameters: Sequence[inspect.Parameter], name: str) -> type[BaseModel]:
    """Return a model of the arguments. Parameters are its aliases, since pydantic does not take every name for a field (`_x`, `schema`)."""
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(parameters):
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[f"argument_{number}"] = (Annotated[parameter.annotation, Field(alias=parameter.name)], default)
    try:
        return create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
    except PydanticUserError as error:
        raise ConfigError(f"tool {name!r}: a parameter's type cannot be expressed in JSON: {error.message}") from error


def _spec(name: str, description: str, arguments: type[BaseModel]) -> ToolSpec:
    try:
        schema = arguments.model_json_schema()
        schema.pop("title", None)
        for field in schema.setdefault("properties", {}).values():
            field.pop("title", None)
        return ToolSpec(name=name, description=description, parameters=schema)
    except PydanticInvalidForJsonSchema as error:
        raise ConfigError(f"tool {name!r}: a parameter's type cannot be expressed in JSON: {error.message}") from error
    except ValidationError as error:
        hint = "letters, digits, _ and -, at most 64: @tool(name=...)"
        raise ConfigError(f"{name!r} is no name that models can call a tool by", hint=hint) from error


def _is_async(function: ToolFunction) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - not whether it is callable


def _is_cancelled() -> bool:
    """Return whether this task is being cancelled, as opposed to a `CancelledError` that its own code raised."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _to_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        raise TypeError("the tool returned bytes; return text or JSON")
    return to_json(value).decode()


def _fitting(call: ToolCall, spec: ToolSpec) -> dict[str, object]:
    """Return the arguments of a call that fit a schema. Raises pydantic's `ValidationError` if they do not."""
    try:
        check_arguments(call, [spec])
    except InvalidOutput as error:
        problem = PydanticCustomError("schema", "{problem}", {"problem": error.message})
        raise ValidationError.from_exception_data(spec.name, [{"type": problem, "input": None}]) from error
    return dict(call.arguments)


def explain_arguments(error: ValidationError) -> str:
    """Return the problems of the arguments, without pydantic's links and echoes."""
    problems = [f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}" for item in error.errors(include_url=False)]
    return "invalid arguments: " + "; ".join(problems)
