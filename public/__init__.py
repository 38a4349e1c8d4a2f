"""Nearfar: agents that run on the device and ask the cloud only when it pays.

Every public name is here, and is loaded when it is first used. Modules below `nearfar` are internal, except `nearfar.protocols.testing`,
whose conformance suite checks agents of your own.
"""

from nearfar import protocols
from nearfar.protocols import lazy_names

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
    "protocols.agent": "Rates",
    "protocols.attach": "Worker",
    "protocols.client": "RemoteAgent",
    "protocols.fakes": "RecordedError RecordedOutcome",
    "protocols.hub": "Hub WorkerTerms serve_hub",
    "protocols.items": "ItemAddress Source Tier",
    "protocols.limits": "Heartbeat",
    "protocols.security": "ClientCertificate Scope TokenRecord",
    "protocols.server": "Server serve",
    "protocols.step_log": "Retention",
    "protocols.tls": "ClientTls ServerTls",
    "protocols.token_file": "NewToken add_token load_tokens",
    "protocols.validation": "check_request",
}
"""The public names that each module defines, without those of the contract, which `nearfar.protocols` lists."""
_OWN = {name: module for module, names in _NAMES.items() for name in names.split()}
_HOMES = dict(sorted({**_OWN, **{name: f"protocols.{module}" for name, module in protocols._HOMES.items()}}.items()))
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
