"""Whether runs survive, budgets hold and data stay: faults are made on purpose, all of them on loopback and bounded in time.

    python benchmarks/faults.py --json --quick [--data FOLDER]     every figure from fewer faults: under 45 seconds
    python benchmarks/faults.py --json [--data FOLDER]             the figures of docs/benchmarks.md: minutes

FOLDER holds recorded data in `injection/` and `pii/`. Without them those figures are null, and a `..._missing` says why.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

PARTS: Final = ("durability", "effects", "network", "budgets", "privacy", "detectors", "injection", "traces")
"""Modules of `fault_figures`. Each has `figures(data, *, quick)`."""
DATA: Final = Path(__file__).parents[2] / "shared" / "data"
"""Where the recorded data are if nobody says so."""


def main() -> None:
    """Print the figures."""
    options = _options()
    found: dict[str, Any] = {}
    for part in options.only or PARTS:
        started = time.monotonic()
        print(f"{part} ...", end=" ", flush=True, file=sys.stderr)
        found |= import_module(f"fault_figures.{part}").figures(options.data, quick=options.quick)
        print(f"{time.monotonic() - started:.1f} s", file=sys.stderr)
    _print(found, as_json=options.json)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What becomes of runs, budgets and data when something goes wrong.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of recorded data")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--quick", action="store_true", help="fewer faults: under 45 seconds")
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
