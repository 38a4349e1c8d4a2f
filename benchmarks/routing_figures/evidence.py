"""The figures of the evidence after a draft, on recorded drafts of small models.

Every gain is predicted by an escalation that was trained on the other four fifths of the tasks, and every threshold is chosen on them.
"""

from pathlib import Path
from typing import Any

from .evidence_answers import SETS, answer_figures
from .evidence_calls import call_figures


def figures(folder: Path, *, quick: bool) -> dict[str, Any]:
    """All figures by name. A quick run does not choose among the pairs of models that answer in text."""
    found = call_figures(folder)
    for answer_set in SETS:
        found |= answer_figures(answer_set, folder, quick=quick)
    return found
