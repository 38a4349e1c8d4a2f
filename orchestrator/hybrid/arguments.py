"""The arguments of `Hybrid`, each brought into the form that the package works with, or refused by its name."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import TypeAdapter

from ...protocols import Agent, ConfigError, InvalidRequest
from ..cache.answers import AnswerCache
from ..compose.agents import FAR_CONFIGS, FarConfig, NearConfig
from ..compose.hub import AttachedConfig
from ..compose.policy_file import PolicyFile
from ..task.sections.cache import CacheConfig
from ..task.sections.memory import MemoryConfig
from ..task.sections.runs import RunsConfig
from ..task.task import Policy
from ..task.tools import Tool
from ..util.arguments import Location, as_path, as_tuple, parse_section, require, require_callable, require_methods, wrong_type

if TYPE_CHECKING:
    from ..memory.in_tasks import TaskMemory
    from ..memory.store import MemoryStore

_NEAR = "the path or name of a model, a NearConfig, a mapping or an Agent"
_FAR = 'a text such as "openai:MODEL", a FarConfig, a mapping or an Agent'
_AGENT = ("card", "step", "aclose")

Part = TypeVar("Part")


def near_argument(given: object) -> Agent | NearConfig | str | Path | None:
    """Return the near side. A mapping is a `[near]` section."""
    if isinstance(given, Mapping):
        return parse_section("near", given, NearConfig)
    return cast(
        Agent | NearConfig | str | Path | None,
        _agent("near", given, (NearConfig,), "the path or name of a model, a NearConfig or an Agent"),
    )


def far_argument(given: object) -> Agent | FarConfig | str | Path | None:
    """Return the far side. A mapping is a `[far]` section."""
    if isinstance(given, Mapping):
        far: TypeAdapter[FarConfig] = TypeAdapter(FarConfig)
        return parse_section("far", given, far)
    return cast(
        Agent | FarConfig | str | Path | None, _agent("far", given, FAR_CONFIGS, 'a text such as "openai:MODEL", a FarConfig or an Agent')
    )


def others_argument(given: object) -> dict[str, Agent | NearConfig | FarConfig | AttachedConfig]:
    """Return the further agents by their names."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) and name for name in given):
        raise wrong_type("others", given, "a mapping from names to agents", hint='others={"second": agent}')
    kinds = (NearConfig, *FAR_CONFIGS, AttachedConfig)
    for name, other in given.items():
        if other is None or isinstance(other, (str, os.PathLike)):
            raise wrong_type(f"others[{name!r}]", other, "an Agent, a NearConfig or a FarConfig")
        _agent(f"others[{name!r}]", other, kinds, "an Agent, a NearConfig or a FarConfig")
    return dict(given)


def tools_argument(given: object) -> tuple[Tool, ...]:
    """Return the tools. Raises `ConfigError` for what is no sequence of them, and where two have one name."""
    hint = "decorate the function with @tool"
    if isinstance(given, Tool) or (callable(given) and not isinstance(given, Sequence)):
        raise ConfigError(f"tools must be a list of tools, not {given!r:.80} alone", hint="tools=[...]")
    tools: tuple[Tool, ...] = as_tuple("tools", () if given is None else given, lambda _: True, "a list of tools", hint=hint)
    for each in tools:
        if not isinstance(each, Tool):
            raise ConfigError(f"{each!r:.80} is not a tool", hint=hint)
    names = [each.spec.name for each in tools]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two tools are called {name!r}", hint="give one of them another name: @tool(name=...)")
    return tools


def policy_argument(given: object) -> Policy | PolicyFile:
    """Return the policy. A mapping is a `[policy]` section."""
    if isinstance(given, Mapping):
        return parse_section("policy", given, Policy)
    require("policy", given, (Policy, PolicyFile), "a Policy, a PolicyFile or a mapping", hint='policy=Policy(strategy="route")')
    return Policy() if given is None else cast(Policy | PolicyFile, given)


def cache_argument(given: object) -> AnswerCache | CacheConfig | None:
    """Return the cache. A path is the file of one, a mapping a `[cache]` section."""
    if isinstance(given, Mapping):
        return parse_section("cache", given, CacheConfig).anchored(Path())
    if given is None or isinstance(given, (AnswerCache, CacheConfig)):
        return given
    return CacheConfig(path=as_path("cache", given, otherwise="an AnswerCache, a CacheConfig, a mapping"))


def memory_argument(given: object) -> "MemoryStore | TaskMemory | MemoryConfig | Location | None":
    """Return the memory. A path, or an address `postgres://...`, is that of a store that the `Hybrid` opens and closes."""
    if isinstance(given, Mapping):
        return parse_section("memory", given, MemoryConfig).anchored(Path())
    if given is None or isinstance(given, MemoryConfig):
        return given
    from ..memory.in_tasks import TaskMemory
    from ..memory.store import MemoryStore

    if isinstance(given, (MemoryStore, TaskMemory)) or (
        isinstance(given, str) and given.startswith((":memory:", "postgres://", "postgresql://"))
    ):
        return given
    return as_path("memory", given, otherwise="a MemoryStore, a TaskMemory, a MemoryConfig, a mapping")


def kept_argument(name: str, given: object, kind: type[Part]) -> Part | RunsConfig | None:
    """Return the settings or the store of runs, or of the records kept with them. A path is a folder, a mapping a `[runs]` section."""
    if isinstance(given, Mapping):
        return parse_section(name, given, RunsConfig).anchored(Path())
    if given is None or isinstance(given, (kind, RunsConfig)):
        return given
    return RunsConfig(folder=as_path(name, given, otherwise=f"a {kind.__name__}, a RunsConfig, a mapping"))


def check_helpers(*, approver: object, device_state: object, checkpointer: object, store: object) -> None:
    """Raise `ConfigError` for what `Hybrid` passes on as it is and could not be used later."""
    check_approver(approver)
    require_callable("device_state", device_state, "a function that returns a DeviceState")
    if store is not None:
        from langgraph.store.base import BaseStore

        require("store", store, BaseStore, "a store of LangGraph", hint="a MemoryStore goes into memory=")
    if checkpointer is not None and checkpointer is not False:
        from langgraph.checkpoint.base import BaseCheckpointSaver

        require("checkpointer", checkpointer, BaseCheckpointSaver, "a checkpointer of LangGraph", hint="or runs= for durable runs")


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
