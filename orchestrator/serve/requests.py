"""Requests as they arrive: their body within its limits, and the fields that nothing here knows."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any, Final

import orjson

from ...protocols import DeadlineExceeded, InvalidRequest
from ...protocols.limits import FIRST_MESSAGE_SECONDS, JSON_DEPTH
from .errors import BadField, BodyTooLarge

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Scope = MutableMapping[str, Any]

BODY_BYTES: Final = 20_000_000
"""Most bytes of a body: a million tokens and an image take about eight."""
_DISCARDED_BYTES: Final = 4 * BODY_BYTES
"""Most bytes of a body that is too large to be read and dropped, so that its sender gets to read why it is refused."""
_NOT_SHOWN: Final = re.compile(r"[^A-Za-z0-9_.\[\]-]")
_LONGEST_NAME: Final = 60


class ClientLeft(Exception):
    """The client has closed its connection: no one reads an answer."""


async def read_object(receive: Receive, headers: Mapping[str, str]) -> tuple[dict[str, Any], int]:
    """Read the body of a request, a JSON object, and return it with its bytes. Raise `InvalidRequest` for anything else, and what
    `read_body` raises."""
    data = await read_body(receive, headers)
    return parse_object(data), len(data)


async def read_body(receive: Receive, headers: Mapping[str, str]) -> bytes:
    """Read the body of a request. Raise `BodyTooLarge`, `DeadlineExceeded` for one that does not arrive in time, and `ClientLeft`."""
    try:
        async with asyncio.timeout(FIRST_MESSAGE_SECONDS):
            return await _read(receive, int(headers.get("content-length", "0")))
    except TimeoutError:
        raise DeadlineExceeded(f"the request did not arrive within {FIRST_MESSAGE_SECONDS:g} s", hint="check the network") from None


async def _read(receive: Receive, announced: int) -> bytes:
    pieces: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        if max(size, announced) <= BODY_BYTES:
            pieces.append(message.get("body", b""))
        elif not more or size > _DISCARDED_BYTES or announced > _DISCARDED_BYTES:
            raise BodyTooLarge(f"the request is larger than {BODY_BYTES} bytes", hint="shorten the conversation")
        else:
            pieces.clear()
    return b"".join(pieces)


def parse_object(data: bytes) -> dict[str, Any]:
    """Return a JSON object. Raise `InvalidRequest` for anything else, and for one that is nested too deeply."""
    try:
        value = orjson.loads(data or b"{}")  # some requests need no body
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is no JSON: {error}", hint="content-type: application/json") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body is no JSON object", hint='{"model": "nearfar/auto", ...}')
    if _is_deeper(value, JSON_DEPTH):
        raise InvalidRequest(f"the body is nested more than {JSON_DEPTH} levels deep")
    return value


def _is_deeper(value: object, most: int) -> bool:
    level: list[Any] = [value]
    for _ in range(most):
        level = [part for each in level for part in (each.values() if isinstance(each, dict) else each) if isinstance(part, (dict, list))]
        if not level:
            return False
    return True


def field(body: Mapping[str, Any], name: str, kind: type | tuple[type, ...], wanted: str, default: Any = None) -> Any:  # noqa: ANN401
    """Return a field of a body, or the default where it is left out or null. Raise `BadField` for a value of another type than `kind`."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise BadField(f"{name} must be {wanted}, not {type(value).__name__}", param=name)
    return value


def ignored(body: Mapping[str, Any], known: Collection[str], *, prefix: str = "") -> list[str]:
    """Return a warning for each field that was given and has no effect."""
    return [warning("ignored", f"{prefix}{name}") for name, value in body.items() if name not in known and value not in (None, {}, [])]


def warning(*words: str) -> str:
    """Return a warning for the header `x-nearfar-warnings`, such as `dropped;tool;web_search`."""
    return ";".join(_NOT_SHOWN.sub("_", word)[:_LONGEST_NAME] for word in words)
