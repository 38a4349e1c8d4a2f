"""Heartbeats over a stream, and the rule when its other side counts as dead."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

_TICKS_PER_BEAT = 3


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """The interval of heartbeats and the limit of silence, in seconds."""

    interval: float = 1.5
    """Seconds between two heartbeats."""
    silence_limit: float = 4.5
    """Silence after which the other side counts as dead; it is noticed at most a third of an interval later."""


class Pulse:
    """Sends this side's heartbeats and watches for the other side's.

    A stopped process or a black hole in the network breaks no connection, so both sides have to send heartbeats. Silence is counted in
    ticks and not by the clock: while this process itself stood still, as in a closed laptop, it read nothing.
    """

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._tick = heartbeat.interval / _TICKS_PER_BEAT
        self._limit = math.ceil(heartbeat.silence_limit / self._tick)
        self._silent_ticks = 0

    def heard(self) -> None:
        """Record that a message came from the other side."""
        self._silent_ticks = 0

    @property
    def is_silent(self) -> bool:
        """Return whether the other side has been silent for the limit."""
        return self._silent_ticks >= self._limit

    async def run(self, beat: Callable[[], Awaitable[None]]) -> None:
        """Call `beat` once per interval; return when the other side has been silent for too long."""
        ticks = 0
        while not self.is_silent:
            if not ticks % _TICKS_PER_BEAT:
                await beat()
            await anyio.sleep(self._tick)
            ticks += 1
            self._silent_ticks += 1
