"""Nearfar: agents that run on the device and ask the cloud only when it pays.

Every public name is here, and is loaded when it is first used. Modules below `nearfar` are internal, except `nearfar.protocols.testing`,
whose conformance suite checks agents of your own.
"""

from typing import TYPE_CHECKING

from nearfar.protocols.lazy import lazy_names

if TYPE_CHECKING:
    from nearfar.cloud.admission import GatewayLimits as GatewayLimits
    from nearfar.cloud.config import ProviderConfig as ProviderConfig
    from nearfar.device.llama.agent import LlamaAgent as LlamaAgent
    from nearfar.device.onnx.agent import OnnxAgent as OnnxAgent
    from nearfar.orchestrator.budgets.book import BudgetBook as BudgetBook
    from nearfar.orchestrator.cache.answers import AnswerCache as AnswerCache
    from nearfar.orchestrator.compose.agents import FarConfig as FarConfig
    from nearfar.orchestrator.compose.agents import GatewayConfig as GatewayConfig
    from nearfar.orchestrator.compose.agents import LocalFarConfig as LocalFarConfig
    from nearfar.orchestrator.compose.agents import NearConfig as NearConfig
    from nearfar.orchestrator.compose.config import Config as Config
    from nearfar.orchestrator.compose.config import load_config as load_config
    from nearfar.orchestrator.compose.hub import AttachedConfig as AttachedConfig
    from nearfar.orchestrator.compose.hub import HubConfig as HubConfig
    from nearfar.orchestrator.compose.hub import WorkerConfig as WorkerConfig
    from nearfar.orchestrator.compose.policy_file import PolicyFile as PolicyFile
    from nearfar.orchestrator.hybrid.arguments import ResumeOptions as ResumeOptions
    from nearfar.orchestrator.hybrid.arguments import TaskOptions as TaskOptions
    from nearfar.orchestrator.hybrid.hybrid import Hybrid as Hybrid
    from nearfar.orchestrator.memory.changes import MemoryChange as MemoryChange
    from nearfar.orchestrator.memory.conflicts import Conflict as Conflict
    from nearfar.orchestrator.memory.conflicts import LostValue as LostValue
    from nearfar.orchestrator.memory.fusion import Ranking as Ranking
    from nearfar.orchestrator.memory.in_tasks import TaskMemory as TaskMemory
    from nearfar.orchestrator.memory.in_tasks import memory_tools as memory_tools
    from nearfar.orchestrator.memory.item import Principal as Principal
    from nearfar.orchestrator.memory.provenance import Origin as Origin
    from nearfar.orchestrator.memory.provenance import writing_as as writing_as
    from nearfar.orchestrator.memory.reading import MemoryItem as MemoryItem
    from nearfar.orchestrator.memory.reading import SearchMode as SearchMode
    from nearfar.orchestrator.memory.recall.agent_memory import AgentMemory as AgentMemory
    from nearfar.orchestrator.memory.recall.agent_memory import WorkingMemory as WorkingMemory
    from nearfar.orchestrator.memory.recall.semantic import Fact as Fact
    from nearfar.orchestrator.memory.recall.turn import Turn as Turn
    from nearfar.orchestrator.memory.recall.turn import TurnKind as TurnKind
    from nearfar.orchestrator.memory.rendering import Rendered as Rendered
    from nearfar.orchestrator.memory.rendering import render as render
    from nearfar.orchestrator.memory.store import MemoryStore as MemoryStore
    from nearfar.orchestrator.memory.transfer import Imported as Imported
    from nearfar.orchestrator.memory.vectors import Embedder as Embedder
    from nearfar.orchestrator.runs.ledger.running import effect_key as effect_key
    from nearfar.orchestrator.runs.ledger.running import effect_transaction as effect_transaction
    from nearfar.orchestrator.runs.ledger.transactions import EffectConnection as EffectConnection
    from nearfar.orchestrator.runs.run import Run as Run
    from nearfar.orchestrator.runs.run import RunState as RunState
    from nearfar.orchestrator.runs.store import RunStore as RunStore
    from nearfar.orchestrator.safety.privacy.records import PrivacyRecords as PrivacyRecords
    from nearfar.orchestrator.strategies.runtime import TaskGraph as TaskGraph
    from nearfar.orchestrator.task.approvals import Approver as Approver
    from nearfar.orchestrator.task.arm import Arm as Arm
    from nearfar.orchestrator.task.auto_decision import ConsideredArm as ConsideredArm
    from nearfar.orchestrator.task.auto_decision import SelectionDecision as SelectionDecision
    from nearfar.orchestrator.task.chosen import Chosen as Chosen
    from nearfar.orchestrator.task.events import AgentText as AgentText
    from nearfar.orchestrator.task.events import ApprovalAsked as ApprovalAsked
    from nearfar.orchestrator.task.events import AttemptEnded as AttemptEnded
    from nearfar.orchestrator.task.events import AttemptStarted as AttemptStarted
    from nearfar.orchestrator.task.events import CallEnded as CallEnded
    from nearfar.orchestrator.task.events import Routed as Routed
    from nearfar.orchestrator.task.events import SubtaskEnded as SubtaskEnded
    from nearfar.orchestrator.task.events import SubtasksPlanned as SubtasksPlanned
    from nearfar.orchestrator.task.events import SupervisorSpoke as SupervisorSpoke
    from nearfar.orchestrator.task.events import TaskEvent as TaskEvent
    from nearfar.orchestrator.task.events import TaskFinished as TaskFinished
    from nearfar.orchestrator.task.events import ToolFinished as ToolFinished
    from nearfar.orchestrator.task.events import ToolStarted as ToolStarted
    from nearfar.orchestrator.task.labels import Integrity as Integrity
    from nearfar.orchestrator.task.labels import Label as Label
    from nearfar.orchestrator.task.modes import Mode as Mode
    from nearfar.orchestrator.task.modes import Needs as Needs
    from nearfar.orchestrator.task.modes import Strategy as Strategy
    from nearfar.orchestrator.task.profile import Shape as Shape
    from nearfar.orchestrator.task.profile import TaskProfile as TaskProfile
    from nearfar.orchestrator.task.results import Attempt as Attempt
    from nearfar.orchestrator.task.results import Call as Call
    from nearfar.orchestrator.task.results import Energy as Energy
    from nearfar.orchestrator.task.results import Result as Result
    from nearfar.orchestrator.task.results import SideUsage as SideUsage
    from nearfar.orchestrator.task.results import ToolOutcome as ToolOutcome
    from nearfar.orchestrator.task.route_decision import AgentEstimate as AgentEstimate
    from nearfar.orchestrator.task.route_decision import ConsideredAgent as ConsideredAgent
    from nearfar.orchestrator.task.route_decision import Estimate as Estimate
    from nearfar.orchestrator.task.route_decision import EstimateSource as EstimateSource
    from nearfar.orchestrator.task.route_decision import Impression as Impression
    from nearfar.orchestrator.task.route_decision import RouteDecision as RouteDecision
    from nearfar.orchestrator.task.sections.auto import AutoConfig as AutoConfig
    from nearfar.orchestrator.task.sections.cache import CacheConfig as CacheConfig
    from nearfar.orchestrator.task.sections.cache import CategoryConfig as CategoryConfig
    from nearfar.orchestrator.task.sections.cache import CategoryRules as CategoryRules
    from nearfar.orchestrator.task.sections.compression import CompressionConfig as CompressionConfig
    from nearfar.orchestrator.task.sections.compression import CompressionUse as CompressionUse
    from nearfar.orchestrator.task.sections.consolidation import ConsolidationConfig as ConsolidationConfig
    from nearfar.orchestrator.task.sections.guard import GuardConfig as GuardConfig
    from nearfar.orchestrator.task.sections.guard import OnDoubt as OnDoubt
    from nearfar.orchestrator.task.sections.memory import MemoryConfig as MemoryConfig
    from nearfar.orchestrator.task.sections.memory import PeerConfig as PeerConfig
    from nearfar.orchestrator.task.sections.memory import RecallConfig as RecallConfig
    from nearfar.orchestrator.task.sections.minions import MinionsConfig as MinionsConfig
    from nearfar.orchestrator.task.sections.privacy import OnFinding as OnFinding
    from nearfar.orchestrator.task.sections.privacy import PrivacyConfig as PrivacyConfig
    from nearfar.orchestrator.task.sections.resilience import BreakerConfig as BreakerConfig
    from nearfar.orchestrator.task.sections.resilience import HedgeConfig as HedgeConfig
    from nearfar.orchestrator.task.sections.resilience import IdleTimeouts as IdleTimeouts
    from nearfar.orchestrator.task.sections.routing import AmountsConfig as AmountsConfig
    from nearfar.orchestrator.task.sections.routing import EvidenceConfig as EvidenceConfig
    from nearfar.orchestrator.task.sections.routing import FallbackConfig as FallbackConfig
    from nearfar.orchestrator.task.sections.routing import FallbackTrigger as FallbackTrigger
    from nearfar.orchestrator.task.sections.routing import LimitsConfig as LimitsConfig
    from nearfar.orchestrator.task.sections.routing import ObjectiveConfig as ObjectiveConfig
    from nearfar.orchestrator.task.sections.routing import RouterConfig as RouterConfig
    from nearfar.orchestrator.task.sections.routing import StickinessConfig as StickinessConfig
    from nearfar.orchestrator.task.sections.rules import Hours as Hours
    from nearfar.orchestrator.task.sections.rules import Range as Range
    from nearfar.orchestrator.task.sections.rules import Rule as Rule
    from nearfar.orchestrator.task.sections.rules import Weekday as Weekday
    from nearfar.orchestrator.task.sections.rules import When as When
    from nearfar.orchestrator.task.sections.runs import RunsConfig as RunsConfig
    from nearfar.orchestrator.task.sections.subtasks import SubtasksConfig as SubtasksConfig
    from nearfar.orchestrator.task.sections.supervision import SupervisionConfig as SupervisionConfig
    from nearfar.orchestrator.task.sections.supervision import Trigger as Trigger
    from nearfar.orchestrator.task.sections.supervision import Verdict as Verdict
    from nearfar.orchestrator.task.situation import Situation as Situation
    from nearfar.orchestrator.task.subtasks import Subtask as Subtask
    from nearfar.orchestrator.task.subtasks import SubtaskOutcome as SubtaskOutcome
    from nearfar.orchestrator.task.task import Policy as Policy
    from nearfar.orchestrator.task.task import RecalledItem as RecalledItem
    from nearfar.orchestrator.task.task import Task as Task
    from nearfar.orchestrator.task.tool_outcomes import Effect as Effect
    from nearfar.orchestrator.task.tools import Tool as Tool
    from nearfar.orchestrator.task.tools import ToolDeclaration as ToolDeclaration
    from nearfar.orchestrator.task.tools import ToolOptions as ToolOptions
    from nearfar.orchestrator.task.tools import tool as tool
    from nearfar.orchestrator.tracing.store import TraceStore as TraceStore
    from nearfar.protocols.access import Clock as Clock
    from nearfar.protocols.agent import Agent as Agent
    from nearfar.protocols.agent import StepStream as StepStream
    from nearfar.protocols.agent import complete as complete
    from nearfar.protocols.agent import stream as stream
    from nearfar.protocols.cards import AgentCard as AgentCard
    from nearfar.protocols.cards import Capabilities as Capabilities
    from nearfar.protocols.cards import Execution as Execution
    from nearfar.protocols.cards import Limits as Limits
    from nearfar.protocols.cards import LongPrompt as LongPrompt
    from nearfar.protocols.cards import Prices as Prices
    from nearfar.protocols.cards import Rates as Rates
    from nearfar.protocols.cards import Side as Side
    from nearfar.protocols.channel import ClientTls as ClientTls
    from nearfar.protocols.channel import ServerTls as ServerTls
    from nearfar.protocols.client import RemoteAgent as RemoteAgent
    from nearfar.protocols.device_state import DeviceState as DeviceState
    from nearfar.protocols.device_state import DeviceStateSource as DeviceStateSource
    from nearfar.protocols.device_state import PowerSource as PowerSource
    from nearfar.protocols.device_state import SimulatedDevice as SimulatedDevice
    from nearfar.protocols.device_state import Thermal as Thermal
    from nearfar.protocols.errors import AgentError as AgentError
    from nearfar.protocols.errors import ApprovalNeeded as ApprovalNeeded
    from nearfar.protocols.errors import BudgetExceeded as BudgetExceeded
    from nearfar.protocols.errors import Cancelled as Cancelled
    from nearfar.protocols.errors import ConfigError as ConfigError
    from nearfar.protocols.errors import ContentFiltered as ContentFiltered
    from nearfar.protocols.errors import ContextOverflow as ContextOverflow
    from nearfar.protocols.errors import DeadlineExceeded as DeadlineExceeded
    from nearfar.protocols.errors import IdempotencyConflict as IdempotencyConflict
    from nearfar.protocols.errors import InternalError as InternalError
    from nearfar.protocols.errors import InvalidOutput as InvalidOutput
    from nearfar.protocols.errors import InvalidRequest as InvalidRequest
    from nearfar.protocols.errors import LedgerConflict as LedgerConflict
    from nearfar.protocols.errors import ModelError as ModelError
    from nearfar.protocols.errors import ModelNotFound as ModelNotFound
    from nearfar.protocols.errors import NearfarError as NearfarError
    from nearfar.protocols.errors import NoSuchModel as NoSuchModel
    from nearfar.protocols.errors import NotFound as NotFound
    from nearfar.protocols.errors import PermissionDenied as PermissionDenied
    from nearfar.protocols.errors import PrivacyViolation as PrivacyViolation
    from nearfar.protocols.errors import ProviderAuthError as ProviderAuthError
    from nearfar.protocols.errors import QuotaExceeded as QuotaExceeded
    from nearfar.protocols.errors import RateLimited as RateLimited
    from nearfar.protocols.errors import RequestRefused as RequestRefused
    from nearfar.protocols.errors import ResumeLost as ResumeLost
    from nearfar.protocols.errors import RunBusy as RunBusy
    from nearfar.protocols.errors import Stalled as Stalled
    from nearfar.protocols.errors import StepLost as StepLost
    from nearfar.protocols.errors import StoreCorrupt as StoreCorrupt
    from nearfar.protocols.errors import StoreError as StoreError
    from nearfar.protocols.errors import StoreUnavailable as StoreUnavailable
    from nearfar.protocols.errors import SyncRefused as SyncRefused
    from nearfar.protocols.errors import Unauthenticated as Unauthenticated
    from nearfar.protocols.errors import Unavailable as Unavailable
    from nearfar.protocols.errors import Unsupported as Unsupported
    from nearfar.protocols.errors import UserError as UserError
    from nearfar.protocols.errors import VersionConflict as VersionConflict
    from nearfar.protocols.errors import WorkerCrashed as WorkerCrashed
    from nearfar.protocols.fakes import ScriptedAgent as ScriptedAgent
    from nearfar.protocols.messages import ApprovalRequest as ApprovalRequest
    from nearfar.protocols.messages import JsonSchema as JsonSchema
    from nearfar.protocols.messages import Message as Message
    from nearfar.protocols.messages import ProviderState as ProviderState
    from nearfar.protocols.messages import Sensitivity as Sensitivity
    from nearfar.protocols.messages import ToolCall as ToolCall
    from nearfar.protocols.messages import ToolResult as ToolResult
    from nearfar.protocols.messages import ToolSpec as ToolSpec
    from nearfar.protocols.namespaces import ItemAddress as ItemAddress
    from nearfar.protocols.recordings import RecordedError as RecordedError
    from nearfar.protocols.recordings import RecordedOutcome as RecordedOutcome
    from nearfar.protocols.recordings import ReplayAgent as ReplayAgent
    from nearfar.protocols.recordings import record as record
    from nearfar.protocols.server import Server as Server
    from nearfar.protocols.server import serve as serve
    from nearfar.protocols.step_log import Retention as Retention
    from nearfar.protocols.steps import Effort as Effort
    from nearfar.protocols.steps import EnergySource as EnergySource
    from nearfar.protocols.steps import Finished as Finished
    from nearfar.protocols.steps import FinishReason as FinishReason
    from nearfar.protocols.steps import Performance as Performance
    from nearfar.protocols.steps import StepEvent as StepEvent
    from nearfar.protocols.steps import StepReply as StepReply
    from nearfar.protocols.steps import StepRequest as StepRequest
    from nearfar.protocols.steps import TextDelta as TextDelta
    from nearfar.protocols.steps import ToolCalled as ToolCalled
    from nearfar.protocols.steps import ToolChoice as ToolChoice
    from nearfar.protocols.steps import Usage as Usage
    from nearfar.protocols.tiers import Source as Source
    from nearfar.protocols.tiers import Tier as Tier
    from nearfar.protocols.tokens import ClientCertificate as ClientCertificate
    from nearfar.protocols.tokens import Scope as Scope
    from nearfar.protocols.tokens import TokenRecord as TokenRecord

    __version__: str

_HOMES = {
    "Agent": "protocols.agent",
    "AgentCard": "protocols.cards",
    "AgentError": "protocols.errors",
    "AgentEstimate": "orchestrator.task.route_decision",
    "AgentMemory": "orchestrator.memory.recall.agent_memory",
    "AgentText": "orchestrator.task.events",
    "AmountsConfig": "orchestrator.task.sections.routing",
    "AnswerCache": "orchestrator.cache.answers",
    "ApprovalAsked": "orchestrator.task.events",
    "ApprovalNeeded": "protocols.errors",
    "ApprovalRequest": "protocols.messages",
    "Approver": "orchestrator.task.approvals",
    "Arm": "orchestrator.task.arm",
    "AttachedConfig": "orchestrator.compose.hub",
    "Attempt": "orchestrator.task.results",
    "AttemptEnded": "orchestrator.task.events",
    "AttemptStarted": "orchestrator.task.events",
    "AutoConfig": "orchestrator.task.sections.auto",
    "BreakerConfig": "orchestrator.task.sections.resilience",
    "BudgetBook": "orchestrator.budgets.book",
    "BudgetExceeded": "protocols.errors",
    "CacheConfig": "orchestrator.task.sections.cache",
    "Call": "orchestrator.task.results",
    "CallEnded": "orchestrator.task.events",
    "Cancelled": "protocols.errors",
    "Capabilities": "protocols.cards",
    "CategoryConfig": "orchestrator.task.sections.cache",
    "CategoryRules": "orchestrator.task.sections.cache",
    "Chosen": "orchestrator.task.chosen",
    "ClientCertificate": "protocols.tokens",
    "ClientTls": "protocols.channel",
    "Clock": "protocols.access",
    "CompressionConfig": "orchestrator.task.sections.compression",
    "CompressionUse": "orchestrator.task.sections.compression",
    "Config": "orchestrator.compose.config",
    "ConfigError": "protocols.errors",
    "Conflict": "orchestrator.memory.conflicts",
    "ConsideredAgent": "orchestrator.task.route_decision",
    "ConsideredArm": "orchestrator.task.auto_decision",
    "ConsolidationConfig": "orchestrator.task.sections.consolidation",
    "ContentFiltered": "protocols.errors",
    "ContextOverflow": "protocols.errors",
    "DeadlineExceeded": "protocols.errors",
    "DeviceState": "protocols.device_state",
    "DeviceStateSource": "protocols.device_state",
    "Effect": "orchestrator.task.tool_outcomes",
    "EffectConnection": "orchestrator.runs.ledger.transactions",
    "Effort": "protocols.steps",
    "Embedder": "orchestrator.memory.vectors",
    "Energy": "orchestrator.task.results",
    "EnergySource": "protocols.steps",
    "Estimate": "orchestrator.task.route_decision",
    "EstimateSource": "orchestrator.task.route_decision",
    "EvidenceConfig": "orchestrator.task.sections.routing",
    "Execution": "protocols.cards",
    "Fact": "orchestrator.memory.recall.semantic",
    "FallbackConfig": "orchestrator.task.sections.routing",
    "FallbackTrigger": "orchestrator.task.sections.routing",
    "FarConfig": "orchestrator.compose.agents",
    "FinishReason": "protocols.steps",
    "Finished": "protocols.steps",
    "GatewayConfig": "orchestrator.compose.agents",
    "GatewayLimits": "cloud.admission",
    "GuardConfig": "orchestrator.task.sections.guard",
    "HedgeConfig": "orchestrator.task.sections.resilience",
    "Hours": "orchestrator.task.sections.rules",
    "HubConfig": "orchestrator.compose.hub",
    "Hybrid": "orchestrator.hybrid.hybrid",
    "IdempotencyConflict": "protocols.errors",
    "IdleTimeouts": "orchestrator.task.sections.resilience",
    "Imported": "orchestrator.memory.transfer",
    "Impression": "orchestrator.task.route_decision",
    "Integrity": "orchestrator.task.labels",
    "InternalError": "protocols.errors",
    "InvalidOutput": "protocols.errors",
    "InvalidRequest": "protocols.errors",
    "ItemAddress": "protocols.namespaces",
    "JsonSchema": "protocols.messages",
    "Label": "orchestrator.task.labels",
    "LedgerConflict": "protocols.errors",
    "Limits": "protocols.cards",
    "LimitsConfig": "orchestrator.task.sections.routing",
    "LlamaAgent": "device.llama.agent",
    "LocalFarConfig": "orchestrator.compose.agents",
    "LongPrompt": "protocols.cards",
    "LostValue": "orchestrator.memory.conflicts",
    "MemoryChange": "orchestrator.memory.changes",
    "MemoryConfig": "orchestrator.task.sections.memory",
    "MemoryItem": "orchestrator.memory.reading",
    "MemoryStore": "orchestrator.memory.store",
    "Message": "protocols.messages",
    "MinionsConfig": "orchestrator.task.sections.minions",
    "Mode": "orchestrator.task.modes",
    "ModelError": "protocols.errors",
    "ModelNotFound": "protocols.errors",
    "NearConfig": "orchestrator.compose.agents",
    "NearfarError": "protocols.errors",
    "Needs": "orchestrator.task.modes",
    "NoSuchModel": "protocols.errors",
    "NotFound": "protocols.errors",
    "ObjectiveConfig": "orchestrator.task.sections.routing",
    "OnDoubt": "orchestrator.task.sections.guard",
    "OnFinding": "orchestrator.task.sections.privacy",
    "OnnxAgent": "device.onnx.agent",
    "Origin": "orchestrator.memory.provenance",
    "PeerConfig": "orchestrator.task.sections.memory",
    "Performance": "protocols.steps",
    "PermissionDenied": "protocols.errors",
    "Policy": "orchestrator.task.task",
    "PolicyFile": "orchestrator.compose.policy_file",
    "PowerSource": "protocols.device_state",
    "Prices": "protocols.cards",
    "Principal": "orchestrator.memory.item",
    "PrivacyConfig": "orchestrator.task.sections.privacy",
    "PrivacyRecords": "orchestrator.safety.privacy.records",
    "PrivacyViolation": "protocols.errors",
    "ProviderAuthError": "protocols.errors",
    "ProviderConfig": "cloud.config",
    "ProviderState": "protocols.messages",
    "QuotaExceeded": "protocols.errors",
    "Range": "orchestrator.task.sections.rules",
    "Ranking": "orchestrator.memory.fusion",
    "RateLimited": "protocols.errors",
    "Rates": "protocols.cards",
    "RecallConfig": "orchestrator.task.sections.memory",
    "RecalledItem": "orchestrator.task.task",
    "RecordedError": "protocols.recordings",
    "RecordedOutcome": "protocols.recordings",
    "RemoteAgent": "protocols.client",
    "Rendered": "orchestrator.memory.rendering",
    "ReplayAgent": "protocols.recordings",
    "RequestRefused": "protocols.errors",
    "Result": "orchestrator.task.results",
    "ResumeLost": "protocols.errors",
    "ResumeOptions": "orchestrator.hybrid.arguments",
    "Retention": "protocols.step_log",
    "RouteDecision": "orchestrator.task.route_decision",
    "Routed": "orchestrator.task.events",
    "RouterConfig": "orchestrator.task.sections.routing",
    "Rule": "orchestrator.task.sections.rules",
    "Run": "orchestrator.runs.run",
    "RunBusy": "protocols.errors",
    "RunState": "orchestrator.runs.run",
    "RunStore": "orchestrator.runs.store",
    "RunsConfig": "orchestrator.task.sections.runs",
    "Scope": "protocols.tokens",
    "ScriptedAgent": "protocols.fakes",
    "SearchMode": "orchestrator.memory.reading",
    "SelectionDecision": "orchestrator.task.auto_decision",
    "Sensitivity": "protocols.messages",
    "Server": "protocols.server",
    "ServerTls": "protocols.channel",
    "Shape": "orchestrator.task.profile",
    "Side": "protocols.cards",
    "SideUsage": "orchestrator.task.results",
    "SimulatedDevice": "protocols.device_state",
    "Situation": "orchestrator.task.situation",
    "Source": "protocols.tiers",
    "Stalled": "protocols.errors",
    "StepEvent": "protocols.steps",
    "StepLost": "protocols.errors",
    "StepReply": "protocols.steps",
    "StepRequest": "protocols.steps",
    "StepStream": "protocols.agent",
    "StickinessConfig": "orchestrator.task.sections.routing",
    "StoreCorrupt": "protocols.errors",
    "StoreError": "protocols.errors",
    "StoreUnavailable": "protocols.errors",
    "Strategy": "orchestrator.task.modes",
    "Subtask": "orchestrator.task.subtasks",
    "SubtaskEnded": "orchestrator.task.events",
    "SubtaskOutcome": "orchestrator.task.subtasks",
    "SubtasksConfig": "orchestrator.task.sections.subtasks",
    "SubtasksPlanned": "orchestrator.task.events",
    "SupervisionConfig": "orchestrator.task.sections.supervision",
    "SupervisorSpoke": "orchestrator.task.events",
    "SyncRefused": "protocols.errors",
    "Task": "orchestrator.task.task",
    "TaskEvent": "orchestrator.task.events",
    "TaskFinished": "orchestrator.task.events",
    "TaskGraph": "orchestrator.strategies.runtime",
    "TaskMemory": "orchestrator.memory.in_tasks",
    "TaskOptions": "orchestrator.hybrid.arguments",
    "TaskProfile": "orchestrator.task.profile",
    "TextDelta": "protocols.steps",
    "Thermal": "protocols.device_state",
    "Tier": "protocols.tiers",
    "TokenRecord": "protocols.tokens",
    "Tool": "orchestrator.task.tools",
    "ToolCall": "protocols.messages",
    "ToolCalled": "protocols.steps",
    "ToolChoice": "protocols.steps",
    "ToolDeclaration": "orchestrator.task.tools",
    "ToolFinished": "orchestrator.task.events",
    "ToolOptions": "orchestrator.task.tools",
    "ToolOutcome": "orchestrator.task.results",
    "ToolResult": "protocols.messages",
    "ToolSpec": "protocols.messages",
    "ToolStarted": "orchestrator.task.events",
    "TraceStore": "orchestrator.tracing.store",
    "Trigger": "orchestrator.task.sections.supervision",
    "Turn": "orchestrator.memory.recall.turn",
    "TurnKind": "orchestrator.memory.recall.turn",
    "Unauthenticated": "protocols.errors",
    "Unavailable": "protocols.errors",
    "Unsupported": "protocols.errors",
    "Usage": "protocols.steps",
    "UserError": "protocols.errors",
    "Verdict": "orchestrator.task.sections.supervision",
    "VersionConflict": "protocols.errors",
    "Weekday": "orchestrator.task.sections.rules",
    "When": "orchestrator.task.sections.rules",
    "WorkerConfig": "orchestrator.compose.hub",
    "WorkerCrashed": "protocols.errors",
    "WorkingMemory": "orchestrator.memory.recall.agent_memory",
    "complete": "protocols.agent",
    "effect_key": "orchestrator.runs.ledger.running",
    "effect_transaction": "orchestrator.runs.ledger.running",
    "load_config": "orchestrator.compose.config",
    "memory_tools": "orchestrator.memory.in_tasks",
    "record": "protocols.recordings",
    "render": "orchestrator.memory.rendering",
    "serve": "protocols.server",
    "stream": "protocols.agent",
    "tool": "orchestrator.task.tools",
    "writing_as": "orchestrator.memory.provenance",
}
"""The module that defines each public name."""

__all__ = [*_HOMES, "__version__"]

_load = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> object:
    if name != "__version__":
        return _load(name)
    from importlib.metadata import version  # reading it takes longer than all the rest of this import

    return version("nearfar")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
