"""Report refusals that repeat until the user fixes their cause, in `reasons` and in the log: another agent's answer would hide them."""

import logging

from ...protocols import (
    NearfarError,
    NoSuchModel,
    ProviderAuthError,
    QuotaExceeded,
    RequestRefused,
)

logger = logging.getLogger(__name__)

_STANDING = (NoSuchModel, ProviderAuthError, QuotaExceeded, RequestRefused)


def warn_of_refusal(agent: str, error: NearfarError, *, role: str = "execute") -> tuple[str, ...]:
    """Log a warning where `error` is a refusal that waiting does not mend; returns the line for `Result.reasons`, or nothing."""
    if not isinstance(error, _STANDING):
        return ()
    line = f"{agent} was refused in the role {role!r}: {type(error).__name__}: {error}"
    logger.warning("%s", line)
    return (line,)
