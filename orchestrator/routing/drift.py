"""Drift detection: whether an agent has begun to do better or worse than is predicted of it, as after its maker changed the model.

The Page-Hinkley test (Page 1954, doi:10.1093/biomet/41.1-2.100; Hinkley 1971, doi:10.1093/biomet/58.3.509) on the residuals, outcome less
predicted probability: how far they have lately summed up beyond their mean and a tolerance, in either direction.
"""

from enum import StrEnum
from typing import Final

from ...protocols.messages import Value

TOLERANCE: Final = 0.1
"""Change of the mean residual that is let pass; about half of the smallest change that is worth an alarm."""
LIMIT: Final = 12.0
"""Sum of residuals beyond the tolerance at which there is an alarm. Where nothing changes, 2,000 outcomes of an agent that is right half of
the time, which vary the most, raise a false alarm in fewer than 1 of 30 cases. A change by 30 points is noticed after about 60 outcomes,
one by 20 points after about 150."""


class Drift(StrEnum):
    """In which direction an agent has drifted."""

    BETTER = "better"
    WORSE = "worse"


class DriftState(Value):
    """The state of a detector since its last alarm."""

    residuals: int = 0
    mean: float = 0.0
    rise: float = 0.0
    """How far the residuals have lately summed up above their mean and the tolerance."""
    fall: float = 0.0
    """How far the residuals have lately summed up below their mean and the tolerance."""


class DriftDetector:
    """Watches the residuals of one agent. Not for several threads at a time."""

    def __init__(self, state: DriftState | None = None) -> None:
        self.state = state or DriftState()

    def observe(self, residual: float) -> Drift | None:
        """Take in a residual: the outcome less its predicted probability, from -1 to 1. After an alarm the detector starts over."""
        count = self.state.residuals + 1
        mean = self.state.mean + (residual - self.state.mean) / count
        rise = max(self.state.rise + residual - mean - TOLERANCE, 0.0)
        fall = max(self.state.fall + mean - residual - TOLERANCE, 0.0)
        if max(rise, fall) > LIMIT:
            self.state = DriftState()
            return Drift.BETTER if rise > fall else Drift.WORSE
        self.state = DriftState(residuals=count, mean=mean, rise=rise, fall=fall)
        return None
