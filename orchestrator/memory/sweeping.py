"""Forget items that have expired."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from ...protocols import StoreError
from .engine import Change, Engine

log = logging.getLogger(__name__)

_BATCH: Final = 500


def sweep(engine: Engine, now: Callable[[], float]) -> int:
    """Forget expired items, and return their number. Each replica does it for itself: other devices' items may have been read since."""
    done = 0
    while expired := engine.expired(now(), limit=_BATCH):
        with engine.transaction() as transaction:
            # One may have been written or read since.
            still = set(engine.expired(now(), limit=_BATCH))
            due = [address for address in expired if address in still]
            transaction.apply([Change(address, (), None) for address in due])
        done += len(due)
    return done


class Sweeper:
    """Sweeps at an interval in seconds, in a thread of its own, until it is closed."""

    def __init__(self, engine: Engine, now: Callable[[], float], seconds: float) -> None:
        self._engine = engine
        self._now = now
        self._seconds = seconds
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nearfar memory sweeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and return when it no longer uses the engine."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._seconds):
            try:
                sweep(self._engine, self._now)
            except StoreError as error:  # a thread boundary: the database may be there again the next time
                log.warning("expired items could not be deleted: %s", error)
