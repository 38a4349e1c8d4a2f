"""Requests as they arrive, the fields that several APIs share, and errors as clients of OpenAI and Anthropic know them."""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Any, Final, NamedTuple

import orjson
from pydantic import ValidationError

from ...protocols import (
    BudgetExceeded,
    Cancelled,
    ConfigError,
    ContentFiltered,
    ContextOverflow,
    DeadlineExceeded,
    Effort,
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
from ...protocols.limits import FIRST_MESSAGE_SECONDS, JSON_DEPTH, MESSAGES
from ..task import Sampling


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
    """Return a JSON object. Raise `InvalidRequest` for anything else, for one that is nested too deeply, and for a list with more items
    than a conversation may have messages."""
    try:
        value = orjson.loads(data or b"{}")  # some requests need no body
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is no JSON: {error}", hint="content-type: application/json") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body is no JSON object", hint='{"model": "nearfar/auto", ...}')
    if _is_deeper(value, JSON_DEPTH):
        raise InvalidRequest(f"the body is nested more than {JSON_DEPTH} levels deep")
    for name, items in value.items():
        if isinstance(items, list) and len(items) > MESSAGES:
            raise BadField(f"{name} has {len(items):,} items, and may have {MESSAGES:,}", param=warning(name))
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


Fields = Mapping[str, Any]
"""A JSON object that a client has sent."""

_SEEDS: Final = 2**31
_BETWEEN: Final = {"type": "text", "text": "\n\n"}


def sampling_of(given: Mapping[str, tuple[str, Any]]) -> Sampling:
    """Return the sampling of a turn. Raise `BadField` for a value that cannot be used.

    Args:
        given: by our names, the name of the client's field and its value.
    """
    values = {ours: _value(ours, value) for ours, (_, value) in given.items()}
    try:
        return Sampling.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        theirs = given[str(first["loc"][0])][0]
        raise BadField(f"{theirs}: {first['msg']}", param=theirs) from None


def _value(name: str, value: Any) -> Any:  # noqa: ANN401 - as it came
    if name == "seed" and isinstance(value, int):
        return value % _SEEDS
    return (value,) if name == "stop" and isinstance(value, str) else value


def effort_of(given: object, param: str) -> Effort | None:
    """Return how long the model may think; None: the policy decides. Raise `BadField` that names `param`."""
    if given is None:
        return None
    try:
        return Effort(str(given))
    except ValueError:
        raise BadField(f"{param} is one of {', '.join(Effort)}", param=param) from None


def with_one_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages of which only the first may be a system message: those at the beginning are joined, and later ones become the
    user's, as chat templates of many models refuse a second one."""
    first = next((place for place, message in enumerate(messages) if message["role"] != "system"), len(messages))
    later = [{**message, "role": "user"} if message["role"] == "system" else message for message in messages[first:]]
    if first < 2:
        return [*messages[:first], *later]
    parts = [part for message in messages[:first] for part in (_BETWEEN, *_parts(message["content"]))]
    return [{"role": "system", "content": parts[1:]}, *later]


def _parts(content: object) -> list[object]:
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]


def opening_of(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return how a conversation begins: its system message, and the first one of the user."""
    roles: dict[str, Any] = {}
    for message in messages:
        if message["role"] in ("system", "user"):
            roles.setdefault(message["role"], message["content"])
    return sorted(roles.items())


def wrong(param: str, problem: str, *, hint: str = "") -> BadField:
    """Return the error of the field at `param`, such as `tools[0].name`."""
    return BadField(f"{param}: {problem}", param=param, hint=hint)


def as_object(value: object, param: str) -> Fields:
    """Return a value that has to be an object."""
    if not isinstance(value, Mapping):
        raise wrong(param, f"it must be an object, not {type(value).__name__}")
    return value


def as_objects(body: Fields, name: str) -> Sequence[Fields]:
    """Return a list of objects; an empty one where it is left out."""
    given: list[object] = field(body, name, list, "a list", [])
    return [as_object(each, f"{name}[{place}]") for place, each in enumerate(given)]


def required_text(body: Fields, name: str, param: str) -> str:
    """Return a text that has to be there; `param` is the place of the object that holds it."""
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise wrong(f"{param}.{name}", "it must be a text that is not empty")
    return value


def choice_of(value: object, known: Sequence[str], param: str) -> str:
    """Return a text that has to be one of those `known`."""
    if value not in known:
        raise wrong(param, f"{value!r} is none of {', '.join(known)}")
    return str(value)


def schema_of(given: object, param: str) -> dict[str, Any] | None:
    """Return the JSON Schema of an answer that has the schema in its format; None for free text."""
    if given is None:
        return None
    wanted = as_object(given, param)
    kind = choice_of(wanted.get("type"), ("text", "json_object", "json_schema"), f"{param}.type")
    if kind == "text":
        return None
    return {"type": "object"} if kind == "json_object" else dict(as_object(wanted.get("schema"), f"{param}.schema"))


def plain(content: object) -> str:
    """Return the text of a content: a text, or a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n\n".join(str(part["text"]) for part in parts if isinstance(part, Mapping) and part.get("text"))


def given_fields(body: Fields, names: Mapping[str, str]) -> dict[str, tuple[str, Any]]:
    """Return what `sampling_of` takes, from the client's `names` of samplers to ours."""
    return {ours: (name, body[name]) for name, ours in names.items() if body.get(name) is not None}


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return headers as ASGI takes them."""
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
