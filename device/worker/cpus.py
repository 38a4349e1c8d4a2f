"""Choose the number of threads of a model's passes if the user names none."""

from dataclasses import dataclass
from typing import Final

import psutil

from ..hardware.cpu import usable_cores

_SMALL_MODEL: Final = 20_000_000
"""Parameters below which one token is less work than waking a second thread."""


@dataclass(frozen=True, slots=True)
class Threads:
    """CPU threads of a pass. Reading the weights for one token is bound by memory, computing several by the cores."""

    single: int
    batch: int
    """At most so many for several tokens, and no fewer than `single`, whichever is faster."""


def threads_for(parameters: int) -> Threads:
    """Return the threads for a model of so many weights."""
    if parameters < _SMALL_MODEL:
        return Threads(1, 1)
    usable = usable_cores()
    return Threads(max(usable // 2, 1), max(min(psutil.cpu_count(logical=False) or 1, usable), 1))
