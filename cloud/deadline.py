"""The time limit of one step."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from ..protocols import DeadlineExceeded, NearfarError

_T = TypeVar("_T")


class Deadline:
    """A moment after which every wait raises `DeadlineExceeded`.

    It wraps single waits, because a cancel scope must not stay open across the `yield` of an async generator.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._moment = anyio.current_time() + seconds
        self._scope: anyio.CancelScope | None = None
        self._aborted: NearfarError | None = None

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._moment - anyio.current_time())

    def abort(self, error: NearfarError) -> None:
        """End the current wait, and every further one, with `error`."""
        self._aborted = error
        if self._scope is not None:
            self._scope.cancel()

    async def run(self, waiting: Callable[[], Awaitable[_T]]) -> _T:
        """Await the result of `waiting`. Cancel it and raise `DeadlineExceeded` when the time is up."""
        with anyio.CancelScope(deadline=self._moment) as self._scope:
            if self._aborted is None:
                return await waiting()
        if self._aborted is not None:
            raise self._aborted
        message = f"the step took longer than {self._seconds:g} s"
        raise DeadlineExceeded(message, hint="allow a longer timeout, or ask for a shorter answer")
