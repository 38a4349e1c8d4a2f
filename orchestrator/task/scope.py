"""For whom an agent is asked: what decides about caching and stands in no request."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ..util.canonical import fingerprint

if TYPE_CHECKING:
    from .task import Task

Caching = Literal["use", "no-store"]
"""Whether a task may be answered from a cache and its answers be stored: `use`, or neither of both."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What the runtime knows of the task for which agents are asked."""

    user: str = ""
    """What one user has asked is never served to another one."""
    policy: str = ""
    """Fingerprint of the policy: an answer made under one is not served under another."""
    task_class: str = ""
    """As the app gave it; empty: unknown."""
    caching: Caching = "use"
    task: str = ""
    """The task's id; it decides nothing, and tells which answers were the task's if the app finds it wrong."""


_CURRENT: Final[ContextVar[Scope]] = ContextVar("nearfar_cache_scope", default=Scope())  # noqa: B039 - it is frozen


def scope_of(task: "Task") -> Scope:
    """The scope in which a task's agents are asked."""
    policy = fingerprint(task.policy.model_dump(mode="json"))
    return Scope(user=task.user, policy=policy, task_class=task.task_class, caching=task.cache, task=task.idempotency_key)


def current_scope() -> Scope:
    """The scope of the running task; outside of one, that of nobody in particular."""
    return _CURRENT.get()


@contextmanager
def scope(of: Scope) -> Iterator[None]:
    """Ask agents within the block for this scope."""
    token = _CURRENT.set(of)
    try:
        yield
    finally:
        _CURRENT.reset(token)
