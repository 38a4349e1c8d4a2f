"""Checking a policy beyond its types: rules that never apply, sides that contradict each other, agents that are missing or never asked."""

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Final

from ...protocols import Capabilities, ConfigError, Prices, Sensitivity, Side
from ..task import Needs
from ..task.modes import CLOUD_LIKE, SUPERVISED, Mode, Strategy
from ..task.policy import PRESETS, OnDoubt, OnFinding, Policy, Preset
from ..task.roles import PREFIX, ROLE_NAME, Role, Team
from ..task.routing_policy import FallbackTrigger
from ..task.rules import RESTRICTIONS, Range, Rule, When, is_of_class
from ..util.plugins import find_plugins, has_plugin
from .drafts import opinions_of
from .eligibility import SIDES_OF_MODE, PolicyFinding, eligible
from .escalation import Escalation
from .head import read_card
from .navigator import Navigator

_SHARES: Final = ("battery", "budget_left")
"""Conditions between 0 and 1."""


def findings(policy: Policy, agents: Mapping[str, Side]) -> list[PolicyFinding]:
    """Return all errors and warnings about a policy, errors first. `agents` are those of the team, by name."""
    found = [
        *_on_preset(policy),
        *_on_modes(policy),
        *_on_agents(policy, agents),
        *_on_strategies(policy, agents),
        *_on_rules(policy, agents),
        *_on_settings(policy),
        *_on_files(policy, agents),
    ]
    return sorted(found, key=lambda finding: finding.kind)


def require_usable(policy: Policy, agents: Mapping[str, Side]) -> None:
    """Raise `ConfigError` where the policy cannot be used with these agents."""
    errors = [finding for finding in findings(policy, agents) if finding.kind == "error"]
    if errors:
        raise ConfigError("\n".join(map(str, errors)), hint="nearfar policy check lists what else is strange")


def role_findings(
    roles: Mapping[str, Role], agents: Mapping[str, Side], policy: Policy, tools: Collection[str] | None = None
) -> list[PolicyFinding]:
    """Return all errors and warnings about roles, errors first.

    Args:
        roles: the roles by name.
        agents: the sides of the agents by name; empty: they are not known yet.
        policy: the policy that their work is served under.
        tools: names of the tools that roles may name; None: they are not known yet.
    """
    found = [finding for name, role in roles.items() for finding in _on_role(name, role, roles, agents, policy, tools)]
    found += _on_unreached(roles)
    for place, rule in enumerate(policy.rules):
        for name in sorted(set(rule.when.role) - set(roles)):
            found.append(_error(f"policy.rules.{place}.when.role", f"there is no role {name!r}", _listed("roles", roles)))
    return sorted(found, key=lambda finding: finding.kind)


def _on_role(
    name: str, role: Role, roles: Mapping[str, Role], agents: Mapping[str, Side], policy: Policy, tools: Collection[str] | None
) -> Iterator[PolicyFinding]:
    where = f"roles.{name}"
    if re.match(ROLE_NAME, name) is None:
        yield _error(where, f"{name!r} is no name for a role", "it begins with a letter, and has at most 50 letters, digits, _ and -")
    if name in ("near", "far", *agents):
        yield _error(where, f"an agent is called {name!r}, too", "rename one of them")
    if name in set(Strategy):
        yield _error(where, f"a strategy is called {name!r}, too", "rename the role")
    yield from _on_names(f"{where}.hand_off_to", role.hand_off_to or (), "role", roles)
    if name in (role.hand_off_to or ()):
        yield _error(f"{where}.hand_off_to", "it would hand off to itself", "leave its own name out")
    if role.hand_off_to and role.strategy in (Strategy.MINIONS, Strategy.SUBTASKS):
        yield _error(f"{where}.hand_off_to", f"under strategy {role.strategy} it calls no tools, and hands off to no role")
    yield from _on_names(f"{where}.tools", role.tool_names, "tool", tools)
    if (clash := next((each for each in (*role.tool_names, *(tools or ())) if each == f"{PREFIX}{name}"), None)) is not None:
        yield _error(where, f"the tool {clash!r} has the name of the tool that hands a task to it", "rename one of them")
    yield from _on_work(where, role, agents, policy)


def _on_names(where: str, names: Sequence[str], noun: str, known: Collection[str] | None) -> Iterator[PolicyFinding]:
    """Find names that are listed twice, and those of nothing that is known."""
    for place, name in enumerate(names):
        if name in names[:place]:
            yield _error(where, f"{noun} {name!r} is named twice", "name it once")
        elif known is not None and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            yield _error(where, f"there is no {noun} {name!r}", f"did you mean {near[0]!r}?" if near else _listed(f"{noun}s", known))


def _on_work(where: str, role: Role, agents: Mapping[str, Side], policy: Policy) -> Iterator[PolicyFinding]:
    """Find work that these agents cannot do."""
    if not agents:
        return
    mode, strategy = role.mode or policy.mode, role.strategy or policy.strategy
    if role.agent is not None and role.agent not in agents:
        yield _error(f"{where}.agent", f"there is no agent {role.agent!r}", _listed("agents", agents))
    elif role.agent is not None and agents[role.agent] not in SIDES_OF_MODE[mode]:
        yield _error(f"{where}.agent", f"mode {mode} keeps out {role.agent}", "change one of the two")
    if role.mode is None and role.strategy is None:
        return  # as the policy, which is looked at by itself
    try:
        _asked(policy, agents, strategy, mode)
    except ConfigError as error:
        yield _error(where, error.message, error.hint)


def _on_unreached(roles: Mapping[str, Role]) -> Iterator[PolicyFinding]:
    """Warn of roles that no other one hands off to. One alone is where tasks begin."""
    team = Team(roles)
    reached = {other for name in roles for other in team.following(name)}
    unreached = [name for name in roles if name not in reached]
    for name in unreached if len(unreached) > 1 else ():
        yield _warning(f"roles.{name}", "no role hands off to it: it works only on tasks that begin with it", "hand_off_to of another role")


def _listed(nouns: str, names: Collection[str]) -> str:
    return f"the {nouns} are {', '.join(sorted(names)) or 'none'}"


def _error(where: str, problem: str, hint: str = "") -> PolicyFinding:
    return PolicyFinding(kind="error", where=where, problem=problem, hint=hint)


def _warning(where: str, problem: str, hint: str = "") -> PolicyFinding:
    return PolicyFinding(kind="warning", where=where, problem=problem, hint=hint)


def _on_preset(policy: Policy) -> Iterator[PolicyFinding]:
    """Find keys that take back the promise of the preset `private`. Of the others, any key may be given another value."""
    if policy.preset is not Preset.PRIVATE:
        return
    promised = PRESETS[Preset.PRIVATE]["privacy"]["detect"]
    unsought = [kind for kind in promised if kind not in policy.privacy.detect]
    broken = {
        "sensitivity": policy.sensitivity is Sensitivity.PUBLIC and "tasks that do not say so are public",
        "mode": policy.mode not in (Mode.PREFER_ON_DEVICE, Mode.ONLY_ON_DEVICE) and "public tasks may begin in the cloud",
        "strategy": policy.strategy in CLOUD_LIKE and "public tasks begin in the cloud",
        "privacy.findings": policy.privacy.findings is not OnFinding.STAY and "texts leave in which something looks private",
        "privacy.detect": unsought and f"texts leave with any of {', '.join(unsought)}",
        "privacy.placeholders": policy.privacy.placeholders and "tasks go on in the cloud after private tool results",
        "guard.tools": policy.guard.tools is OnDoubt.ALLOW and "tools that untrusted content suggests run unasked",
        "guard.arguments": policy.guard.arguments is OnDoubt.ALLOW and "tools run unasked with arguments from untrusted content",
    }
    for key, effect in broken.items():
        if effect:
            yield _warning(f"policy.{key}", f"it takes back what preset private promises: {effect}")


def _on_modes(policy: Policy) -> Iterator[PolicyFinding]:
    first = {Strategy.DEVICE: Side.NEAR, **dict.fromkeys(CLOUD_LIKE, Side.FAR)}.get(policy.strategy)
    if first is not None and first not in SIDES_OF_MODE[policy.mode]:
        yield _error("policy", f"strategy {policy.strategy} contradicts mode {policy.mode}", "change one of the two")
    if policy.mode is Mode.ONLY_IN_CLOUD and policy.sensitivity is Sensitivity.PRIVATE:
        yield _warning("policy", "mode only_in_cloud refuses every task that does not say it is public", 'sensitivity = "public"')


def _on_agents(policy: Policy, agents: Mapping[str, Side]) -> Iterator[PolicyFinding]:
    known = f"the agents are {', '.join(sorted(agents)) or 'none'}"
    for rule in policy.rules:
        if rule.agent is not None and rule.agent not in agents:
            yield _error(_where(rule), f"there is no agent {rule.agent!r}", known)
    second = policy.evidence.second_opinion
    if second is not None and second not in agents:
        yield _error("policy.evidence.second_opinion", f"there is no agent {second!r}", known)
    elif second is not None and agents[second] is Side.FAR:
        yield _error("policy.evidence.second_opinion", f"{second} is in the cloud, and looks stay on this device", "name a near agent")
    judge = policy.evidence.judge
    if judge is not None and judge not in agents:
        yield _error("policy.evidence.judge", f"there is no agent {judge!r}", known)
    for name in policy.fallback.order:
        if name not in agents:
            yield _error("policy.fallback.order", f"there is no agent {name!r}", known)


@dataclass(frozen=True, slots=True)
class _Named:
    """An agent of which nothing is known but its name and side."""

    name: str
    side: Side
    capabilities: Capabilities | None = None
    prices: Prices | None = None


def _on_strategies(policy: Policy, agents: Mapping[str, Side]) -> Iterator[PolicyFinding]:
    """Find strategies that these agents cannot serve, and agents that no strategy asks."""
    if not agents:
        return
    asked: set[str] = {policy.evidence.second_opinion or "", policy.evidence.judge or ""}
    for way in _ways(policy):
        try:
            asked |= _asked(policy, agents, way.strategy, way.mode)
        except ConfigError as error:
            if way.where == "policy" and f"contradicts mode {policy.mode}" in error.message:
                continue  # which is reported elsewhere
            if way.is_for_some:
                yield _warning(way.where, f"it refuses all its tasks: {error.message}", "a task may state another strategy")
            else:
                yield _error(way.where, f"strategy {way.strategy}: {error.message}", error.hint)
    for name in agents:
        if name not in asked:
            problem = f"{name} can never be asked, unless a task states another mode or strategy"
            yield _warning("policy", problem, "the modes and strategies of this policy and its rules leave it out")


@dataclass(frozen=True, slots=True)
class _Way:
    """A strategy and a mode under which tasks are served, and what sets them."""

    where: str
    strategy: Strategy
    mode: Mode
    is_for_some: bool = False
    """Only tasks under a rule's conditions are served so, and the rule leaves one of the two to the policy."""


def _ways(policy: Policy) -> Iterator[_Way]:
    yield _Way("policy", policy.strategy, policy.mode)
    if policy.strategy is Strategy.SUBTASKS:
        yield _Way("policy.subtasks.strategy", policy.subtasks.strategy, policy.mode)
    for rule in policy.rules:
        if rule.strategy is not None or rule.mode is not None:
            is_for_some = rule.when != When() and None in (rule.strategy, rule.mode)
            yield _Way(_where(rule), rule.strategy or policy.strategy, rule.mode or policy.mode, is_for_some)


def _asked(policy: Policy, agents: Mapping[str, Side], strategy: Strategy, mode: Mode) -> set[str]:
    """Return the agents that a public task may be given to. Raises `ConfigError` where none can serve it."""
    team = [_Named(name, side) for name, side in agents.items()]
    known = Strategy.ROUTE if strategy is Strategy.AUTO else strategy
    executor = policy.supervision.executor
    found = eligible(team, strategy=known, mode=mode, sensitivity=Sensitivity.PUBLIC, needs=Needs(), executor=executor)
    return {agent.name for agent in found.agents} | {found.supervisor or ""}


def _on_rules(policy: Policy, agents: Mapping[str, Side]) -> Iterator[PolicyFinding]:
    names = [rule.name for rule in policy.rules]
    for number, rule in enumerate(policy.rules):
        if rule.name in names[:number]:
            yield _warning(_where(rule), "another rule has the same name", "errors could mean either")
        yield from _on_one_rule(rule, policy, agents)
        over = next((earlier for earlier in policy.rules[:number] if _leaves_nothing(earlier, rule)), None)
        if over is not None:
            yield _warning(_where(rule), f"it can never have an effect: rule {over.name!r} before it decides the same in all its cases")
        yield from _on_restricted(rule, [other for other in policy.rules if other is not rule])
    yield from _on_pairs(policy)


def _on_one_rule(rule: Rule, policy: Policy, agents: Mapping[str, Side]) -> Iterator[PolicyFinding]:
    for name in _SHARES:
        wanted: Range | None = getattr(rule.when, name)
        if wanted is not None and (wanted.below or 0) > 1:
            yield _warning(_where(rule), f"{name} lies between 0 and 1, so that it is always below {wanted.below:g}", "20 % is 0.2")
    never = _never(rule.when, policy)
    if never is not None:
        closed = "; what is unknown counts as if it applied, so it always does" if rule.is_closed and "unknown" in never else ""
        yield _warning(_where(rule), f"it can never match: {never}{closed}")
    if rule.is_closed and rule.when.task_class:
        yield _warning(
            _where(rule), "a task that states no class is not covered: it matches no rule on task_class", "state it with each task"
        )
    side = agents.get(rule.agent or "")
    if rule.mode is not None and side is not None and side not in SIDES_OF_MODE[rule.mode]:
        yield _error(_where(rule), f"mode {rule.mode} keeps out {rule.agent}, which it names", "change one of the two")
    is_for_private = rule.when.sensitivity is Sensitivity.PRIVATE
    if is_for_private and rule.mode is Mode.ONLY_IN_CLOUD:
        yield _error(_where(rule), "private tasks never leave the device, so that this refuses all of them", "deny says so plainly")
    elif is_for_private and (rule.mode is Mode.PREFER_IN_CLOUD or side is Side.FAR):
        yield _warning(_where(rule), "it can never have an effect: private tasks never leave the device")
    if rule.when.thermal:
        hint = "unknown: closed rules apply, others do not; `nearfar doctor` says what this device tells"
        yield _warning(_where(rule), "not every device tells its thermal state", hint)
    if rule.when.offline and rule.mode is Mode.ONLY_IN_CLOUD:
        yield _warning(_where(rule), "without a network, nothing in the cloud can be reached")


def _on_restricted(rule: Rule, others: list[Rule]) -> Iterator[PolicyFinding]:
    """Warn where a restriction or a denial overrules the rule in all its cases, wherever that one stands."""
    for other in others:
        if not _takes_in(other.when, rule.when):
            continue
        if other.deny is not None and rule.mode in RESTRICTIONS:
            yield _warning(_where(rule), f"it can never have an effect: rule {other.name!r} denies all its tasks")
        if other.mode in RESTRICTIONS and rule.mode not in (None, other.mode, *RESTRICTIONS):
            yield _warning(_where(rule), f"its mode can never have an effect: rule {other.name!r} says {other.mode} in all its cases")


def _never(when: When, policy: Policy) -> str | None:
    """Return why no situation can meet the conditions, as far as the policy shows; None if one can."""
    for name in _SHARES:
        wanted: Range | None = getattr(when, name)
        if wanted is not None and ((wanted.at_least or 0) > 1 or (wanted.below is not None and wanted.below <= 0)):
            return f"{name} lies between 0 and 1"
    if when.tokens is not None and when.tokens.below is not None and when.tokens.below <= 0:
        return "no prompt has fewer than 0 tokens"
    limits = (policy.limits.session, policy.limits.user, policy.limits.day)
    if when.budget_left is not None and not any(value is not None for limit in limits for value in limit.model_dump().values()):
        return "budget_left is unknown without [policy.limits.session], [policy.limits.user] or [policy.limits.day]"
    return None


def _on_pairs(policy: Policy) -> Iterator[PolicyFinding]:
    """Find restrictions that leave no side where both apply."""
    restrictions = [rule for rule in policy.rules if rule.mode in RESTRICTIONS]
    for one, other in combinations(restrictions, 2):
        if one.mode is other.mode or _exclude_each_other(one.when, other.when):
            continue
        problem = f"where rule {one.name!r} applies too, one keeps the task on the device and the other in the cloud: it is refused"
        is_always = one.when == When() and other.when == When()
        yield (_error if is_always else _warning)(_where(other), problem, "narrow one of them")


def _on_settings(policy: Policy) -> Iterator[PolicyFinding]:
    for name in policy.privacy.detectors:
        if not has_plugin("detectors", name):
            known = _listed("plugins", [plugin.name for plugin in find_plugins("detectors")])
            yield _error("policy.privacy.detectors", f"there is no plugin {name!r} of nearfar.detectors", known)
    router = policy.router
    strategies = {policy.strategy, *(rule.strategy for rule in policy.rules)}
    strategies |= {policy.subtasks.strategy} if Strategy.SUBTASKS in strategies else set()
    steered = {Strategy.ROUTE, Strategy.CASCADE, Strategy.AUTO}
    if router.threshold and strategies.isdisjoint(steered):
        yield _warning("policy.router.threshold", f"it only steers strategies route and cascade, not {policy.strategy}")
    if router.has_budget and strategies.isdisjoint(steered | SUPERVISED):
        yield _warning("policy.router", f"a budget only steers strategies route, cascade, pevr and eva, not {policy.strategy}")
    if router.explore_share and Strategy.ROUTE not in strategies:
        yield _warning("policy.router.explore_share", f"only strategy route explores, not {policy.strategy}")
    if (router.threshold or router.has_budget or router.explore_share) and policy.mode is not Mode.AUTO:
        yield _warning("policy.router", f"threshold, budget and exploration only steer mode auto, not {policy.mode}")
    if router.threshold and router.has_budget:
        yield _warning("policy.router.threshold", "it has no effect: the budget moves the threshold")
    if policy.objective.quality == 0:
        yield _warning("policy.objective.quality", "being right is worth nothing, so that the cheapest agent always serves")
    if Strategy.CASCADE in strategies and FallbackTrigger.LOW_CONFIDENCE not in policy.fallback.triggers:
        yield _warning("policy.fallback.triggers", "without low_confidence a cascade never doubts a draft")
    yield from _on_limits(policy)


def _on_files(policy: Policy, agents: Mapping[str, Side]) -> Iterator[PolicyFinding]:
    """Check the files that the policy names: the head, the escalation and the navigator."""
    if policy.supervision.navigator is not None:
        yield from _unless_usable("policy.supervision.navigator", Navigator.load, policy.supervision.navigator)
    if policy.router.head is not None:
        yield from _unless_usable("policy.router.head", lambda head: _require_head(head, agents), policy.router.head)
    if policy.evidence.escalation is not None:
        yield from _unless_usable("policy.evidence.escalation", lambda card: _require_escalation(card, agents), policy.evidence.escalation)


def _require_head(folder: Path, agents: Mapping[str, Side]) -> None:
    missing = sorted(set(agents) - set(read_card(folder).agents))
    if missing:
        raise ConfigError(f"the head in {folder} was not trained for {', '.join(missing)}", hint="nearfar policy train --traces ...")


def _require_escalation(path: Path, agents: Mapping[str, Side]) -> None:
    """Raise `ConfigError` for a card of other agents than those of a team with a far side, without which nothing is escalated."""
    card = Escalation.load(path).card
    roles = {card.draft: Side.NEAR, card.far: Side.FAR, **dict.fromkeys(opinions_of(card), Side.NEAR)}
    missing = sorted(name for name, side in roles.items() if agents.get(name) is not side)
    if missing and Side.FAR in agents.values():
        hint = f"the agents are {', '.join(sorted(agents))}; nearfar policy card import binds a shared card to yours"
        raise ConfigError(
            f"{path} weighs drafts of {card.draft} for {card.far}, and there is no such agent: {', '.join(missing)}", hint=hint
        )


def _unless_usable(where: str, use: Callable[[Path], object], path: Path) -> Iterator[PolicyFinding]:
    try:
        use(path)
    except ConfigError as error:
        yield _error(where, error.message, error.hint)


def _on_limits(policy: Policy) -> Iterator[PolicyFinding]:
    scopes = [(name, getattr(policy.limits, name)) for name in ("call", "task", "session", "day")]
    for (inner, small), (outer, large) in combinations(scopes, 2):
        for measure in type(small).model_fields:
            one, other = getattr(small, measure), getattr(large, measure)
            if one is not None and other is not None and one > other:
                yield _warning(f"policy.limits.{inner}.{measure}", f"it has no effect: the {outer} may not even have {other:g}")


def _leaves_nothing(earlier: Rule, later: Rule) -> bool:
    """Return True if the earlier rule applies wherever the later one does and decides all that it decides. Restrictions always count."""
    if later.deny is not None or later.mode in RESTRICTIONS or not _takes_in(earlier.when, later.when):
        return False
    if earlier.deny is not None:
        return True
    wanted = [name for name in ("mode", "strategy", "agent") if getattr(later, name) is not None]
    return all(getattr(earlier, name) is not None for name in wanted)


def _takes_in(wide: When, narrow: When) -> bool:
    """Return True if every condition of the wide one is met whenever the narrow one's conditions are."""
    named = [name for name in When.model_fields if getattr(wide, name) not in (None, ()) and name != "task_class"]
    return _is_wider_class(wide, narrow) and all(_is_wider(getattr(wide, name), getattr(narrow, name)) for name in named)


def _is_wider_class(wide: When, narrow: When) -> bool:
    """Return True if the narrow one's classes are those of the wide one, or below them."""
    if not wide.task_class:
        return True
    return bool(narrow.task_class) and all(is_of_class(name, wide.task_class) for name in narrow.task_class)


def _is_wider(wide: object, narrow: object) -> bool:
    if isinstance(wide, tuple) and isinstance(narrow, tuple):
        return bool(narrow) and set(narrow) <= set(wide)
    if isinstance(wide, Range) and isinstance(narrow, Range):
        starts = wide.at_least is None or (narrow.at_least is not None and narrow.at_least >= wide.at_least)
        return starts and (wide.below is None or (narrow.below is not None and narrow.below <= wide.below))
    return wide == narrow


def _exclude_each_other(one: When, other: When) -> bool:
    """Return True if some condition cannot hold for both."""
    for name in ("sensitivity", "offline", "power_source"):
        first, second = getattr(one, name), getattr(other, name)
        if first is not None and second is not None and first != second:
            return True
    for name in ("language", "thermal", "role"):
        first, second = getattr(one, name), getattr(other, name)
        if first and second and set(first).isdisjoint(second):
            return True
    classes = [(first, second) for first in one.task_class for second in other.task_class]
    if classes and not any(is_of_class(first, [second]) or is_of_class(second, [first]) for first, second in classes):
        return True
    ranges = ((getattr(one, name), getattr(other, name)) for name in ("tokens", "battery", "budget_left"))
    return any(first is not None and second is not None and _are_apart(first, second) for first, second in ranges)


def _are_apart(one: Range, other: Range) -> bool:
    infinity = float("inf")

    def ends_before(first: Range, second: Range) -> bool:
        return (first.below if first.below is not None else infinity) <= (second.at_least if second.at_least is not None else -infinity)

    return ends_before(one, other) or ends_before(other, one)


def _where(rule: Rule) -> str:
    return f"rule {rule.name!r}"
