"""A running server does what its token file says, without being started anew."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import anyio

from ..protocols import ConfigError

logger = logging.getLogger(__name__)

_LOOK_EVERY = 1.0
"""Seconds between two looks at the file."""


async def follow_tokens(
    path: Path, read_tokens: Callable[[Path], Mapping[str, str]], replace_tokens: Callable[[Mapping[str, str]], None]
) -> None:
    """Give a server the tokens in `path` whenever they change. What cannot be read changes nothing, and is logged."""
    seen = _stamp(path)
    while True:
        await anyio.sleep(_LOOK_EVERY)
        if (stamp := _stamp(path)) != seen:
            seen = stamp
            try:
                replace_tokens(read_tokens(path))
                logger.info("read the tokens again")
            except ConfigError as error:
                logger.error("the tokens stay as they were: %s", error)


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes when the file does."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
