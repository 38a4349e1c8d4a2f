"""What the router reaches on recorded outcomes, and what a decision takes.

    python benchmarks/routing.py --json --quick [--data FOLDER]     every figure from less data: two minutes of one core
    python benchmarks/routing.py --json [--data FOLDER]             the figures of docs/benchmarks.md: minutes

FOLDER holds mmlu.jsonl.gz, cruxeval.jsonl.gz, math_l5.jsonl.gz, bfcl.jsonl.gz and dcrouter_train.json.gz: real prompts with the recorded
outcomes of real models. APGR and CPT are those of RouteLLM (arXiv 2406.18665): 11 thresholds at the quantiles of ten groups. Everything is
cross-validated or held out; intervals are 95 % bootstrap intervals over tasks. LiteLLM is installed into an environment of its own. The
drafts of `signals` are kept in the repository; `python -m benchmarks.routing_figures.near_recording` records them again.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

# In place of the script's own folder, in which onnx.py would be taken for the library of that name.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._parts import DATA, print_figures

PARTS: Final = (
    *("prompt_only", "dcrouter", "transfer", "few_labels", "evidence", "prose", "signals", "cards", "arbitration", "quality_bound"),
    *("budget", "budgeted_evidence", "dollars", "correction", "litellm", "paretobandit", "latency", "reload"),
)
"""Modules of `benchmarks.routing_figures`."""


def _beside_litellm(found: Mapping[str, Any]) -> Mapping[str, Any]:
    if "litellm_apgr" not in found:
        return {}
    from benchmarks.routing_figures.versus import compared

    return compared(found)


if __name__ == "__main__":
    print_figures(
        "benchmarks.routing_figures", PARTS, description="Figures of the router.", data=DATA / "routing", conclude=_beside_litellm
    )
