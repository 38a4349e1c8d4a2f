"""The context of a tool call: what the app and the task give to a tool, and the model does not see."""

import asyncio
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, get_args, get_origin

from ...protocols import ApprovalRequest, ConfigError, InvalidRequest
from ..util.runtime import cancel_task
from ..util.text import spell_out

if TYPE_CHECKING:
    from .tools import Approver

Dependencies = TypeVar("Dependencies")


class Context(Generic[Dependencies]):
    """The context of a tool call, for a parameter annotated `Context` or `Context[Type]`, which the model does not see.

    Not a value of pydantic or a dataclass: neither a tool that returns it, nor a log that shows it, tells the dependencies.

    Args:
        dependencies: the object that `run(..., dependencies=...)` was given; None: none was.
        user: the user for whom the task is served.
        session: the conversation that the task belongs to.
        task: the task's idempotency key.
        call_id: the id that the model gave to the call; unique within its message.
        effect_key: the idempotency key of this call, as `effect_key()` returns it.
    """

    def __init__(
        self,
        dependencies: Dependencies = None,  # type: ignore[assignment]  # a plain `Context` has none
        *,
        user: str = "",
        session: str | None = None,
        task: str = "",
        call_id: str = "",
        effect_key: str = "",
    ) -> None:
        self.dependencies = dependencies
        self.user = user
        self.session = session
        self.task = task
        self.call_id = call_id
        self.effect_key = effect_key

    def __repr__(self) -> str:
        return f"Context(user={self.user!r}, session={self.session!r}, task={self.task!r}, call_id={self.call_id!r})"

    def of_call(self, call_id: str, effect_key: str) -> "Context[Dependencies]":
        """Return the context of one call of the task, which has this `call_id` and `effect_key`."""
        return Context(self.dependencies, user=self.user, session=self.session, task=self.task, call_id=call_id, effect_key=effect_key)


class ContextParameter(NamedTuple):
    """A tool's parameter for the context."""

    name: str
    needs_dependencies: bool
    """Its annotation names a type of dependencies other than None."""


def context_parameter(parameters: Sequence[inspect.Parameter], tool: str) -> ContextParameter | None:
    """Return the parameter that takes the context; None if there is none.

    Raises `ConfigError` for a second one, and for a context within another type.
    """
    found: list[ContextParameter] = []
    for parameter in parameters:
        annotation = parameter.annotation
        if _is_context(annotation):
            needed = [part for part in get_args(annotation) if part is not Any and not isinstance(part, TypeVar)]
            may_lack = any(part is NoneType or NoneType in get_args(part) for part in needed)
            found.append(ContextParameter(parameter.name, bool(needed) and not may_lack))
        elif any(map(_is_context, get_args(annotation))):
            hint = f"write `{parameter.name}: Context[...]`: it is always given"
            raise ConfigError(f"tool {tool!r}: parameter {parameter.name!r} holds a Context inside of another type", hint=hint)
    if len(found) > 1:
        raise ConfigError(f"tool {tool!r}: parameters {found[0].name!r} and {found[1].name!r} both take the context", hint="keep one")
    return found[0] if found else None


def _is_context(annotation: object) -> bool:
    return annotation is Context or get_origin(annotation) is Context


_current: Final[ContextVar[Context[Any]]] = ContextVar("nearfar_tool_context")


def current_context() -> Context[Any]:
    """Return the context of the task whose tools run; an empty one outside of a task."""
    return _current.get(None) or Context()


@contextmanager
def calling_for(context: Context[Any]) -> Iterator[None]:
    """Give tools that run within the block this context."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


_approver: Final["ContextVar[Approver | None]"] = ContextVar("nearfar_approver", default=None)


def current_approver() -> "Approver | None":
    """Return the approver of the task whose tool runs, for a tool that has to ask in the middle of a call; None if there is none."""
    return _approver.get()


async def ask_approver(approver: "Approver", requests: Sequence[ApprovalRequest]) -> dict[str, bool]:
    """Return the approver's decisions, by the ids of the requests. Only `True` approves: a text such as "no" does not.

    Raises `InvalidRequest` if the approver is no async function, is cancelled, or returns no mapping.
    """
    answer: object = approver([request.model_copy(deep=True) for request in requests])  # it may change its copy, and never the call
    if not inspect.isawaitable(answer):
        raise _unusable("is not async")
    asked = asyncio.ensure_future(answer)  # on its own: what it says after its caller was cancelled counts for nothing
    try:
        await asyncio.wait([asked])
    finally:
        await cancel_task(asked)
    if asked.cancelled():
        raise _unusable("was cancelled")
    said: object = asked.result()
    if not isinstance(said, Mapping):
        raise _unusable(f"returned {type(said).__name__}")
    return {request.id: said.get(request.id) is True for request in requests}


def _unusable(problem: str) -> InvalidRequest:
    hint = "it takes a sequence of ApprovalRequest and returns a mapping from their ids to True or False"
    return InvalidRequest(f"the approver {problem}, so no call is approved", hint=hint)


def question_text(request: ApprovalRequest) -> str:
    """Return the reason and the whole call, control characters written out: a call that is cut off cannot be judged."""
    arguments = json.dumps(request.call.arguments, ensure_ascii=False)
    return spell_out(f"{request.reason}: {request.call.name} {arguments}")


@contextmanager
def asking(approver: "Approver | None") -> Iterator[None]:
    """Let tools within the block ask this approver."""
    token = _approver.set(approver)
    try:
        yield
    finally:
        _approver.reset(token)
