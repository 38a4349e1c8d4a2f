"""The expected cost of agents, from what they took so far.

A step says little about a task with tools: each step reads again what all earlier ones have read and found. So whole tasks are counted, by
their class and by whether they have tools.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import hypot, sqrt
from threading import Lock
from typing import Final, NamedTuple

from ...protocols import Prices, Side, Usage
from ..agents import Pace, PaceSource, no_pace
from ..task.decisions import Estimate, EstimateSource
from ..task.results import Call

MEMORY: Final = 30
"""Tasks over which a mean fades: a price that has changed is known after about so many."""
_LEAST: Final = 5
"""Tasks of a class, or with prompts of one size, from which they stand for themselves."""


Group = tuple[str, ...]
"""A group of tasks by the path to it: `("no tools", "search")` lies in `("no tools",)`, and that in `()`, the group of all tasks."""


def lineage(name: str) -> tuple[str, ...]:
    """Return a class and those above it, the widest first: `search`, `search/hops`."""
    if not name:
        return ()
    parts = name.split("/")
    return tuple("/".join(parts[: depth + 1]) for depth in range(len(parts)))


def nested(path: Group) -> tuple[Group, ...]:
    """Return the groups that hold a group and itself, the widest first."""
    return tuple(path[:depth] for depth in range(len(path) + 1))


class TaskKind(NamedTuple):
    """A kind of task, as far as it is known before the task is served."""

    task_class: str = ""
    """From coarse to fine: `search/hops`; empty: unknown."""
    has_tools: bool = False
    is_follow_up: bool = False
    """The agent was sent the beginning of the conversation lately, so that it may have it in its prompt cache."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """The kinds that hold this one and itself, the widest first."""
        tools, place = "tools" if self.has_tools else "no tools", "follow-up" if self.is_follow_up else "beginning"
        return nested((tools, *lineage(self.task_class), place))


_UNKNOWN_KIND: Final = TaskKind()


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

    @classmethod
    def of(cls, calls: Sequence[Call], *, prompt_tokens: int) -> "TaskTaken":
        """Return what the calls of an attempt took; what is unknown of one of them is unknown of all."""
        dollars = [call.dollars for call in calls if call.dollars is not None]
        joules = [call.energy.joules for call in calls if call.side is Side.NEAR and call.energy.joules is not None]
        return cls(
            prompt_tokens=prompt_tokens,
            steps=len(calls),
            input_tokens=sum(call.usage.input_tokens for call in calls),
            cached_tokens=sum(call.usage.cached_tokens for call in calls),
            cache_write_tokens=sum(call.usage.cache_write_tokens for call in calls),
            output_tokens=sum(call.usage.output_tokens for call in calls),
            seconds=sum(call.seconds - call.queued_seconds for call in calls),
            dollars=float(sum(dollars)) if len(dollars) == len(calls) else None,
            joules=sum(joules) if len(joules) == len(calls) else None,
        )


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

    @property
    def cached_share(self) -> float:
        """Share of the tokens read, over all steps, that were in the agent's prompt cache."""
        read = self._mean("input_tokens")
        return min(self._mean("cached_tokens") / read, 1.0) if read else 0.0

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
        self._tallies: dict[Group, _Tally] = {}

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
    """Return the size class of a prompt. Prompts of one size differ by less than a factor of two."""
    return max(tokens, 1).bit_length()


KEPT: Final = 200
"""Latest observations of each figure; older ones no longer say how fast an agent is."""
_PRIOR_OUTPUT_TOKENS: Final = 300.0
_PRIOR_SECONDS: Final[Mapping[Side, tuple[float, float]]] = {Side.NEAR: (0.5, 4.0), Side.FAR: (1.0, 4.0)}
"""To the first token and to the end of a step, before anything was measured: typical of a laptop and of a provider."""
_UNSURE: Final = 1.0
"""Deviation of a prior, as a share of its value."""
_FREE: Final = Estimate(0.0, 0.0, EstimateSource.PRIOR)


@dataclass(frozen=True, slots=True)
class StepTaken:
    """Measured cost of one step of an agent. None: unknown."""

    input_tokens: int
    output_tokens: int
    seconds: float | None = None
    first_token_seconds: float | None = None
    dollars: float | None = None
    joules: float | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """Statistics of the latest observations of one figure."""

    count: int
    mean: float
    deviation: float
    p95: float


class Window:
    """The latest observations of one figure, in order of size as well as of time."""

    __slots__ = ("_latest", "_sorted", "_squares", "_sum")

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []
        self._sum = self._squares = 0.0

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, value: float) -> None:
        """Take an observation in, and let the oldest one go where there are too many."""
        self._count(value, 1)
        self._latest.append(value)
        insort(self._sorted, value)
        if len(self._latest) > KEPT:
            oldest = self._latest.popleft()
            self._count(oldest, -1)
            del self._sorted[bisect_left(self._sorted, oldest)]

    def _count(self, value: float, sign: int) -> None:
        self._sum += sign * value
        self._squares += sign * value * value

    @property
    def observed(self) -> Observed:
        """There has to be an observation."""
        count = len(self._sorted)
        mean = self._sum / count
        variance = max(self._squares / count - mean * mean, 0.0)
        return Observed(count, mean, sqrt(variance), p95=self._sorted[count * 95 // 100])


@dataclass(slots=True)
class _Agent:
    """Observations of one agent."""

    pace: Pace | None = None
    first_token: dict[int, Window] = field(default_factory=dict)
    """Seconds by the size of the prompt."""
    step: dict[int, Window] = field(default_factory=dict)
    output_tokens: Window = field(default_factory=Window)
    joules: Window = field(default_factory=Window)
    dollars_per_token: Window = field(default_factory=Window)
    tasks: TaskTallies = field(default_factory=TaskTallies)
    expected: "dict[tuple[TaskKind, int], _Expected]" = field(default_factory=dict)
    """Expected figures by kind of task and size of prompt, cached until something new is learned."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """Expected figures of a prompt that depend on nothing but its size."""

    first_token_seconds: Estimate
    seconds: Estimate
    step_seconds: Estimate
    """Seconds of one step."""
    output_tokens: Estimate
    """Output tokens of a step."""
    joules: Estimate | None
    tasks: TaskMeans | None
    """Mean costs of whole tasks of this kind; None if none was seen."""


class Costs(NamedTuple):
    """Expected cost of a task with one agent."""

    first_token_seconds: Estimate
    seconds: Estimate
    dollars: Estimate | None
    joules: Estimate | None
    queue_seconds: float = 0.0
    """Seconds that both figures of time begin with, in which the agent works on calls before this one."""
    cached_share: float = 0.0
    """Share of the tokens read that is expected to be in the agent's prompt cache."""

    def behind(self, ahead: int, step: Estimate) -> "Costs":
        """Return the cost of a task that waits until so many calls have ended, each of which takes as long as a `step`.

        A call that has begun counts in full: how long it will take says nothing of how long it has taken, as with exponential times
        (Kleinrock, Queueing Systems, volume 1, 1975, chapter 3).
        """
        wait, deviation = ahead * step.value, sqrt(ahead) * step.deviation

        def later(time: Estimate) -> Estimate:
            return replace(time, value=time.value + wait, deviation=hypot(time.deviation, deviation))

        return self._replace(first_token_seconds=later(self.first_token_seconds), seconds=later(self.seconds), queue_seconds=wait)


class RunningEstimates:
    """Running estimates of the cost of each agent, by its name. Calls may come from any thread.

    Before the first step of an agent, its measured pace is used; without a pace, typical figures of its side.
    """

    def __init__(self, paces: PaceSource = no_pace) -> None:
        self._paces = paces
        self._agents: dict[str, _Agent] = {}
        self._lock = Lock()

    def add_step(self, agent: str, step: StepTaken) -> None:
        """Learn what a step took."""
        size = _size(step.input_tokens)
        with self._lock:
            known = self._known(agent)
            known.expected.clear()
            if step.seconds is not None:
                known.step.setdefault(size, Window()).add(step.seconds)
            known.output_tokens.add(step.output_tokens)
            if step.first_token_seconds is not None:
                known.first_token.setdefault(size, Window()).add(step.first_token_seconds)
            if step.joules is not None:
                known.joules.add(step.joules)
            tokens = step.input_tokens + step.output_tokens
            if step.dollars is not None and tokens:
                known.dollars_per_token.add(step.dollars / tokens)

    def add_cut_step(self, agent: str, tokens: int, seconds: float) -> None:
        """Learn that a step on a prompt of about so many tokens was not waited for that long: otherwise only quick steps would count."""
        with self._lock:
            known = self._known(agent)
            known.expected.clear()
            known.step.setdefault(_size(tokens), Window()).add(seconds)

    def add_task(self, agent: str, task: TaskTaken, *, kind: TaskKind = _UNKNOWN_KIND) -> None:
        """Learn what a whole task took, over all its steps."""
        with self._lock:
            known = self._known(agent)
            known.expected.clear()
            known.tasks.add(kind, task)

    def latency(self, agent: str, tokens: int) -> Observed | None:
        """Return the seconds of a step on prompts of about so many tokens; None if no step was seen."""
        with self._lock:
            known = self._agents.get(agent)
            window = _nearest(known.step, _size(tokens)) if known is not None else None
            return window.observed if window is not None else None

    def costs(
        self,
        agent: str,
        side: Side,
        *,
        tokens: int,
        prices: Prices | None,
        kind: TaskKind = _UNKNOWN_KIND,
        ahead: int = 0,
    ) -> Costs:
        """Return what a task with a prompt of so many tokens is expected to take, over all its steps.

        `prices` are the agent's own, where they are known; `ahead`: calls that have to end before its first one is worked on.
        """
        size = _size(tokens)
        with self._lock:
            known = self._known(agent)
            expected = known.expected.get((kind, size))
            if expected is None:
                expected = known.expected[kind, size] = _expected(known, side, kind, size)
            dollars = _dollars(known, side, expected, tokens=tokens, prices=prices)
        cached = 0.0 if expected.tasks is None else expected.tasks.cached_share
        costs = Costs(expected.first_token_seconds, expected.seconds, dollars, expected.joules, cached_share=cached)
        return costs.behind(ahead, expected.step_seconds) if ahead else costs

    def _known(self, agent: str) -> _Agent:
        known = self._agents.get(agent)
        if known is None:
            known = self._agents[agent] = _Agent(pace=self._paces(agent))
        return known


def _expected(known: _Agent, side: Side, kind: TaskKind, size: int) -> _Expected:
    tasks = known.tasks.means(kind, size)
    output_tokens = _figure(known.output_tokens, _prior(_PRIOR_OUTPUT_TOKENS))
    first, whole, energy = _before_it_was_seen(known.pace, side, size, output_tokens)
    joules = _figure(known.joules, energy) if energy is not None or len(known.joules) else None
    seconds = _figure(_nearest(known.step, size), whole)
    return _Expected(
        first_token_seconds=_figure(_nearest(known.first_token, size), first),
        seconds=seconds if tasks is None or tasks.seconds is None else tasks.seconds,
        step_seconds=seconds,
        output_tokens=output_tokens,
        joules=joules if tasks is None or tasks.joules is None else tasks.joules,
        tasks=tasks,
    )


def _before_it_was_seen(pace: Pace | None, side: Side, size: int, output: Estimate) -> tuple[Estimate, Estimate, Estimate | None]:
    """Estimate seconds to the first token, and seconds and joules of a step, before any step on prompts of this size was seen."""
    if pace is None:
        first_token, seconds = _PRIOR_SECONDS[side]
        return _prior(first_token), _prior(seconds), None
    tokens = _typical(size)
    seconds = pace.seconds(tokens, output.value)
    more = pace.seconds(tokens, output.value + output.deviation) - seconds  # the length of the output is unknown
    joules = None if pace.watts is None else Estimate(pace.watts * seconds, pace.watts * more, EstimateSource.PROFILE)
    return Estimate(pace.first_token_seconds(tokens), 0.0, EstimateSource.PROFILE), Estimate(seconds, more, EstimateSource.PROFILE), joules


def _prior(value: float) -> Estimate:
    return Estimate(value, _UNSURE * value, EstimateSource.PRIOR)


def _typical(size: int) -> int:
    """Return the number of tokens in the middle of a size."""
    return (3 << size) >> 2


def _nearest(windows: Mapping[int, Window], size: int) -> Window | None:
    """Return the observations on prompts of this size, or of the nearest size with enough of them."""
    enough = {known: window for known, window in windows.items() if len(window) >= _LEAST} or windows
    return enough[min(enough, key=lambda known: (abs(known - size), known))] if enough else None


def _figure(window: Window | None, prior: Estimate | None) -> Estimate:
    """Return the mean of the observations, or `prior` if there are none; `prior` must be given then."""
    if window is None or not len(window):
        assert prior is not None, "the caller has looked"
        return prior
    seen = window.observed
    return Estimate(seen.mean, seen.deviation, EstimateSource.MEASURED)


def _dollars(known: _Agent, side: Side, expected: _Expected, *, tokens: int, prices: Prices | None) -> Estimate | None:
    """Return the dollars of a task: what such tasks were billed, else one step at the agent's prices."""
    if expected.tasks is not None and (billed := expected.tasks.dollars_of(tokens, prices)) is not None:
        return billed
    output = expected.output_tokens
    if prices is not None:
        rates = prices.rates(tokens)
        per_step = (tokens * float(rates.input) + output.value * float(rates.output)) / 1e6
        return Estimate(per_step, max(output.deviation * float(rates.output) / 1e6, _UNSURE * per_step), EstimateSource.PRIOR)
    if len(known.dollars_per_token):
        seen = known.dollars_per_token.observed
        return Estimate(seen.mean * (tokens + output.value), seen.mean * output.deviation, EstimateSource.MEASURED)
    return _FREE if side is Side.NEAR else None
