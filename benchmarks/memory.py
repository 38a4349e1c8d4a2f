"""How fast the memory store is, how much of what matters it finds, and that it neither loses nor keeps what it must not.

    python benchmarks/memory.py --json --quick [--data FOLDER]     every figure from less data: under 45 seconds
    python benchmarks/memory.py --json [--data FOLDER]             the figures of docs/benchmarks.md: minutes

FOLDER, or memory in it, holds locomo*.json.gz: conversations over many sessions with questions, and the turns that answer them (LoCoMo,
arXiv 2402.17753). Without them those figures are null, and `locomo_missing` says why. Other stores are measured in the same run.
"""

import sys
from pathlib import Path
from typing import Final

# In place of the script's own folder, in which onnx.py would be taken for the library of that name.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._parts import print_figures

PARTS: Final = ("speed", "sync", "locomo", "size", "postgres", "million")
"""Modules of `benchmarks.memory_figures`."""

if __name__ == "__main__":
    print_figures("benchmarks.memory_figures", PARTS, description="Figures of the memory store.")
