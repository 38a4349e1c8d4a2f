"""Errors as clients of OpenAI and Anthropic know them: status, headers and body."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ...protocols import (
    BudgetExceeded,
    Cancelled,
    ConfigError,
    ContentFiltered,
    ContextOverflow,
    DeadlineExceeded,
    InternalError,
    InvalidOutput,
    InvalidRequest,
    ModelNotFound,
    NearfarError,
    NotFound,
    PermissionDenied,
    PrivacyViolation,
    RateLimited,
    Stalled,
    Unauthenticated,
    Unsupported,
    UserError,
)
from ...protocols.errors import QuotaExceeded, is_retryable


class BadField(InvalidRequest):
    """A field of the request is wrong, and `param` names it."""

    def __init__(self, message: str, *, param: str, hint: str = "") -> None:
        """Make the error of the field at `param`; `message` and `hint` are those of every error."""
        super().__init__(message, hint=hint)
        self.param = param
        """The field's place in the body, such as `messages[0].content`."""


class UnsupportedField(BadField, Unsupported):
    """A field asks for something that no agent here can do."""


class BodyTooLarge(InvalidRequest):
    """The request's body is larger than the server takes."""


class WrongMethod(InvalidRequest):
    """The path is not answered to this method."""


class Refusal(NamedTuple):
    """One row of the table of errors."""

    status: int
    kind: str
    """The `type` for OpenAI's clients."""
    code: str | None
    """The `code` for OpenAI's clients."""
    anthropic: str
    """The `type` for Anthropic's clients."""
    anthropic_status: int | None = None
    """The status for Anthropic's clients; None: the same."""


_INVALID: Final = "invalid_request_error"
_SERVER: Final = "server_error"
_TABLE: Final[Mapping[type[NearfarError], Refusal]] = {
    BodyTooLarge: Refusal(413, _INVALID, "request_too_large", "request_too_large"),
    WrongMethod: Refusal(405, _INVALID, "method_not_allowed", _INVALID),
    UnsupportedField: Refusal(400, _INVALID, "unsupported_parameter", _INVALID),
    ContextOverflow: Refusal(400, _INVALID, "context_length_exceeded", _INVALID),
    InvalidRequest: Refusal(400, _INVALID, None, _INVALID),
    Unsupported: Refusal(400, _INVALID, "unsupported_parameter", _INVALID),
    Unauthenticated: Refusal(401, "authentication_error", "invalid_api_key", "authentication_error"),
    PrivacyViolation: Refusal(403, "permission_error", "privacy_violation", "permission_error"),
    PermissionDenied: Refusal(403, "permission_error", None, "permission_error"),
    ModelNotFound: Refusal(404, _INVALID, "model_not_found", "not_found_error"),
    NotFound: Refusal(404, _INVALID, "not_found", "not_found_error"),
    ConfigError: Refusal(500, _SERVER, "config_error", "api_error"),
    UserError: Refusal(409, _INVALID, "conflict", _INVALID),
    BudgetExceeded: Refusal(429, "insufficient_quota", "insufficient_quota", "rate_limit_error"),
    QuotaExceeded: Refusal(429, "insufficient_quota", "insufficient_quota", "rate_limit_error"),
    RateLimited: Refusal(429, "rate_limit_error", "rate_limit_exceeded", "rate_limit_error"),
    DeadlineExceeded: Refusal(504, _SERVER, "timeout", "timeout_error"),
    Stalled: Refusal(504, _SERVER, "timeout", "timeout_error"),
    ContentFiltered: Refusal(400, _INVALID, "content_filter", _INVALID),
    InvalidOutput: Refusal(502, _SERVER, "invalid_output", "api_error"),
    Cancelled: Refusal(499, _SERVER, "cancelled", "api_error"),
    InternalError: Refusal(500, _SERVER, "internal_error", "api_error"),
    NearfarError: Refusal(503, _SERVER, "unavailable", "overloaded_error", 529),
}
"""From the class, or its nearest ancestor here, to the reply. Whatever is not listed counts as unavailable."""

Body = Callable[[NearfarError, str], Mapping[str, Any]]
"""Makes the JSON body of an error, given the request's id."""


def refusal_of(error: NearfarError) -> Refusal:
    """Return the row of an error."""
    return next(_TABLE[cls] for cls in type(error).__mro__ if cls in _TABLE)


def openai_error(error: NearfarError, _request: str = "") -> dict[str, Any]:
    """Return the body of an error for OpenAI's clients."""
    refusal = refusal_of(error)
    param = error.param if isinstance(error, BadField) else None
    return {"error": {"message": str(error), "type": refusal.kind, "param": param, "code": refusal.code}}


def anthropic_error(error: NearfarError, request: str) -> dict[str, Any]:
    """Return the body of an error for Anthropic's clients, with the request's id."""
    message = f"prompt is too long: {error}" if isinstance(error, ContextOverflow) else str(error)
    return {"type": "error", "error": {"type": refusal_of(error).anthropic, "message": message}, "request_id": request}


def status_of(error: NearfarError, body: Body) -> int:
    """Return the HTTP status of an error, for the clients that `body` is for."""
    refusal = refusal_of(error)
    return refusal.anthropic_status or refusal.status if body is anthropic_error else refusal.status


def retry_headers(error: NearfarError) -> dict[str, str]:
    """Return the headers that tell both makers' clients whether to try again by themselves, and when."""
    headers = {"x-should-retry": "true" if is_retryable(error) else "false"}
    if error.retry_after is not None and is_retryable(error):
        headers |= {"retry-after": str(math.ceil(error.retry_after)), "retry-after-ms": str(math.ceil(error.retry_after * 1000))}
    return headers
