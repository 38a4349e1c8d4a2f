"""Limits on the duration of a call, and on the number of calls of one caller."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from ....protocols import DeadlineExceeded, RateLimited

UNARY_LIMIT: Final = 30.0
"""Seconds for a call with one answer."""
IDLE_LIMIT: Final = 60.0
"""Seconds within which the next message of a stream must come, or be taken."""
_CALLS: Final = 8
"""Calls that one caller may have open at once: two replicas need three."""
_RETRY_AFTER: Final = 1.0


@contextmanager
def in_time(seconds: float) -> Iterator[None]:
    """Raise `DeadlineExceeded` if the block takes longer."""
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError as error:
        raise DeadlineExceeded(f"the other side did not answer within {seconds:g} s", hint="check that it still runs") from error


class Calls:
    """Counts the open calls of each caller."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def one_of(self, caller: str) -> Iterator[None]:
        """Count a call while it is open. Raises `RateLimited` if the caller has too many."""
        if self._open[caller] >= _CALLS:
            raise RateLimited(f"{_CALLS} calls of this caller are open already", hint="close some of them", retry_after=_RETRY_AFTER)
        self._open[caller] += 1
        try:
            yield
        finally:
            self._open[caller] -= 1
