"""Records of the runs of a sweep, and the outcomes of configurations that `auto` learns from."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue

from ...protocols import ConfigError, Usage
from ...protocols.steps import Value
from ..task.decisions import Arm
from ..task.events import Navigated
from ..task.modes import Strategy, TaskProfile


def _as_utf8(text: str) -> str:
    """Replace half a character, where a model was cut off: UTF-8 cannot encode it."""
    return text.encode(errors="replace").decode()


def _finite(figures: Mapping[str, float | None]) -> Mapping[str, float | None]:
    """Replace NaN and infinities by None: JSON has neither."""
    return {name: None if figure is None or not math.isfinite(figure) else figure for name, figure in figures.items()}


Text = Annotated[str, AfterValidator(_as_utf8)]


class Check(Value):
    """One look of the supervisor at the work."""

    turn: int = Field(ge=0)
    """Executor turns done when it was made."""
    trigger: str | None
    """Trigger of the check: `interval`, `tool_error`, `loop`, `stall`, `long_observation`, `low_confidence`, `half_spent`, `answer`,
    `navigator`, `act`."""
    verdict: Literal["continue", "intervene", "unreadable"] | None
    """None where the supervisor failed."""


class RunRecord(Value):
    """One task under one configuration: a line of `runs.jsonl`."""

    key: str
    """Names the run: `run_key` of what was to be run, so that a sweep knows what it has."""
    world: str
    task: str
    """The task's identifier in its world."""
    prompt: Text
    context_words: int = Field(default=0, ge=0)
    """Length of the context that the task carried apart from its prompt."""
    tools: tuple[str, ...]
    """Names of the tools that the task offered."""
    kind: str
    difficulty: int
    seed: int
    """Seed that the task was drawn with."""
    configuration: str
    """A label such as `pevr/8`."""
    strategy: str
    knobs: Mapping[str, JsonValue] = {}
    """Differences from the policy, apart from the strategy, in the shape of the `[policy]` section."""
    oracle: bool = False
    """The far side was the world's own solver: a ceiling, not a model."""
    near_model: str | None
    """None where the near side did not take part."""
    far_model: str | None
    answer: Text
    error: Text | None = None
    """`Class: message` where the run failed; its score is then 0."""
    success: bool
    score: float = Field(ge=0, le=1)
    measures: Annotated[Mapping[str, float | None], AfterValidator(_finite)] = {}
    """The world's own figures; None: it had no finite one for this run."""
    turns: int = Field(ge=0)
    """Steps of the executor."""
    near_calls: int = Field(ge=0)
    far_calls: int = Field(ge=0)
    near_usage: Usage = Usage()
    far_usage: Usage = Usage()
    dollars: float | None
    """US dollars of the far side; None: unknown. `dollars_source` says at whose price."""
    dollars_source: str
    seconds: float = Field(ge=0)
    """Wall time."""
    joules: float | None
    """Energy of the near side; None: unknown."""
    joules_source: Literal["measured", "estimated", "unavailable"]
    peak_kv_bytes: int | None
    """The largest KV cache that the near side needed; None: unknown."""
    context_tokens: tuple[int, ...] = ()
    """Prompt and output of each executor turn, in order."""
    checks: tuple[Check, ...] = ()
    moves: tuple[Navigated, ...] = ()
    """Moves that a navigator, or chance, has chosen, with their probabilities."""
    interventions: int = Field(default=0, ge=0)
    """Verdicts that were acted upon."""


class Outcome(Value):
    """One task under one configuration: a line of the file that `Hybrid.report` appends to."""

    type: Literal["outcome"] = "outcome"
    task_class: str = ""
    """The class of the task, from coarse to fine: `search/hops`. Empty: only its features are known."""
    profile: TaskProfile
    arm: Arm
    label: str = ""
    """How people call the configuration, such as `pevr/8`."""
    score: float = Field(ge=0, le=1)
    dollars: float | None = Field(ge=0, allow_inf_nan=False)
    """US dollars of both sides; None: unknown."""


def outcomes_of(records: Iterable[RunRecord]) -> Iterator[Outcome]:
    """Yield the outcomes of a sweep's runs.

    Left out are those that tell nothing about a configuration: of an oracle, in shadow mode, of `auto` itself, and those that failed
    before any agent was asked, as where the world could not start over or the process died.
    Raises `ConfigError` for a configuration that this version cannot run.
    """
    for record in records:
        if record.oracle or record.strategy == Strategy.AUTO or _is_shadow(record) or _never_began(record):
            continue
        yield Outcome(
            task_class=f"{record.world}/{record.kind}",
            profile=TaskProfile.of(record.prompt, record.tools, context_words=record.context_words),
            arm=arm_of(record),
            label=record.configuration,
            score=record.score,
            dollars=record.dollars,
        )


def arm_of(record: RunRecord) -> Arm:
    """Return the configuration of a run. Raises `ConfigError` for an unknown strategy."""
    # A sweep runs these two without the other side to fall back to; here the mode is the user's to say.
    implied = ("mode",) if record.strategy in (Strategy.DEVICE, Strategy.CLOUD) else ()
    knobs = {name: value for name, value in record.knobs.items() if name not in implied}
    try:
        return Arm(strategy=Strategy(record.strategy), knobs=knobs)
    except ValueError as error:
        raise ConfigError(f"run {record.key} has strategy {record.strategy!r}, which is unknown", hint="sweep again") from error


def _never_began(record: RunRecord) -> bool:
    """Return True if the run failed before any call. Its tools are unknown then, so it would pass for a task without tools."""
    return record.error is not None and record.near_calls + record.far_calls == 0


def _is_shadow(record: RunRecord) -> bool:
    supervision = record.knobs.get("supervision")
    return isinstance(supervision, dict) and supervision.get("shadow") is True
