"""Training a head on the user's own runs, with a held-out report: calibration of each agent, and the gap that routing recovers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from pydantic import Field

from ....protocols import ConfigError
from ....protocols.steps import Value
from ...routing.escalation import Escalation
from ...routing.head import EmbedsText, Head, sigmoid
from ...routing.traces import Trace
from ...routing.training import Examples, examples_of, folds_of
from ...task.modes import Strategy
from ...task.policy import Policy
from ...util.embedding import MiniLmEmbedder
from ..replay import RecordedCascade
from ..replay.replayed import replay_cascade
from ..replay.simulation import Served, front
from ..statistics import CurveFigures, IntervalEstimate, curve_figures, doubts, estimated_means
from . import HeadParts, fit_head, train_head, write_head

if TYPE_CHECKING:
    import numpy

    from ...routing.training import Floats

    Column = numpy.ndarray[tuple[int], numpy.dtype[numpy.float32]]
    from ..statistics import Floats as Doubles

FOLDS: Final = 5
_BINS: Final = 10
_LEAST_CHANCE: Final = 1e-6
_LEAST_PROMPTS: Final = 10
"""On which both of a pair must have been tried."""


class CalibrationError(Value):
    """How far an agent's predicted probabilities are from its outcomes; 0 would be perfect."""

    brier: float
    """Mean squared difference."""
    log_loss: float
    """Mean negative logarithm of the probability of what came, in nats."""
    calibration_error: float
    """Expected calibration error: mean distance between the mean prediction and the mean outcome in ten bins of predictions of equal width,
    weighted by their sizes (Guo et al., arXiv 1706.04599)."""


class AgentReport(Value):
    """One agent."""

    agent: str
    prompts: int
    """On which its outcome is known."""
    missing: float
    """Share of the prompts on which it is not."""
    quality: float
    """Its mean outcome."""
    before: CalibrationError
    """Calibration of the head's log-odds before they are calibrated."""
    after: CalibrationError
    """Calibration of the probabilities that the head predicts."""


class PairReport(Value):
    """Routing between two agents, to the far one where it is expected to gain most."""

    near: str
    far: str
    """The one with the better mean outcome."""
    prompts: int
    """On which both outcomes are known."""
    near_quality: float
    far_quality: float
    gap: IntervalEstimate
    """Mean outcome of the far one less that of the near one."""
    recovered: IntervalEstimate
    """APGR; at random it is 0.5."""
    far_share_for_half: IntervalEstimate
    """CPT(50 %): the share of far calls at which half of the gap in quality is recovered."""
    far_share_for_most: IntervalEstimate
    """CPT(80 %)."""
    warnings: tuple[str, ...]
    """Figures that are within noise."""


class HeldOutReport(Value):
    """The held-out report of a head: every prompt is predicted by a head that has not seen it."""

    prompts: int = Field(gt=0)
    folds: int
    """Folds of the cross-validation; 0: the prompts are of another file, and the head is the one that was trained."""
    agents: tuple[AgentReport, ...]
    pairs: tuple[PairReport, ...]
    """Without those that do equally well, or were tried together on fewer than 10 prompts."""


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """A head, and what it is worth."""

    parts: HeadParts
    """For `write_head`."""
    report: HeldOutReport


def train_on_traces(
    traces: Sequence[Trace],
    agents: Sequence[str],
    *,
    embedder: MiniLmEmbedder | None,
    tested: Sequence[Trace] | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> TrainedHead:
    """Train a head for some of the agents that the traces tell of.

    Args:
        traces: those of the same prompt count as one, with the mean scores.
        agents: whose success it shall predict.
        embedder: None: the head looks at words and classes alone.
        tested: traces for the report alone; None: the report is cross-validated.
        seed: of the folds, and of the prompts that are remembered.
        progress: is told what happens next.

    Raises `ConfigError` where torch is not installed, an agent is in no trace or its outcomes are all missing or all the same, or there are
    fewer than 20 prompts.
    """
    try:
        import torch  # noqa: F401 - asked for here, before anything takes long
    except ImportError as error:
        raise ConfigError("training a head needs torch", hint="pip install 'nearfar[train]'") from error
    examples = examples_of(traces, agents)
    examples.check()
    progress(f"embedding {len(examples.prompts)} prompts")
    examples = _embedded(examples, embedder)
    if tested is None:
        report = held_out_report(examples, seed=seed, progress=progress)
        progress("training on all prompts")
        return TrainedHead(train_head(examples, seed=seed), report)
    progress("training on all prompts")
    parts = train_head(examples, seed=seed)
    progress(f"asking the head about {len(tested)} tasks of the test")
    asked = _embedded(examples_of(tested, agents), embedder)
    for place, agent in enumerate(asked.agents):
        if not (asked.outcomes[:, place] >= 0).any():
            raise ConfigError(f"no trace of the test says how {agent!r} did", hint="the test needs scores of the same agents")
    with load_head(parts, _remembered(asked)) as head:
        return TrainedHead(parts, _reported(asked, *predictions(head, asked), folds=0))


def held_out_report(examples: Examples, *, seed: int, progress: Callable[[str], None]) -> HeldOutReport:
    """Cross-validate heads on examples, each one written, loaded and asked as it would be in use."""
    return _reported(examples, *predict_held_out(examples, seed=seed, progress=progress), folds=FOLDS)


def _embedded(examples: Examples, embedder: MiniLmEmbedder | None) -> Examples:
    return examples if embedder is None else replace(examples, embeddings=embedder.early_all(examples.prompts))


def _remembered(examples: Examples) -> "Remembered | None":
    return None if examples.embeddings is None else Remembered(examples.prompts, examples.embeddings)


def _reported(examples: Examples, before: "Floats", after: "Floats", *, folds: int) -> HeldOutReport:
    """Compare predictions before and after calibration, each of shape (prompts, agents), with the outcomes."""
    return HeldOutReport(
        prompts=len(examples.prompts),
        folds=folds,
        agents=tuple(
            _agent(name, examples.outcomes[:, place], before[:, place], after[:, place]) for place, name in enumerate(examples.agents)
        ),
        pairs=tuple(_pairs(examples, after)),
    )


def predict_held_out(examples: Examples, *, seed: int, progress: Callable[[str], None]) -> "tuple[Floats, Floats]":
    """Return each agent's probability on each prompt before and after calibration, of shape (prompts, agents), by heads that have not
    seen it."""
    import numpy

    folds = folds_of(examples.prompts, FOLDS, seed)
    embedder = _remembered(examples)
    before, after = (numpy.zeros(examples.outcomes.shape, dtype=numpy.float32) for _ in range(2))
    for fold in range(FOLDS):
        progress(f"fold {fold + 1} of {FOLDS}")
        known, rows = numpy.flatnonzero(folds != fold), numpy.flatnonzero(folds == fold)
        with load_head(fit_head(examples.part(known), seed=seed), embedder) as head:
            before[rows], after[rows] = predictions(head, examples.part(rows))
    return before, after


class Remembered:
    """Embeddings that are known already, by text, in the place of an embedder."""

    def __init__(self, texts: Sequence[str], embeddings: "Floats") -> None:
        self._vectors = dict(zip(texts, embeddings, strict=True))

    def early(self, text: str) -> "Floats":
        """Return the embedding of a text. Raises `KeyError` for an unknown text."""
        vector: Floats = self._vectors[text]
        return vector


@contextmanager
def load_head(parts: HeadParts, embedder: EmbedsText | None) -> "Iterator[Head]":
    """Write a head to a temporary folder and load it. The folder lasts as long as the context."""
    with TemporaryDirectory() as name:
        write_head(parts, Path(name))
        yield Head(Path(name), embedder)


def predictions(head: Head, examples: Examples) -> "tuple[Floats, Floats]":
    """Return a head's predictions before and after calibration, each of shape (prompts, agents)."""
    import numpy

    classes = examples.classes or [""] * len(examples.prompts)
    seen = [head.look(prompt, name) for prompt, name in zip(examples.prompts, classes, strict=True)]
    before = numpy.array([[sigmoid(logit) for logit in sight.raw] for sight in seen], dtype=numpy.float32)
    return before, numpy.array([sight.probabilities() for sight in seen], dtype=numpy.float32)


def calibration(probabilities: "Column", outcomes: "Column") -> CalibrationError:
    """Compare probabilities with outcomes, both between 0 and 1 and of the same length, at least 1."""
    import numpy

    chances = numpy.clip(probabilities.astype(numpy.float64), _LEAST_CHANCE, 1 - _LEAST_CHANCE)
    losses = -(outcomes * numpy.log(chances) + (1 - outcomes) * numpy.log(1 - chances))
    bins = numpy.minimum((chances * _BINS).astype(int), _BINS - 1)
    gaps = numpy.bincount(bins, weights=chances - outcomes, minlength=_BINS)
    return CalibrationError(
        brier=float(numpy.square(chances - outcomes).mean()),
        log_loss=float(losses.mean()),
        calibration_error=float(numpy.abs(gaps).sum() / len(outcomes)),
    )


def _agent(name: str, outcomes: "Column", before: "Column", after: "Column") -> AgentReport:
    import numpy

    known = ~numpy.isnan(outcomes)
    return AgentReport(
        agent=name,
        prompts=int(known.sum()),
        missing=float(1 - known.mean()),
        quality=float(outcomes[known].mean()),
        before=calibration(before[known], outcomes[known]),
        after=calibration(after[known], outcomes[known]),
    )


def _pairs(examples: Examples, said: "Floats") -> Iterator[PairReport]:
    import numpy

    for near, far in permutations(range(len(examples.agents)), 2):
        both = ~numpy.isnan(examples.outcomes[:, [near, far]]).any(axis=1)
        one, other = examples.outcomes[both][:, [near, far]].astype(numpy.float64).T
        if both.sum() < _LEAST_PROMPTS or one.mean() >= other.mean():
            continue
        found = curve_figures((said[both, far] - said[both, near]).astype(numpy.float64), one, other)
        (gap,) = estimated_means([other - one])
        yield PairReport(
            near=examples.agents[near],
            far=examples.agents[far],
            prompts=int(both.sum()),
            near_quality=float(one.mean()),
            far_quality=float(other.mean()),
            gap=gap,
            recovered=found.recovered,
            far_share_for_half=found.far_share_for_half,
            far_share_for_most=found.far_share_for_most,
            warnings=tuple(doubts(gap, found.recovered)),
        )


class EvidenceReport(Value):
    """Routing by the evidence after a draft, on drafts that the regressions have not seen."""

    draft: str
    far: str
    opinions: tuple[str, ...]
    tasks: int = Field(gt=0)
    draft_quality: float
    """Mean score of the drafts."""
    far_quality: float
    gap: IntervalEstimate
    """Mean score of the far agent less that of the drafts."""
    evidence: CurveFigures | None
    """Escalating the drafts whose evidence speaks most for it; None where the sides do equally well."""
    disagreement: CurveFigures | None
    """Disagreement, ties by length: no label is needed for that. None without opinions."""
    front: tuple[Served, ...]
    """The curve: score, far share and dollars under thresholds from the highest to the lowest."""
    warnings: tuple[str, ...]
    """Figures that are within noise, and evidence that is not ahead of disagreement."""


def evidence_report(recorded: RecordedCascade, escalation: Escalation | None, *, seed: int = 0) -> EvidenceReport:
    """Measure the evidence on recorded drafts.

    Args:
        escalation: was trained on other traces; None: each draft is judged by regressions on the other folds.
        seed: of folds and intervals.

    Raises `ConfigError` for too few drafts, and outcomes that are all the same.
    """
    examples, roles = recorded.examples, recorded.roles
    replayed = replay_cascade(recorded, Policy(strategy=Strategy.CASCADE), escalation, seed=seed)
    near, far = examples.draft_scores, examples.far_scores
    (gap,) = estimated_means([far - near], seed=seed)
    evidence = _figures(replayed.advantages, near, far, seed)
    rule = recorded.disagreement()
    disagreement = None if rule is None else _figures(rule, near, far, seed)
    return EvidenceReport(
        draft=roles.draft,
        far=roles.far,
        opinions=roles.opinions,
        tasks=len(near),
        draft_quality=float(near.mean()),
        far_quality=float(far.mean()),
        gap=gap,
        evidence=evidence,
        disagreement=disagreement,
        front=front(replayed, seed),
        warnings=tuple(_warnings(gap, evidence, disagreement)),
    )


def _figures(scores: "Doubles", near: "Doubles", far: "Doubles", seed: int) -> CurveFigures | None:
    return None if near.mean() == far.mean() else curve_figures(scores, near, far, seed=seed)


def _warnings(gap: IntervalEstimate, evidence: CurveFigures | None, disagreement: CurveFigures | None) -> Iterator[str]:
    yield from doubts(gap, None if evidence is None else evidence.recovered)
    if evidence is not None and disagreement is not None and evidence.recovered.value <= disagreement.recovered.value:
        yield "What was learned is not ahead of disagreement, ties by length, which needs no label."
