"""The scope of a step: the task's user and policy, which decide about caching and are not part of the request."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ..util.canonical import fingerprint

if TYPE_CHECKING:
    from .task import Task

Caching = Literal["use", "no-store"]
"""`use`: the task may be answered from a cache and its answers be stored; `no-store`: neither."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Properties of the task for which agents are asked."""

    user: str = ""
    """An answer for one user is never served to another one."""
    policy: str = ""
    """Fingerprint of the policy: an answer made under one is not served under another."""
    task_class: str = ""
    """Class of the task as the app gave it; empty: unknown."""
    caching: Caching = "use"
    task: str = ""
    """The task's id. It decides nothing, but finds the answers of a task that the app reports as wrong."""


_CURRENT: Final[ContextVar[Scope]] = ContextVar("nearfar_cache_scope", default=Scope())  # noqa: B039 - it is frozen


def scope_of(task: "Task") -> Scope:
    """Return the scope of a task."""
    policy = fingerprint(task.policy.model_dump(mode="json"))
    return Scope(user=task.user, policy=policy, task_class=task.task_class, caching=task.cache, task=task.idempotency_key)


def current_scope() -> Scope:
    """Return the scope of the running task; outside of one, the default scope."""
    return _CURRENT.get()


@contextmanager
def scope(of: Scope) -> Iterator[None]:
    """Set the scope of steps within the block."""
    token = _CURRENT.set(of)
    try:
        yield
    finally:
        _CURRENT.reset(token)
