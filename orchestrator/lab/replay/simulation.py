"""Simulate a policy on recorded tasks, and compare it with the alternatives on the same tasks.

The router asks heads that are named, or heads that are trained on other tasks than they are asked about.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import Field

from ....protocols import ConfigError, Sensitivity, Side
from ....protocols.steps import Value
from ...routing.escalation import Escalation
from ...routing.traces import Trace, agents_of, read_traces
from ...routing.training import examples_of, train_escalation
from ...task.modes import Mode, Strategy
from ...task.policy import Policy
from ...task.routing_policy import BUDGETS
from ...util.embedding import MiniLmEmbedder
from ..statistics import CurveFigures, IntervalEstimate, Point, curve_figures, doubts, estimated_means, quantiles
from ..training import train_head, write_head
from . import Progress, RecordedCascade, with_router
from .replayed import Online, Replayed, replay

if TYPE_CHECKING:
    from ..statistics import Floats

_SINGLE: Final = frozenset({Strategy.ROUTE, Strategy.CASCADE, Strategy.DEVICE, Strategy.CLOUD, Strategy.SPECULATE})
"""Strategies in which one agent answers whose outcome was recorded, unless it fails."""
_ORACLE_POINTS: Final = 41


class Served(Value):
    """The result of one way to serve the tasks, as means per task with their 95 % intervals."""

    name: str
    far_share: IntervalEstimate
    """Share of the tasks that a far agent serves."""
    score: IntervalEstimate
    dollars: IntervalEstimate | None
    """None where a far outcome was recorded without its price."""
    threshold: float | None = None
    """Advantage above which tasks go far; None where that is not how they are served."""


class ClassResult(Value):
    """The tasks of one class."""

    task_class: str
    """Empty: unknown."""
    tasks: int
    far_share: float
    """Share of tasks that the policy sends far."""
    score: IntervalEstimate
    """Mean score of the policy."""
    near: float
    """Mean score where all of them go to the near side."""
    far: float


class Simulation(Value):
    """A policy on recorded tasks."""

    tasks: int
    settled: int
    """Tasks for which a rule or a limit decides rather than the threshold."""
    sides: Mapping[str, Side]
    incomplete: int
    """Traces that lack the score of an agent; they are no part of any figure."""
    refused: Mapping[str, int]
    """Tasks that the policy turns away, by the reason; no part either."""
    front: tuple[Served, ...]
    """The router under thresholds from the highest to the lowest: ever more tasks go far."""
    figures: CurveFigures | None
    """Figures over the tasks that the threshold decides; None where the sides do equally well on them."""
    policy: Served
    """The policy as it is written."""
    random: Served
    """A router that sends as many tasks far as the policy, but draws them by lot."""
    singles: tuple[Served, ...]
    """Every agent alone, the best one first."""
    oracle: Served
    """The best agent for each task, known only in hindsight."""
    oracle_front: tuple[Point, ...]
    """The best that any router could do with each share of far tasks."""
    classes: tuple[ClassResult, ...]
    """The largest first."""
    online: Online | None = Field(exclude=True)
    """The tasks as a stream over which a budget is held; None where the policy has none."""
    warnings: tuple[str, ...]
    """Caveats for reading the figures."""

    @property
    def best_single(self) -> Served:
        """The agent that alone scores highest; of several, the one that costs least."""
        return self.singles[0]

    def summary(self) -> dict[str, Any]:
        """Return all figures as JSON can hold them."""
        found = self.model_dump(mode="json")
        if self.online is not None:
            found["online"] = self.online.model_dump(mode="json", exclude={"running", "chosen"}) | {"worst_miss": self.online.worst_miss}
        return found


def simulation(replayed: Replayed, *, seed: int = 0) -> Simulation:
    """Summarise a replay: the policy's result, and the alternatives on the same tasks. `seed` is that of the resamples."""
    ways = {agent: [agent] * len(replayed.tasks) for agent in replayed.sides}
    *found, oracle = _estimate_columns(
        replayed,
        {name: _columns(replayed, agents, with_drafts=False) for name, agents in {**ways, "oracle": _best_agents(replayed)}.items()},
        seed,
    )
    (policy,) = estimate_ways(replayed, {"the policy": replayed.chosen}, seed=seed)
    figures = replay_figures(replayed, seed)
    return Simulation(
        tasks=len(replayed.tasks),
        settled=sum(not task.is_free for task in replayed.tasks),
        sides=replayed.sides,
        incomplete=replayed.incomplete,
        refused=replayed.refused,
        front=front(replayed, seed),
        figures=figures,
        policy=policy,
        random=_random(replayed, seed),
        singles=tuple(sorted(found, key=lambda way: (-way.score.value, way.dollars.value if way.dollars else 0.0))),
        oracle=oracle,
        oracle_front=_oracle_front(replayed),
        classes=_classes(replayed, seed),
        online=replayed.online,
        warnings=(*_warnings(replayed), *noise(replayed, figures, seed)),
    )


def thresholds(replayed: Replayed) -> list[float]:
    """Return the thresholds of a front, from the one above which nothing goes far to the one above which everything does."""
    import numpy

    highest, *lower = quantiles(replayed.advantages)[::-1]
    return [float(highest), *(float(numpy.nextafter(edge, -numpy.inf)) for edge in lower or [highest])]


def estimate_ways(replayed: Replayed, ways: Mapping[str, Sequence[str]], *, seed: int) -> list[Served]:
    """Estimate ways to serve the tasks under the policy, each given by its name and the agent that answers each task."""
    return _estimate_columns(replayed, {name: _columns(replayed, agents) for name, agents in ways.items()}, seed)


def front(replayed: Replayed, seed: int) -> tuple[Served, ...]:
    """Estimate the router under thresholds from the highest to the lowest."""
    ways = {threshold: _columns(replayed, replayed.served_by(threshold)) for threshold in thresholds(replayed)}
    found = _estimate_columns(replayed, {f"threshold {threshold!r}": columns for threshold, columns in ways.items()}, seed)
    return tuple(way.model_copy(update={"threshold": threshold}) for way, threshold in zip(found, ways, strict=True))


def _columns(replayed: Replayed, agents: Sequence[str], *, with_drafts: bool = True) -> "Floats":
    """Return an array of shape (3, tasks): 1 for a far agent, its score, its dollars and, in a cascade, those of the draft before it."""
    import numpy

    return numpy.stack([replayed.is_far(agents), replayed.scores(agents), replayed.dollars(agents, with_drafts=with_drafts)])


def _estimate_columns(replayed: Replayed, ways: "Mapping[str, Floats]", seed: int) -> list[Served]:
    found = estimated_means([column for columns in ways.values() for column in columns], seed=seed)
    knows_dollars = replayed.knows_dollars
    return [
        Served(name=name, far_share=found[3 * place], score=found[3 * place + 1], dollars=found[3 * place + 2] if knows_dollars else None)
        for place, name in enumerate(ways)
    ]


def replay_figures(replayed: Replayed, seed: int) -> CurveFigures | None:
    """Return figures over the tasks that the threshold decides; None where the sides do equally well on them."""
    free = [place for place, task in enumerate(replayed.tasks) if task.is_free]
    near, far = (replayed.scores(agents)[free] for agents in (replayed.near, replayed.far))
    return None if near.mean() == far.mean() else curve_figures(replayed.advantages, near, far, seed=seed)


def noise(replayed: Replayed, figures: CurveFigures | None, seed: int) -> Iterator[str]:
    """Yield a warning for each figure of the replay that is within noise."""
    free = [place for place, task in enumerate(replayed.tasks) if task.is_free]
    (gap,) = estimated_means([(replayed.scores(replayed.far) - replayed.scores(replayed.near))[free]], seed=seed)
    yield from doubts(gap, None if figures is None else figures.recovered)


def _random(replayed: Replayed, seed: int) -> Served:
    """Estimate a router that sends as many of the free tasks far as the policy, drawn by lot."""
    import numpy

    free = numpy.array([task.is_free for task in replayed.tasks])
    share = replayed.is_far(replayed.chosen)[free].mean()
    near, far = (_columns(replayed, agents) for agents in (replayed.near, replayed.far))
    return _estimate_columns(replayed, {"random": (1 - share) * near + share * far}, seed)[0]


def _best_agents(replayed: Replayed) -> list[str]:
    """Return the agent with the highest score for each task; of several a near one, and then the cheapest."""

    def merit(trace: Trace, agent: str) -> tuple[float, bool, float]:
        outcome = trace.outcomes[agent]
        return (-(outcome.score or 0.0), replayed.sides[agent] is Side.FAR, outcome.dollars or 0.0)

    return [min(task.trace.outcomes, key=lambda agent: merit(task.trace, agent)) for task in replayed.tasks]


def _oracle_front(replayed: Replayed) -> tuple[Point, ...]:
    import numpy

    near, far = (
        numpy.max([replayed.scores([agent] * len(replayed.tasks)) for agent, known in replayed.sides.items() if known is side], axis=0)
        for side in (Side.NEAR, Side.FAR)
    )
    gained = near.mean() + numpy.cumsum([0.0, *numpy.sort(far - near)[::-1]]) / len(near)
    places = numpy.unique(numpy.linspace(0, len(near), _ORACLE_POINTS).round().astype(int))
    return tuple(Point(far_share=float(place / len(near)), quality=float(gained[place])) for place in places)


def _classes(replayed: Replayed, seed: int) -> tuple[ClassResult, ...]:
    import numpy

    scores, is_far = replayed.scores(replayed.chosen), replayed.is_far(replayed.chosen)
    near, far = (replayed.scores(agents) for agents in (replayed.near, replayed.far))
    places: dict[str, list[int]] = {}
    for place, task in enumerate(replayed.tasks):
        places.setdefault(task.trace.task_class, []).append(place)
    return tuple(
        ClassResult(
            task_class=name,
            tasks=len(rows),
            far_share=float(numpy.mean(is_far[rows])),
            score=estimated_means([scores[rows]], seed=seed)[0],
            near=float(near[rows].mean()),
            far=float(far[rows].mean()),
        )
        for name, rows in sorted(places.items(), key=lambda item: (-len(item[1]), item[0]))
    )


def _warnings(replayed: Replayed) -> Iterator[str]:
    policy = replayed.policy
    if policy.router.head is not None:
        yield f"The head in {policy.router.head} was used as it is. If it was trained on these tasks, the figures flatter it."
    if policy.strategy not in _SINGLE:
        yield (
            f"Under strategy {policy.strategy} more than the first agent takes part in a task, which recorded outcomes do not show: "
            "the policy's point counts the first agent alone. The front and the stream are those of strategy route."
        )
    if policy.sensitivity is not Sensitivity.PUBLIC:
        yield "Tasks are private under this policy and stay on the device. The front and the stream are those of tasks that may leave it."
    if policy.mode is not Mode.AUTO:
        yield f"The policy has mode {policy.mode}. The front and the stream are those of mode auto."
    aside = [name for name in BUDGETS if name != "far_share" and getattr(policy.router, name) is not None]
    if aside:
        yield f"A replay holds no {aside[0]}, since it does not know when tasks came and what was reported: the threshold stands."
    if policy.strategy is Strategy.CASCADE and not replayed.knows_evidence:
        yield "The traces hold neither answers nor confidences, so that nothing is known of the drafts, and their prompts' length decides."
    if policy.rules:
        yield "Rules that ask for the device find its state unknown, and those that ask for the time see that of the simulation."


_MOST_COMPARED: Final = 500
"""Newest tasks by which two policies are compared."""


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """Recorded outcomes, and the tasks that are replayed."""

    traces: Sequence[Trace]
    """Learned from."""
    tested: Sequence[Trace] | None
    """Replayed, and never learned from; None: the same traces, each predicted by what was trained on others of them."""
    sides: Mapping[str, Side]
    """Side of each agent that takes part, in the order of their roles in a cascade."""
    embedder: MiniLmEmbedder | None
    """Embeds the prompts for heads that are trained; None: they look at words and classes alone."""
    seed: int

    @classmethod
    def among(cls, traces: Sequence[Trace], known: Mapping[str, Side], *, embedder: MiniLmEmbedder | None, hint: str) -> Self:
        """Return the source of traces whose agents' sides are `known`. Raises `ConfigError`, with the hint, where a side has no agent."""
        sides = {agent: side for agent, side in known.items() if agent in agents_of(traces)}
        lacking = sorted(set(Side) - set(sides.values()))
        if lacking:
            raise ConfigError(f"the traces have no {lacking[0]} agent that is known", hint=hint)
        return cls(traces, None, sides, embedder, 0)

    def replayed(self, policy: Policy, *, far_share: float | None = None, progress: Progress = lambda _: None) -> Replayed:
        """Replay the tasks. `far_share`: budget to hold over the stream, instead of the policy's. Raises `ConfigError` as `replay` and
        training do."""
        if self.tested is None or policy.router.head is not None:
            return self._replay(self.replayed_traces, policy, far_share, progress)
        with TemporaryDirectory(prefix="nearfar-head-") as folder:
            self._train_head(Path(folder), progress)
            found = self._replay(self.tested, with_router(policy, head=Path(folder)), far_share, progress)
            return replace(found, policy=policy)

    @property
    def replayed_traces(self) -> Sequence[Trace]:
        """The traces that are replayed."""
        return self.traces if self.tested is None else self.tested

    def cascade(self) -> tuple[RecordedCascade, Escalation | None]:
        """Return the recorded drafts, and an escalation that was trained on other traces; None: each draft is judged by others of them."""
        recorded = RecordedCascade.of(self.replayed_traces, self.sides)
        if self.tested is None:
            return recorded, None
        return recorded, Escalation(train_escalation(RecordedCascade.of(self.traces, self.sides).examples, seed=self.seed))

    def _replay(self, traces: Sequence[Trace], policy: Policy, far_share: float | None, progress: Progress) -> Replayed:
        return replay(traces, policy, sides=self.sides, embedder=self.embedder, seed=self.seed, far_share=far_share, progress=progress)

    def _train_head(self, folder: Path, progress: Progress) -> None:
        progress(f"training a head on {len(self.traces):,} traces")
        examples = examples_of(self.traces, list(self.sides))
        if self.embedder is not None:
            examples = replace(examples, embeddings=self.embedder.early_all(examples.prompts))
        write_head(train_head(examples, seed=self.seed), folder)


def installed_embedder() -> MiniLmEmbedder | None:
    """Return the model that embeds prompts; None where its packages are not installed."""
    has_all = find_spec("onnxruntime") is not None and find_spec("tokenizers") is not None
    return MiniLmEmbedder() if has_all else None


def compare_policies(recorded: Path, sides: Mapping[str, Side], policies: Sequence[Policy]) -> list[Simulation]:
    """Replay the newest recorded tasks under each policy. `sides` are those of the agents by name.

    Raises `ConfigError` for outcomes that cannot be read or are too few, and where packages are missing.
    """
    if find_spec("numpy") is None or find_spec("torch") is None:
        raise ConfigError("replaying recorded tasks needs numpy and torch", hint="pip install 'nearfar[train]'")
    traces = read_traces(recorded)[-_MOST_COMPARED:]
    hint = f"they tell of {', '.join(agents_of(traces)[:12])}"
    source = ReplaySource.among(traces, sides, embedder=installed_embedder(), hint=hint)
    return [simulation(source.replayed(policy)) for policy in policies]
