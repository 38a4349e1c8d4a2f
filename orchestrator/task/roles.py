"""Roles: agents that an app declares by name, with instructions and tools of their own, and the tools by which they hand a task over."""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Final

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema, field_validator

from ...protocols import InvalidRequest, PermissionDenied, Sensitivity
from ...protocols.items import Tier
from ...protocols.steps import Value
from . import Task, last_words, with_instructions
from .foreign import as_tool
from .modes import Mode, Strategy
from .policy import Policy
from .results import RoleWork
from .rules import RESTRICTIONS, Rule
from .tools import Tool, tool

PREFIX: Final = "hand_off_to_"
"""Beginning of the names of the tools that hand a task over."""
ROLE_NAME: Final = r"^[A-Za-z][A-Za-z0-9_-]{0,49}$"
"""Pattern of a role's name: together with the prefix it names a tool."""
RoleName = Annotated[str, Field(pattern=ROLE_NAME)]
_TOOL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_SHOWN: Final = 300
"""Characters of a role's instructions that describe it to other roles."""


def _tool_or_name(given: object) -> Tool | str:
    if isinstance(given, str) and _TOOL_NAME.fullmatch(given):
        return given
    if (tool := as_tool(given)) is not None:
        return tool
    raise ValueError("must be the name of a tool" + (", or the function needs @tool above it" if callable(given) else ""))


RoleTool = Annotated[Tool | str, PlainValidator(_tool_or_name), WithJsonSchema({"type": "string", "pattern": f"^{_TOOL_NAME.pattern}$"})]
"""A tool, or the name of one of the `Hybrid`'s tools."""


class Role(Value):
    """An agent by name: its instructions, its tools, and where its work is done. A `[roles.NAME]` section of nearfar.toml."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    instructions: str = Field(min_length=1)
    """Instructions of the role, in front of the conversation that it works on."""
    description: str = ""
    """Purpose of the role, for the roles that may hand a task to it; by default the beginning of its instructions."""
    tools: tuple[RoleTool, ...] = ()
    """Names of the tools that it may call; in Python, tools of its own, too."""
    hand_off_to: tuple[str, ...] | None = None
    """Names of the roles that it may hand a task to; by default all others. An empty list: it has to answer itself."""
    mode: Mode | None = None
    """Sides that may do its work, instead of the policy's. A preference yields to a mode that the task states."""
    strategy: Strategy | None = None
    """Strategy of its work, instead of the policy's, unless the task states one. Under `minions` and `subtasks` it hands off to no role."""
    agent: str | None = None
    """Name of the agent that tries first: `near`, `far`, or a further agent."""

    @field_validator("instructions")
    @classmethod
    def _say_something(cls, instructions: str) -> str:
        if not instructions.strip():
            raise ValueError("must say something")
        return instructions

    @property
    def purpose(self) -> str:
        """Return the text that describes the role to others."""
        return self.description.strip() or self.instructions.strip()[:_SHOWN]

    @property
    def tool_names(self) -> tuple[str, ...]:
        """Return the names of its tools."""
        return tuple(each.spec.name if isinstance(each, Tool) else each for each in self.tools)

    def mode_for(self, task: Task, name: str) -> Mode:
        """Return the mode of the work on `task` of the role called `name`. Raises `PermissionDenied` if the two leave no side for it."""
        own, wanted = task.policy.mode, self.mode
        if wanted is None or wanted is own:
            return own
        if wanted not in RESTRICTIONS:
            return own if own in RESTRICTIONS or "mode" in task.stated else wanted
        if own in RESTRICTIONS and (own is Mode.ONLY_ON_DEVICE or "mode" in task.stated):
            raise PermissionDenied(f"role {name!r} works {wanted}, but the task has mode {own}", hint="change one of the two")
        return wanted

    def policy_for(self, task: Task, name: str) -> Policy:
        """Return the policy of the work on `task` of the role called `name`. Raises `PermissionDenied` as `mode_for` does.

        The work is private as soon as a role before it was told something private.
        """
        changes: dict[str, object] = {"mode": self.mode_for(task, name)}
        if self.strategy is not None and "strategy" not in task.stated:
            changes["strategy"] = self.strategy
        if self.agent is not None:
            changes["rules"] = (Rule(name=f"role {name}", agent=self.agent), *task.policy.rules)
        if task.label.tier is not Tier.SHARED:
            changes["sensitivity"] = Sensitivity.PRIVATE
        return task.policy.model_copy(update=changes)


class HandOff(Value):
    """A task on its way from one role to the next."""

    role: str
    """Name of the role that takes over."""
    task: str
    """The work that it is asked to do."""


class RolesWork(Value):
    """The work of roles on a task so far."""

    done: tuple[RoleWork, ...] = ()
    following: HandOff | None = None
    """The hand-off that the last one ended with; None: it answered, or none has begun."""


class Team:
    """The roles of a `Hybrid`, by name."""

    def __init__(self, roles: Mapping[str, Role]) -> None:
        self.roles = dict(roles)

    def __bool__(self) -> bool:
        return bool(self.roles)

    def __getitem__(self, name: str) -> Role:
        """Return a role. Raises `InvalidRequest` where there is none of this name."""
        if name not in self.roles:
            known = f"the roles are {', '.join(sorted(self.roles))}" if self.roles else "[roles.NAME] in nearfar.toml declares one"
            raise InvalidRequest(f"there is no role {name!r}", hint=known)
        return self.roles[name]

    def require(self, name: object) -> None:
        """Raise `InvalidRequest` unless there is a role of this name, or it is empty."""
        if name != "":
            _ = self[name if isinstance(name, str) else f"{name!r:.80}"]

    def following(self, name: str) -> tuple[str, ...]:
        """Return the names of the roles that a role may hand a task to."""
        named = self[name].hand_off_to
        return tuple(other for other in self.roles if other != name) if named is None else named

    def reachable(self, name: str) -> tuple[str, ...]:
        """Return the names of the roles that may work on a task that begins with this one, itself first."""
        found = [name]
        for each in found:  # which grows meanwhile
            found += [other for other in self.following(each) if other not in found]
        return tuple(found)

    @cached_property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that came with the roles, each once."""
        return tuple(dict.fromkeys(each for role in self.roles.values() for each in role.tools if isinstance(each, Tool)))

    def tools_of(self, name: str, tools: Mapping[str, Tool]) -> dict[str, Tool]:
        """Return those among `tools` that a role may call."""
        return {each: tools[each] for each in self[name].tool_names if each in tools}

    def work(self, name: str, task: Task) -> Task:
        """Return the work of a role on a task as a task of its own, about which no rule has decided yet. Raises `PermissionDenied`."""
        role = self[name]
        stated = {key for key in ("mode", "strategy") if getattr(role, key) is not None}
        changes = {
            "messages": with_instructions(task.messages, role.instructions),
            "prompt": last_words(task.messages) if task.prompt is None else task.prompt,
            "policy": role.policy_for(task, name),
            "stated": task.stated | stated,
            "role": name,
            "ruling": None,
            "reasons": (),
            "unstick": True,  # each role's work is routed by itself; the session is that of the whole
        }
        return task.model_copy(update=changes)

    @cached_property
    def hand_offs(self) -> dict[str, Tool]:
        """The tool that hands a task to each role, by the role's name."""
        return {name: _hand_off_tool(name, role) for name, role in self.roles.items()}


def _hand_off_tool(name: str, role: Role) -> Tool:
    # It reads, as it changes nothing outside of the task, and has no sink: the label of the conversation goes with the task.
    @tool(name=f"{PREFIX}{name}", effect="read", source="internal_tool")
    async def hand_off(task: str) -> str:
        return f"{name} works on from here. Its task: {task}"

    described = f"Hand this conversation over to {name}, who then finishes it. `task` says what {name} is to do.\n{name}: {role.purpose}"
    hand_off.spec = hand_off.spec.model_copy(update={"description": described})
    return hand_off
