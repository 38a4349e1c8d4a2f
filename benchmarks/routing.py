"""What the router reaches on recorded outcomes, and what a decision takes.

    python benchmarks/routing.py --data FOLDER --json --quick     every figure from less data: under 45 seconds
    python benchmarks/routing.py --data FOLDER --json             the figures of docs/benchmarks.md: minutes

FOLDER holds mmlu.jsonl.gz, cruxeval.jsonl.gz, math_l5.jsonl.gz, bfcl.jsonl.gz and dcrouter_train.json.gz: real prompts with the recorded
outcomes of real models. APGR and CPT are those of RouteLLM (arXiv 2406.18665): 11 thresholds at the quantiles of ten groups. Everything is
cross-validated or held out; intervals are 95 % bootstrap intervals over tasks. LiteLLM is installed into an environment of its own.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

PARTS: Final = ("prompt_only", "dcrouter", "transfer", "evidence", "budget", "correction", "litellm", "latency", "reload")
"""Modules of `routing_figures`."""


def main() -> None:
    """Print the figures."""
    options = _options()
    if not options.data.is_dir():
        sys.exit(f"{options.data} is no folder; --data names the one with the recorded outcomes")
    found: dict[str, Any] = {}
    for part in options.only or PARTS:
        started = time.monotonic()
        print(f"{part} ...", end=" ", flush=True, file=sys.stderr)
        found |= import_module(f"routing_figures.{part}").figures(options.data, quick=options.quick)
        print(f"{time.monotonic() - started:.1f} s", file=sys.stderr)
    if "litellm" in (options.only or PARTS):
        found |= import_module("routing_figures.versus").compared(found)
    _print(found, as_json=options.json)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Figures of the router.")
    parser.add_argument("--data", type=Path, required=True, help="folder of recorded outcomes")
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
