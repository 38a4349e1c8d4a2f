"""The contract between all parts: types, errors and the `Agent` interface.

The gRPC side lives in `nearfar.protocols.client` and `nearfar.protocols.server`, so that importing the contract loads no network code.
The names below are loaded when they are first used, so that the errors and the generated code can be had without pydantic.
"""

from typing import TYPE_CHECKING

from .lazy import lazy_names

if TYPE_CHECKING:
    from .agent import Agent as Agent
    from .agent import AgentCard as AgentCard
    from .agent import Capabilities as Capabilities
    from .agent import DeviceState as DeviceState
    from .agent import DeviceStateSource as DeviceStateSource
    from .agent import Execution as Execution
    from .agent import Limits as Limits
    from .agent import LongPrompt as LongPrompt
    from .agent import PowerSource as PowerSource
    from .agent import Prices as Prices
    from .agent import Side as Side
    from .agent import SimulatedDevice as SimulatedDevice
    from .agent import StepStream as StepStream
    from .agent import Thermal as Thermal
    from .agent import complete as complete
    from .agent import stream as stream
    from .attachments import Attachment as Attachment
    from .errors import AgentError as AgentError
    from .errors import ApprovalNeeded as ApprovalNeeded
    from .errors import BudgetExceeded as BudgetExceeded
    from .errors import Cancelled as Cancelled
    from .errors import ConfigError as ConfigError
    from .errors import ContentFiltered as ContentFiltered
    from .errors import ContextOverflow as ContextOverflow
    from .errors import DeadlineExceeded as DeadlineExceeded
    from .errors import IdempotencyConflict as IdempotencyConflict
    from .errors import InternalError as InternalError
    from .errors import InvalidOutput as InvalidOutput
    from .errors import InvalidRequest as InvalidRequest
    from .errors import LedgerConflict as LedgerConflict
    from .errors import ModelError as ModelError
    from .errors import ModelNotFound as ModelNotFound
    from .errors import NearfarError as NearfarError
    from .errors import NoSuchModel as NoSuchModel
    from .errors import NotFound as NotFound
    from .errors import PermissionDenied as PermissionDenied
    from .errors import PrivacyViolation as PrivacyViolation
    from .errors import ProviderAuthError as ProviderAuthError
    from .errors import QuotaExceeded as QuotaExceeded
    from .errors import RateLimited as RateLimited
    from .errors import RequestRefused as RequestRefused
    from .errors import ResumeLost as ResumeLost
    from .errors import RunBusy as RunBusy
    from .errors import Stalled as Stalled
    from .errors import StepLost as StepLost
    from .errors import StoreCorrupt as StoreCorrupt
    from .errors import StoreError as StoreError
    from .errors import StoreUnavailable as StoreUnavailable
    from .errors import SyncRefused as SyncRefused
    from .errors import Unauthenticated as Unauthenticated
    from .errors import Unavailable as Unavailable
    from .errors import Unsupported as Unsupported
    from .errors import UserError as UserError
    from .errors import VersionConflict as VersionConflict
    from .errors import WorkerCrashed as WorkerCrashed
    from .fakes import ReplayAgent as ReplayAgent
    from .fakes import ScriptedAgent as ScriptedAgent
    from .fakes import record as record
    from .steps import ApprovalRequest as ApprovalRequest
    from .steps import Effort as Effort
    from .steps import EnergySource as EnergySource
    from .steps import Finished as Finished
    from .steps import FinishReason as FinishReason
    from .steps import JsonSchema as JsonSchema
    from .steps import LikelyToken as LikelyToken
    from .steps import Message as Message
    from .steps import Performance as Performance
    from .steps import ProviderState as ProviderState
    from .steps import Sensitivity as Sensitivity
    from .steps import StepEvent as StepEvent
    from .steps import StepReply as StepReply
    from .steps import StepRequest as StepRequest
    from .steps import TextDelta as TextDelta
    from .steps import TokenLogprob as TokenLogprob
    from .steps import ToolCall as ToolCall
    from .steps import ToolCalled as ToolCalled
    from .steps import ToolChoice as ToolChoice
    from .steps import ToolResult as ToolResult
    from .steps import ToolSpec as ToolSpec
    from .steps import Usage as Usage

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
