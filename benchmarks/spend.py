"""Whether the far side is asked only where it pays: speculation, and a navigator.

python benchmarks/spend.py --json --quick     every figure from fewer tasks: under 90 seconds
python benchmarks/spend.py --json             the figures of docs/benchmarks.md
"""

import sys
from pathlib import Path
from typing import Final

# In place of the script's own folder, in which onnx.py would be taken for the library of that name.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._parts import print_figures

PARTS: Final = (
    "identical",
    "speculation",
    "partial_plans",
    "effort",
    "verifying",
    "votes",
    "priors",
    "searching",
    "admission",
    "navigating",
)
"""Modules of `benchmarks.spend_figures`."""

if __name__ == "__main__":
    print_figures("benchmarks.spend_figures", PARTS, description="Whether the far side is asked only where it pays.")
