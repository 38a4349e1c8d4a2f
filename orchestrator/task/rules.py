"""Rules of a policy: their conditions and their decisions.

Every restricting rule (`deny`, `only_on_device`, `only_in_cloud`) applies, wherever it stands. Of the preferring rules, the first that
applies wins. An unknown condition, such as the battery of a desktop, counts as true in a rule that keeps the task on the device or denies
it, and as false in any other: privacy fails closed. A task without a class is in no class: that is the app's decision and not unknown.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, time
from enum import StrEnum
from typing import Annotated, Final, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from ...protocols import PowerSource, Sensitivity, Thermal
from ...protocols.steps import ToolName, Value
from .modes import Mode, Situation, Strategy, primary_language

T = TypeVar("T")

RESTRICTIONS: Final = frozenset({Mode.ONLY_ON_DEVICE, Mode.ONLY_IN_CLOUD})
"""Modes that leave only one side."""


class Weekday(StrEnum):
    """Days in the order of `datetime.weekday`."""

    MONDAY = "monday"
    TUESDAY = "tuesday"
    WEDNESDAY = "wednesday"
    THURSDAY = "thursday"
    FRIDAY = "friday"
    SATURDAY = "saturday"
    SUNDAY = "sunday"


class Range(Value):
    """Values from `at_least`, inclusive, to `below`, exclusive; either may be left open."""

    at_least: float | None = Field(default=None, allow_inf_nan=False)
    """Least value, inclusive; None: no least one."""
    below: float | None = Field(default=None, allow_inf_nan=False)
    """Bound that the value stays below; None: no bound."""

    @model_validator(mode="after")
    def _holds_something(self) -> Self:
        if self.at_least is None and self.below is None:
            raise ValueError("a range needs at_least or below")
        if self.at_least is not None and self.below is not None and self.at_least >= self.below:
            raise ValueError(f"nothing is at least {self.at_least:g} and below {self.below:g}")
        return self

    def __contains__(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (self.below is None or value < self.below)


class Hours(Value):
    """Local time of day and days of the week: `time` of a rule's `when`."""

    start: time = time.min
    """Beginning, inclusive; by default midnight."""
    end: time | None = None
    """End, exclusive; before `start` if it lies on the next day. None: midnight."""
    days: tuple[Weekday, ...] = tuple(Weekday)
    """Days on which the time begins; by default all."""

    @model_validator(mode="after")
    def _holds_something(self) -> Self:
        if not self.days:
            raise ValueError("days names no day")
        if self.start.tzinfo is not None or (self.end is not None and self.end.tzinfo is not None):
            raise ValueError("hours are local, and have no time zone")
        if self.start == self.end:
            raise ValueError("start and end are the same, so that no time lies between them")
        return self

    def __contains__(self, moment: datetime) -> bool:
        clock, today = moment.time(), list(Weekday)[moment.weekday()]
        if self.end is None or self.start < self.end:
            return today in self.days and self.start <= clock and (self.end is None or clock < self.end)
        yesterday = list(Weekday)[moment.weekday() - 1]
        return (today in self.days and clock >= self.start) or (yesterday in self.days and clock < self.end)


def _primary(languages: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(primary_language(language) for language in languages)


class When(Value):
    """Conditions of a rule, which all have to hold. Without any condition, the rule always applies."""

    sensitivity: Sensitivity | None = None
    """The task has this sensitivity."""
    task_class: tuple[str, ...] = ()
    """Task classes: one of these, or a class below one: `billing` includes `billing/refund`."""
    role: tuple[str, ...] = ()
    """Names of roles: it is the work of one of these."""
    tools: tuple[ToolName, ...] = ()
    """The task may call one of these tools."""
    tags: tuple[str, ...] = ()
    """The task has one of these tags."""
    tokens: Range | None = None
    """Tokens of the prompt, estimated at four characters each."""
    language: Annotated[tuple[str, ...], AfterValidator(_primary)] = ()
    """ISO 639-1 codes: a text of the user is in one of these languages."""
    offline: bool | None = None
    """The device has no network, or has one."""
    battery: Range | None = None
    """Share of a full charge, 0 to 1."""
    thermal: tuple[Thermal, ...] = ()
    """The device is in one of these states of heat."""
    power_source: PowerSource | None = None
    """The device runs on mains or on its battery."""
    budget_left: Range | None = None
    """Smallest share, 0 to 1, that is left of the limits for the session and the day."""
    time: Hours | None = None
    """It is such a time of the day or week."""

    def matches(self, situation: Situation) -> bool | None:
        """Return whether the `situation` meets the conditions; None if that depends on something unknown."""
        answers = [answer(self, situation) for named, answer in _CONDITIONS.items() if getattr(self, named) not in (None, ())]
        if False in answers:
            return False
        return None if None in answers else True


class Rule(Value):
    """One rule: `[[policy.rules]]`."""

    name: str = Field(min_length=1)
    """Name of the rule in decisions and errors."""
    when: When = When()
    """Conditions, which all have to hold; without any, the rule always applies."""
    mode: Mode | None = None
    """Sides that may serve the task; `only_on_device` and `only_in_cloud` hold whatever other rules prefer."""
    agent: str | None = None
    """Name of the agent that tries first."""
    strategy: Strategy | None = None
    """Strategy of the task."""
    deny: str | None = None
    """Reason with which the task is refused."""

    @model_validator(mode="after")
    def _decides_something(self) -> Self:
        effects = [name for name in ("mode", "agent", "strategy", "deny") if getattr(self, name) is not None]
        if not effects:
            raise ValueError("the rule decides nothing: give it mode, agent, strategy or deny")
        if "deny" in effects and len(effects) > 1:
            raise ValueError(f"the rule denies the task, so that its {effects[0]} has no effect")
        return self

    @property
    def is_closed(self) -> bool:
        """Return whether the rule protects something, so that an unknown condition counts as true."""
        return self.deny is not None or self.mode is Mode.ONLY_ON_DEVICE


@dataclass(frozen=True, slots=True)
class Ruling:
    """Decision of all rules together on a task. None: no rule decides."""

    mode: Mode | None = None
    """The mode that rules demand; None: none does."""
    strategy: Strategy | None = None
    """The strategy that rules demand; None: none does."""
    agent: str | None = None
    """The agent that rules demand; None: none do."""
    denied: str | None = None
    """Reason why the task is refused."""
    sides_contradict: bool = False
    """One rule allows only the device, another one only the cloud."""
    reasons: tuple[str, ...] = ()
    """The rules that applied, and their decisions."""


def ruling(rules: Sequence[Rule], situation: Situation) -> Ruling:
    """Apply all rules to a situation."""
    applied = list(_applied(rules, situation))
    denial = next((rule for rule, _ in applied if rule.deny is not None), None)
    restrictions = {rule.mode for rule, _ in applied if rule.mode in RESTRICTIONS}
    preferred = _first(applied, lambda rule: rule.mode)
    return Ruling(
        # The device is the safe side where restrictions contradict each other; the caller refuses the task in any case.
        mode=(Mode.ONLY_ON_DEVICE if Mode.ONLY_ON_DEVICE in restrictions else next(iter(restrictions), preferred)),
        strategy=_first(applied, lambda rule: rule.strategy),
        agent=_first(applied, lambda rule: rule.agent),
        denied=None if denial is None else f"rule {denial.name!r}: {denial.deny}",
        sides_contradict=len(restrictions) > 1,
        reasons=tuple(_reason(rule, is_known=is_known) for rule, is_known in applied),
    )


def _applied(rules: Iterable[Rule], situation: Situation) -> Iterator[tuple[Rule, bool]]:
    """Yield the rules that apply, each with whether its conditions are known."""
    for rule in rules:
        match = rule.when.matches(situation)
        if match or (match is None and rule.is_closed):
            yield rule, match is not None


def _first(applied: Iterable[tuple[Rule, bool]], effect: Callable[[Rule], T | None]) -> T | None:
    return next((found for rule, _ in applied if (found := effect(rule)) is not None), None)


def _reason(rule: Rule, *, is_known: bool) -> str:
    effects = [f"{name} {value}" for name in ("mode", "strategy", "agent") if (value := getattr(rule, name)) is not None]
    decided = ", ".join(effects) or "denied"
    return f"rule {rule.name!r}: {decided}" + ("" if is_known else " (what it asks about is unknown, and it fails closed)")


def _any_of(wanted: Iterable[T], present: Iterable[T]) -> bool:
    return not set(wanted).isdisjoint(present)


def _is_in(value: float | None, wanted: Range | None) -> bool | None:
    return None if value is None or wanted is None else value in wanted


def _is_in_language(spoken: Iterable[str | None], wanted: Iterable[str]) -> bool | None:
    """Return whether a text is in one of the languages; None if none surely is, and one of them may be."""
    if _any_of(wanted, spoken):
        return True
    return None if None in set(spoken) else False


def is_of_class(task_class: str, wanted: Iterable[str]) -> bool:
    """Return whether a class is one of `wanted`, or below one."""
    return any(task_class == name or task_class.startswith(f"{name}/") for name in wanted)


_CONDITIONS: Final[dict[str, Callable[[When, Situation], bool | None]]] = {
    "sensitivity": lambda when, now: now.sensitivity is when.sensitivity,
    "task_class": lambda when, now: is_of_class(now.task_class, when.task_class),
    "role": lambda when, now: now.role in when.role,
    "tools": lambda when, now: _any_of(when.tools, now.tools),
    "tags": lambda when, now: _any_of(when.tags, now.tags),
    "tokens": lambda when, now: _is_in(now.tokens, when.tokens),
    "language": lambda when, now: _is_in_language(now.languages, when.language),
    "offline": lambda when, now: None if now.device.is_offline is None else now.device.is_offline is when.offline,
    "battery": lambda when, now: _is_in(now.device.battery, when.battery),
    "thermal": lambda when, now: None if now.device.thermal is None else now.device.thermal in when.thermal,
    "power_source": lambda when, now: None if now.device.power_source is None else now.device.power_source is when.power_source,
    "budget_left": lambda when, now: _is_in(now.budget_left, when.budget_left),
    "time": lambda when, now: when.time is None or now.now in when.time,
}
"""Checks of a `When` by name; None: unknown."""
