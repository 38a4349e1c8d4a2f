"""Records of runs that were never made, to compute with."""

from typing import Any

from nearfar.orchestrator.lab.study import run_key
from nearfar.orchestrator.routing.outcome_records import RunRecord
from nearfar.protocols import Usage

KNOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "device": ("device", {"mode": "only_on_device"}),
    "cloud": ("cloud", {"mode": "only_in_cloud"}),
    "cascade": ("cascade", {}),
    "pevr/inf": ("pevr", {"supervision": {"interval": None}}),
    "pevr/2": ("pevr", {"supervision": {"interval": 2}}),
    "pevr/4": ("pevr", {"supervision": {"interval": 4}}),
    "pevr/8": ("pevr", {}),
    "pevr/events": ("pevr", {"supervision": {"interval": None, "triggers": ["loop"]}}),
    "eva/2": ("eva", {"supervision": {"interval": 2}}),
    "eva/4": ("eva", {"supervision": {"interval": 4}}),
    "eva/8": ("eva", {}),
    "eva/events": ("eva", {"supervision": {"interval": None, "triggers": ["loop"]}}),
    "eva/4+shadow": ("eva", {"supervision": {"interval": 4, "shadow": True}}),
    "pevr/8+reversed": ("pevr", {"supervision": {"executor": "far"}}),
    "pevr/4+oracle": ("pevr", {"supervision": {"interval": 4}}),
}
"""The strategy and the knobs of a configuration."""


def record(label: str = "device", task: int | str = 0, *, world: str = "search", seed: int = 1, **changes: Any) -> RunRecord:  # noqa: ANN401
    """A record of a successful run, with changes. A score alone decides about success."""
    strategy, knobs = KNOBS[label]
    oracle = "oracle" in label
    identifier = f"{world}-{seed}-{task}"
    score = changes.get("score", 1.0)
    figures: dict[str, Any] = {
        "key": run_key(world=world, task=identifier, seed=seed, strategy=strategy, knobs=knobs, oracle=oracle),
        "world": world,
        "task": identifier,
        "prompt": f"Find {task} of {world} {seed}.",
        "tools": ("search", "open"),
        "kind": "1 hop",
        "difficulty": 1,
        "seed": seed,
        "configuration": label,
        "strategy": strategy,
        "knobs": knobs,
        "oracle": oracle,
        "near_model": None if strategy == "cloud" else "small",
        "far_model": None if strategy == "device" else "large",
        "answer": "found",
        "success": score >= 1,
        "score": score,
        "turns": 3,
        "near_calls": 3,
        "far_calls": 0 if strategy == "device" else 1,
        "near_usage": Usage(input_tokens=100, output_tokens=10),
        "dollars": 0.0 if strategy == "device" else 0.01,
        "dollars_source": "a price list",
        "seconds": 1.0,
        "joules": 0.5,
        "joules_source": "estimated",
        "peak_kv_bytes": 4096,
        "context_tokens": (20, 40, 60),
    }
    return RunRecord(**{**figures, **changes})
