"""Ours and LiteLLM's complexity router on the same rows: by the prompt alone on two sets, with evidence on three."""

from collections.abc import Mapping
from typing import Any, Final

from .prompt_only import FAR, NEAR

_PAIR_OF: Final = {"cruxeval": "crux", "math_l5": "math"}
"""Sets on which a draft and its second opinion were chosen."""
_BFCL: Final = "Salesforce_xLAM-1b-fc-r -> claude-3-5-sonnet-20240620"


def compared(found: Mapping[str, Any]) -> dict[str, Any]:
    """APGR of both on each set, on the same pair of agents, and by how much ours is ahead of the better version of theirs.

    `found` holds the figures of all parts; sets of which one side was not measured are left out.
    """
    theirs = found.get("litellm_apgr_by_pair")
    if theirs is None:
        return {"vs_litellm": found.get("litellm_apgr", "not measured")}
    sets = {name: (_ours(found, name), _best(found, name)) for name in theirs}
    rows = {name: {"ours": ours, "litellm": best, "ahead": ours - best} for name, (ours, best) in sets.items() if ours is not None}
    return {"vs_litellm": {name: {key: round(value, 4) for key, value in row.items()} for name, row in rows.items()}}


def _ours(found: Mapping[str, Any], name: str) -> float | None:
    key = {"mmlu": "mmlu_apgr", "dcrouter": "dcrouter_apgr", "bfcl": "bfcl_apgr"}.get(name) or f"{_PAIR_OF[name]}_apgr"
    value = found.get(key)
    return value["value"] if isinstance(value, dict) else value


def _best(found: Mapping[str, Any], name: str) -> float:
    """Of the versions: on the pair of agents that ours was measured on, or as the mean over all."""
    if name == "dcrouter":
        return float(max(found["litellm_apgr"][name].values()))
    if name in _PAIR_OF:
        near, _, far = found.get(f"{_PAIR_OF[name]}_pair", ("", "", ""))
        pair = f"{near} -> {far}"
    else:
        pair = _BFCL if name == "bfcl" else f"{NEAR} -> {FAR}"
    return max((float(version[pair]) for version in found["litellm_apgr_by_pair"][name].values() if pair in version), default=0.0)
