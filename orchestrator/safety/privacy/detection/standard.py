"""The detectors that look through what is about to leave the device."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

from .accounts import CARD, GROUPED_CARD, IBAN
from .documents import DOCUMENT
from .finding import Detector, Finding
from .internet import EMAIL, IP4, IP6, MAC, URL
from .keys import KEYS
from .national_ids import NationalIdDetector, has_check_digits
from .people import BIRTH_DATE, SSN
from .phones import PhoneDetector, has_numbering_plans
from .postal import ADDRESSES
from .presidio import PresidioDetector
from .readings import readings

_BY_FORM: Final[tuple[Detector, ...]] = (EMAIL, CARD, GROUPED_CARD, IBAN, SSN, IP4, IP6, MAC, URL, BIRTH_DATE, DOCUMENT, *ADDRESSES, *KEYS)
STRUCTURED: Final[Sequence[Detector]] = (*_BY_FORM, PhoneDetector(numbering_plans=False))
"""Detectors that work without any extra."""


class StandardDetectors:
    """Combines detectors.

    Args:
        detectors: look at the text in all readings, disguises undone.
        slow: look at the text as it stands.
    """

    def __init__(self, detectors: Sequence[Detector], slow: Sequence[Detector] = ()) -> None:
        self._detectors = tuple(detectors)
        self._slow = tuple(slow)

    def find(self, text: str) -> list[Finding]:
        """Return the findings in any reading of the text; some of them overlap."""
        found = [reading.place(finding, text) for reading in readings(text) for finding in _found(self._detectors, reading.text)]
        return [*found, *_found(self._slow, text)]


def _found(detectors: Sequence[Detector], text: str) -> Iterator[Finding]:
    for detector in detectors:
        yield from detector.find(text)


@cache
def standard_detectors(spacy_model: str | None = None) -> StandardDetectors:
    """Return all installed detectors, made once; with a spaCy model, also for names of people.

    Raises:
        ConfigError: the model, or the extra `presidio`, is not installed.
    """
    by_form: list[Detector] = [*_BY_FORM, PhoneDetector(numbering_plans=has_numbering_plans())]
    if has_check_digits():
        by_form.append(NationalIdDetector())
    return StandardDetectors(by_form, [] if spacy_model is None else [PresidioDetector(spacy_model)])
