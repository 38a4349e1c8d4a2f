"""Hybrid logical clocks: time stamps that never run backwards and respect causality, close to wall-clock time.

Kulkarni et al., *Logical Physical Clocks and Consistent Snapshots in Globally Distributed Databases*, 2014. A stamp is one integer:
milliseconds since the epoch, shifted by 16 bits, plus a counter.
"""

from typing import Final

COUNTER_BITS: Final = 16
MAXIMUM_SKEW: Final = 60_000
"""Milliseconds by which another device's clock may be ahead and still move ours."""


def tick(last: int, now: float) -> int:
    """Return the next stamp after `last` at wall-clock time `now`, in seconds since the epoch."""
    return max(last + 1, int(now * 1000) << COUNTER_BITS)


def received(last: int, remote: int, now: float) -> int:
    """Return our clock after we saw a stamp of another device. A stamp far ahead of `now` moves it by the allowed skew at most.

    A write that knew of a stamp from the future still comes after it, see `merge.succeed`; unrelated writes keep to our own time.
    """
    limit = (int(now * 1000) + MAXIMUM_SKEW) << COUNTER_BITS
    return max(last, min(remote, limit))


def seconds(stamp: int) -> float:
    """Return the wall-clock time of a stamp, in seconds since the epoch."""
    return (stamp >> COUNTER_BITS) / 1000
