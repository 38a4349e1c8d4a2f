"""Configurations: the strategies and knobs that a sweep compares, written as `pevr/8`, `eva/events+shadow` or `cascade:temperature=0.5`.

SPEC  = NAME ["/" PACE] {"+" EXTRA} [":" KNOB "=" VALUE {"," KNOB "=" VALUE}]
PACE  = turns between two checks | "inf" (none) | "events" (checks by trigger alone)
EXTRA = "shadow" (verdicts are only recorded) | "reversed" (far works, near supervises) | "oracle" (the world's solver supervises)
VALUE = a number, true, false, inf, a word, or words joined by "+"

Several paces or values joined by "|" make one configuration each.
"""

import difflib
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, get_origin

from pydantic import BaseModel, JsonValue, ValidationError

from ....protocols import ConfigError
from ....protocols.steps import Value
from ...task.modes import Strategy
from ...task.policy import Policy

EVENTS: Final = ("tool_error", "loop", "stall")
"""The triggers of the pace `events`; `triggers=` takes any other mix."""

STANDARD: Final = (
    "device",
    "cloud",
    "cascade",
    *(f"{name}/{pace}" for name in ("pevr", "eva") for pace in ("2", "4", "8", "events")),
    "pevr/inf",
    "pevr/4+shadow",
    "eva/4+shadow",
    "pevr/8+reversed",
    "eva/8+reversed",
)
"""Configurations of a sweep that names none."""

_SUPERVISED: Final = ("pevr", "eva")
_SECTIONS: Final = {
    **dict.fromkeys(_SUPERVISED, "supervision"),
    **{name: name for name in ("minions", "subtasks", "speculate", "auto")},
}
"""The section of the policy that holds a strategy's own knobs."""
_EXTRAS: Final[Mapping[str, Mapping[str, JsonValue]]] = {"shadow": {"shadow": True}, "reversed": {"executor": "far"}, "oracle": {}}
_MODES: Final = {"device": "only_on_device", "cloud": "only_in_cloud"}
"""A sweep compares the sides, so neither may stand in for the other unless the strategy says so."""
_SPEC = re.compile(r"(?P<name>\w+)(?:/(?P<pace>[^+:\s]+))?(?P<extras>(?:\+\w+)*)(?::(?P<knobs>\S+))?")
_HINT = 'write it like "pevr/8", "eva/events+shadow" or "pevr:interval=4,triggers=tool_error+loop"'

Json = dict[str, JsonValue]


class Configuration(Value):
    """One way to serve tasks."""

    label: str
    policy: Policy
    oracle: bool = False
    """The far side is the world's own solver."""

    @property
    def strategy(self) -> str:
        return self.policy.strategy.value

    @property
    def knobs(self) -> Json:
        """Differences from the policy's defaults, preset, strategy and sensitivity aside, in the shape of the `[policy]` section."""
        changed = _difference(self.policy.model_dump(mode="json"), Policy().model_dump(mode="json"))
        return {name: value for name, value in changed.items() if name not in ("preset", "strategy", "sensitivity")}

    @property
    def uses_far(self) -> bool:
        """Text of the task may leave the device."""
        return self.strategy != Strategy.DEVICE and not self.oracle

    def key(self, *, world: str, task: str, seed: int) -> str:
        """Return the key of the run of one task."""
        return run_key(world=world, task=task, seed=seed, strategy=self.strategy, knobs=self.knobs, oracle=self.oracle)


def run_key(*, world: str, task: str, seed: int, strategy: str, knobs: Mapping[str, JsonValue], oracle: bool) -> str:
    """Return a short name that the same run has in every process, whatever its label."""
    identity = {"world": world, "task": task, "seed": seed, "strategy": strategy, "knobs": knobs, "oracle": oracle}
    text = json.dumps(identity, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def parse_configurations(specs: Iterable[str], base: Policy) -> list[Configuration]:
    """Parse several specs into configurations, each once, in their order; a spec may hold several words.

    Raises `ConfigError` for a spec that cannot be read, or that the policy does not allow.
    """
    words = (word for spec in specs for word in spec.split())
    return distinct(configuration for word in words for configuration in _parse(word, base))


def configuration_of(label: str, changes: Mapping[str, Any], base: Policy, *, oracle: bool = False) -> Configuration:
    """Return the configuration that differs from `base` by `changes`, sections merged. Raises `ConfigError` where the policy refuses
    them."""
    strategy = str(changes.get("strategy", base.strategy))
    # Worlds' tasks are checked for whether they may leave the device before the first run.
    fixed = {"sensitivity": "public", "mode": _MODES.get(strategy, "auto")}
    merged = _merge(base.model_dump(mode="json", exclude_unset=True), {**fixed, **_without_infinity(changes)})
    try:
        return Configuration(label=label, policy=Policy.model_validate(merged), oracle=oracle)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        problem = "is not known" if first["type"] == "extra_forbidden" else first["msg"]
        raise ConfigError(f"configuration {label!r}: {where}: {problem}", hint="docs/configuration.md lists the knobs") from error


def distinct(configurations: Iterable[Configuration]) -> list[Configuration]:
    """Return each configuration once. Raises `ConfigError` where two different ones share a label, or one has two."""
    by_label: dict[str, Configuration] = {}
    labels: dict[str, str] = {}
    for configuration in configurations:
        known = by_label.setdefault(configuration.label, configuration)
        if known != configuration:
            raise ConfigError(f"two different configurations are called {configuration.label!r}", hint="give one of them another label")
        first = labels.setdefault(configuration.key(world="", task="", seed=0), configuration.label)
        if first != configuration.label:
            raise ConfigError(f"{first!r} and {configuration.label!r} are the same configuration", hint="leave one of them out")
    return list(by_label.values())


def _parse(word: str, base: Policy) -> Iterator[Configuration]:
    match = _SPEC.fullmatch(word)
    if match is None:
        raise ConfigError(f"{word!r} is no configuration", hint=_HINT)
    name = match["name"]
    if name not in {strategy.value for strategy in Strategy}:
        raise ConfigError(f"there is no strategy {name!r}{_nearest(name, [strategy.value for strategy in Strategy])}", hint=_HINT)
    extras = sorted(set(filter(None, match["extras"].split("+"))))
    knobs = _knobs(match["knobs"], word)
    if match["pace"] is not None:
        if "interval" in knobs:
            raise ConfigError(f"{word!r} says twice how often to check", hint="the pace behind the slash is the interval; leave one out")
        knobs["pace"] = match["pace"].split("|")
    _check_extras(name, extras, word)
    for values in itertools.product(*knobs.values()):
        yield _configuration(name, dict(zip(knobs, values, strict=True)), extras, base)


def _knobs(text: str | None, word: str) -> dict[str, list[str]]:
    """Return each knob with its alternatives."""
    knobs: dict[str, list[str]] = {}
    for part in text.split(",") if text else []:
        knob, equals, values = part.partition("=")
        if not equals or not knob or knob in knobs or not all(values.split("|")):
            raise ConfigError(f"{word!r}: {part!r} is not one knob and its value", hint=_HINT)
        knobs[knob] = values.split("|")
    return knobs


def _check_extras(name: str, extras: Sequence[str], word: str) -> None:
    for extra in extras:
        if extra not in _EXTRAS:
            raise ConfigError(f"{word!r}: there is no {extra!r}{_nearest(extra, _EXTRAS)}", hint=_HINT)
        if name not in _SUPERVISED:
            raise ConfigError(f"{word!r}: {extra!r} needs a supervisor, which {name} has not", hint=f"{' and '.join(_SUPERVISED)} have one")


def _configuration(name: str, knobs: dict[str, str], extras: Sequence[str], base: Policy) -> Configuration:
    section: dict[str, Any] = {knob: value for extra in extras for knob, value in _EXTRAS[extra].items()}
    changes: dict[str, Any] = {"strategy": name}
    pace = knobs.pop("pace", None)
    if pace is not None:
        section |= _pace_knobs(name, pace)
    elif name in _SUPERVISED and "interval" in knobs:
        pace = knobs["interval"]
    label = _label(name, pace, extras, {knob: value for knob, value in knobs.items() if knob != "interval" or pace is None})
    for knob, text in knobs.items():
        in_section, field = _field(name, knob, label)
        (section if in_section else changes)[knob] = _value(text, field)
    if section:
        changes[_SECTIONS[name]] = section
    return configuration_of(label, changes, base, oracle="oracle" in extras)


def _pace_knobs(name: str, pace: str) -> Json:
    if name not in _SUPERVISED:
        raise ConfigError(f"'{name}/{pace}': only {' and '.join(_SUPERVISED)} have a pace", hint=_HINT)
    if pace == "events":
        return {"interval": None, "triggers": list(EVENTS)}
    if pace != "inf" and not pace.isdecimal():
        raise ConfigError(f"'{name}/{pace}': the pace is a number of turns, inf or events", hint=_HINT)
    return {"interval": None if pace == "inf" else int(pace)}


def _label(name: str, pace: str | None, extras: Sequence[str], knobs: Mapping[str, str]) -> str:
    """Return a label that does not depend on the order in which a configuration was written."""
    settings = ",".join(f"{knob}={knobs[knob]}" for knob in sorted(knobs))
    return "".join([name, f"/{pace}" if pace else "", *(f"+{extra}" for extra in extras), f":{settings}" if settings else ""])


def _field(name: str, knob: str, label: str) -> tuple[bool, Any]:
    """Return True if the knob belongs to the strategy's own section, and the type of its values."""
    section = Policy.model_fields.get(_SECTIONS.get(name, ""))
    kind = section.annotation if section is not None else None
    own = kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else {}
    if knob in own:
        return True, own[knob].annotation
    if knob in Policy.model_fields and knob not in _SECTIONS.values() and knob != "strategy":
        return False, Policy.model_fields[knob].annotation
    known = [*own, *(field for field in Policy.model_fields if field not in (*_SECTIONS.values(), "strategy"))]
    raise ConfigError(f"{label!r}: {name} has no knob {knob!r}{_nearest(knob, known)}", hint=f"its knobs: {', '.join(sorted(known))}")


def _value(text: str, annotation: Any) -> JsonValue:  # noqa: ANN401 - any type expression
    """Parse a knob's value as JSON; pydantic converts it to the knob's type, or says what is wrong."""
    if get_origin(annotation) in (tuple, list, frozenset, set):
        return [] if text == "none" else list(text.split("+"))
    if text in ("inf", "none"):
        return None
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _without_infinity(value: Any) -> Any:  # noqa: ANN401 - any TOML value
    """Replace `inf`, as a number or a word, by None: TOML has no null, and `inf` stands for "no bound"."""
    if isinstance(value, Mapping):
        return {name: _without_infinity(inner) for name, inner in value.items()}
    return None if value == "inf" or value == float("inf") else value


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        name: _merge(base[name], change) if isinstance(change, Mapping) and isinstance(base.get(name), Mapping) else change
        for name, change in changes.items()
    }
    return {**base, **both}


def _difference(value: Mapping[str, Any], base: Mapping[str, Any]) -> Json:
    changed: Json = {}
    for name, inner in value.items():
        if inner != base[name]:
            changed[name] = _difference(inner, base[name]) if isinstance(inner, dict) and isinstance(base[name], dict) else inner
    return changed


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
