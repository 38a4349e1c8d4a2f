"""Call back after changes: at once for those made in this process, within a moment for those of others."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Watchers:
    """Callbacks that run when this process has written. Calls come from the thread that wrote, and must be quick."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._called: list[Callable[[], object]] = []

    @property
    def count(self) -> int:
        return len(self._called)

    @contextmanager
    def calling(self, call: Callable[[], object]) -> Iterator[None]:
        """Call `call` after each write within this block."""
        with self._lock:
            self._called.append(call)
        try:
            yield
        finally:
            with self._lock:
                self._called.remove(call)

    def notify(self) -> None:
        with self._lock:
            called = list(self._called)
        for call in called:
            call()
