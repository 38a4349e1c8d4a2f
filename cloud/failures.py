"""Failures of a provider: what they mean, how long to wait before the next try, and the deadline of a call.

Error texts are recognised by one table of marks, because a proxy may speak for any provider. A mark is a lower-case part of a code, a type
or a message that a provider or proxy is known to write.
"""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

import anyio
import httpx

from ..protocols import (
    ConfigError,
    ContentFiltered,
    ContextOverflow,
    DeadlineExceeded,
    InvalidOutput,
    NearfarError,
    NoSuchModel,
    ProviderAuthError,
    QuotaExceeded,
    RateLimited,
    RequestRefused,
    Stalled,
    StepLost,
    Unavailable,
)
from ..protocols.secrets import quote
from ..protocols.validation import parse_json
from .dialect import JsonObject, as_object, as_objects, as_text

_PAID_OUT: Final = (
    "credit balance is too low",  # Anthropic
    "reached your specified api usage limits",
    "billing_error",
    "prepayment credits are depleted",  # Gemini
    "billing_hard_limit",  # OpenAI
    "insufficient credits",  # OpenRouter
    "requires more credits",
    "insufficient balance",  # DeepSeek
    "monthly spending limit",  # xAI
    "have any credits",
    "run out of credits",
    "billing_not_active",  # OpenAI
    "budget_exceeded",  # LiteLLM: the key's own budget
    "budget has been exceeded",
)
_PAID_OUT_OR_FAST: Final = ("insufficient_quota", "exceeded your current quota")
"""OpenAI's message for an empty account, and Gemini's for too many requests in a minute, which comes with RESOURCE_EXHAUSTED."""
_OVERFLOW: Final = (
    "context_length_exceeded",  # OpenAI
    "maximum context length",  # OpenAI, vLLM, OpenRouter
    "exceeds the context window",
    "prompt is too long",  # Anthropic
    "exceed context limit",
    "request_too_large",
    "exceeds the maximum number of tokens",  # Gemini
    "input token count",
    "input is too long for requested model",  # Bedrock
    "exceed_context_size",  # llama.cpp
    "exceeds the available context size",
    "exceed context window",  # llama-cpp-python
    "context window of",
    "maximum prompt length",  # xAI
    "reduce the length of the messages",  # Groq
    "longer than the maximum model length",  # vLLM
    "model's context length is only",
    "max_tokens must be at least 1, got -",
    "exceeded max context length",  # Ollama
    "model is loaded with context length of only",  # LM Studio
    "cannot truncate prompt with n_keep",
    "to keep from the initial prompt is greater than the context length",
    "`max_new_tokens` must be <=",  # Hugging Face's server, Together
    "request too large for",  # OpenAI, Groq: more than a minute's tokens in one request
    "contextwindowexceedederror",  # LiteLLM
)
_FILTERED: Final = (
    "content_filter",
    "content_policy",
    "contentpolicyviolation",  # LiteLLM
    "content management policy",  # Azure
    "responsibleaipolicyviolation",
    "content filtering policy",  # Anthropic
    "content exists risk",  # DeepSeek
    "requires moderation on",  # OpenRouter
    "violates usage guidelines",  # xAI
    "invalid_prompt",  # OpenAI's responses
    "bio_policy",
    "cyber_policy",
    "misalignment_policy",
)
_KEY: Final = (
    "invalid_api_key",
    "incorrect api key",
    "authentication_error",
    "api_key_invalid",
    "api key not valid",
    "api key expired",
    "litellm.authenticationerror",
    "no connected db",  # LiteLLM without a database: it looks there for keys that it does not know
)
_MODEL: Final = (
    "model_not_found",
    "model_not_available",
    "deploymentnotfound",  # Azure
    "is not a valid model id",  # OpenRouter
    "no endpoints found for",
    "invalid model name passed in",  # LiteLLM
    "litellm.notfounderror",
    "model_decommissioned",  # Groq
    "model not exist",  # DeepSeek
    "invalid_model",  # Mistral
    "model identifier is invalid",  # Bedrock
    "with on-demand throughput isn",
)
MARKS: Final[tuple[tuple[type[NearfarError], tuple[str, ...]], ...]] = (
    (QuotaExceeded, _PAID_OUT),
    (RateLimited, ("resource_exhausted",)),
    (QuotaExceeded, _PAID_OUT_OR_FAST),
    (ProviderAuthError, _KEY),
    (ContextOverflow, _OVERFLOW),
    (ContentFiltered, _FILTERED),
    (NoSuchModel, _MODEL),
    (RateLimited, ("litellm.ratelimiterror",)),
    (RequestRefused, ("litellm.badrequesterror", "litellm.unprocessableentityerror")),  # behind a status of 500, too
)
"""The first matching entry counts."""
UNREADABLE_STATES: Final = (
    "encrypted content",  # OpenAI's responses
    "encrypted_content",
    "of type 'reasoning'",
    "in `thinking` block",  # Anthropic
    ".thinking.signature",
    "bound to a different conversation",
    "thinking` blocks",
    "thinking blocks",
    "thought signature",  # Gemini
    "thought_signature",
    "thoughtsignature",
)
"""Marks of a refusal to take encrypted thoughts back, as after a change of the key."""
STATUSES: Final = {
    "invalid_request_error": 400,
    "invalid_argument": 400,
    "authentication_error": 401,
    "unauthenticated": 401,
    "billing_error": 402,
    "permission_error": 403,
    "permission_denied": 403,
    "not_found_error": 404,
    "not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "resource_exhausted": 429,
    "api_error": 500,
    "server_error": 500,
    "internal": 500,
    "unavailable": 503,
    "overloaded": 503,
    "timeout_error": 504,
    "deadline_exceeded": 504,
    "overloaded_error": 529,
}
"""HTTP status for the type of an error object in mid-stream."""


_KINDS = ("code", "type", "status", "reason")
_STATUS = re.compile(r"[45][0-9]{2}")
_DELAY = re.compile(r"(\d+(?:\.\d+)?)s")

_RETRY_AFTER = ("retry-after", "llm_provider-retry-after")
"""The second is the provider's own header as LiteLLM's proxy passes it on."""
_HINTS: dict[type[NearfarError], str] = {
    ContextOverflow: "shorten the conversation, or use a model with a larger context window",
    NoSuchModel: "check the model's name, and that base_url is the API's root (usually it ends in a version such as /v1)",
    RequestRefused: "see the provider's message; a parameter may have to be left out of the agent's configuration for this model",
    ProviderAuthError: "check that the key is current, belongs to this provider and may use this model",
    QuotaExceeded: "top up the provider's account, or raise its spending limit",
    RateLimited: "wait, lower the concurrency, or ask the provider for a higher limit",
    Unavailable: "the provider has trouble; try again later or fall back to another agent",
    ContentFiltered: "rephrase the request, or use another model",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A provider's error message, parsed."""

    status: int | None
    kinds: str = ""
    """Codes and types of the error, lower-case, separated by spaces."""
    message: str = ""
    retry_after: float | None = None


def fault_of(status: int, headers: Mapping[str, str], body: bytes) -> Fault:
    """Parse an HTTP error response."""
    text = body.decode("utf-8", errors="replace")
    said = (parse_retry_after(headers.get(name)) for name in _RETRY_AFTER)
    retry_after = next((seconds for seconds in said if seconds is not None), None)
    try:
        value = parse_json(text)
    except ValueError:
        return Fault(status, message=_not_json(text, headers), retry_after=retry_after)
    document = as_object(value) or next(iter(as_objects(value)), {})
    fault = fault_in(document) or Fault(None, message=text)
    return Fault(status, fault.kinds, fault.message, retry_after if retry_after is not None else fault.retry_after)


def fault_in(document: JsonObject) -> Fault | None:
    """Parse the error in a JSON object: an error response, or an error in mid-stream. Return None if there is none."""
    document = as_object(document.get("response")) or document  # of an event that ends a response
    error = document.get("error")
    if error is None and ("detail" in document or "error" in (document.get("object"), document.get("type"))):
        error = document if "message" in document else str(document.get("detail"))
    if error is None or error is False:
        return None
    fields = as_object(error)
    details = as_objects(fields.get("details"))
    kinds = " ".join(as_text(part.get(kind)).lower() for part in (fields, *details) for kind in _KINDS)
    code = fields.get("code")
    number = int(code) if isinstance(code, str) and _STATUS.fullmatch(code) else code  # LiteLLM sends it as text in mid-stream
    status = number if isinstance(number, int) and 400 <= number < 600 else None
    message = as_text(error) or as_text(fields.get("message")) or str(error)
    return Fault(status, " ".join(kinds.split()), message, _retry_delay(details))


def error_for(fault: Fault, *, provider: str) -> NearfarError:
    """Return the nearfar error for a provider's error."""
    status = fault.status or next((STATUSES[kind] for kind in fault.kinds.split() if kind in STATUSES), None)
    error = _class_of(fault, status)
    said = quote(fault.message) or "no message"
    where = f"HTTP {status}" if status else "an error in mid-stream"
    hint = _HINTS.get(error, "see the provider's message")
    return error(f"{provider} answered {where}: {said}", hint=hint, retry_after=fault.retry_after)


def redirect_error(provider: str, location: str) -> NearfarError:
    """Return the error for a redirect. Redirects are not followed: they would send the key to another address."""
    return RequestRefused(f"{provider} redirects to {quote(location)!r}", hint="set base_url to the final address")


def encoding_error(provider: str, encoding: str) -> NearfarError:
    """Return the error for a body whose compression may unpack to any size."""
    return InvalidOutput(
        f"{provider} compresses its answer with {quote(encoding)!r}, which was not requested", hint="check that base_url is an API"
    )


def no_stream_error(provider: str, headers: Mapping[str, str], body: bytes) -> NearfarError:
    """Return the error for a successful response that is no event stream: an error, a whole answer, or a web page such as a login
    portal's.

    A web page costs nothing, so it becomes `RequestRefused`; any other answer may come from a model.
    """
    try:
        complaint = fault_in(as_object(parse_json(body.decode("utf-8", errors="replace"))))
    except ValueError:
        complaint = None
    if complaint is not None:
        return error_for(complaint, provider=provider)
    content_type = headers.get("content-type", "")
    error = RequestRefused if "html" in content_type.lower() else InvalidOutput
    return error(
        f"{provider} answered with {quote(content_type) or 'no content type'!r} instead of an event stream",
        hint="check that base_url is the API's root, not a web page, and that the server can stream",
    )


@contextmanager
def transport_errors(provider: str, address: str, idle_seconds: float) -> Iterator[None]:
    """Convert httpx's errors to nearfar errors.

    `from None`, because an httpx error refers to its request and so to the key in the request's headers.
    """
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
        said = quote(str(error)) or type(error).__name__
        way = " through the environment's proxy" if isinstance(error, httpx.ProxyError) else ""
        message = f"{provider} cannot be reached at {address}{way}: {said}"
        raise Unavailable(message, hint="check base_url, that the server runs, and the network") from None
    except httpx.TimeoutException:
        message = f"{provider} was silent for {idle_seconds:g} s"
        raise Stalled(message, hint="try again, fall back to another agent, or allow a longer idle time") from None
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise ConfigError(f"base_url is not usable: {quote(str(error))}", hint="give an http:// or https:// address") from None
    except httpx.DecodingError as error:
        raise InvalidOutput(f"{provider} sent a body that cannot be decoded: {quote(str(error))}") from None
    except (httpx.TransportError, httpx.StreamError) as error:
        said = quote(str(error)) or type(error).__name__
        raise StepLost(f"the connection to {provider} broke: {said}", hint="try again") from None


def parse_retry_after(value: str | None) -> float | None:
    """Return the seconds in a Retry-After header, which holds seconds or an HTTP date; None if it is missing or unreadable."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        return _seconds_until(value)
    return seconds if 0 <= seconds < float("inf") else None


def _seconds_until(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def _retry_delay(details: list[JsonObject]) -> float | None:
    for detail in details:
        if match := _DELAY.fullmatch(as_text(detail.get("retryDelay"))):
            return float(match[1])
    return None


def _class_of(fault: Fault, status: int | None) -> type[NearfarError]:
    evidence = f"{fault.kinds} {fault.message}".lower()
    if status is None or status <= 500:
        for error, fragments in MARKS:
            if any(fragment in evidence for fragment in fragments):
                return error
    return _by_status(status)


def _by_status(status: int | None) -> type[NearfarError]:
    match status:
        case 401 | 403:
            return ProviderAuthError
        case 402:
            return QuotaExceeded
        case 404:
            return NoSuchModel
        case 408 | 409 | 425 | 498:  # 498 is Groq's for want of capacity
            return Unavailable
        case 413:
            return ContextOverflow
        case 429:
            return RateLimited
        case None:
            return Unavailable
        case _:
            return RequestRefused if status < 500 else Unavailable


def _not_json(text: str, headers: Mapping[str, str]) -> str:
    if "html" in headers.get("content-type", "") or text.lstrip().lower().startswith(("<!doctype", "<html")):
        return "an HTML page instead of an API's answer"
    return text or "an empty body"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The limits of retries. Only failures before the answer begins are ever retried, and only here: no other layer retries.

    No library is used: the loop has to be inside the stream, which no retry library can wrap.
    """

    calls: int = 3
    """Upstream calls per step, the first one included."""
    first_delay: float = 0.5
    """Seconds; the upper bound of the first random delay, doubled for each further one."""
    longest_delay: float = 20.0
    """Seconds. If a provider asks for a longer pause, the step fails at once, so that another agent can take it."""

    def delay(self, error: NearfarError, *, calls_made: int, seconds_left: float) -> float | None:
        """Return the seconds to wait before the next call, or None to give up.

        A stall or a missed deadline is not retried: the provider may have done, and charged, the work.
        """
        if not isinstance(error, Unavailable | RateLimited) or calls_made >= self.calls:
            return None
        delay = self._jittered(calls_made) if error.retry_after is None else error.retry_after
        return delay if delay <= min(self.longest_delay, seconds_left) else None

    def _jittered(self, calls_made: int) -> float:
        # Full jitter: clients that failed together must not come back together.
        return random.uniform(0, min(self.longest_delay, self.first_delay * 2 ** (calls_made - 1)))


_LONGEST_PAUSE = 24 * 3600.0
"""Seconds. A provider that asks for a longer pause is tried once a day."""


class Pause:
    """The pause that a provider has asked for, shared by all steps of an agent."""

    def __init__(self) -> None:
        self._until = float("-inf")

    def note(self, error: NearfarError) -> None:
        """Record the pause that an error asks for, if any."""
        if isinstance(error, Unavailable | RateLimited) and error.retry_after is not None:
            self._until = max(self._until, anyio.current_time() + min(error.retry_after, _LONGEST_PAUSE))

    def left(self, provider: str) -> RateLimited | None:
        """Return the error for a step during the pause, or None if the pause is over."""
        seconds = self._until - anyio.current_time()
        if seconds <= 0:
            return None
        return RateLimited(
            f"the {provider} asked for a pause: retry in {seconds:.1f} s", hint="wait, or ask another agent", retry_after=seconds
        )


_T = TypeVar("_T")


class Deadline:
    """A moment after which every wait raises `DeadlineExceeded`.

    It wraps single waits, because a timeout must not stay open across the `yield` of an async generator. One timer serves all of them: a
    stream waits once for each of its pieces. `close` it in the end.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._moment = self._loop.time() + seconds
        self._timer = self._loop.call_at(self._moment, self._interrupt)
        self._waiting: asyncio.Task[object] | None = None
        self._has_interrupted = False
        """It has cancelled the wait under way."""
        self._aborted: NearfarError | None = None
        self.was_sent = False
        """The request is on its way to the provider, or was answered."""

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._moment - self._loop.time())

    def abort(self, error: NearfarError) -> None:
        """End the current wait, and every further one, with `error`."""
        self._aborted = error
        self._interrupt()

    def close(self) -> None:
        """Stop the clock after the last wait."""
        self._timer.cancel()

    def _interrupt(self) -> None:
        if self._waiting is not None and not self._has_interrupted:
            self._has_interrupted = True
            self._waiting.cancel()

    async def run(self, waiting: Callable[[], Awaitable[_T]]) -> _T:
        """Await the result of `waiting`. Cancel it and raise `DeadlineExceeded` when the time is up."""
        if self._aborted is not None:
            raise self._aborted
        if self._loop.time() >= self._moment:
            raise self._exceeded()
        task = self._waiting = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        before = task.cancelling()
        try:
            return await waiting()
        except asyncio.CancelledError:
            if not self._has_interrupted or task.cancelling() > before + 1:  # from outside
                raise
        finally:
            self._waiting = None
            if self._has_interrupted:
                self._has_interrupted = False
                task.uncancel()
        raise self._aborted or self._exceeded()

    def _exceeded(self) -> DeadlineExceeded:
        message = f"the step took longer than {self._seconds:g} s"
        error = DeadlineExceeded(message, hint="allow a longer timeout, or ask for a shorter answer")
        error.was_sent = self.was_sent
        return error
