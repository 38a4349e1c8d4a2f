"""The arguments of `Hybrid` and the options of a single task: validate them, and convert them into the values that the package uses."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError

from ...protocols import Agent, ConfigError, Effort, InvalidRequest, JsonSchema, Sensitivity, Side
from ...protocols.validation import check_schema
from ..agents import AgentHandle
from ..compose import FAR_CONFIGS, NEAR_CONFIGS, FarConfig, NearSection, far_handle, near_handle, other_handle
from ..compose.hub import AttachedConfig
from ..compose.policy_file import PolicyFile
from ..mcp import McpServer
from ..routing.policy_check import require_usable, role_findings
from ..task import Caching, Sampling, Task, as_messages
from ..task.events import CallerTools
from ..task.foreign import ForeignTool, as_tool
from ..task.modes import Mode, Strategy
from ..task.policy import Policy
from ..task.roles import Role, Team
from ..task.stores import MemoryConfig, RunsConfig
from ..task.tools import Approver, Tool
from ..util.plugins import Plugin, find_plugin
from ..util.settings import Location, as_path, as_tuple, parse_section, require, require_methods, wrong_type

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

    from ..mcp.tools import McpServers
    from ..memory.in_tasks import TaskMemory
    from ..memory.store import MemoryStore
    from .parts import Records


_logger = logging.getLogger(__name__)
_AGENT = ("card", "step", "aclose")
_TOOL_HINT = "decorate the function with @tool"


def near_argument(given: object) -> Agent | NearSection | str | Path | None:
    """Return the near side. A mapping is a `[near]` section."""
    if isinstance(given, Mapping):
        near: TypeAdapter[NearSection] = TypeAdapter(NearSection)
        return parse_section("near", given, near)
    wanted = 'the path or name of a model, a text such as "ollama:MODEL", a NearConfig, a NearServerConfig or an Agent'
    return cast(Agent | NearSection | str | Path | None, _agent("near", given, NEAR_CONFIGS, wanted))


def far_argument(given: object) -> Agent | FarConfig | str | Path | None:
    """Return the far side. A mapping is a `[far]` section."""
    if isinstance(given, Mapping):
        far: TypeAdapter[FarConfig] = TypeAdapter(FarConfig)
        return parse_section("far", given, far)
    return cast(
        Agent | FarConfig | str | Path | None, _agent("far", given, FAR_CONFIGS, 'a text such as "openai:MODEL", a FarConfig or an Agent')
    )


def agents_argument(given: object) -> dict[str, Agent | NearSection | FarConfig | AttachedConfig]:
    """Return the further agents by their names."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) and name for name in given):
        raise wrong_type("agents", given, "a mapping from names to agents", hint='agents={"second": agent}')
    kinds, wanted = (*NEAR_CONFIGS, *FAR_CONFIGS, AttachedConfig, Role), "an Agent, a NearConfig, a FarConfig or a Role"
    for name, other in given.items():
        if other is None or isinstance(other, (str, os.PathLike)):
            raise wrong_type(f"agents[{name!r}]", other, wanted)
        _agent(f"agents[{name!r}]", other, kinds, wanted)
    return {name: other for name, other in given.items() if not isinstance(other, Role)}


def team_argument(agents: Mapping[str, object] | None, sides: Mapping[str, Side], policy: Policy, tools: Sequence[Tool]) -> Team:
    """Return the roles among the further agents. Raises `ConfigError` for roles that could not work; logs what else is strange.

    Args:
        agents: the argument `agents`, which was checked.
        sides: the sides of the agents that serve their work.
        policy: the policy that their work is served under.
        tools: the tools that they may name.
    """
    team = Team({name: role for name, role in (agents or {}).items() if isinstance(role, Role)})
    every = tools_argument((*tools, *(each for each in team.tools if each not in tools)))
    for finding in role_findings(team.roles, sides, policy, {each.spec.name for each in every}):
        if finding.kind == "error":
            raise ConfigError(f"{finding.where}: {finding.problem}", hint=finding.hint)
        _logger.warning("%s", finding)
    return team


def listed_tools(given: object) -> tuple[Any, ...]:
    """Return what `tools` lists. Raises `ConfigError` for what is no sequence."""
    if isinstance(given, (Tool, McpServer)) or (callable(given) and not isinstance(given, Sequence)):
        raise ConfigError(f"tools must be a list of tools, not one {type(given).__name__} alone", hint="tools=[...]")
    return as_tuple("tools", () if given is None else given, lambda _: True, "a list of tools", hint=_TOOL_HINT)


def tools_argument(given: object) -> tuple[Tool, ...]:
    """Return the tools. Raises `ConfigError` for what is no sequence of them, and where two have one name."""
    tools: list[Tool] = []
    for each in listed_tools(given):
        if isinstance(each, McpServer):
            raise ConfigError(f"the MCP server {each.name!r} is among the tools of a task", hint="give it to the Hybrid: tools=[...]")
        if (read := as_tool(each)) is None:
            raise ConfigError(f"{each!r:.80} is not a tool", hint=_TOOL_HINT)
        tools.append(read)
    names = [each.spec.name for each in tools]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two tools are called {name!r}", hint="give one of them another name: @tool(name=...)")
    return tuple(tools)


def plugin_tools(names: Iterable[str]) -> list[Tool]:
    """Return the tools of plugins. Raises `ConfigError` that names a plugin which is not there, fails, or is no tool or list of tools."""
    found: list[Tool] = []
    for name in names:
        try:
            found += load_plugin_tools(find_plugin("tools", name))
        except ConfigError as error:
            raise ConfigError(f"tools: {error.message}", hint=error.hint) from error
    return found


def load_plugin_tools(plugin: Plugin) -> list[Tool]:
    """Load a plugin and return its tools. Raises `ConfigError` where it fails, or is no tool or list of tools."""
    loaded = plugin.load()
    found = [as_tool(each) for each in (loaded if isinstance(loaded, (list, tuple)) else [loaded])]
    tools = [each for each in found if each is not None]
    if not tools or len(tools) < len(found):
        raise plugin.misfit("a tool or a list of tools", loaded)
    return tools


def mcp_servers(given: object) -> "McpServers | None":
    """Return the MCP servers that `tools` lists, with their approved tools. Their folders are relative to the current one."""
    servers = [each.anchored(Path.cwd()) for each in listed_tools(given) if isinstance(each, McpServer)]
    if not servers:
        return None
    from ..mcp.tools import McpServers

    return McpServers(servers)


def policy_argument(given: object) -> Policy | PolicyFile:
    """Return the policy. A mapping is a `[policy]` section."""
    if isinstance(given, Mapping):
        return parse_section("policy", given, Policy)
    require("policy", given, (Policy, PolicyFile), "a Policy, a PolicyFile or a mapping", hint='policy=Policy(strategy="route")')
    return Policy() if given is None else cast(Policy | PolicyFile, given)


def memory_argument(given: object) -> "tuple[MemoryStore | TaskMemory | MemoryConfig | Location | None, BaseStore | None]":
    """Return the memory of tasks, or a store that only the graphs use.

    A path, or an address `postgres://...`, is that of a store that the `Hybrid` opens and closes.
    """
    if isinstance(given, Mapping):
        return parse_section("memory", given, MemoryConfig).anchored(Path()), None
    if given is None or isinstance(given, MemoryConfig):
        return given, None
    from langgraph.store.base import BaseStore

    from ..memory.in_tasks import TaskMemory
    from ..memory.store import MemoryStore

    if isinstance(given, (MemoryStore, TaskMemory)) or (
        isinstance(given, str) and given.startswith((":memory:", "postgres://", "postgresql://"))
    ):
        return given, None
    if isinstance(given, BaseStore):
        return None, given
    return as_path("memory", given, otherwise="a MemoryStore, a TaskMemory, a MemoryConfig, a store of LangGraph, a mapping"), None


def agent_handles(near: object, far: object, agents: object) -> list[AgentHandle]:
    """Return both sides and the other agents. Raises `ConfigError` where there is neither side."""
    handles = [handle for handle in (near_handle(near_argument(near)), far_handle(far_argument(far))) if handle is not None]
    if not handles:
        hint = 'near="near" and far="far" are the ones that ship with nearfar; in nearfar.toml: [near] and [far]'
        raise ConfigError("neither a near nor a far agent is given", hint=hint)
    return [*handles, *(other_handle(name, other) for name, other in agents_argument(agents).items())]


def require_usable_policy(policy: Policy | PolicyFile, agents: Mapping[str, Side]) -> None:
    """Raise `ConfigError` if the policy cannot be used with these agents. A `PolicyFile` is checked against them from now on."""
    if isinstance(policy, PolicyFile):
        policy.require(agents)
    require_usable(policy.current if isinstance(policy, PolicyFile) else policy, agents)


def check_approver(given: object, error: Callable[..., Exception] = ConfigError) -> None:
    """Raise `error` unless it is None or a function."""
    if given is not None and not callable(given):
        hint = "it takes a sequence of ApprovalRequest and returns a mapping from their ids to True or False"
        raise error(f"approver must be an async function, not {type(given).__name__}", hint=hint)


def require_run(run: object, user: object, approvals: object) -> None:
    """Raise `InvalidRequest` unless these name a run, its user, and what is said to its calls."""
    if not isinstance(run, str) or not run:
        raise InvalidRequest("run must be the idempotency key of a task", hint="`Result.id` is one")
    if not isinstance(user, str):
        raise InvalidRequest(f"user must be a text, not {type(user).__name__}", hint="on whose behalf the run was begun")
    if approvals is not None and not (isinstance(approvals, Mapping) and all(isinstance(said, bool) for said in approvals.values())):
        raise InvalidRequest("approvals must map ids of requests to True or False", hint="approvals={request.id: True}")


def _agent(name: str, given: object, configs: tuple[type, ...], wanted: str) -> Any:  # noqa: ANN401 - the callers know which configs
    if isinstance(given, (str, os.PathLike)):
        if not os.fspath(given):
            raise ConfigError(f"{name} is empty", hint=f"give {wanted}")
        return given if isinstance(given, (str, Path)) else Path(given)
    if given is None or isinstance(given, configs):
        return given
    if isinstance(given, type):
        raise ConfigError(f"{name} is the class {given.__name__}", hint="give an object of it")
    require_methods(name, given, _AGENT, wanted)
    return given


class HybridArguments(TypedDict, total=False):
    """The arguments of `Hybrid`: `near`, `far`, `agents`, `instructions`, `tools`, `policy`, `memory` and `records`."""

    near: Agent | NearSection | Mapping[str, Any] | str | Path | None
    far: Agent | FarConfig | Mapping[str, Any] | str | Path | None
    agents: Mapping[str, Agent | NearSection | FarConfig | AttachedConfig | Role] | None
    instructions: str | None
    tools: Sequence[Tool | ForeignTool | McpServer]
    policy: Policy | PolicyFile | Mapping[str, Any] | None
    memory: "MemoryStore | TaskMemory | MemoryConfig | BaseStore | Mapping[str, Any] | Location | None"
    records: "Records | RunsConfig | Mapping[str, Any] | Location | None"


class _CommonOptions(TypedDict, total=False):
    """Options of tasks and of turns."""

    policy: Policy | Mapping[str, Any]
    """Stands in for the `Hybrid`'s; the options below stand above it."""
    approver: Approver | None
    """Decides about calls that need approval. Without one they are refused, or a durable run waits for a decision."""
    allowed_tools: Iterable[str]
    """Names of the only tools that the task may call. Untrusted content in the conversation is then no reason to ask for approval of
    these, unless their arguments come from it."""

    role: str
    """Name of the role that the task is given to: it works on the task first, and may hand it to others. Empty: no role."""
    instructions: str
    """Instructions for this task, told after those of the agent and of the `Hybrid`."""
    plan: str
    """How the task is to be done, in the user's or the app's own words; agents see it behind the prompt. Calls in it, written as in
    `pay(account=account_of(contact="Ann").number, amount=500)`, are chosen before anything is read: what they state or name as to be read
    may become those arguments, whatever else the run has read."""
    context: str
    """A long text that the task is about. Under `minions` it stays on this device, read there in chunks; under any other strategy it
    stands behind the prompt, and goes wherever the prompt goes."""

    task_class: str
    """The kind of task, from coarse to fine: `billing/refund`. Rules match it, and the router learns by it."""
    tags: Sequence[str]
    """Words of the app's own that rules can ask for."""
    language: str
    """ISO 639-1 code of the prompt's language; looked for unless given, where a rule asks for it."""
    session: str
    """Names the conversation that the task belongs to: a follow-up goes to the agent that answered last. The app gives the earlier messages
    itself; `Hybrid.session` keeps them."""
    unstick: bool
    """Choose the agent again, regardless of which one answered last in the session."""
    user: str
    """On whose behalf the task is served, where an app serves several people: no cache serves one what another has asked."""
    cache: Caching
    """`no-store`: neither look for the answers of this task in a cache, nor keep them."""

    strategy: Strategy | str
    """Way in which both sides work on the task; stands above the policy's."""
    mode: Mode | str
    """Sides that may serve the task; stands above the policy's."""
    agent: str
    """Name of the only agent that may answer, as far as privacy, mode and rules let it; empty: the router chooses."""
    effort: Effort | str | float
    """How long models think in each step: a level, or a share of what is usual, 0.1 to 2.0; stands above the policy's."""
    sampling: Sampling | Mapping[str, Any]
    """How the agent that answers samples; stands above the policy's."""
    sensitivity: Sensitivity | str
    """`private`: the text stays on this device; `public`: it may be sent to far agents."""
    output: type[BaseModel] | JsonSchema | None
    """The answer must be JSON that fits this pydantic model, with its validators, or this JSON Schema; `Result.output` is an object of the
    model, or the JSON value. An answer that does not fit is shown to its agent once, with what is wrong with it; a second one is an
    `InvalidOutput`, whose `text` is the answer, unless another agent takes over."""
    dependencies: object
    """Any object for the task's tools, which take it as `context.dependencies`. It is kept nowhere: give it again to resume a run."""
    timeout: float | None
    """Seconds for the whole task."""
    idempotency_key: str
    """Names the task; two different tasks must not share one."""
    thread_id: str
    """The LangGraph thread that a checkpointer keeps the task under; the idempotency key unless given."""


class TaskOptions(_CommonOptions, total=False):
    """Options of a single task; they override those of the `Hybrid`."""

    tools: Sequence[Tool | ForeignTool]
    """Tools that the agents may call for this task, in addition to the `Hybrid`'s own."""


class TurnOptions(_CommonOptions, total=False):
    """Options of a single turn; they override those of the `Hybrid`."""

    parallel_calls: bool
    """False: the turn ends with one call of the caller's tools at most, the model's first."""


class ResumeOptions(TypedDict, total=False):
    """Things that a run needs to be resumed and that are no part of the `Hybrid`."""

    tools: Sequence[Tool | ForeignTool]
    """Tools that the task had in addition to the `Hybrid`'s own."""
    approver: Approver | None
    """Decides about calls that need approval from here on. Without one the run waits for a decision."""
    output: type[BaseModel] | None
    """The model that the run was begun with: then `Result.output` is an object of it."""
    dependencies: object
    """The object for the task's tools that the run was begun with, which is kept nowhere."""


_LONGEST_FAULT: Final = 500
_SWITCHES: Final = ("parallel_calls", "unstick")
_OF_TASK: Final = (
    "agent",
    "allowed_tools",
    "cache",
    "context",
    "idempotency_key",
    "instructions",
    "language",
    "role",
    "sampling",
    "session",
    "tags",
    "task_class",
    "timeout",
    "unstick",
    "user",
)
"""Options that are part of the task itself."""


def asked_task(prompt: object, options: TaskOptions, policy: Policy, caller: CallerTools | None = None) -> Task:
    """Return the task as the user put it, under a policy. Raises `InvalidRequest` for options that make no sense."""
    output_schema = output_schema_of(options.get("output"))
    keys = {name: value for name, value in options.items() if name in _OF_TASK}
    stated = frozenset(options) & {"mode", "strategy", "sensitivity"}
    messages = as_messages(prompt)
    try:
        task = Task.model_validate({"messages": messages, "output_schema": output_schema, "stated": stated, **keys})
    except ValidationError as error:
        problems = [f"{item['loc'][0]}: {item['msg']}" for item in error.errors(include_url=False)]
        raise InvalidRequest(
            "; ".join(problems), hint="see TaskOptions: timeout in seconds, context and session texts, tags a list of them"
        ) from error
    task = task.model_copy(update={"policy": policy, "caller": caller})  # both were validated where they were made
    plan = options.get("plan")
    if plan is not None:
        task = task.with_plan(_plan(plan))
    _check_characters(task)
    return task


def _plan(given: object) -> str:
    if not isinstance(given, str) or not given.strip():
        raise InvalidRequest("plan must be a text that says how the task is to be done", hint="leave it out where there is none")
    return given.strip()


def fault_argument(because: str, score: float) -> str:
    """Return the fault of an answer in one line, as judges are told it; empty: none is named. Raises `InvalidRequest` for any other."""
    if not isinstance(because, str) or len(because) > _LONGEST_FAULT:
        raise InvalidRequest(f"a fault is a text of at most {_LONGEST_FAULT} characters", hint='because="It did not look it up."')
    if because and score == 1:
        raise InvalidRequest("an answer with the score 1 has no fault", hint="because= says why a score is below 1")
    return " ".join(because.encode(errors="replace").decode().split())


def _check_characters(task: Task) -> None:
    """Refuse half of a character, which Python's strings can hold, as of input in another encoding, and no agent could be sent."""
    try:
        task.model_dump_json(include={"messages", "instructions", "context", "output_schema", "tags", "caller", "sampling"})
    except (PydanticSerializationError, UnicodeEncodeError) as error:
        hint = "read it in the encoding that it was written in"
        raise InvalidRequest("the task is not text in UTF-8: it holds half of a surrogate pair", hint=hint) from error


def output_model_of(given: object) -> type[BaseModel] | None:
    """Return the pydantic model that is given as `output`; None where it is something else."""
    return given if isinstance(given, type) and issubclass(given, BaseModel) and given is not BaseModel else None


def output_schema_of(given: object) -> JsonSchema | None:
    """Return the JSON Schema that is given as `output`, or that of a pydantic model. Raises `InvalidRequest`."""
    if given is None:
        return None
    if (model := output_model_of(given)) is not None:
        try:
            given = model.model_json_schema()
        except PydanticUserError as error:
            raise InvalidRequest(f"output: {model.__name__} has no JSON Schema: {error.message}", hint="give a JSON Schema") from error
    if not isinstance(given, dict):
        hint = "any other type goes into a model: class Towns(RootModel[list[str]])"
        raise InvalidRequest(f"output must be a pydantic model class or a JSON Schema, not {type(given).__name__}", hint=hint)
    check_schema(given, "output")
    return given


def check_options(options: Mapping[str, object], known: Set[str]) -> None:
    """Refuse unknown options, as a misspelt `sensitivity` or `timeout`. Raises `InvalidRequest`."""
    unknown = sorted(set(options) - known)
    if unknown:
        raise InvalidRequest(f"unknown option {unknown[0]!r}", hint=f"the options are {', '.join(sorted(known))}")
    for name, value in options.items():
        if name == "dependencies":
            continue
        if isinstance(value, (bytes, bytearray)) or (isinstance(value, bool) and name not in _SWITCHES):
            raise InvalidRequest(f"{name} cannot be {type(value).__name__}", hint="see TaskOptions for what it takes")
    check_approver(options.get("approver"), InvalidRequest)


def policy_of(options: TaskOptions, usual: Policy, agents: Mapping[str, Side]) -> Policy:
    """Return the policy for a task with these options. Raises `InvalidRequest` for unknown values, `ConfigError` for unknown agents."""
    changes = {name: options[name] for name in ("strategy", "mode", "sensitivity", "effort") if name in options}
    policy = policy_argument(options["policy"]) if "policy" in options else usual
    if not isinstance(policy, Policy) or options.get("policy", usual) is None:
        raise InvalidRequest("policy must be a Policy or a mapping", hint="from nearfar import Policy")
    if policy is not usual:
        require_usable(policy, agents)
    if not changes:
        return policy
    try:
        given = Policy.model_validate(changes)
    except ValidationError as error:
        known = {"strategy": Strategy, "mode": Mode, "sensitivity": Sensitivity, "effort": Effort}
        allowed = "; ".join(f"{name}: {', '.join(values)}" for name, values in known.items()) + ", or 0.1 to 2.0"
        raise InvalidRequest(f"unknown value among {changes}", hint=allowed) from error
    return policy.model_copy(update={name: getattr(given, name) for name in changes})
