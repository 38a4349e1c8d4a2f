"""Log defects of nearfar by their place in the code, never by their message, which may quote a prompt, a result or a key."""

import logging
import traceback


def log_defect(logger: logging.Logger, what: str, error: BaseException) -> None:
    """Log that `what` failed with an unexpected error."""
    logger.error("%s:\n%s", what, described(error))


def described(error: BaseException) -> str:
    """Return the classes of an error and of its causes, with the lines of code that they passed through, innermost error first."""
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    parts = [described(inner) for inner in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    own = "".join((*traceback.format_tb(error.__traceback__), type(error).__qualname__, "\n"))
    return "".join(([described(earlier)] if earlier is not None else []) + [*parts, own])
