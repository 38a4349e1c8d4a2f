"""Several detectors as one, which fails closed."""

import logging
from collections.abc import Container, Sequence

from .finding import UNCHECKED, Detector, Finding, resolved

logger = logging.getLogger(__name__)


class Detectors:
    """Combines detectors. If one of them fails, the whole text counts as a finding.

    Args:
        types: the types of findings to keep; None: all. Findings of other types do not hide any of these.
    """

    def __init__(self, detectors: Sequence[Detector], types: Container[str] | None = None) -> None:
        self._detectors = tuple(detectors)
        self._types = types

    def find(self, text: str) -> list[Finding]:
        """Return the findings in the order of the text, without overlaps."""
        found: list[Finding] = []
        for detector in self._detectors:
            try:
                found += detector.find(text)
            except Exception as error:  # a task boundary: a detector may be third-party code, and a failing one must let nothing pass
                logger.warning("the detector %s has failed: %s", type(detector).__name__, type(error).__name__)
                return [Finding(0, len(text), UNCHECKED, text)]
        return resolved(finding for finding in found if self._counts(finding))

    def _counts(self, finding: Finding) -> bool:
        return self._types is None or finding.type == UNCHECKED or finding.type in self._types
