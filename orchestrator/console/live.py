"""Keep open pages up to date: what changes is rendered once for all that show it, and sent as a whole."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Final

import orjson

from ...protocols import NearfarError
from ...protocols.secrets import log_defect
from ..serve.sse import event
from ..util.runtime import cancel_task

Fragments = Mapping[str, str]
"""HTML by the id of the element that it replaces."""
Render = Callable[[], Awaitable[Fragments]]

PERIOD: Final = 0.1
"""Seconds between two looks at what a page shows."""
QUIET: Final = 15.0
"""Seconds after which a line without a change is kept open by a comment."""
MOST_PAGES: Final = 100
"""Pages that are kept up to date at once."""

logger = logging.getLogger(__name__)


class Channel:
    """One view that pages may have open, such as the list of runs: it is rendered for all of them together."""

    def __init__(self, render: Render, period: float = PERIOD) -> None:
        self._render = render
        self._period = period
        self._viewers = 0
        self._task: asyncio.Task[None] | None = None
        self._latest: dict[str, str] = {}
        self._encoded: tuple[Fragments, bytes] = ({}, b"")
        self._changed = asyncio.Condition()
        self.version = 0

    @property
    def is_watched(self) -> bool:
        """Pages have it open."""
        return self._viewers > 0

    def encoded(self, changed: Fragments) -> bytes:
        """Return fragments as a server-sent event. What many pages are sent is encoded once."""
        if self._encoded[0] != changed:
            self._encoded = (changed, event(orjson.dumps(changed), name="fragments"))
        return self._encoded[1]

    async def view(self) -> AsyncGenerator[Fragments, None]:
        """Yield the fragments that have changed, all of them at first. A viewer that is slow misses states in between, and none at the
        end."""
        self._viewers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._look())
        seen: dict[str, str] = {}
        version = -1
        try:
            while True:
                async with self._changed:
                    if self.version == version or not self._latest:
                        await self._changed.wait()
                version, latest = self.version, dict(self._latest)
                changed = {name: html for name, html in latest.items() if seen.get(name) != html}
                seen = latest
                if changed:
                    yield changed
        finally:
            self._viewers -= 1
            if not self._viewers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _look(self) -> None:
        while True:
            try:
                found = dict(await self._render())
            except NearfarError as error:
                logger.warning("a page could not be renewed: %s", error)
                found = self._latest
            except Exception as defect:  # the boundary of a task: the pages would wait for ever for the next state
                log_defect(logger, "a page could not be renewed", defect)
                found = self._latest
            if found != self._latest:
                async with self._changed:
                    self._latest, self.version = found, self.version + 1
                    self._changed.notify_all()
            await asyncio.sleep(self._period)


class Channels:
    """The views that are open, by their address."""

    def __init__(self) -> None:
        self._open: dict[str, Channel] = {}
        self._pages = 0

    @property
    def is_full(self) -> bool:
        """No further page may be opened."""
        return self._pages >= MOST_PAGES

    async def events(self, address: str, render: Render, period: float = PERIOD) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events with the fragments of the view at an address, and comments while nothing changes."""
        channel = self._open.setdefault(address, Channel(render, period))
        self._pages += 1
        try:
            async with aclosing(channel.view()) as views, aclosing(_kept_alive(views)) as changes:
                async for changed in changes:
                    yield b": still here\n\n" if changed is None else channel.encoded(changed)
        finally:
            self._pages -= 1
            if not channel.is_watched:
                self._open.pop(address, None)


async def _kept_alive(views: AsyncGenerator[Fragments, None]) -> AsyncGenerator[Fragments | None, None]:
    """Yield what changes, and None after each quiet while."""
    waiting = asyncio.ensure_future(anext(views))
    try:
        while True:
            done, _ = await asyncio.wait({waiting}, timeout=QUIET)
            yield waiting.result() if done else None
            if done:
                waiting = asyncio.ensure_future(anext(views))
    finally:
        await cancel_task(waiting)
