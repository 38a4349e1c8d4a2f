"""Stopping a draft whose confidence collapses: once it is nearly certain to be rejected, the rest of it is not worth its time.

A draft of several steps is as confident as the least confident of them (DeepConf, arXiv 2508.15260), so its confidence can only fall: what
is below the threshold after one step stays there, and can be stopped at once.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Final

from pydantic import Field

from ....protocols import ConfigError
from ....protocols.messages import Value

CERTAINTY: Final = 0.95
"""Share of the drafts below a learned threshold that are wrong, at least."""
LEAST_DRAFTS: Final = 20
_QUANTILE: Final = 1.645
"""Quantile of the normal distribution for a one-sided bound that holds with 95 %."""


class EarlyStop(Value):
    """When to stop."""

    threshold: float = Field(ge=0, le=1)
    """A draft with a step below it is stopped; 0: none is. With the policy's own `minimum_confidence`, exactly the drafts are stopped that
    it would reject in the end."""
    certainty: float = Field(default=1.0, ge=0, le=1)
    """Lower bound of the probability that a stopped draft would have been rejected or wrong."""


class ConfidenceWatch:
    """Watches one draft from its first step to its last. Each attempt gets one of its own."""

    def __init__(self, rule: EarlyStop) -> None:
        self._rule = rule
        self.lowest: float | None = None
        """Confidence of the least confident step so far; None while none is known."""

    def stops(self, confidence: float | None) -> bool:
        """Take in the confidence of a further step, or window of tokens, and say whether to stop the draft.

        None where the agent does not tell; that is not held against it.
        """
        if confidence is not None:
            self.lowest = confidence if self.lowest is None else min(self.lowest, confidence)
        return self.lowest is not None and self.lowest < self._rule.threshold

    @property
    def reason(self) -> str:
        """Why it was stopped, in one sentence."""
        lowest = "unknown" if self.lowest is None else f"{self.lowest:.2f}"
        return (
            f"the confidence fell to {lowest}: of drafts below {self._rule.threshold:.2f}, {self._rule.certainty:.0%} or more are rejected"
        )


def learn_early_stop(confidences: Sequence[float | None], scores: Sequence[float | None], *, certainty: float = CERTAINTY) -> EarlyStop:
    """Return the highest threshold below which drafts were wrong nearly always.

    Args:
        confidences: the lowest confidence of each draft; None where unknown.
        scores: what became of it, from 0 (wrong or rejected) to 1; None where unknown.
        certainty: the share of wrong drafts below the threshold has to be at least this large, by Wilson's lower bound at 95 %. So even
            where all of them are wrong, 0.95 takes 52 drafts.

    Drafts of which either is unknown are left out. Raises `ConfigError` for fewer than 20 others, or a certainty that is not between
    0 and 1. Where no threshold will do, it is 0, and nothing is ever stopped.
    """
    if not 0 < certainty < 1:
        raise ConfigError(f"a certainty of {certainty} cannot be had", hint="give a share between 0 and 1, such as 0.95")
    both = zip(confidences, scores, strict=True)
    known = sorted((confidence, score) for confidence, score in both if confidence is not None and score is not None)
    if len(known) < LEAST_DRAFTS:
        left_out = len(confidences) - len(known)
        raise ConfigError(
            f"{len(known)} drafts with a confidence and an outcome are too few, {left_out} lack one of them", hint=f"record {LEAST_DRAFTS}"
        )
    return EarlyStop(threshold=_threshold(known, certainty), certainty=certainty)


def _threshold(drafts: Sequence[tuple[float, float]], certainty: float) -> float:
    """Return the threshold for drafts in the order of their confidence. Drafts of equal confidence are stopped together or not at all."""
    wrong, threshold = 0.0, 0.0
    for count, ((_, score), (following, _)) in enumerate(zip(drafts, drafts[1:], strict=False), start=1):
        wrong += 1 - score
        if following > drafts[count - 1][0] and _lower_bound(wrong, count) >= certainty:
            threshold = following
    return threshold


def _lower_bound(successes: float, count: int) -> float:
    """Return Wilson's lower bound of a share (1927)."""
    share, weight = successes / count, _QUANTILE**2 / count
    return (share + weight / 2 - _QUANTILE * sqrt((share * (1 - share) + weight / 4) / count)) / (1 + weight)
