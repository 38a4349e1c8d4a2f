"""Several detectors as one, which fails closed."""

import logging
from collections.abc import Sequence

from .finding import UNCHECKED, Detector, Finding, resolved

logger = logging.getLogger(__name__)


class Detectors:
    """All that any of the detectors finds. Where one of them fails, the whole text counts as a finding."""

    def __init__(self, detectors: Sequence[Detector]) -> None:
        self._detectors = tuple(detectors)

    def find(self, text: str) -> list[Finding]:
        """The findings in their order, none overlapping another one."""
        found: list[Finding] = []
        for detector in self._detectors:
            try:
                found += detector.find(text)
            except Exception as error:  # a task boundary: a detector may be anybody's code, and one that fails must not let anything pass
                logger.warning("the detector %s has failed: %s", type(detector).__name__, type(error).__name__)
                return [Finding(0, len(text), UNCHECKED, text)]
        return resolved(found)
