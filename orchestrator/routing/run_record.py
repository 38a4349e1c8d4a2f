"""One task under one configuration, as a sweep records it."""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue

from ...protocols import Usage
from ...protocols.messages import Value


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
    """Trigger of the check: `interval`, `tool_error`, `loop`, `stall`, `long_observation`, `low_confidence`, `half_spent`, `answer`."""
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
    interventions: int = Field(default=0, ge=0)
    """Verdicts that were acted upon."""
