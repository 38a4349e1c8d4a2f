"""A running server does what its token file says, without being started anew."""

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
    """Give a server the tokens in `path` now and whenever they change. What cannot be read changes nothing, and is logged."""
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
    """What there is to see of the file. It is small, so all of it is looked at: times and sizes may stay the same where it changes."""
    try:
        return look(path)
    except OSError as error:
        return error.errno
