"""Read server-sent events from an HTTP response as JSON objects and text."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import cast

import anyio
import httpx
from httpx_sse import EventSource, ServerSentEvent

from ..protocols import InvalidOutput
from ..protocols.limits import LINE_CHARACTERS, STEP_BYTES
from ..protocols.redact import quote
from .dialect import JsonObject

_DRAIN_SECONDS = 1.0
_LAST_EVENTS = frozenset(("message_stop", "response.completed", "response.incomplete", "response.failed"))
"""Last events of Anthropic and OpenAI's responses; other streams end with [DONE], or just end."""


async def json_events(response: httpx.Response) -> AsyncGenerator[JsonObject, None]:
    """Yield the JSON objects of an event stream. Raise `InvalidOutput` for an event that is not one."""
    bounded = cast(httpx.Response, _Bounded(response))  # it has what an EventSource reads
    async with aclosing(EventSource(bounded).aiter_sse()) as events:
        async for event in events:
            data = event.data.strip()
            if data == "[DONE]":
                await _drain(events)
                return
            if data:
                yield _json_object(data)
            if event.event in _LAST_EVENTS:
                await _drain(events)
                return


class _Bounded:
    """A response that raises `InvalidOutput` if it is longer than any answer."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.headers = response.headers

    async def aiter_text(self) -> AsyncGenerator[str, None]:
        whole = line = 0
        async for text in self._response.aiter_text():
            whole += len(text)
            line = len(text) - text.rindex("\n") if "\n" in text else line + len(text)
            if whole > STEP_BYTES or line > LINE_CHARACTERS:
                raise InvalidOutput("the provider's answer does not end", hint="check base_url, and ask for fewer tokens")
            yield text


async def _drain(events: AsyncGenerator[ServerSentEvent, None]) -> None:
    # A response read to its end gives its connection back. One that never ends is not waited for, and one that breaks now is complete.
    with anyio.move_on_after(_DRAIN_SECONDS), suppress(httpx.TransportError):
        async for _ in events:
            pass


def _json_object(data: str) -> JsonObject:
    # Not `parse_json`: it refuses halved characters, which `SurrogateJoiner` puts together. Arguments are parsed strictly later.
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        message = f"the provider's stream is not JSON: {quote(str(error))}; it says {quote(data)!r}"
        raise InvalidOutput(message, hint="check that base_url speaks the configured dialect") from None
    if not isinstance(value, dict):
        message = f"the provider's stream holds {type(value).__name__} instead of an object"
        raise InvalidOutput(message, hint="check that base_url speaks the configured dialect")
    return value


class SurrogateJoiner:
    """Joins characters that a server split into two escaped halves, over two chunks; a half without its other half becomes U+FFFD."""

    def __init__(self) -> None:
        self._half = ""

    def join(self, text: str) -> str:
        """Return `text` as valid Unicode, without a last half character, which is kept for the next call."""
        text, self._half = self._half + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def rest(self) -> str:
        """Return the remaining text when the stream has ended."""
        return "\ufffd" if self._half else ""


class StopCutter:
    """Ends a text at the first complete stop sequence, if the provider does not. Holds back text that may begin one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.has_stopped = False

    def cut(self, text: str) -> str:
        """Return the new part of the text that may be shown."""
        if not self._stops or self.has_stopped:
            return "" if self.has_stopped else text
        text = self._held + text
        found = [(place + len(stop), place) for stop in self._stops if (place := text.find(stop)) >= 0]
        self.has_stopped = bool(found)
        end = min(found)[1] if found else len(text) - self._length_of_a_beginning(text)
        self._held = "" if found else text[end:]
        return text[:end]

    def rest(self) -> str:
        """Return the text that is held back when the stream has ended."""
        return self._held

    def _length_of_a_beginning(self, text: str) -> int:
        """Return the number of characters at the end of `text` that begin a stop sequence."""
        longest = max(map(len, self._stops)) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        return next((length for length in lengths if any(stop.startswith(text[-length:]) for stop in self._stops)), 0)
