"""What benchmarks share that are made of parts, each a module of its own."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

DATA: Final = Path(__file__).parents[2] / "shared" / "data"
"""Where recorded data are by default."""


def print_figures(
    package: str,
    parts: Sequence[str],
    *,
    description: str,
    data: Path = DATA,
    conclude: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> None:
    """Read the command line, and print what `figures(data, quick=...)` of the parts, modules of `package`, come to.

    `data` is where recorded data are by default; `conclude` adds figures that follow from those of several parts.
    """
    options = _options(parts, description, data)
    found: dict[str, Any] = {}
    for part in options.only or parts:
        started = time.monotonic()
        print(f"{part} ...", end=" ", flush=True, file=sys.stderr)
        found |= import_module(f"{package}.{part}").figures(options.data, quick=options.quick)
        print(f"{time.monotonic() - started:.1f} s", file=sys.stderr)
    if conclude is not None:
        found |= conclude(found)
    _print(found, as_json=options.json)


def _options(parts: Sequence[str], description: str, data: Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, default=data, help="folder of recorded data")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--quick", action="store_true", help="less of everything: under 45 seconds")
    parser.add_argument("--only", action="append", choices=parts, help="a part of the figures; may be repeated")
    options = parser.parse_args()
    if options.data != DATA and not options.data.is_dir():  # parts do without that one, and say what they lack
        parser.error(f"{options.data} is no folder; --data names the one with the recorded data")
    return options


def _print(found: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {json.dumps(value)}")
