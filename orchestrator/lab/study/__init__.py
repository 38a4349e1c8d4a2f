"""`Study`: what a sweep is to run, from a TOML file, the command line or Python, and the folder that the runs go to.

A configuration that it compares is a strategy with knobs, such as `pevr/8`, `eva/events+shadow` or `cascade:temperature=0.5`:

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
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_origin

from pydantic import BaseModel, Field, JsonValue, ValidationError, field_validator

from ....protocols import ConfigError
from ....protocols.steps import Value
from ....protocols.system import replace_text
from ...compose import FarConfig, LlamaConfig, NearSection, model_path
from ...task.modes import Strategy
from ...task.policy import Policy
from ..worlds.loading import SHIPPED

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
_SAMPLED: Final = 1 << 20
"""Bytes at each end of a model file that tell it from another of the same length."""
RUNS: Final = "runs.jsonl"
_NOTE: Final = "study.json"


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


class StudyFile(Value):
    """A study as it is written in TOML; what it leaves out keeps its default."""

    worlds: tuple[str, ...] = Field(default=("search", "apps"), min_length=1)
    """`search`, `apps`, or `package.module:factory`."""
    tasks: int = Field(default=200, gt=0)
    """Drawn from each world with each seed."""
    seeds: tuple[int, ...] = Field(default=(1, 2, 3), min_length=1)
    """A list, or the number of seeds from 1 on."""
    runs: tuple[str, ...] = ()
    """Configurations such as `pevr/8`; where there are none, neither here nor under `[[run]]`, the standard ones."""
    run: tuple[dict[str, Any], ...] = ()
    """Configurations spelt out: a `label`, and keys as under `[policy]`."""
    policy: dict[str, Any] = {}
    """Laid over the policy of nearfar.toml, for every configuration."""
    agents: str | None = None
    """`package.module:factory` that makes the near and the far agent, in place of those of nearfar.toml."""
    public: bool = False
    """The tasks of the user's own worlds may leave this device."""
    timeout: float = Field(default=600, gt=0)
    """Seconds that one run may take."""
    jobs: int = Field(default_factory=lambda: max(1, (os.cpu_count() or 1) // 2), gt=0)
    """Processes, each with its own agents."""
    concurrency: int = Field(default=4, gt=0)
    """Runs at the same time in each process. Their seconds include waiting for each other: set it to 1 to compare latencies."""
    ceiling: float | None = Field(default=None, gt=0)
    """US dollars at which no further run is started."""

    @field_validator("seeds", mode="before")
    @classmethod
    def _count_of_seeds(cls, value: object) -> object:
        return tuple(range(1, value + 1)) if isinstance(value, int) else value

    @field_validator("worlds", "seeds")
    @classmethod
    def _without_repetition(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(values))


class Study(Value):
    """The plan of a sweep: every configuration on every task of every world, drawn with every seed."""

    worlds: tuple[str, ...]
    tasks: int
    seeds: tuple[int, ...]
    configurations: tuple[Configuration, ...] = Field(min_length=1)
    near: NearSection | None
    far: FarConfig | None
    agents: str | None
    timeout: float
    jobs: int
    concurrency: int
    ceiling: float | None

    @property
    def needs_near(self) -> bool:
        return any(configuration.strategy != Strategy.CLOUD for configuration in self.configurations)

    @property
    def needs_far(self) -> bool:
        return any(configuration.uses_far for configuration in self.configurations)


def read_study_file(path: Path) -> StudyFile:
    """Read and validate a study. Raises `ConfigError` that names the file and the key."""
    try:
        return parse_study_file(path.read_text(encoding="utf-8-sig"), str(path))
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}", hint="name a study file, or leave it out and use --world and --run") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def parse_study_file(text: str, source: str) -> StudyFile:
    """Parse and validate the text of a study file; `source` names it in errors."""
    try:
        return StudyFile.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from error
    except ValidationError as error:
        raise ConfigError("\n".join(_problems(error, source)), hint="docs/sweep.md lists the keys of a study") from error


def with_options(file: StudyFile, options: Mapping[str, object]) -> StudyFile:
    """Return the file with the keys that were given on the command line in place of its own. Raises `ConfigError` for a wrong value."""
    try:
        return StudyFile.model_validate({**file.model_dump(exclude_unset=True), **options})
    except ValidationError as error:
        raise ConfigError("\n".join(_problems(error, "the command line"))) from error


def make_study(file: StudyFile, *, near: NearSection | None, far: FarConfig | None, policy: Policy) -> Study:
    """Return the study that a file describes, with the agents and the policy of a `nearfar.toml`.

    Raises `ConfigError` for a configuration that cannot be, for private tasks that would leave the device, and where an agent is
    missing.
    """
    configurations = tuple(_configurations(file, policy))
    study = Study(configurations=configurations, near=near, far=far, **file.model_dump(include=_SHARED))
    _check_privacy(study, public=file.public)
    if study.agents is None:
        _check_sides(study)
    return study


_SHARED: Final = set(Study.model_fields) & set(StudyFile.model_fields)


def models_of(study: Study) -> dict[str, str]:
    """Return the models that a study runs, by side. A replaced model file gets another name than the one before."""
    if study.agents is not None:
        return {"agents": study.agents}
    sides = {"near": study.near, "far": study.far}
    return {side: _model_of(config) for side, config in sides.items() if config is not None}


def _model_of(config: NearSection | FarConfig) -> str:
    if not isinstance(config, LlamaConfig):
        return config.model_dump_json(include={"provider", "model", "address", "agent"}, exclude_none=True)
    path = model_path(config.model)
    if not path.is_file():
        return config.model
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest = hashlib.sha256()
        for start in (0, max(0, size - _SAMPLED)):
            file.seek(start)
            digest.update(file.read(_SAMPLED))
    return f"{config.model} ({size:,} bytes, {digest.hexdigest()[:12]})"


def _configurations(file: StudyFile, policy: Policy) -> Sequence[Configuration]:
    base = configuration_of("[policy]", file.policy, policy).policy.model_copy(update={"mode": policy.mode})
    specs = file.runs or (() if file.run else STANDARD)
    return distinct([*parse_configurations(specs, base), *_read_tables(file.run, base)])


def _read_tables(tables: Sequence[dict[str, Any]], base: Policy) -> Iterator[Configuration]:
    for number, table in enumerate(tables, start=1):
        changes = dict(table)
        label, oracle = changes.pop("label", None), changes.pop("oracle", False)
        if not isinstance(label, str) or not label.strip() or not isinstance(oracle, bool):
            raise ConfigError(f"[[run]] number {number} needs a label, a text", hint='label = "careful"; oracle is true or false')
        yield configuration_of(label, changes, base, oracle=oracle)


def _check_privacy(study: Study, *, public: bool) -> None:
    """Check that no private task would leave the device. Tasks of the user's own worlds are private until the user says otherwise."""
    private = [world for world in study.worlds if world not in SHIPPED]
    leaving = [configuration.label for configuration in study.configurations if configuration.uses_far]
    if private and leaving and not public:
        raise ConfigError(
            f"the tasks of {private[0]} are private, and configuration {leaving[0]!r} sends them to the far agent",
            hint="pass --public (in a study file: public = true) if they may leave this device, or run `device` alone",
        )


def _check_sides(study: Study) -> None:
    for side, needed, config in (("near", study.needs_near, study.near), ("far", study.needs_far, study.far)):
        if needed and config is None:
            raise ConfigError(f"the sweep needs a {side} agent and none is configured", hint=f"--{side} MODEL, or [{side}] in nearfar.toml")


def _problems(error: ValidationError, source: str) -> Iterator[str]:
    for item in error.errors(include_url=False):
        where = ".".join(map(str, item["loc"]))
        if item["type"] == "extra_forbidden":
            yield f"{source}: unknown key {where!r}; the keys are {', '.join(StudyFile.model_fields)}"
        else:
            yield f"{source}: {where}: {item['msg'].removeprefix('Value error, ')}, not {item['input']!r}"


def claim_folder(folder: Path, study: Study) -> Path:
    """Make the folder and note what is run there; the path of its runs.

    Raises `ConfigError` where its runs were made with other models: one report could not tell them apart.
    """
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / _NOTE
    models = models_of(study)
    before = _models_before(note)
    if before and ("agents" in before) != ("agents" in models):
        problem = f"{folder} holds runs of {', '.join(before.values())}, and not of {', '.join(models.values())}"
        raise ConfigError(problem, hint="choose another folder: --out, or empty this one")
    for side, model in models.items():
        if before.get(side, model) != model:
            problem = f"{folder} holds runs of another {side} model: {before[side]}, not {model}"
            raise ConfigError(problem, hint="choose another folder: --out, or empty this one")
    labels = [configuration.label for configuration in study.configurations]
    described = {
        "models": {**before, **models},
        **study.model_dump(include={"worlds", "tasks", "seeds"}, mode="json"),
        "configurations": labels,
    }
    replace_text(note, json.dumps(described, indent=1, ensure_ascii=False) + "\n")
    return folder / RUNS


def _models_before(note: Path) -> dict[str, str]:
    if not note.exists():
        return {}
    try:
        models = json.loads(note.read_text(encoding="utf-8"))["models"]
        return {str(side): str(model) for side, model in models.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{note} is damaged: {error}", hint="delete it if all runs in this folder were made with the same models"
        ) from error
