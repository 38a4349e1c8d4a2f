"""Drafts of the shipped near model with the verdicts of both shipped models, recorded once and kept with the benchmarks.

Each task is carried out by the near model and by the far one. Both models then judge the near one's whole work with its answer, near with
the adapter `near-judge`: the probability of the word CONTINUE, against INTERVENE, under the prompt that the far one is trained on. In the
search world, where no task changes anything, the near model is sampled eight times more. `verified_recording` records them again.
"""

import gzip
import json
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).with_name("verified_drafts.json.gz")
WORLDS: Final = ("search", "apps")
PARTS: Final = {"known": (300, 51511), "fresh": (300, 62622)}
"""Tasks of each world, and the seed that they are drawn with. What was built was chosen on the known tasks; figures are of the fresh ones.
No other figure draws tasks with these seeds."""
SAMPLES: Final = 8
Row = dict[str, Any]


def read_drafts(part: str) -> list[Row]:
    """Return the recorded tasks of a part, `known` or `fresh`."""
    with gzip.open(FILE, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [row for row in rows if row["part"] == part]
