"""Every error that crosses a boundary of nearfar.

    NearfarError
      x UserError                 the request, the configuration or the credential is at fault: do not retry
        + InvalidRequest
          - ContextOverflow
        + ConfigError
        + Unauthenticated
        + PermissionDenied
          - PrivacyViolation
        + NotFound
          - ModelNotFound
        + IdempotencyConflict
          - LedgerConflict
        + Unsupported
        + VersionConflict
        + ApprovalNeeded
        + RunBusy
      x StoreError                the memory store is at fault: the agents may go on without it
        + StoreUnavailable
        + StoreCorrupt
        + SyncRefused
      x AgentError                the agent or the way to it is at fault: another agent may do better
        + Unavailable
          - StepLost
            x WorkerCrashed
            x ResumeLost
        + ModelError
        + RequestRefused
        + NoSuchModel
        + RateLimited
        + QuotaExceeded
        + BudgetExceeded
        + ProviderAuthError
        + DeadlineExceeded
        + Stalled
        + ContentFiltered
        + InvalidOutput
        + Cancelled
        + InternalError

`MAPPINGS` is the one table from these classes to gRPC and HTTP status; the wire carries the class by its `reason`, so that both
ends raise the same class.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .steps import ApprovalRequest


class NearfarError(Exception):
    """Base of all errors. `str(error)` is one sentence; `hint` says what to do about it."""

    def __init__(self, message: str, *, hint: str = "", retry_after: float | None = None) -> None:
        """Make an error with a `message` of one sentence and a `hint`. `retry_after`: seconds after which the same request may succeed,
        where the other side said so."""
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.retry_after = retry_after
        """Seconds after which the same request may succeed, where the other side said so."""

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UserError(NearfarError):
    """The request, the configuration or the credential is at fault."""


class InvalidRequest(UserError):
    """The request contradicts itself or the contract."""


class ContextOverflow(InvalidRequest):
    """The prompt does not fit into the model's context window."""


class ConfigError(UserError):
    """A configuration file, option or environment variable is wrong."""


class Unauthenticated(UserError):
    """The caller's token, or its certificate, is missing, wrong, expired or revoked."""


class PermissionDenied(UserError):
    """The caller is known but may not do this."""


class PrivacyViolation(PermissionDenied):
    """Private text was about to leave the device."""


class NotFound(UserError):
    """The thing that the request names does not exist."""


class ModelNotFound(NotFound):
    """The model's file does not exist."""


class IdempotencyConflict(UserError):
    """The idempotency key was used before for a different request."""


class LedgerConflict(IdempotencyConflict):
    """An effect differs from the ledger's record of the same effect."""


class Unsupported(UserError):
    """The agent does not have the capability that the request needs."""


class VersionConflict(UserError):
    """The item was changed since the version that the write was meant for."""


class ApprovalNeeded(UserError):
    """The run waits for approval of tool calls and can be resumed after the decision."""

    def __init__(
        self, message: str, *, hint: str = "", retry_after: float | None = None, run: str = "", requests: "Sequence[ApprovalRequest]" = ()
    ) -> None:
        """Make the error of a durable `run` whose calls wait for a decision (`requests`). `message`, `hint` and `retry_after` are those of
        every error."""
        super().__init__(message, hint=hint, retry_after=retry_after)
        self.run = run
        """The run's id."""
        self.requests = tuple(requests)
        """The approvals that are requested."""


class RunBusy(UserError):
    """Another process works on the run."""


class StoreError(NearfarError):
    """The memory store, or the way to another replica of it, is at fault."""


class StoreUnavailable(StoreError):
    """The database cannot be used now: locked for too long, disk full, out of reach. Acknowledged writes are kept."""


class StoreCorrupt(StoreError):
    """The database is damaged, or belongs to another program."""


class SyncRefused(StoreError):
    """Two replicas cannot be synchronised: another schema version, a gap in the operations, or a device that was shut out."""


class AgentError(NearfarError):
    """The agent or the way to it is at fault."""


class Unavailable(AgentError):
    """The agent cannot be reached, or is shutting down."""


class StepLost(Unavailable):
    """The agent, or the connection to it, was lost in mid-step. Nothing is known about what the step has done or cost."""


class WorkerCrashed(StepLost):
    """The process that ran the model died in mid-step, or was killed while it loaded the model; the next step starts a new one."""


class ResumeLost(StepLost):
    """The connection broke and the server no longer holds the step, so the rest of its events is lost."""


class ModelError(AgentError):
    """The model file cannot be used: damaged, of an unknown architecture, or too large."""


class RequestRefused(AgentError):
    """The provider refused a request that passed the checks here: a parameter, a schema or a tool that its model does not take.

    A redirect, or a web page instead of an answer, is reported as this error too.
    """


class NoSuchModel(AgentError):
    """The provider has no such model, or has it no longer."""


class RateLimited(AgentError):
    """The provider asks to slow down; see `retry_after`."""


class QuotaExceeded(AgentError):
    """The provider's account has no credit left."""


class BudgetExceeded(AgentError):
    """The spending limit of the policy is reached, or the next call would exceed it."""


class ProviderAuthError(AgentError):
    """The provider refused the gateway's own key."""


class DeadlineExceeded(AgentError):
    """The step took longer than its `timeout`."""

    was_sent: bool = True
    """False: the time was up before the request had left for the model, which has not worked. It does not travel over the wire."""


class Stalled(AgentError):
    """The stream was open but silent for too long."""


class ContentFiltered(AgentError):
    """The provider's safety filter stopped the answer."""


class InvalidOutput(AgentError):
    """The agent broke the contract: a malformed stream, or an answer that does not fit the schema or model that was asked for.

    `text` is the answer.
    """

    def __init__(self, message: str, *, hint: str = "", retry_after: float | None = None, text: str = "") -> None:
        """Make the error of an answer (`text`) that cannot be used. `message`, `hint` and `retry_after` are those of every error."""
        super().__init__(message, hint=hint, retry_after=retry_after)
        self.text = text
        """The answer that could not be used; empty where there is none. It does not travel over the wire."""


class Cancelled(AgentError):
    """The step was cancelled by another party than the reader of this error."""


class InternalError(AgentError):
    """A defect on the other side; its log has the details."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """The gRPC and HTTP status of one error class."""

    grpc_status: str
    """Name of the `grpc.StatusCode`; a name, so that errors can be imported without grpc."""
    http_status: int
    retryable: bool = False
    """True if the same request may succeed later at the same agent."""


MAPPINGS: dict[type[NearfarError], Mapping] = {
    InvalidRequest: Mapping("INVALID_ARGUMENT", 400),
    ContextOverflow: Mapping("OUT_OF_RANGE", 413),
    ConfigError: Mapping("FAILED_PRECONDITION", 400),
    Unauthenticated: Mapping("UNAUTHENTICATED", 401),
    PermissionDenied: Mapping("PERMISSION_DENIED", 403),
    PrivacyViolation: Mapping("PERMISSION_DENIED", 403),
    NotFound: Mapping("NOT_FOUND", 404),
    ModelNotFound: Mapping("NOT_FOUND", 404),
    IdempotencyConflict: Mapping("ALREADY_EXISTS", 409),
    Unsupported: Mapping("UNIMPLEMENTED", 501),
    Unavailable: Mapping("UNAVAILABLE", 503, retryable=True),
    StepLost: Mapping("UNAVAILABLE", 503, retryable=True),
    WorkerCrashed: Mapping("UNAVAILABLE", 503, retryable=True),
    ResumeLost: Mapping("DATA_LOSS", 503),
    ModelError: Mapping("FAILED_PRECONDITION", 500),
    RequestRefused: Mapping("FAILED_PRECONDITION", 502),
    NoSuchModel: Mapping("FAILED_PRECONDITION", 502),
    RateLimited: Mapping("RESOURCE_EXHAUSTED", 429, retryable=True),
    QuotaExceeded: Mapping("RESOURCE_EXHAUSTED", 402),
    BudgetExceeded: Mapping("RESOURCE_EXHAUSTED", 402),
    ProviderAuthError: Mapping("FAILED_PRECONDITION", 502),
    DeadlineExceeded: Mapping("DEADLINE_EXCEEDED", 504, retryable=True),
    Stalled: Mapping("DEADLINE_EXCEEDED", 504, retryable=True),
    ContentFiltered: Mapping("ABORTED", 422),
    InvalidOutput: Mapping("DATA_LOSS", 502),
    Cancelled: Mapping("CANCELLED", 499),
    InternalError: Mapping("INTERNAL", 500),
    VersionConflict: Mapping("ABORTED", 409),
    StoreUnavailable: Mapping("UNAVAILABLE", 503, retryable=True),
    StoreCorrupt: Mapping("DATA_LOSS", 500),
    LedgerConflict: Mapping("ALREADY_EXISTS", 409),
    ApprovalNeeded: Mapping("FAILED_PRECONDITION", 409),
    RunBusy: Mapping("ABORTED", 409, retryable=True),
    SyncRefused: Mapping("FAILED_PRECONDITION", 409),
}

BY_REASON: dict[str, type[NearfarError]] = {cls.__name__: cls for cls in MAPPINGS}
"""The error class for each `reason` that the wire carries."""

_BY_GRPC_STATUS: dict[str, type[NearfarError]] = {}
for _error, _mapping in MAPPINGS.items():
    _BY_GRPC_STATUS.setdefault(_mapping.grpc_status, _error)


def travelling_class(error: NearfarError) -> type[NearfarError]:
    """Return the class as which `error` is sent: its nearest ancestor in `MAPPINGS`."""
    return next((cls for cls in type(error).__mro__ if cls in MAPPINGS), InternalError)


def is_retryable(error: NearfarError) -> bool:
    """Return whether the same request may succeed later at the same agent."""
    return MAPPINGS[travelling_class(error)].retryable


def from_grpc_status(status: str, message: str) -> NearfarError:
    """Return the error for a status without a nearfar `reason`, as a proxy or a foreign server sends it."""
    return _BY_GRPC_STATUS.get(status, InternalError)(message)


def from_http_status(status: int, message: str) -> NearfarError:
    """Return the error for a foreign HTTP status: the entry of the table, or else a general error for 4xx or 5xx."""
    for error, mapping in MAPPINGS.items():
        if mapping.http_status == status:
            return error(message)
    return Unavailable(message) if status >= 500 else InvalidRequest(message)
