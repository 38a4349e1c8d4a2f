"""Costs of whole tasks, over all their steps, by the class of the task and by whether it has tools.

A step says little of a task with tools: each step reads again what all earlier ones have read and found. So whole tasks are counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Final

from ...protocols import Prices, Usage
from ..task.route_decision import Estimate, EstimateSource
from .auto.classes import lineage

MEMORY: Final = 30
"""Tasks over which a mean fades: a price that has changed is known after about so many."""
_LEAST: Final = 5
"""Tasks of a class, or with prompts of one size, from which they stand for themselves."""


@dataclass(frozen=True, slots=True)
class TaskKind:
    """A kind of task, as far as it is known before the task is served."""

    task_class: str = ""
    """From coarse to fine: `search/hops`; empty: unknown."""
    has_tools: bool = False

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The kinds that hold this one and itself, the widest first."""
        path = ("tools" if self.has_tools else "no tools", *lineage(self.task_class))
        return tuple(path[:depth] for depth in range(len(path) + 1))


@dataclass(frozen=True, slots=True)
class TaskTaken:
    """Measured cost of one task with one agent, over all its steps."""

    prompt_tokens: int
    """Estimated before the task was served."""
    steps: int
    input_tokens: int
    """Read in all steps, with those that were cached."""
    cached_tokens: int
    cache_write_tokens: int
    output_tokens: int
    seconds: float | None
    """None: not measured."""
    dollars: float | None
    """None: the price is unknown."""
    joules: float | None = None
    """None: unknown."""


@dataclass(slots=True)
class Faded:
    """Mean and mean square of a figure, in which old tasks fade."""

    count: int = 0
    mean: float = 0.0
    square: float = 0.0

    def __len__(self) -> int:
        return self.count

    def add(self, value: float) -> None:
        self.count += 1
        weight = 1 / min(self.count, MEMORY)
        self.mean += weight * (value - self.mean)
        self.square += weight * (value * value - self.square)

    @property
    def estimate(self) -> Estimate:
        return Estimate(self.mean, sqrt(max(self.square - self.mean**2, 0.0)), EstimateSource.MEASURED)

    def inside(self, wider: "Faded | None") -> "Faded":
        """Return the figure of a class, drawn towards that of the wider one while it was seldom seen."""
        share = max(1 - self.count / _LEAST, 0.0)
        if wider is None or not wider.count or not share:
            return self
        mean, square = (own + share * (other - own) for own, other in ((self.mean, wider.mean), (self.square, wider.square)))
        return Faded(self.count or wider.count, mean, square)


@dataclass(slots=True)
class _Tally:
    """Tasks of one kind."""

    figures: dict[str, Faded] = field(default_factory=dict)
    seconds: dict[int, Faded] = field(default_factory=dict)
    """By the size of the prompt."""

    def add(self, size: int, task: TaskTaken) -> None:
        for name in _FIGURES:
            if (value := getattr(task, name)) is not None:
                self.figures.setdefault(name, Faded()).add(value)
        if task.seconds is not None:
            self.seconds.setdefault(size, Faded()).add(task.seconds)

    def seconds_of(self, size: int) -> Faded:
        enough = {known: faded for known, faded in self.seconds.items() if len(faded) >= _LEAST} or self.seconds
        return enough[min(enough, key=lambda known: (abs(known - size), known))] if enough else Faded()


_TOKENS: Final = ("prompt_tokens", "input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens")
_FIGURES: Final = (*_TOKENS, "steps", "dollars", "joules")


@dataclass(frozen=True, slots=True)
class TaskMeans:
    """Mean costs of tasks of one kind."""

    figures: Mapping[str, Faded]
    seconds: Estimate | None
    """None: not measured."""

    @property
    def joules(self) -> Estimate | None:
        return self.figures["joules"].estimate if "joules" in self.figures else None

    def dollars_of(self, tokens: int, prices: Prices | None) -> Estimate | None:
        """Return the dollars of a task whose prompt has so many tokens: the mean bill, moved by what is read more or less in each step.

        None where no bill is known.
        """
        if "dollars" not in self.figures:
            return None
        bill = self.figures["dollars"].estimate
        more = (tokens - self._mean("prompt_tokens")) * max(self._mean("steps"), 1.0)
        value = max(bill.value + more * self._dollars_per_input_token(prices), 0.0)
        return Estimate(value, bill.deviation, EstimateSource.MEASURED)

    def _dollars_per_input_token(self, prices: Prices | None) -> float:
        read = self._mean("input_tokens")
        if prices is None:
            total = read + self._mean("output_tokens")
            return self._mean("dollars") / total if total else 0.0
        steps = max(self._mean("steps"), 1.0)
        usage = Usage(
            input_tokens=round(read / steps),
            cached_tokens=round(self._mean("cached_tokens") / steps),
            cache_write_tokens=round(self._mean("cache_write_tokens") / steps),
        )
        if not usage.input_tokens:
            return float(prices.input) / 1e6
        return float(prices.dollars(usage)) / usage.input_tokens

    def _mean(self, name: str) -> float:
        return self.figures[name].mean


class TaskTallies:
    """The tasks of one agent by their kind. Not for several threads at a time."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, ...], _Tally] = {}

    def add(self, kind: TaskKind, task: TaskTaken) -> None:
        """Count a task in its kind and the wider ones."""
        for group in kind.groups:
            self._tallies.setdefault(group, _Tally()).add(_size(task.prompt_tokens), task)

    def means(self, kind: TaskKind, size: int) -> TaskMeans | None:
        """Return what tasks of a kind took whose prompt has a size (`int.bit_length` of its tokens); None where no task was seen."""
        known = [self._tallies[group] for group in kind.groups if group in self._tallies]
        if not known:
            return None
        figures: dict[str, Faded] = {}
        seconds: Faded = Faded()
        for tally in known:
            figures |= {name: faded.inside(figures.get(name)) for name, faded in tally.figures.items()}
            seconds = tally.seconds_of(size).inside(seconds)
        return TaskMeans(figures, seconds.estimate if seconds.count else None)


def _size(tokens: int) -> int:
    return max(tokens, 1).bit_length()
