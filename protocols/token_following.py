"""Follow a token file: a running server applies its changes without a restart."""

import logging
from collections.abc import Callable
from pathlib import Path

import anyio

from .errors import ConfigError
from .token_file import look, read_tokens
from .tokens import Tokens

logger = logging.getLogger(__name__)

_LOOK_EVERY = 1.0
"""Seconds between two looks at the file."""


async def follow_tokens(path: Path, replace_tokens: Callable[[Tokens], None]) -> None:
    """Give a server the tokens in `path` now and after every change. An unreadable file changes nothing, and is logged."""
    seen: object = None
    while True:
        if (looks := _looks(path)) != seen:
            seen = looks
            try:
                replace_tokens(read_tokens(path))
                logger.info("read the tokens")
            except ConfigError as error:
                logger.error("the tokens stay as they were: %s", error)
        await anyio.sleep(_LOOK_EVERY)


def _looks(path: Path) -> object:
    """Return the state of the file. Its whole content is compared, because time and size may stay the same after a change."""
    try:
        return look(path)
    except OSError as error:
        return error.errno
