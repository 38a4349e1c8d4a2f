"""The contract between all parts: types, errors and the `Agent` interface.

The gRPC side lives in `nearfar.protocols.client` and `nearfar.protocols.server`, so that importing the contract loads no network code.
The names below are loaded when they are first used (PEP 562). A module deep in the package can be imported without the needs of the others:
a phone has only grpcio and protobuf.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

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


def lazy_names(package: str, module_of: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of `package`; `module_of` maps each public name to the module that defines it, relative to the package."""

    def __getattr__(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(f".{module_of[name]}", package), name)
        setattr(sys.modules[package], name, value)  # the next access finds it without coming here
        return value

    return __getattr__


__getattr__ = lazy_names(__name__, _HOMES)
