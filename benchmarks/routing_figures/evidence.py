"""The figures of the evidence after a draft, on recorded drafts of small models.

Every gain is predicted by an escalation that was trained on the other four fifths of the tasks, and every threshold is chosen on them.
"""

from pathlib import Path
from typing import Any

from .evidence_answers import NEAR as NEAR_ANSWERING
from .evidence_answers import SETS, answer_figures
from .evidence_calls import NEAR as NEAR_CALLING
from .evidence_calls import call_figures
from .evidence_measures import apgr, compared, read_rows, scores_of
from .pairings import USUAL, Pairing, pairing_examples, pairing_gains


def figures(folder: Path, *, quick: bool) -> dict[str, Any]:
    """All figures by name. A quick run measures one opinion of the usual pair of models alone."""
    if quick:
        return {name: value for pairing in USUAL.values() for name, value in _with_one_opinion(pairing, folder).items()}
    found = call_figures(folder)
    for answer_set in SETS:
        found |= answer_figures(answer_set, folder)
    return found


def _with_one_opinion(pairing: Pairing, folder: Path) -> dict[str, Any]:
    """The recovery by one opinion, and by what it is to be compared with."""
    examples, name = pairing_examples(pairing, folder), pairing.name.partition("_")[0]
    rows, models = read_rows(folder / f"{pairing.set}.jsonl.gz"), NEAR_CALLING if pairing.set == "bfcl" else NEAR_ANSWERING
    return {
        f"{name}_apgr_one_opinion": apgr(pairing_gains(pairing, folder), examples.draft_scores, examples.far_scores),
        **compared(name, examples, float(max(scores_of(rows, model).mean() for model in models)), opinion=pairing.opinion),
    }
