"""How fast the memory store is, how much of what matters it finds, and that it neither loses nor keeps what it must not.

    python benchmarks/memory.py --json --quick [--data FOLDER]     every figure from less data: under 45 seconds
    python benchmarks/memory.py --json [--data FOLDER]             the figures of docs/benchmarks.md: minutes

FOLDER, or memory in it, holds locomo*.json.gz: conversations over many sessions with questions, and the turns that answer them (LoCoMo,
arXiv 2402.17753). Without them those figures are null, and `locomo_missing` says why. Other stores are measured in the same run.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

PARTS: Final = ("speed", "sync", "locomo", "postgres")
"""Modules of `memory_figures`."""
DATA: Final = Path(__file__).parents[2] / "shared" / "data"
"""Where the recorded conversations are if nobody says so."""


def main() -> None:
    """Print the figures."""
    options = _options()
    found: dict[str, Any] = {}
    for part in options.only or PARTS:
        started = time.monotonic()
        print(f"{part} ...", end=" ", flush=True, file=sys.stderr)
        found |= import_module(f"memory_figures.{part}").figures(options.data, quick=options.quick)
        print(f"{time.monotonic() - started:.1f} s", file=sys.stderr)
    _print(found, as_json=options.json)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Figures of the memory store.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of recorded conversations")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--quick", action="store_true", help="less data: under 45 seconds")
    parser.add_argument("--only", action="append", choices=PARTS, help="a part of the figures; may be repeated")
    return parser.parse_args()


def _print(found: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {json.dumps(value)}")


if __name__ == "__main__":
    main()
