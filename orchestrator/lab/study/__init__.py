"""`Study`: what a sweep is to run, from a TOML file, the command line or Python, and the folder that the runs go to."""

import hashlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError, field_validator

from ....protocols import ConfigError
from ....protocols.steps import Value
from ...compose.agents import FarConfig, LlamaConfig, NearSection, model_path
from ...task.modes import Strategy
from ...task.policy import Policy
from ..worlds.loading import SHIPPED
from .configurations import STANDARD, Configuration, configuration_of, distinct, parse_configurations

_SAMPLED: Final = 1 << 20
"""Bytes at each end of a model file that tell it from another of the same length."""
RUNS: Final = "runs.jsonl"
_NOTE: Final = "study.json"


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
    _write_at_once(note, json.dumps(described, indent=1, ensure_ascii=False) + "\n")
    return folder / RUNS


def _write_at_once(path: Path, text: str) -> None:
    """Replace a file atomically: it has the old text or the new one whenever the sweep is stopped."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


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
