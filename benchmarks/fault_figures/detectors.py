"""How much of the private data in recorded sentences the detectors find, how much of what they find is right, and how long that takes.

A labelled span counts as found if a finding of its type overlaps it; a finding counts as right if it overlaps a labelled span of its type.
Only types that can be told by their form take part. Names, addresses, organisations and dates of the set are labelled too, and not looked
for: a finding of one of the types within them is wrong.
"""

import gzip
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from nearfar.orchestrator.safety.detection import Detectors, PrivateFinding
from nearfar.orchestrator.safety.detection.standard import STRUCTURED, StandardDetectors, standard_detectors

_FILE: Final = "pii/presidio_synth_v2_first700.json.gz"
_TYPES: Final = {
    "EMAIL_ADDRESS": "email",
    "CREDIT_CARD": "card",
    "IBAN_CODE": "iban",
    "US_SSN": "ssn",
    "PHONE_NUMBER": "phone",
    "IP_ADDRESS": "ip",
    "DOMAIN_NAME": "url",
}


class _Span(NamedTuple):
    start: int
    end: int
    type: str


class _Counts(NamedTuple):
    labelled: Counter[str]
    found: Counter[str]
    """Labelled spans that a finding overlaps."""
    findings: Counter[str]
    right: Counter[str]
    """Findings that overlap a labelled span."""


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """`pii_recall` and `pii_precision`, overall and by type; milliseconds of the processor per 1,000 characters."""
    path = data / _FILE
    if not path.exists():
        return {"pii_recall": None, "pii_precision": None, "pii_missing": f"there is no {path}"}
    sentences = json.loads(gzip.decompress(path.read_bytes()))
    counts = _counted(standard_detectors(), sentences)
    without_extra = _counted(StandardDetectors(STRUCTURED), sentences)
    return {
        "pii_recall": _share(counts.found, counts.labelled),
        "pii_precision": _share(counts.right, counts.findings),
        "pii_by_type": {type: _of_type(counts, type) for type in _TYPES.values()},
        "pii_recall_without_extra": _share(without_extra.found, without_extra.labelled),
        "pii_precision_without_extra": _share(without_extra.right, without_extra.findings),
        "pii_ms_per_kb": _milliseconds(sentences, rounds=3 if quick else 20),
    }


def _counted(detector: StandardDetectors, sentences: Sequence[Mapping[str, Any]]) -> _Counts:
    counts = _Counts(Counter(), Counter(), Counter(), Counter())
    detectors = Detectors([detector], set(_TYPES.values()))
    for sentence in sentences:
        spans = [
            _Span(span["start_position"], span["end_position"], _TYPES[span["entity_type"]])
            for span in sentence["spans"]
            if span["entity_type"] in _TYPES
        ]
        findings = detectors.find(sentence["full_text"])
        counts.labelled.update(span.type for span in spans)
        counts.found.update(span.type for span in spans if any(_agree(span, finding) for finding in findings))
        counts.findings.update(finding.type for finding in findings)
        counts.right.update(finding.type for finding in findings if any(_agree(span, finding) for span in spans))
    return counts


def _agree(span: _Span, finding: PrivateFinding) -> bool:
    return span.type == finding.type and span.start < finding.end and finding.start < span.end


def _share(part: Counter[str], whole: Counter[str]) -> float:
    return part.total() / whole.total()


def _of_type(counts: _Counts, type: str) -> dict[str, float | int]:
    return {
        "recall": counts.found[type] / counts.labelled[type],
        "precision": counts.right[type] / max(counts.findings[type], 1),
        "labelled": counts.labelled[type],
    }


def _milliseconds(sentences: Sequence[Mapping[str, Any]], *, rounds: int) -> float:
    """The least of some rounds: others use the machine too."""
    texts = [sentence["full_text"] for sentence in sentences]
    detector = standard_detectors()
    taken = []
    for _ in range(rounds):
        started = time.process_time()
        for text in texts:
            detector.find(text)
        taken.append(time.process_time() - started)
    return 1e6 * min(taken) / sum(map(len, texts))
