"""Recorded drafts of one model with the opinion of another, which several figures are made of."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nearfar.orchestrator.routing.training import DraftExamples

from .evidence_answers import answer_examples
from .evidence_calls import XLAM_1B, XLAM_7B, Calls
from .evidence_measures import gains_of, read_rows

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

GPT_4O: Final = "gpt-4o-2024-08-06"
SONNET: Final = "claude-3-5-sonnet-20241022"


@dataclass(frozen=True, slots=True)
class Pairing:
    """A model that drafts, one that gives an opinion, and a far one, on one set."""

    name: str
    set: str
    draft: str
    opinion: str
    far: str = ""


PAIRINGS: Final = (
    Pairing("crux_phi", "cruxeval", "Phi-3.5-mini-instruct", "Qwen2.5-7B-Instruct", GPT_4O),
    Pairing("crux_gemma", "cruxeval", "gemma-2-2b-it", "gemma-2-9b-it", SONNET),
    Pairing("math_qwen", "math_l5", "Qwen2.5-3B-Instruct", "Qwen2.5-7B-Instruct", SONNET),
    Pairing("math_phi", "math_l5", "Phi-3.5-mini-instruct", "gemma-2-9b-it", GPT_4O),
    Pairing("bfcl_xlam", "bfcl", XLAM_1B, XLAM_7B),
)
USUAL: Final = {each.set: each for each in PAIRINGS if each.name in ("crux_phi", "math_qwen", "bfcl_xlam")}
"""The usual pairing of each set, by its name."""


@cache
def pairing_examples(pairing: Pairing, folder: Path) -> DraftExamples:
    """Return the drafts of a pairing on all tasks of its set."""
    rows = read_rows(folder / f"{pairing.set}.jsonl.gz")
    if pairing.set == "bfcl":
        return Calls(rows).examples(pairing.draft, [pairing.opinion])
    return answer_examples(rows, pairing.draft, [pairing.opinion], pairing.far)


@cache
def pairing_gains(pairing: Pairing, folder: Path) -> "Floats":
    """Return `gains_of` these drafts."""
    return gains_of(pairing_examples(pairing, folder))
