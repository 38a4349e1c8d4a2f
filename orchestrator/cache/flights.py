"""Steps under way that several readers share: of identical requests at the same time, one is computed."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable

import anyio

from ...protocols import Finished, StepEvent, Usage
from ..util.cancellation import end


class Flight:
    """One stream, computed in a task of its own for as long as it has readers.

    Readers come and go: each receives all events from the beginning, and when the last one leaves before the end, the task is cancelled.
    The stream advances with its fastest reader, so nothing is computed in vain.
    """

    def __init__(self, source: AsyncGenerator[StepEvent, None], on_end: Callable[[], None]) -> None:
        self._source = source
        self._on_end = on_end
        self._heard: list[StepEvent] = []
        self._error: Exception | None = None
        self._is_over = False
        self._readers = 0
        self._furthest = 0
        self._changed = anyio.Event()
        self.is_paid = False
        """A reader has been told what the step used: that is told once. Never set for a stored answer, which uses nothing."""
        self._task: asyncio.Task[None] | None = None

    async def read(self) -> AsyncGenerator[StepEvent, None]:
        """Yield the events from the beginning. Raises what the stream raises; all but one reader are told that they used nothing."""
        self._task = self._task or asyncio.create_task(self._run())
        self._readers += 1
        place = 0
        try:
            while place < len(self._heard) or not self._is_over:
                if place == len(self._heard):
                    await self._changed.wait()
                    continue
                event = self._heard[place]
                place += 1
                if place > self._furthest:
                    self._furthest = place
                    self._change()
                yield self._shared(event) if isinstance(event, Finished) else event
            if self._error is not None:
                raise self._error
        finally:
            self._readers -= 1
            if self._readers == 0:
                self._on_end()
                await end(self._task)

    def _shared(self, finished: Finished) -> Finished:
        if finished.saved is not None:
            return finished
        if not self.is_paid:
            self.is_paid = True
            return finished
        return finished.model_copy(update={"usage": Usage(), "performance": None, "saved": finished.usage})

    async def _run(self) -> None:
        try:
            async for event in self._source:
                self._heard.append(event)
                self._change()
                while self._furthest < len(self._heard):
                    await self._changed.wait()
        except Exception as error:  # a task boundary: every reader raises it
            self._error = error
        finally:
            self._is_over = True
            self._on_end()
            self._change()
            await self._source.aclose()

    def _change(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


class Flights:
    """The flights under way, by what they compute."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, Flight] = {}

    def join(self, key: Hashable, start: Callable[[], AsyncGenerator[StepEvent, None]]) -> tuple[Flight, bool]:
        """Return the flight of that key, begun with `start` where there is none; and whether there was one."""
        flight = self._under_way.get(key)
        if flight is not None:
            return flight, True
        begun = Flight(start(), lambda: self._ended(key, begun))
        self._under_way[key] = begun
        return begun, False

    def _ended(self, key: Hashable, flight: Flight) -> None:
        if self._under_way.get(key) is flight:
            del self._under_way[key]
