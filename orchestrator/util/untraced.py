"""Keeping tasks away from the tracers and callbacks that LangChain brings along."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from ...protocols import ConfigError

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tracers.stdout import ConsoleCallbackHandler

_IS_UNTRACED: Final[ContextVar[bool]] = ContextVar("nearfar_untraced", default=False)
_SWITCHES: Final = ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING_V2")
_DEADLY: Final = ("LANGCHAIN_TRACING", "LANGCHAIN_HANDLER")
"""Where one of these is set, LangChain raises an error in place of running anything."""
_OFF: Final = ("", "0", "false", "False")


def tracing_switches() -> list[str]:
    """Name the variables that turn LangSmith's tracing on for whatever runs in this environment."""
    return _set_in_environment(_SWITCHES)


def deadly_switches() -> list[str]:
    """Name the variables with which LangChain runs nothing."""
    return _set_in_environment(_DEADLY)


def is_untraced() -> bool:
    """Say whether this is inside `untraced`."""
    return _IS_UNTRACED.get()


@contextmanager
def untraced() -> Iterator[None]:
    """Let no tracer and no callback of LangChain's hear what runs inside.

    Left to itself, LangGraph shows the state of each graph, with prompts, memory and tool results, to LangSmith where variables say so that
    were set for another app (`LANGSMITH_TRACING`, `LANGCHAIN_TRACING_V2`), to the callbacks of a runnable that this runs in, and to
    handlers that other packages have registered. Raises `ConfigError` where a variable is set with which LangChain runs nothing.
    """
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.runnables.config import var_child_runnable_config
    from langchain_core.tracers import context as tracers
    from langsmith import tracing_context

    if found := deadly_switches():
        raise ConfigError(f"{found[0]} is set, with which LangChain runs nothing", hint=f"unset {found[0]}")
    with ExitStack() as left:
        left.enter_context(tracing_context(enabled=False, parent=False))
        left.enter_context(_set(_IS_UNTRACED, True))
        left.enter_context(_set(var_child_runnable_config, None))
        for variable, _, kind, switch in tracers._configure_hooks:  # there is no public way to leave out what others have registered
            is_switched_on = kind is not None and switch is not None and _set_in_environment([switch])
            if is_switched_on or variable.get() is not None:  # where there is a handler already, none is made
                left.enter_context(_set(variable, BaseCallbackHandler() if is_switched_on else None))
        yield


def without_callbacks(config: "RunnableConfig | None") -> "RunnableConfig | None":
    """Return the configuration of a graph that tells no callback anything.

    With `set_debug(True)`, LangChain prints the input and output of all that runs, unless a handler that prints is there already.
    """
    from langchain_core.globals import get_debug

    if get_debug():
        return {**(config or {}), "callbacks": [_silent_printer()]}
    return None if config is None else {**config, "callbacks": None}


def _silent_printer() -> "ConsoleCallbackHandler":
    """Return a handler that LangChain takes for the one that prints. It ignores whatever it may be told."""
    from langchain_core.tracers.stdout import ConsoleCallbackHandler

    class Silent(ConsoleCallbackHandler):
        ignore_llm = ignore_chain = ignore_agent = ignore_retriever = ignore_chat_model = ignore_retry = ignore_custom_event = True

    return Silent()


@contextmanager
def _set(variable: ContextVar[Any], value: object) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def _set_in_environment(names: Sequence[str]) -> list[str]:
    return [name for name in names if os.environ.get(name, "") not in _OFF]
