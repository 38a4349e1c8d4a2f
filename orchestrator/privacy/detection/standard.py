"""The detectors that look through what is about to leave the device."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

from .accounts import CARD, IBAN
from .finding import Detector, Finding
from .internet import EMAIL, IP4, IP6, URL
from .keys import KEYS
from .people import BIRTH_DATE, SSN
from .phones import PhoneDetector, has_numbering_plans
from .readings import readings

_BY_FORM: Final = (EMAIL, CARD, IBAN, SSN, IP4, IP6, URL, BIRTH_DATE, *KEYS)
STRUCTURED: Final[Sequence[Detector]] = (*_BY_FORM, PhoneDetector(numbering_plans=False))
"""What works without any extra."""


class StandardDetectors:
    """Finds what others find, also where it is disguised."""

    def __init__(self, detectors: Sequence[Detector]) -> None:
        self._detectors = tuple(detectors)

    def find(self, text: str) -> list[Finding]:
        """All that is found in any reading of the text; some of it overlaps."""
        return [reading.place(finding, text) for reading in readings(text) for finding in self._found(reading.text)]

    def _found(self, text: str) -> Iterator[Finding]:
        for detector in self._detectors:
            yield from detector.find(text)


@cache
def standard_detectors() -> StandardDetectors:
    """All that are there, made once."""
    return StandardDetectors([*_BY_FORM, PhoneDetector(numbering_plans=has_numbering_plans())])
