"""Keep open pages up to date: what changes is rendered once for all that show it, and only its new lines are sent."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Final, NamedTuple

import orjson

from ...protocols import NearfarError
from ...protocols.secrets import log_defect
from ..serve.dialect import event

Fragments = Mapping[str, str]
"""HTML by the id of the element that it replaces."""
_NOTHING: Final[Fragments] = {}
Render = Callable[[], Awaitable[Fragments]]

PERIOD: Final = 0.2
"""Seconds between two looks at what a page shows."""
_SHARE: Final = 1.0
"""Seconds between two looks for each second that one takes: a long page is looked at less often."""
QUIET: Final = 15.0
"""Seconds after which a line without a change is kept open by a comment."""
MOST_PAGES: Final = 100
"""Pages that are kept up to date at once."""

logger = logging.getLogger(__name__)


class Update(NamedTuple):
    """The fragments of a page, and those that it had before."""

    before: Fragments
    after: Fragments


def patch(before: str, after: str) -> list[str | list[int]]:
    """Return the lines of a new text: a text for a new line, and the first and the end of a range of lines that the old text had.

    Of an empty text nothing is taken: a browser that connects again still holds the lines of its last connection.
    """
    old = before.split("\n") if before else []
    places = {line: number for number, line in enumerate(old)}
    parts: list[str | list[int]] = []
    for line in after.split("\n"):
        last = parts[-1] if parts else ""
        if isinstance(last, list) and old[last[1] : last[1] + 1] == [line]:
            last[1] += 1
        elif (place := places.get(line)) is not None:
            parts.append([place, place + 1])
        else:
            parts.append(line)
    return parts


class Channel:
    """One view that pages may have open, such as the list of runs: it is rendered for all of them together."""

    def __init__(self, render: Render, period: float = PERIOD) -> None:
        self._render = render
        self._period = period
        self._viewers = 0
        self._task: asyncio.Task[None] | None = None
        self._latest = _NOTHING
        self._told = ""
        self._news = _news()
        self._encoded = (Update(_NOTHING, _NOTHING), b"")

    @property
    def is_watched(self) -> bool:
        """Pages have it open."""
        return self._viewers > 0

    def encoded(self, update: Update) -> bytes:
        """Return an update as a server-sent event. What many pages are sent is encoded once."""
        before, after = update
        known = self._encoded[0]
        if known.before is not before or known.after is not after:
            changed = {name: patch(before.get(name, ""), html) for name, html in after.items() if before.get(name) != html}
            self._encoded = (update, event(orjson.dumps(changed), name="fragments"))
        return self._encoded[1]

    async def view(self) -> AsyncGenerator[Update | None, None]:
        """Yield the fragments whenever they have changed, and None after each quiet while.

        A viewer that is slow misses states in between, and none at the end.
        """
        self._viewers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._look())
        seen = _NOTHING
        try:
            while True:
                if self._latest is seen:
                    await asyncio.wait({self._news}, timeout=QUIET)
                before, seen = seen, self._latest
                yield None if seen is before else Update(before, seen)
        finally:
            self._viewers -= 1
            if not self._viewers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _look(self) -> None:
        while True:
            began = time.monotonic()
            found = await self._found()
            if found != self._latest:
                news, self._news = self._news, _news()
                self._latest = found
                news.set_result(None)
            await asyncio.sleep(max(self._period, _SHARE * (time.monotonic() - began)))

    async def _found(self) -> Fragments:
        """Return what the view shows now; if that fails, what it showed before."""
        try:
            found = dict(await self._render())
        except NearfarError as error:
            if self._is_new(error):
                logger.warning("a page could not be renewed: %s", error)
        except Exception as defect:  # the boundary of a task: the pages would wait for ever for the next state
            if self._is_new(defect):
                log_defect(logger, "a page could not be renewed", defect)
        else:
            self._told = ""
            return found
        return self._latest

    def _is_new(self, error: Exception) -> bool:
        """The log was not told of this failure by the look before: a store that is damaged fails each of them."""
        before, self._told = self._told, f"{type(error).__name__}: {error}"
        return before != self._told


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
        """Yield server-sent events with what changes in the view at an address, and comments while nothing does."""
        channel = self._open.setdefault(address, Channel(render, period))
        self._pages += 1
        try:
            async with aclosing(channel.view()) as updates:
                async for update in updates:
                    yield b": still here\n\n" if update is None else channel.encoded(update)
        finally:
            self._pages -= 1
            if not channel.is_watched:
                self._open.pop(address, None)


def _news() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()
