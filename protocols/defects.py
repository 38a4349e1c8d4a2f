"""Logging defects of ours, by where they came up and never by what they say, which may quote a prompt, a result or a key."""

import logging
import traceback


def log_defect(logger: logging.Logger, what: str, error: BaseException) -> None:
    """Log that `what` failed with an error that nobody foresaw."""
    logger.error("%s:\n%s", what, described(error))


def described(error: BaseException) -> str:
    """The classes of an error and of those that led to it, with the lines of code that they came through, innermost error first."""
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    parts = [described(inner) for inner in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    own = "".join((*traceback.format_tb(error.__traceback__), type(error).__qualname__, "\n"))
    return "".join(([described(earlier)] if earlier is not None else []) + [*parts, own])
