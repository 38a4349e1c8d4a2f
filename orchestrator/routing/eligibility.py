"""Which agents may serve a task at all, and in which order their sides are tried: mode, strategy, sensitivity, capability."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...protocols import Capabilities, ConfigError, PrivacyViolation, Sensitivity, Side, Unsupported
from ..task.modes import FAR_FIRST, SUPERVISED, AgentView, Mode, Needs, Strategy

SIDES_OF_MODE: dict[Mode, tuple[Side, ...]] = {
    Mode.ONLY_ON_DEVICE: (Side.NEAR,),
    Mode.PREFER_ON_DEVICE: (Side.NEAR, Side.FAR),
    Mode.AUTO: (Side.NEAR, Side.FAR),
    Mode.PREFER_IN_CLOUD: (Side.FAR, Side.NEAR),
    Mode.ONLY_IN_CLOUD: (Side.FAR,),
}


@dataclass(slots=True)
class Eligible:
    """The agents that remain, in the order of their sides, and why others do not."""

    agents: list[AgentView]
    reasons: list[str]
    objections: dict[str, str] = field(default_factory=dict)
    """Why an agent was left out, by its name."""
    supervisor: str | None = None

    def leave_out(self, agent: AgentView, objection: str) -> None:
        self.agents.remove(agent)
        self.objections[agent.name] = objection
        self.reasons.append(f"{agent.name} left out: {objection}")

    def leave_out_of_all_roles(self, agent: AgentView, objection: str) -> None:
        """Leave an agent out as executor and as supervisor, because it may not be asked at all."""
        self.leave_out(agent, objection)
        is_alone = bool(self.agents) and self.agents[0].name == self.supervisor  # no agent supervises itself
        self.supervisor = None if is_alone or agent.name == self.supervisor else self.supervisor


def eligible(
    agents: Sequence[AgentView],
    *,
    strategy: Strategy,
    mode: Mode,
    sensitivity: Sensitivity,
    needs: Needs,
    executor: Side = Side.NEAR,
) -> Eligible:
    """Apply the hard rules. `executor` is the side that works under supervision.

    Raises `ConfigError` where strategy and mode contradict each other or no agent of the wanted side is configured,
    `PrivacyViolation` where only far agents remain for a private task, `Unsupported` where none has the capabilities.
    """
    if strategy in SUPERVISED:
        return _assign_roles(agents, strategy=strategy, mode=mode, sensitivity=sensitivity, needs=needs, executor=executor)
    order = _order(strategy, mode)
    remaining = [agent for side in order for agent in agents if agent.side is side]
    found = Eligible(remaining, [f"strategy {strategy}, mode {mode}: {' then '.join(order)}"])
    if strategy is Strategy.MINIONS:
        _check_both_sides(remaining, order, mode)
    if not remaining or (strategy is Strategy.CLOUD and not _has(Side.FAR, remaining)):
        wanted = Side.FAR if strategy is Strategy.CLOUD else " or ".join(order)
        raise ConfigError(f"no {wanted} agent is configured", hint=f"strategy {strategy} with mode {mode} needs one")
    _note_sides(agents, found, mode)
    _keep_private(found, strategy, sensitivity)
    _keep_capable(found, needs)
    return found


def _note_sides(agents: Sequence[AgentView], found: Eligible, mode: Mode) -> None:
    """Record why agents were left out by mode and strategy; the first reason of the decision says it already."""
    for agent in agents:
        if agent not in found.agents:
            found.objections[agent.name] = f"mode {mode} and the strategy leave the {agent.side} side out"


def _assign_roles(
    agents: Sequence[AgentView], *, strategy: Strategy, mode: Mode, sensitivity: Sensitivity, needs: Needs, executor: Side
) -> Eligible:
    """Assign executor and supervisor. The executor's side must be allowed; a supervisor that is not allowed is left out."""
    other = Side.FAR if executor is Side.NEAR else Side.NEAR
    allowed = SIDES_OF_MODE[mode]
    if executor not in allowed:
        raise ConfigError(f"the {executor} side is to work, which contradicts mode {mode}", hint="change the mode, or supervision.executor")
    if not _has(executor, agents):
        raise ConfigError(f"no {executor} agent is configured", hint=f"strategy {strategy} needs one to work")
    if executor is Side.FAR and sensitivity is not Sensitivity.PUBLIC:
        raise leaves_the_device()
    found = Eligible(
        [agent for side in (executor, other) for agent in agents if agent.side is side and side in allowed],
        [f"strategy {strategy}, mode {mode}: {executor} works, {other} supervises"],
    )
    if other not in allowed:
        found.reasons.append(f"{executor} works alone: mode {mode} keeps the {other} side out")
    _note_sides(agents, found, mode)
    _keep_private(found, strategy, sensitivity)
    found.supervisor = next((agent.name for agent in found.agents if agent.side is other), None)
    if found.supervisor is None and other in allowed and not _has(other, agents):
        raise ConfigError(f"no {other} agent is configured", hint=f"strategy {strategy} needs one to supervise")
    _keep_capable(found, needs)
    if found.agents[0].side is not executor:
        found.supervisor = None  # no agent supervises itself
    return found


def _order(strategy: Strategy, mode: Mode) -> tuple[Side, ...]:
    """Return the sides to try, in order."""
    allowed = SIDES_OF_MODE[mode]
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


def _check_both_sides(agents: Sequence[AgentView], order: Sequence[Side], mode: Mode) -> None:
    """Check the sides that minions need. The near side reads the context; the far side writes the jobs, unless the mode forbids it."""
    if Side.NEAR not in order:
        raise ConfigError(f"strategy {Strategy.MINIONS} contradicts mode {mode}", hint="its context is read on this device")
    for side in order:
        if not _has(side, agents):
            hint = f"strategy {Strategy.MINIONS} needs both sides; with mode {Mode.ONLY_ON_DEVICE} the near one does it alone"
            raise ConfigError(f"no {side} agent is configured", hint=hint)


def _has(side: Side, agents: Sequence[AgentView]) -> bool:
    return any(agent.side is side for agent in agents)


def _keep_private(found: Eligible, strategy: Strategy, sensitivity: Sensitivity) -> None:
    if sensitivity is Sensitivity.PUBLIC:
        return
    far = [agent for agent in found.agents if agent.side is Side.FAR]
    for agent in far:
        found.leave_out(agent, "the task is private and stays on this device")
    # A user who asks for the cloud by name should get an error rather than the device's answer.
    if not found.agents or (far and strategy in (Strategy.CLOUD, Strategy.MINIONS)):
        raise leaves_the_device()


def leaves_the_device() -> PrivacyViolation:
    """Return the error for a private task that no near agent is left for."""
    return PrivacyViolation(
        "the task is private and was to be served by a far agent", hint='pass sensitivity="public" if its text may leave this device'
    )


def _keep_capable(found: Eligible, needs: Needs) -> None:
    for agent in list(found.agents):
        missing = _missing(needs, agent.capabilities)
        if missing:
            found.leave_out(agent, f"it lacks {' and '.join(missing)}")
    if not found.agents:
        raise Unsupported("no agent has the capabilities that the task needs", hint="; ".join(found.reasons[1:]))


def _missing(needs: Needs, capabilities: Capabilities | None) -> list[str]:
    """Return the missing capabilities. A far agent that was not opened yet may have any; opening it finds out."""
    return needs.missing_in(capabilities) if capabilities is not None else []
