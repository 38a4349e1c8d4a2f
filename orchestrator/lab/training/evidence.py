"""The figures of what was learned about drafts: how much of the gap the evidence recovers, next to the rule that needs no label."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from ....protocols.steps import Value
from ...routing.escalation import Escalation
from ...task.modes import Strategy
from ...task.policy import Policy
from ..replay.cascade import RecordedCascade
from ..replay.simulation import Served, front
from ..statistics import CurveFigures, IntervalEstimate, curve_figures, doubts, estimated_means

if TYPE_CHECKING:
    from ..statistics import Floats


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
    replayed = recorded.replayed(Policy(strategy=Strategy.CASCADE), escalation, seed=seed)
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


def _figures(scores: "Floats", near: "Floats", far: "Floats", seed: int) -> CurveFigures | None:
    return None if near.mean() == far.mean() else curve_figures(scores, near, far, seed=seed)


def _warnings(gap: IntervalEstimate, evidence: CurveFigures | None, disagreement: CurveFigures | None) -> Iterator[str]:
    yield from doubts(gap, None if evidence is None else evidence.recovered)
    if evidence is not None and disagreement is not None and evidence.recovered.value <= disagreement.recovered.value:
        yield "What was learned is not ahead of disagreement, ties by length, which needs no label."
