"""The rules that decide which agents may serve a task, and in which order."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from ..protocols import Capabilities, ConfigError, PrivacyViolation, Sensitivity, Side, Unsupported
from ..protocols.messages import Value


class Mode(StrEnum):
    """How far the user lets a task go from the device."""

    ONLY_ON_DEVICE = "only_on_device"
    PREFER_ON_DEVICE = "prefer_on_device"
    AUTO = "auto"
    """Both sides; the near one first, since it is free."""
    PREFER_IN_CLOUD = "prefer_in_cloud"
    ONLY_IN_CLOUD = "only_in_cloud"


class Strategy(StrEnum):
    """The shape in which the two sides work on a task."""

    DEVICE = "device"
    """The near agent alone."""
    CLOUD = "cloud"
    """The far agent; the near one steps in where it fails and the mode allows. Refuses private tasks."""
    ROUTE = "route"
    """The rules pick a side before any token; the other one is the fallback."""
    CASCADE = "cascade"
    """The near agent drafts; evidence about the draft decides whether the far one answers instead."""
    PEVR = "pevr"
    """Plan, execute, verify, replan: one side plans the task and checks at intervals whether the other keeps to the plan."""
    EVA = "eva"
    """Execute, verify, advise: one side checks the other's progress at intervals, and sums up and advises where it is lacking."""
    MINIONS = "minions"
    """The near agent reads a long context in pieces, for jobs that the far one writes without seeing it."""
    SUBTASKS = "subtasks"
    """The task is cut into subtasks; independent ones run in parallel, each routed on its own."""
    AUTO = "auto"
    """One of the others, chosen per task from the outcomes of similar tasks."""


SUPERVISED = frozenset({Strategy.PEVR, Strategy.EVA})
"""Strategies in which one side works and the other one supervises it."""
FAR_FIRST = frozenset({Strategy.CLOUD, Strategy.MINIONS, Strategy.SUBTASKS})
"""Strategies that begin on the far side, where the mode allows it."""


class Candidate(Protocol):
    """What the rules know of an agent before it is opened."""

    @property
    def name(self) -> str: ...
    @property
    def side(self) -> Side: ...
    @property
    def capabilities(self) -> Capabilities | None: ...


class Needs(Value):
    """What a task asks of an agent."""

    tools: bool = False
    json_schema: bool = False

    def missing_in(self, capabilities: Capabilities) -> list[str]:
        wanted = {"tools": self.tools, "json_schema": self.json_schema}
        return [name for name, needed in wanted.items() if needed and not getattr(capabilities, name)]


class RouteDecision(Value):
    """Which agents will be tried, in order, and why."""

    strategy: Strategy
    mode: Mode
    candidates: tuple[str, ...]
    """Names of the agents that remain, the first one first."""
    judged: bool
    """Every draft but the last candidate's must pass the evidence checks."""
    reasons: tuple[str, ...]
    supervisor: str | None = None
    """Name of the agent that plans and checks the first candidate's work; None where it works alone."""


_SIDES_OF_MODE: dict[Mode, tuple[Side, ...]] = {
    Mode.ONLY_ON_DEVICE: (Side.NEAR,),
    Mode.PREFER_ON_DEVICE: (Side.NEAR, Side.FAR),
    Mode.AUTO: (Side.NEAR, Side.FAR),
    Mode.PREFER_IN_CLOUD: (Side.FAR, Side.NEAR),
    Mode.ONLY_IN_CLOUD: (Side.FAR,),
}


def decide(
    agents: Sequence[Candidate],
    *,
    strategy: Strategy,
    mode: Mode,
    sensitivity: Sensitivity,
    needs: Needs,
    executor: Side = Side.NEAR,
) -> RouteDecision:
    """Apply the hard rules: mode, strategy, sensitivity, then capability. `executor` is the side that works under supervision.

    Raises `ConfigError` where strategy and mode contradict each other or no agent of the wanted side is configured,
    `PrivacyViolation` where only far agents remain for a private task, `Unsupported` where none has the capabilities.
    """
    if strategy in SUPERVISED:
        return _assign_roles(agents, strategy=strategy, mode=mode, sensitivity=sensitivity, needs=needs, executor=executor)
    order = _order(strategy, mode)
    reasons = [f"strategy {strategy}, mode {mode}: {' then '.join(order)}"]
    remaining = [agent for side in order for agent in agents if agent.side is side]
    if strategy is Strategy.MINIONS:
        _check_both_sides(remaining, order, mode)
    if not remaining or (strategy is Strategy.CLOUD and not _has(Side.FAR, remaining)):
        wanted = Side.FAR if strategy is Strategy.CLOUD else " or ".join(order)
        raise ConfigError(f"no {wanted} agent is configured", hint=f"strategy {strategy} with mode {mode} needs one")
    remaining = _keep_private(remaining, strategy, sensitivity, reasons)
    remaining = _keep_capable(remaining, needs, reasons)
    return RouteDecision(
        strategy=strategy,
        mode=mode,
        candidates=tuple(agent.name for agent in remaining),
        judged=strategy is Strategy.CASCADE,
        reasons=tuple(reasons),
    )


def _assign_roles(
    agents: Sequence[Candidate], *, strategy: Strategy, mode: Mode, sensitivity: Sensitivity, needs: Needs, executor: Side
) -> RouteDecision:
    """Who works and who supervises. The executor's side must be allowed; a supervisor that is not allowed is left out."""
    other = Side.FAR if executor is Side.NEAR else Side.NEAR
    allowed = _SIDES_OF_MODE[mode]
    if executor not in allowed:
        raise ConfigError(f"the {executor} side is to work, which contradicts mode {mode}", hint="change the mode, or supervision.executor")
    if not _has(executor, agents):
        raise ConfigError(f"no {executor} agent is configured", hint=f"strategy {strategy} needs one to work")
    if executor is Side.FAR and sensitivity is not Sensitivity.PUBLIC:
        raise _leaves_the_device()
    reasons = [f"strategy {strategy}, mode {mode}: {executor} works, {other} supervises"]
    if other not in allowed:
        reasons.append(f"{executor} works alone: mode {mode} keeps the {other} side out")
    remaining = [agent for side in (executor, other) for agent in agents if agent.side is side and side in allowed]
    remaining = _keep_private(remaining, strategy, sensitivity, reasons)
    supervisor = next((agent.name for agent in remaining if agent.side is other), None)
    if supervisor is None and other in allowed and not _has(other, agents):
        raise ConfigError(f"no {other} agent is configured", hint=f"strategy {strategy} needs one to supervise")
    remaining = _keep_capable(remaining, needs, reasons)
    if remaining[0].side is not executor:
        supervisor = None  # nobody supervises itself
    return RouteDecision(
        strategy=strategy,
        mode=mode,
        candidates=tuple(agent.name for agent in remaining),
        judged=False,
        reasons=tuple(reasons),
        supervisor=supervisor,
    )


def _order(strategy: Strategy, mode: Mode) -> tuple[Side, ...]:
    """The sides to try, in order."""
    allowed = _SIDES_OF_MODE[mode]
    first = {Strategy.DEVICE: Side.NEAR, Strategy.CLOUD: Side.FAR}.get(strategy)
    if first is not None and first not in allowed:
        raise ConfigError(f"strategy {strategy} contradicts mode {mode}", hint="change one of the two")
    if strategy is Strategy.DEVICE:
        return (Side.NEAR,)
    if strategy in FAR_FIRST:
        return tuple(sorted(allowed, key=lambda side: side is not Side.FAR))
    if strategy is Strategy.CASCADE:
        return tuple(sorted(allowed, key=lambda side: side is not Side.NEAR))
    return allowed


def _check_both_sides(agents: Sequence[Candidate], order: Sequence[Side], mode: Mode) -> None:
    """The near side reads the context in any case; the far side writes the jobs, unless the mode keeps the task on this device."""
    if Side.NEAR not in order:
        raise ConfigError(f"strategy {Strategy.MINIONS} contradicts mode {mode}", hint="its context is read on this device")
    for side in order:
        if not _has(side, agents):
            hint = f"strategy {Strategy.MINIONS} needs both sides; with mode {Mode.ONLY_ON_DEVICE} the near one does it alone"
            raise ConfigError(f"no {side} agent is configured", hint=hint)


def _has(side: Side, agents: Sequence[Candidate]) -> bool:
    return any(agent.side is side for agent in agents)


def _keep_private(agents: list[Candidate], strategy: Strategy, sensitivity: Sensitivity, reasons: list[str]) -> list[Candidate]:
    if sensitivity is Sensitivity.PUBLIC:
        return agents
    kept = [agent for agent in agents if agent.side is Side.NEAR]
    for agent in agents:
        if agent not in kept:
            reasons.append(f"{agent.name} left out: the task is private and stays on this device")
    # Whoever asks for the cloud by name should learn that it was not used, rather than get the device's answer.
    if not kept or (strategy in (Strategy.CLOUD, Strategy.MINIONS) and len(kept) < len(agents)):
        raise _leaves_the_device()
    return kept


def _leaves_the_device() -> PrivacyViolation:
    return PrivacyViolation(
        "the task is private and was to be served by a far agent", hint='pass sensitivity="public" if its text may leave this device'
    )


def _keep_capable(agents: list[Candidate], needs: Needs, reasons: list[str]) -> list[Candidate]:
    kept = []
    for agent in agents:
        # A far agent that was never met may have any capability; it says so itself when it is opened.
        missing = needs.missing_in(agent.capabilities) if agent.capabilities is not None else []
        if missing:
            reasons.append(f"{agent.name} left out: it lacks {' and '.join(missing)}")
        else:
            kept.append(agent)
    if not kept:
        raise Unsupported("no agent has the capabilities that the task needs", hint="; ".join(reasons[1:]))
    return kept
