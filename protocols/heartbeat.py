"""Heartbeats over a stream, and when its other side counts as dead."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

_TICKS_PER_BEAT = 3


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """How often each side of a stream says that it is alive, in seconds."""

    interval: float = 1.5
    silence_limit: float = 4.5
    """Who was silent for so long is taken for dead; noticed at most a third of an interval later."""


class Pulse:
    """Sends this side's heartbeats and watches for the other side's.

    A stopped process or a black hole in the network breaks no connection: the kernel still acknowledges, or nothing answers at all. So
    both sides have to say that they live. Silence is counted in ticks and not by the clock: while this process itself stood still, as a
    laptop that was closed, nothing was heard because nothing was read.
    """

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._tick = heartbeat.interval / _TICKS_PER_BEAT
        self._limit = math.ceil(heartbeat.silence_limit / self._tick)
        self._silent_ticks = 0

    def heard(self) -> None:
        """Something came from the other side."""
        self._silent_ticks = 0

    @property
    def is_silent(self) -> bool:
        """Nothing came from the other side for as long as the limit allows."""
        return self._silent_ticks >= self._limit

    async def run(self, beat: Callable[[], Awaitable[None]]) -> None:
        """Call `beat` once per interval; returns when the other side has been silent for too long."""
        ticks = 0
        while not self.is_silent:
            if not ticks % _TICKS_PER_BEAT:
                await beat()
            await anyio.sleep(self._tick)
            ticks += 1
            self._silent_ticks += 1
