"""Whether runs survive, budgets hold and data stay: faults are made on purpose, all of them on loopback and bounded in time.

    python benchmarks/faults.py --json --quick [--data FOLDER]     every figure from fewer faults: under 45 seconds
    python benchmarks/faults.py --json [--data FOLDER]             the figures of docs/benchmarks.md: minutes

FOLDER holds recorded data in `injection/` and `pii/`. Without them those figures are null, and a `..._missing` says why.
"""

import sys
from pathlib import Path
from typing import Final

# In place of the script's own folder, in which onnx.py would be taken for the library of that name.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._parts import print_figures

PARTS: Final = (
    "durability",
    "effects",
    "acts",
    "network",
    "budgets",
    "privacy",
    "placeholders",
    "detectors",
    "written",
    "tracers",
    "injection",
    "agentdojo",
    "traces",
    "stopped",
    "tabs",
    "flood",
    "erasing",
)
"""Modules of `benchmarks.fault_figures`."""

if __name__ == "__main__":
    print_figures("benchmarks.fault_figures", PARTS, description="What becomes of runs, budgets and data when something goes wrong.")
