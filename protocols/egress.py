"""A last look at the bytes that are about to leave this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

Inspector = Callable[[bytes], None]
"""Raises `PrivacyViolation` where the bytes must not leave."""

_INSPECTOR: Final[ContextVar[Inspector | None]] = ContextVar("nearfar_egress_inspector", default=None)


@contextmanager
def inspected_by(inspector: Inspector) -> Iterator[None]:
    """Whatever is sent to another process within the block, and by tasks that start in it, is shown to the inspector first."""
    token = _INSPECTOR.set(inspector)
    try:
        yield
    finally:
        _INSPECTOR.reset(token)


def inspect(serialize: Callable[[], bytes]) -> None:
    """Show a message to whoever inspects what leaves now, if anybody does. Raises what they raise."""
    inspector = _INSPECTOR.get()
    if inspector is not None:
        inspector(serialize())
