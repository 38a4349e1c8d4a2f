"""Tool calls that a resumed run makes again, because they do more than their result says."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final


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
def noting(repetition: Repetition) -> Iterator[None]:
    """Let tools within the block set `repetition` with `make_again`."""
    token = _current.set(repetition)
    try:
        yield
    finally:
        _current.reset(token)
