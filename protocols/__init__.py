"""The contract between all parts: types, errors and the `Agent` interface.

The gRPC side lives in `nearfar.protocols.client` and `nearfar.protocols.server`, so that importing the contract loads no network code.
The names below are loaded when they are first used, so that the errors and the generated code can be had without pydantic.
"""

from .lazy import lazy_names

_NAMES = {
    "agent": (
        "Agent AgentCard Capabilities DeviceState DeviceStateSource Execution Limits LongPrompt PowerSource Prices Side SimulatedDevice "
        "StepStream Thermal complete stream"
    ),
    "attachments": "Attachment",
    "errors": (
        "AgentError ApprovalNeeded BudgetExceeded Cancelled ConfigError ContentFiltered ContextOverflow DeadlineExceeded "
        "IdempotencyConflict InternalError InvalidOutput InvalidRequest LedgerConflict ModelError ModelNotFound NearfarError NoSuchModel "
        "NotFound PermissionDenied PrivacyViolation ProviderAuthError QuotaExceeded RateLimited RequestRefused ResumeLost RunBusy Stalled "
        "StepLost StoreCorrupt StoreError StoreUnavailable SyncRefused Unauthenticated Unavailable Unsupported UserError VersionConflict "
        "WorkerCrashed"
    ),
    "fakes": "ReplayAgent ScriptedAgent record",
    "steps": (
        "ApprovalRequest Effort EnergySource FinishReason Finished JsonSchema LikelyToken Message Performance ProviderState Sensitivity "
        "StepEvent StepReply StepRequest TextDelta TokenLogprob ToolCall ToolCalled ToolChoice ToolResult ToolSpec Usage"
    ),
}
"""The names that each module defines."""
_HOMES = dict(sorted((name, module) for module, names in _NAMES.items() for name in names.split()))

__all__ = [*_HOMES]

__getattr__ = lazy_names(__name__, _HOMES)
