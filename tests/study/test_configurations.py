"""Configurations as they are written, and what they come to."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.orchestrator.lab.study import STANDARD, Configuration, configuration_of, distinct, parse_configurations
from nearfar.orchestrator.task.policy import Policy
from nearfar.protocols import ConfigError


def parsed(spec: str) -> Configuration:
    (configuration,) = parse_configurations([spec], Policy())
    return configuration


@pytest.mark.parametrize(
    ("spec", "strategy", "knobs"),
    [
        ("device", "device", {"mode": "only_on_device"}),
        ("cloud", "cloud", {"mode": "only_in_cloud"}),
        ("cascade:minimum_confidence=0.9", "cascade", {"minimum_confidence": 0.9}),
        (
            "cascade:preset=cheapest",
            "cascade",
            {"limits": {"task": {"dollars": 0.02}, "day": {"dollars": 1.0}}, "compression": {"use": "always"}},
        ),
        ("pevr/4", "pevr", {"supervision": {"interval": 4}}),
        ("speculate:thrift=0.8,tools=find+open", "speculate", {"speculate": {"thrift": 0.8, "tools": ["find", "open"]}}),
        ("pevr/8", "pevr", {}),
        ("pevr/inf", "pevr", {"supervision": {"interval": None}}),
        ("eva/events", "eva", {"supervision": {"interval": None, "triggers": ["tool_error", "loop", "stall"]}}),
        ("eva:triggers=loop,interval=inf", "eva", {"supervision": {"interval": None, "triggers": ["loop"]}}),
        ("eva/3:minimum_confidence=0.2", "eva", {"supervision": {"interval": 3, "minimum_confidence": 0.2}}),
        ("pevr/4+shadow", "pevr", {"supervision": {"interval": 4, "shadow": True}}),
        ("pevr/8+reversed:maximum_turns=40", "pevr", {"maximum_turns": 40, "supervision": {"executor": "far"}}),
    ],
)
def test_a_spec_sets_its_knobs_and_no_others(spec: str, strategy: str, knobs: dict[str, Any]) -> None:
    configuration = parsed(spec)
    assert (configuration.strategy, configuration.knobs) == (strategy, knobs)
    assert configuration.policy.sensitivity == "public"


@pytest.mark.parametrize(
    ("specs", "label"),
    [
        (["eva/4+shadow+oracle:triggers=loop,loop_calls=3", "eva+oracle+shadow:loop_calls=3,triggers=loop,interval=4"], "eva/4+oracle+"),
        (["pevr:interval=8", "pevr/8"], "pevr/8"),
    ],
)
def test_the_same_configuration_has_the_same_label_however_it_is_written(specs: list[str], label: str) -> None:
    (configuration,) = parse_configurations(specs, Policy())
    assert configuration.label.startswith(label)


def test_alternatives_make_a_configuration_each() -> None:
    labels = [each.label for each in parse_configurations(["pevr/2|inf:stall_turns=1|2"], Policy())]
    assert sorted(labels) == ["pevr/2:stall_turns=1", "pevr/2:stall_turns=2", "pevr/inf:stall_turns=1", "pevr/inf:stall_turns=2"]


def test_several_words_are_several_configurations_each_once() -> None:
    assert [each.label for each in parse_configurations(["device cloud", "device"], Policy())] == ["device", "cloud"]


def test_the_base_policy_is_part_of_what_is_run() -> None:
    (configuration,) = parse_configurations(["pevr/4"], Policy(maximum_turns=40))
    assert configuration.knobs == {"maximum_turns": 40, "supervision": {"interval": 4}}


def test_the_standard_configurations_can_be_run() -> None:
    labels = [each.label for each in parse_configurations(STANDARD, Policy())]
    assert labels == list(STANDARD)


def test_an_oracle_lets_nothing_leave_the_device() -> None:
    assert not parsed("pevr/4+oracle").uses_far
    assert not parsed("device").uses_far
    assert parsed("pevr/4").uses_far


def test_configurations_that_differ_have_runs_of_their_own() -> None:
    specs = ["device", "cloud", "pevr/4", "pevr/8", "eva/8", "pevr/4+shadow", "pevr/4+oracle", "pevr/4+reversed"]
    keys = {parsed(spec).key(world="w", task="t", seed=1) for spec in specs}
    assert len(keys) == len(specs)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("pervr/4", "no strategy 'pervr'; did you mean 'pevr'"),
        ("device/4", "only pevr and eva have a pace"),
        ("pevr/soon", "the pace is a number of turns, inf or events"),
        ("pevr/0", "interval"),
        ("pevr/4+shadows", "did you mean 'shadow'"),
        ("cascade+oracle", "needs a supervisor"),
        ("pevr:interval", "not one knob and its value"),
        ("pevr:interval=4,interval=5", "not one knob and its value"),
        ("pevr:intervall=4", "no knob 'intervall'; did you mean 'interval'"),
        ("pevr:triggers=lop", "triggers"),
        ("cascade:interval=4", "no knob 'interval'"),
        ("cascade:minimum_confidence=2", "minimum_confidence"),
        ("pevr:strategy=eva", "no knob 'strategy'"),
        ("/4", "no configuration"),
        ("pevr/4 pevr/4:", "no configuration"),
    ],
)
def test_a_wrong_spec_says_what_is_wrong(spec: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_configurations([spec], Policy())


def test_two_configurations_do_not_share_a_label() -> None:
    one, other = (configuration_of("mine", {"maximum_turns": turns}, Policy()) for turns in (3, 4))
    with pytest.raises(ConfigError, match="two different configurations"):
        distinct([one, other])


@given(st.text(alphabet="pevrdica/+:=,|0123456789._ nft", max_size=30))
def test_any_text_is_configurations_or_a_clear_error(text: str) -> None:
    try:
        configurations = parse_configurations([text], Policy())
    except ConfigError:
        return
    assert len({each.label for each in configurations}) == len(configurations)


@pytest.mark.parametrize("specs", ["pevr pevr/8", "eva/events eva:interval=inf,triggers=tool_error+loop+stall"])
def test_one_configuration_under_two_labels_is_refused_before_it_is_run_twice(specs: str) -> None:
    with pytest.raises(ConfigError, match="are the same configuration"):
        parse_configurations([specs], Policy())


@pytest.mark.parametrize("spec", ["pevr/4:interval=8", "pevr/events:interval=8"])
def test_a_pace_and_an_interval_contradict_each_other(spec: str) -> None:
    with pytest.raises(ConfigError, match="says twice how often"):
        parsed(spec)


def test_an_extra_said_twice_is_said_once() -> None:
    assert parsed("pevr/4+shadow+shadow") == parsed("pevr/4+shadow")
