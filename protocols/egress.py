"""Inspect the bytes that are about to leave this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

Inspector = Callable[[bytes], None]
"""Raises `PrivacyViolation` if the bytes must not leave."""

_INSPECTOR: Final[ContextVar[Inspector | None]] = ContextVar("nearfar_egress_inspector", default=None)


@contextmanager
def inspected_by(inspector: Inspector) -> Iterator[None]:
    """Show everything that is sent to another process within the block, and by tasks started in it, to `inspector` first."""
    token = _INSPECTOR.set(inspector)
    try:
        yield
    finally:
        _INSPECTOR.reset(token)


def inspect(serialize: Callable[[], bytes]) -> None:
    """Show a message to the current inspector, if there is one. Raise what the inspector raises."""
    inspector = _INSPECTOR.get()
    if inspector is not None:
        inspector(serialize())
