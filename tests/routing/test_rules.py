"""Rules of a policy: when they apply and what they decide."""

from datetime import datetime, time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from situations import NOON, situation

from nearfar.orchestrator.task.modes import Mode, Situation, Strategy
from nearfar.orchestrator.task.rules import Hours, Range, Rule, Ruling, Weekday, When, ruling
from nearfar.protocols import DeviceState, PowerSource, Sensitivity, Thermal

HOT = DeviceState(battery=0.1, power_source=PowerSource.BATTERY, thermal=Thermal.SERIOUS, is_offline=False)


@pytest.mark.parametrize(
    ("when", "matching", "other"),
    [
        ({"sensitivity": "private"}, situation(sensitivity=Sensitivity.PRIVATE), situation()),
        ({"task_class": ["billing"]}, situation(task_class="billing/refund"), situation(task_class="billings")),
        ({"tools": ["pay"]}, situation(tools=frozenset({"pay", "look"})), situation(tools=frozenset({"look"}))),
        ({"tags": ["vip", "legal"]}, situation(tags=frozenset({"legal"})), situation()),
        ({"tokens": {"at_least": 100}}, situation(tokens=100), situation(tokens=99)),
        ({"tokens": {"below": 100}}, situation(tokens=99), situation(tokens=100)),
        ({"language": ["DE"]}, situation(languages=frozenset({"de", None})), situation(languages=frozenset({"en"}))),
        ({"offline": True}, situation(device=DeviceState(is_offline=True)), situation(device=HOT)),
        ({"battery": {"below": 0.2}}, situation(device=HOT), situation(device=DeviceState(battery=0.2))),
        ({"thermal": ["serious", "critical"]}, situation(device=HOT), situation(device=DeviceState(thermal=Thermal.FAIR))),
        ({"power_source": "battery"}, situation(device=HOT), situation(device=DeviceState(power_source=PowerSource.MAINS))),
        ({"budget_left": {"below": 0.5}}, situation(budget_left=0.4), situation(budget_left=0.6)),
        ({"time": {"start": "09:00", "end": "17:00"}}, situation(), situation(now=NOON.replace(hour=17))),
    ],
)
def test_each_condition_tells_situations_apart(when: dict[str, object], matching: Situation, other: Situation) -> None:
    condition = When.model_validate(when)
    assert (condition.matches(matching), condition.matches(other)) == (True, False)


@pytest.mark.parametrize("name", ["language", "offline", "battery", "thermal", "power_source", "budget_left"])
def test_what_is_unknown_is_neither_a_match_nor_none(name: str) -> None:
    wanted = {"language": ["en"], "offline": True, "thermal": ["fair"], "power_source": "mains"}
    condition = When.model_validate({name: wanted.get(name, {"below": 0.5})})
    assert condition.matches(situation()) is None


@pytest.mark.parametrize("effect", [{"deny": "no"}, {"mode": "only_on_device"}, {"mode": "prefer_in_cloud"}])
def test_a_task_that_states_no_class_matches_no_rule_on_classes(effect: dict[str, str]) -> None:
    rules = [Rule.model_validate({"name": "r", "when": {"task_class": ["billing"]}, **effect})]
    assert ruling(rules, situation()) == Ruling()
    assert ruling(rules, situation(task_class="billing/refund")) != Ruling()


def test_a_condition_that_fails_outweighs_one_that_is_unknown() -> None:
    assert When(battery=Range(below=0.5), tags=("vip",)).matches(situation()) is False


def test_without_conditions_everything_matches() -> None:
    assert When().matches(situation()) is True


@pytest.mark.parametrize(
    ("start", "end", "days", "moment", "expected"),
    [
        ("22:00", "06:00", ["wednesday"], datetime(2026, 11, 18, 23, 0), True),
        ("22:00", "06:00", ["wednesday"], datetime(2026, 11, 19, 5, 59), True),
        ("22:00", "06:00", ["wednesday"], datetime(2026, 11, 18, 5, 0), False),
        ("22:00", "06:00", ["wednesday"], datetime(2026, 11, 19, 6, 0), False),
        ("09:00", None, ["thursday"], datetime(2026, 11, 19, 23, 59), True),
        ("09:00", None, ["thursday"], datetime(2026, 11, 20, 0, 0), False),
    ],
)
def test_hours_may_last_into_the_next_day(start: str, end: str | None, days: list[str], moment: datetime, expected: bool) -> None:
    hours = Hours.model_validate({"start": start, "end": end, "days": days})
    assert (moment in hours) is expected


@given(st.datetimes(), st.times(), st.times(), st.lists(st.sampled_from(Weekday), min_size=1, unique=True))
def test_hours_and_the_hours_between_them_divide_time(moment: datetime, start: time, end: time, days: list[Weekday]) -> None:
    if start == end:
        return
    inside, outside = Hours(start=start, end=end), Hours(start=end, end=start)
    assert (moment in inside) is not (moment in outside)
    assert (moment not in Hours(start=start, end=end, days=tuple(days))) or moment in inside


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"name": "idle"}, "decides nothing"),
        ({"name": "both", "deny": "no", "mode": "auto"}, "has no effect"),
        ({"name": "", "mode": "auto"}, "at least 1 character"),
        ({"name": "r", "mode": "auto", "when": {"tokens": {}}}, "needs at_least or below"),
        ({"name": "r", "mode": "auto", "when": {"tokens": {"at_least": 9, "below": 9}}}, "at least 9 and below 9"),
        ({"name": "r", "mode": "auto", "when": {"time": {"start": "08:00", "end": "08:00"}}}, "no time lies between"),
        ({"name": "r", "mode": "auto", "when": {"time": {"days": []}}}, "names no day"),
        ({"name": "r", "mode": "auto", "when": {"weather": "rain"}}, "Extra inputs"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(rule: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Rule.model_validate(rule)


def test_the_first_rule_that_prefers_something_has_its_way_in_it() -> None:
    rules = [
        Rule(name="cheap", mode=Mode.PREFER_ON_DEVICE),
        Rule(name="good", mode=Mode.PREFER_IN_CLOUD, agent="far"),
        Rule(name="plan", strategy=Strategy.PEVR, agent="near"),
    ]
    found = ruling(rules, situation())
    assert (found.mode, found.agent, found.strategy) == (Mode.PREFER_ON_DEVICE, "far", Strategy.PEVR)


def test_a_restriction_counts_wherever_it_stands() -> None:
    rules = [Rule(name="good", mode=Mode.PREFER_IN_CLOUD), Rule(name="secret", when=When(tags=("secret",)), mode=Mode.ONLY_ON_DEVICE)]
    assert ruling(rules, situation(tags=frozenset({"secret"}))).mode is Mode.ONLY_ON_DEVICE
    assert ruling(rules, situation()).mode is Mode.PREFER_IN_CLOUD


def test_restrictions_that_contradict_each_other_are_reported_and_leave_the_device() -> None:
    found = ruling([Rule(name="up", mode=Mode.ONLY_IN_CLOUD), Rule(name="down", mode=Mode.ONLY_ON_DEVICE)], situation())
    assert found.sides_contradict
    assert found.mode is Mode.ONLY_ON_DEVICE


@pytest.mark.parametrize("effect", [{"mode": "only_on_device"}, {"deny": "not now"}])
def test_a_rule_that_protects_applies_where_its_condition_is_unknown(effect: dict[str, str]) -> None:
    rule = Rule.model_validate({"name": "guard", "when": {"battery": {"below": 0.2}}, **effect})
    found = ruling([rule], situation())
    assert found.mode is Mode.ONLY_ON_DEVICE or found.denied is not None
    assert "unknown" in found.reasons[0]


@pytest.mark.parametrize("mode", [Mode.PREFER_IN_CLOUD, Mode.ONLY_IN_CLOUD, Mode.PREFER_ON_DEVICE])
def test_a_rule_that_protects_nothing_does_not_apply_where_its_condition_is_unknown(mode: Mode) -> None:
    rule = Rule(name="low battery", when=When(battery=Range(below=0.2)), mode=mode)
    assert ruling([rule], situation()) == Ruling()


def test_a_denial_names_its_rule_and_reason() -> None:
    found = ruling([Rule(name="quiet hours", deny="nothing runs at night")], situation())
    assert found.denied == "rule 'quiet hours': nothing runs at night"


rules_of_any_kind = st.lists(
    st.builds(
        Rule,
        name=st.just("r"),
        when=st.builds(When, tags=st.sampled_from([(), ("a",), ("b",)]), offline=st.sampled_from([None, True])),
        mode=st.sampled_from(Mode),
    ),
    max_size=6,
)


@given(rules_of_any_kind, st.sets(st.sampled_from("ab")))
def test_no_order_of_rules_lets_a_task_leave_that_one_rule_keeps(rules: list[Rule], tags: set[str]) -> None:
    now = situation(tags=frozenset(tags))
    keeps = any(rule.mode is Mode.ONLY_ON_DEVICE and rule.when.matches(now) is not False for rule in rules)
    for order in (rules, rules[::-1]):
        if keeps:
            assert ruling(order, now).mode is Mode.ONLY_ON_DEVICE
