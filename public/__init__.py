"""Nearfar: agents that run on the device and ask the cloud only when it pays.

Every public name is here, and is loaded when it is first used. Modules below `nearfar` are internal, except `nearfar.protocols.testing`,
whose conformance suite checks agents of your own.
"""

from typing import TYPE_CHECKING

from nearfar.protocols.lazy import lazy_names

if TYPE_CHECKING:
    from nearfar.cloud.config import A2aAgentConfig as A2aAgentConfig
    from nearfar.cloud.config import GatewayLimits as GatewayLimits
    from nearfar.cloud.config import ProviderConfig as ProviderConfig
    from nearfar.cloud.near_server import NearServerConfig as NearServerConfig
    from nearfar.device.llama import LlamaAgent as LlamaAgent
    from nearfar.device.onnx import OnnxAgent as OnnxAgent
    from nearfar.orchestrator.budgets import BudgetBook as BudgetBook
    from nearfar.orchestrator.cache import AnswerCache as AnswerCache
    from nearfar.orchestrator.compose import FarConfig as FarConfig
    from nearfar.orchestrator.compose import GatewayConfig as GatewayConfig
    from nearfar.orchestrator.compose import LocalFarConfig as LocalFarConfig
    from nearfar.orchestrator.compose import NearConfig as NearConfig
    from nearfar.orchestrator.compose.config import Config as Config
    from nearfar.orchestrator.compose.config import load_config as load_config
    from nearfar.orchestrator.compose.hub import AttachedConfig as AttachedConfig
    from nearfar.orchestrator.compose.hub import CallerConfig as CallerConfig
    from nearfar.orchestrator.compose.hub import HubConfig as HubConfig
    from nearfar.orchestrator.compose.hub import ServeConfig as ServeConfig
    from nearfar.orchestrator.compose.hub import WorkerConfig as WorkerConfig
    from nearfar.orchestrator.compose.policy_file import PolicyFile as PolicyFile
    from nearfar.orchestrator.hybrid import Hybrid as Hybrid
    from nearfar.orchestrator.hybrid.arguments import HybridArguments as HybridArguments
    from nearfar.orchestrator.hybrid.arguments import ResumeOptions as ResumeOptions
    from nearfar.orchestrator.hybrid.arguments import TaskOptions as TaskOptions
    from nearfar.orchestrator.hybrid.arguments import TurnOptions as TurnOptions
    from nearfar.orchestrator.hybrid.parts import Metrics as Metrics
    from nearfar.orchestrator.hybrid.parts import Records as Records
    from nearfar.orchestrator.hybrid.session import Session as Session
    from nearfar.orchestrator.lab.worlds import Grade as Grade
    from nearfar.orchestrator.lab.worlds import WorldTask as WorldTask
    from nearfar.orchestrator.langchain import ChatNearfar as ChatNearfar
    from nearfar.orchestrator.mcp import McpServer as McpServer
    from nearfar.orchestrator.mcp import McpServerConfig as McpServerConfig
    from nearfar.orchestrator.mcp import McpToolConfig as McpToolConfig
    from nearfar.orchestrator.mcp import PinnedTool as PinnedTool
    from nearfar.orchestrator.mcp.tools import McpToolOffer as McpToolOffer
    from nearfar.orchestrator.mcp.tools import review_mcp_server as review_mcp_server
    from nearfar.orchestrator.memory.agent_memory import AgentMemory as AgentMemory
    from nearfar.orchestrator.memory.agent_memory import Fact as Fact
    from nearfar.orchestrator.memory.agent_memory import WorkingMemory as WorkingMemory
    from nearfar.orchestrator.memory.changes import Conflict as Conflict
    from nearfar.orchestrator.memory.changes import LostValue as LostValue
    from nearfar.orchestrator.memory.changes import MemoryChange as MemoryChange
    from nearfar.orchestrator.memory.episodic import MemoryTurn as MemoryTurn
    from nearfar.orchestrator.memory.episodic import TurnKind as TurnKind
    from nearfar.orchestrator.memory.in_tasks import Rendered as Rendered
    from nearfar.orchestrator.memory.in_tasks import TaskMemory as TaskMemory
    from nearfar.orchestrator.memory.in_tasks import memory_tools as memory_tools
    from nearfar.orchestrator.memory.in_tasks import render as render
    from nearfar.orchestrator.memory.operation import Principal as Principal
    from nearfar.orchestrator.memory.provenance import Origin as Origin
    from nearfar.orchestrator.memory.provenance import writing_as as writing_as
    from nearfar.orchestrator.memory.ranking import Ranking as Ranking
    from nearfar.orchestrator.memory.reading import MemoryItem as MemoryItem
    from nearfar.orchestrator.memory.reading import SearchMode as SearchMode
    from nearfar.orchestrator.memory.store import MemoryStore as MemoryStore
    from nearfar.orchestrator.memory.transfer import Imported as Imported
    from nearfar.orchestrator.memory.vectors import Embedder as Embedder
    from nearfar.orchestrator.runs import Run as Run
    from nearfar.orchestrator.runs import RunState as RunState
    from nearfar.orchestrator.runs.effects import EffectConnection as EffectConnection
    from nearfar.orchestrator.runs.store import RunStore as RunStore
    from nearfar.orchestrator.runs.tool_calls import effect_key as effect_key
    from nearfar.orchestrator.runs.tool_calls import effect_transaction as effect_transaction
    from nearfar.orchestrator.safety.detection import Detector as Detector
    from nearfar.orchestrator.safety.detection import PrivateFinding as PrivateFinding
    from nearfar.orchestrator.safety.outbound_filter import PrivacyRecords as PrivacyRecords
    from nearfar.orchestrator.strategies.calls import TaskGraph as TaskGraph
    from nearfar.orchestrator.strategies.graphs import TaskNodes as TaskNodes
    from nearfar.orchestrator.strategies.state import TaskContext as TaskContext
    from nearfar.orchestrator.strategies.state import TaskState as TaskState
    from nearfar.orchestrator.strategies.turn import after_judge as after_judge
    from nearfar.orchestrator.strategies.turn import after_step as after_step
    from nearfar.orchestrator.task import ForeignMessage as ForeignMessage
    from nearfar.orchestrator.task import Needs as Needs
    from nearfar.orchestrator.task import Sampling as Sampling
    from nearfar.orchestrator.task import Task as Task
    from nearfar.orchestrator.task.context import Context as Context
    from nearfar.orchestrator.task.decisions import ActLook as ActLook
    from nearfar.orchestrator.task.decisions import AgentEstimate as AgentEstimate
    from nearfar.orchestrator.task.decisions import AnswerSource as AnswerSource
    from nearfar.orchestrator.task.decisions import Arbitration as Arbitration
    from nearfar.orchestrator.task.decisions import Arm as Arm
    from nearfar.orchestrator.task.decisions import ConsideredAgent as ConsideredAgent
    from nearfar.orchestrator.task.decisions import ConsideredArm as ConsideredArm
    from nearfar.orchestrator.task.decisions import Estimate as Estimate
    from nearfar.orchestrator.task.decisions import EstimateSource as EstimateSource
    from nearfar.orchestrator.task.decisions import ExtractedAnswer as ExtractedAnswer
    from nearfar.orchestrator.task.decisions import RouteDecision as RouteDecision
    from nearfar.orchestrator.task.decisions import SelectionDecision as SelectionDecision
    from nearfar.orchestrator.task.decisions import VerifiedDraft as VerifiedDraft
    from nearfar.orchestrator.task.decisions import WeighedDraft as WeighedDraft
    from nearfar.orchestrator.task.events import AgentText as AgentText
    from nearfar.orchestrator.task.events import ApprovalAsked as ApprovalAsked
    from nearfar.orchestrator.task.events import AttemptEnded as AttemptEnded
    from nearfar.orchestrator.task.events import AttemptStarted as AttemptStarted
    from nearfar.orchestrator.task.events import CallEnded as CallEnded
    from nearfar.orchestrator.task.events import CallerTools as CallerTools
    from nearfar.orchestrator.task.events import Move as Move
    from nearfar.orchestrator.task.events import Navigated as Navigated
    from nearfar.orchestrator.task.events import RoleStarted as RoleStarted
    from nearfar.orchestrator.task.events import Routed as Routed
    from nearfar.orchestrator.task.events import Speaker as Speaker
    from nearfar.orchestrator.task.events import Subtask as Subtask
    from nearfar.orchestrator.task.events import SubtaskEnded as SubtaskEnded
    from nearfar.orchestrator.task.events import SubtaskOutcome as SubtaskOutcome
    from nearfar.orchestrator.task.events import SubtasksPlanned as SubtasksPlanned
    from nearfar.orchestrator.task.events import SupervisorSpoke as SupervisorSpoke
    from nearfar.orchestrator.task.events import TaskEvent as TaskEvent
    from nearfar.orchestrator.task.events import TaskFinished as TaskFinished
    from nearfar.orchestrator.task.events import ToolFinished as ToolFinished
    from nearfar.orchestrator.task.events import ToolStarted as ToolStarted
    from nearfar.orchestrator.task.events import Turn as Turn
    from nearfar.orchestrator.task.events import TurnCall as TurnCall
    from nearfar.orchestrator.task.events import TurnEvent as TurnEvent
    from nearfar.orchestrator.task.events import TurnFinished as TurnFinished
    from nearfar.orchestrator.task.events import TurnText as TurnText
    from nearfar.orchestrator.task.foreign import ForeignTool as ForeignTool
    from nearfar.orchestrator.task.labels import Chosen as Chosen
    from nearfar.orchestrator.task.labels import Integrity as Integrity
    from nearfar.orchestrator.task.labels import Label as Label
    from nearfar.orchestrator.task.labels import RecalledItem as RecalledItem
    from nearfar.orchestrator.task.modes import Mode as Mode
    from nearfar.orchestrator.task.modes import Shape as Shape
    from nearfar.orchestrator.task.modes import Situation as Situation
    from nearfar.orchestrator.task.modes import Strategy as Strategy
    from nearfar.orchestrator.task.modes import TaskProfile as TaskProfile
    from nearfar.orchestrator.task.policy import AutoConfig as AutoConfig
    from nearfar.orchestrator.task.policy import CompressionConfig as CompressionConfig
    from nearfar.orchestrator.task.policy import CompressionUse as CompressionUse
    from nearfar.orchestrator.task.policy import GuardConfig as GuardConfig
    from nearfar.orchestrator.task.policy import MinionsConfig as MinionsConfig
    from nearfar.orchestrator.task.policy import OnDoubt as OnDoubt
    from nearfar.orchestrator.task.policy import OnFinding as OnFinding
    from nearfar.orchestrator.task.policy import Policy as Policy
    from nearfar.orchestrator.task.policy import Preset as Preset
    from nearfar.orchestrator.task.policy import PrivacyConfig as PrivacyConfig
    from nearfar.orchestrator.task.policy import SpeculateConfig as SpeculateConfig
    from nearfar.orchestrator.task.policy import SubtasksConfig as SubtasksConfig
    from nearfar.orchestrator.task.policy import SupervisionConfig as SupervisionConfig
    from nearfar.orchestrator.task.policy import Trigger as Trigger
    from nearfar.orchestrator.task.policy import Verdict as Verdict
    from nearfar.orchestrator.task.results import AskedReasoning as AskedReasoning
    from nearfar.orchestrator.task.results import Attempt as Attempt
    from nearfar.orchestrator.task.results import Call as Call
    from nearfar.orchestrator.task.results import Energy as Energy
    from nearfar.orchestrator.task.results import JudgedProposal as JudgedProposal
    from nearfar.orchestrator.task.results import Result as Result
    from nearfar.orchestrator.task.results import RoleWork as RoleWork
    from nearfar.orchestrator.task.results import SideUsage as SideUsage
    from nearfar.orchestrator.task.results import Speculation as Speculation
    from nearfar.orchestrator.task.results import ToolOutcome as ToolOutcome
    from nearfar.orchestrator.task.roles import Role as Role
    from nearfar.orchestrator.task.routing_policy import AmountsConfig as AmountsConfig
    from nearfar.orchestrator.task.routing_policy import BreakerConfig as BreakerConfig
    from nearfar.orchestrator.task.routing_policy import EvidenceConfig as EvidenceConfig
    from nearfar.orchestrator.task.routing_policy import FallbackConfig as FallbackConfig
    from nearfar.orchestrator.task.routing_policy import FallbackTrigger as FallbackTrigger
    from nearfar.orchestrator.task.routing_policy import HedgeConfig as HedgeConfig
    from nearfar.orchestrator.task.routing_policy import IdleTimeouts as IdleTimeouts
    from nearfar.orchestrator.task.routing_policy import LimitsConfig as LimitsConfig
    from nearfar.orchestrator.task.routing_policy import ObjectiveConfig as ObjectiveConfig
    from nearfar.orchestrator.task.routing_policy import RouterConfig as RouterConfig
    from nearfar.orchestrator.task.routing_policy import StickinessConfig as StickinessConfig
    from nearfar.orchestrator.task.routing_policy import VerifierKind as VerifierKind
    from nearfar.orchestrator.task.rules import Hours as Hours
    from nearfar.orchestrator.task.rules import Range as Range
    from nearfar.orchestrator.task.rules import Rule as Rule
    from nearfar.orchestrator.task.rules import Ruling as Ruling
    from nearfar.orchestrator.task.rules import Weekday as Weekday
    from nearfar.orchestrator.task.rules import When as When
    from nearfar.orchestrator.task.stores import CacheConfig as CacheConfig
    from nearfar.orchestrator.task.stores import CategoryConfig as CategoryConfig
    from nearfar.orchestrator.task.stores import CategoryRules as CategoryRules
    from nearfar.orchestrator.task.stores import ConsolidationConfig as ConsolidationConfig
    from nearfar.orchestrator.task.stores import MemoryConfig as MemoryConfig
    from nearfar.orchestrator.task.stores import PeerConfig as PeerConfig
    from nearfar.orchestrator.task.stores import RecallConfig as RecallConfig
    from nearfar.orchestrator.task.stores import RunsConfig as RunsConfig
    from nearfar.orchestrator.task.tools import Approver as Approver
    from nearfar.orchestrator.task.tools import Effect as Effect
    from nearfar.orchestrator.task.tools import Tool as Tool
    from nearfar.orchestrator.task.tools import ToolDeclaration as ToolDeclaration
    from nearfar.orchestrator.task.tools import ToolOptions as ToolOptions
    from nearfar.orchestrator.task.tools import tool as tool
    from nearfar.orchestrator.tracing import TraceStore as TraceStore
    from nearfar.orchestrator.tracing.telemetry import Observable as Observable
    from nearfar.orchestrator.tracing.telemetry import instrument as instrument
    from nearfar.orchestrator.util.plugins import FarPluginConfig as FarPluginConfig
    from nearfar.orchestrator.util.plugins import NearPluginConfig as NearPluginConfig
    from nearfar.protocols.access import Clock as Clock
    from nearfar.protocols.agent import Agent as Agent
    from nearfar.protocols.agent import AgentCard as AgentCard
    from nearfar.protocols.agent import Capabilities as Capabilities
    from nearfar.protocols.agent import DeviceState as DeviceState
    from nearfar.protocols.agent import DeviceStateSource as DeviceStateSource
    from nearfar.protocols.agent import Execution as Execution
    from nearfar.protocols.agent import Limits as Limits
    from nearfar.protocols.agent import LongPrompt as LongPrompt
    from nearfar.protocols.agent import PowerSource as PowerSource
    from nearfar.protocols.agent import Prices as Prices
    from nearfar.protocols.agent import Rates as Rates
    from nearfar.protocols.agent import Side as Side
    from nearfar.protocols.agent import SimulatedDevice as SimulatedDevice
    from nearfar.protocols.agent import StepStream as StepStream
    from nearfar.protocols.agent import Thermal as Thermal
    from nearfar.protocols.agent import complete as complete
    from nearfar.protocols.agent import stream as stream
    from nearfar.protocols.attach import Worker as Worker
    from nearfar.protocols.attachments import Attachment as Attachment
    from nearfar.protocols.client import RemoteAgent as RemoteAgent
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
    from nearfar.protocols.fakes import RecordedError as RecordedError
    from nearfar.protocols.fakes import RecordedOutcome as RecordedOutcome
    from nearfar.protocols.fakes import ReplayAgent as ReplayAgent
    from nearfar.protocols.fakes import ScriptedAgent as ScriptedAgent
    from nearfar.protocols.fakes import record as record
    from nearfar.protocols.hub import Hub as Hub
    from nearfar.protocols.hub import WorkerTerms as WorkerTerms
    from nearfar.protocols.hub import serve_hub as serve_hub
    from nearfar.protocols.items import ItemAddress as ItemAddress
    from nearfar.protocols.items import Source as Source
    from nearfar.protocols.items import Tier as Tier
    from nearfar.protocols.limits import Heartbeat as Heartbeat
    from nearfar.protocols.security import ClientCertificate as ClientCertificate
    from nearfar.protocols.security import Scope as Scope
    from nearfar.protocols.security import TokenRecord as TokenRecord
    from nearfar.protocols.server import Server as Server
    from nearfar.protocols.server import serve as serve
    from nearfar.protocols.step_log import Retention as Retention
    from nearfar.protocols.steps import ApprovalRequest as ApprovalRequest
    from nearfar.protocols.steps import Effort as Effort
    from nearfar.protocols.steps import EnergySource as EnergySource
    from nearfar.protocols.steps import Finished as Finished
    from nearfar.protocols.steps import FinishReason as FinishReason
    from nearfar.protocols.steps import JsonSchema as JsonSchema
    from nearfar.protocols.steps import LikelyToken as LikelyToken
    from nearfar.protocols.steps import Message as Message
    from nearfar.protocols.steps import Performance as Performance
    from nearfar.protocols.steps import ProviderState as ProviderState
    from nearfar.protocols.steps import Sensitivity as Sensitivity
    from nearfar.protocols.steps import StepEvent as StepEvent
    from nearfar.protocols.steps import StepReply as StepReply
    from nearfar.protocols.steps import StepRequest as StepRequest
    from nearfar.protocols.steps import TextDelta as TextDelta
    from nearfar.protocols.steps import TokenLogprob as TokenLogprob
    from nearfar.protocols.steps import ToolCall as ToolCall
    from nearfar.protocols.steps import ToolCalled as ToolCalled
    from nearfar.protocols.steps import ToolChoice as ToolChoice
    from nearfar.protocols.steps import ToolResult as ToolResult
    from nearfar.protocols.steps import ToolSpec as ToolSpec
    from nearfar.protocols.steps import Usage as Usage
    from nearfar.protocols.tls import ClientTls as ClientTls
    from nearfar.protocols.tls import ServerTls as ServerTls
    from nearfar.protocols.token_file import NewToken as NewToken
    from nearfar.protocols.token_file import add_token as add_token
    from nearfar.protocols.token_file import load_tokens as load_tokens
    from nearfar.protocols.validation import check_request as check_request

    __version__: str

_NAMES = {
    "cloud.config": "A2aAgentConfig GatewayLimits ProviderConfig",
    "cloud.near_server": "NearServerConfig",
    "device.llama": "LlamaAgent",
    "device.onnx": "OnnxAgent",
    "orchestrator.budgets": "BudgetBook",
    "orchestrator.cache": "AnswerCache",
    "orchestrator.compose": "FarConfig GatewayConfig LocalFarConfig NearConfig",
    "orchestrator.compose.config": "Config load_config",
    "orchestrator.compose.hub": "AttachedConfig CallerConfig HubConfig ServeConfig WorkerConfig",
    "orchestrator.compose.policy_file": "PolicyFile",
    "orchestrator.hybrid": "Hybrid",
    "orchestrator.hybrid.arguments": "HybridArguments ResumeOptions TaskOptions TurnOptions",
    "orchestrator.hybrid.parts": "Metrics Records",
    "orchestrator.hybrid.session": "Session",
    "orchestrator.lab.worlds": "Grade WorldTask",
    "orchestrator.langchain": "ChatNearfar",
    "orchestrator.mcp": "McpServer McpServerConfig McpToolConfig PinnedTool",
    "orchestrator.mcp.tools": "McpToolOffer review_mcp_server",
    "orchestrator.memory.agent_memory": "AgentMemory Fact WorkingMemory",
    "orchestrator.memory.changes": "Conflict LostValue MemoryChange",
    "orchestrator.memory.episodic": "MemoryTurn TurnKind",
    "orchestrator.memory.in_tasks": "Rendered TaskMemory memory_tools render",
    "orchestrator.memory.operation": "Principal",
    "orchestrator.memory.provenance": "Origin writing_as",
    "orchestrator.memory.ranking": "Ranking",
    "orchestrator.memory.reading": "MemoryItem SearchMode",
    "orchestrator.memory.store": "MemoryStore",
    "orchestrator.memory.transfer": "Imported",
    "orchestrator.memory.vectors": "Embedder",
    "orchestrator.runs": "Run RunState",
    "orchestrator.runs.effects": "EffectConnection",
    "orchestrator.runs.store": "RunStore",
    "orchestrator.runs.tool_calls": "effect_key effect_transaction",
    "orchestrator.safety.detection": "Detector PrivateFinding",
    "orchestrator.safety.outbound_filter": "PrivacyRecords",
    "orchestrator.strategies.calls": "TaskGraph",
    "orchestrator.strategies.graphs": "TaskNodes",
    "orchestrator.strategies.state": "TaskContext TaskState",
    "orchestrator.strategies.turn": "after_judge after_step",
    "orchestrator.task": "ForeignMessage Needs Sampling Task",
    "orchestrator.task.context": "Context",
    "orchestrator.task.decisions": (
        "ActLook AgentEstimate AnswerSource Arbitration Arm ConsideredAgent ConsideredArm Estimate EstimateSource ExtractedAnswer "
        "RouteDecision SelectionDecision VerifiedDraft WeighedDraft"
    ),
    "orchestrator.task.events": (
        "AgentText ApprovalAsked AttemptEnded AttemptStarted CallEnded CallerTools Move Navigated RoleStarted Routed Speaker Subtask "
        "SubtaskEnded SubtaskOutcome SubtasksPlanned SupervisorSpoke TaskEvent TaskFinished ToolFinished ToolStarted Turn TurnCall "
        "TurnEvent TurnFinished TurnText"
    ),
    "orchestrator.task.foreign": "ForeignTool",
    "orchestrator.task.labels": "Chosen Integrity Label RecalledItem",
    "orchestrator.task.modes": "Mode Shape Situation Strategy TaskProfile",
    "orchestrator.task.policy": (
        "AutoConfig CompressionConfig CompressionUse GuardConfig MinionsConfig OnDoubt OnFinding Policy Preset PrivacyConfig "
        "SpeculateConfig SubtasksConfig SupervisionConfig Trigger Verdict"
    ),
    "orchestrator.task.results": "AskedReasoning Attempt Call Energy JudgedProposal Result RoleWork SideUsage Speculation ToolOutcome",
    "orchestrator.task.roles": "Role",
    "orchestrator.task.routing_policy": (
        "AmountsConfig BreakerConfig EvidenceConfig FallbackConfig FallbackTrigger HedgeConfig IdleTimeouts LimitsConfig ObjectiveConfig "
        "RouterConfig StickinessConfig VerifierKind"
    ),
    "orchestrator.task.rules": "Hours Range Rule Ruling Weekday When",
    "orchestrator.task.stores": (
        "CacheConfig CategoryConfig CategoryRules ConsolidationConfig MemoryConfig PeerConfig RecallConfig RunsConfig"
    ),
    "orchestrator.task.tools": "Approver Effect Tool ToolDeclaration ToolOptions tool",
    "orchestrator.tracing": "TraceStore",
    "orchestrator.tracing.telemetry": "Observable instrument",
    "orchestrator.util.plugins": "FarPluginConfig NearPluginConfig",
    "protocols.access": "Clock",
    "protocols.agent": (
        "Agent AgentCard Capabilities DeviceState DeviceStateSource Execution Limits LongPrompt PowerSource Prices Rates Side "
        "SimulatedDevice StepStream Thermal complete stream"
    ),
    "protocols.attach": "Worker",
    "protocols.attachments": "Attachment",
    "protocols.client": "RemoteAgent",
    "protocols.errors": (
        "AgentError ApprovalNeeded BudgetExceeded Cancelled ConfigError ContentFiltered ContextOverflow DeadlineExceeded "
        "IdempotencyConflict InternalError InvalidOutput InvalidRequest LedgerConflict ModelError ModelNotFound NearfarError NoSuchModel "
        "NotFound PermissionDenied PrivacyViolation ProviderAuthError QuotaExceeded RateLimited RequestRefused ResumeLost RunBusy Stalled "
        "StepLost StoreCorrupt StoreError StoreUnavailable SyncRefused Unauthenticated Unavailable Unsupported UserError VersionConflict "
        "WorkerCrashed"
    ),
    "protocols.fakes": "RecordedError RecordedOutcome ReplayAgent ScriptedAgent record",
    "protocols.hub": "Hub WorkerTerms serve_hub",
    "protocols.items": "ItemAddress Source Tier",
    "protocols.limits": "Heartbeat",
    "protocols.security": "ClientCertificate Scope TokenRecord",
    "protocols.server": "Server serve",
    "protocols.step_log": "Retention",
    "protocols.steps": (
        "ApprovalRequest Effort EnergySource FinishReason Finished JsonSchema LikelyToken Message Performance ProviderState Sensitivity "
        "StepEvent StepReply StepRequest TextDelta TokenLogprob ToolCall ToolCalled ToolChoice ToolResult ToolSpec Usage"
    ),
    "protocols.tls": "ClientTls ServerTls",
    "protocols.token_file": "NewToken add_token load_tokens",
    "protocols.validation": "check_request",
}
"""The public names that each module defines."""
_HOMES = dict(sorted((name, module) for module, names in _NAMES.items() for name in names.split()))
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
