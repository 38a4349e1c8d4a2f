"""Which agent answered last in each session, so that a follow-up does not bounce to another one."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Final

_KEPT: Final = 10_000
"""Sessions; of more, those are forgotten that were silent for the longest time."""


class Sessions:
    """Calls may come from any thread.

    Args:
        clock: seconds that never run backwards.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = Lock()
        self._served: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def keep(self, session: str, agent: str) -> None:
        """Remember who answered."""
        with self._lock:
            self._served.pop(session, None)
            self._served[session] = (agent, self._clock())
            if len(self._served) > _KEPT:
                self._served.popitem(last=False)

    def agent_of(self, session: str, *, seconds: float) -> str | None:
        """Return the agent that answered last, at most so many seconds ago; None if there is none."""
        with self._lock:
            agent, when = self._served.get(session, ("", float("-inf")))
            return agent if agent and self._clock() - when <= seconds else None
