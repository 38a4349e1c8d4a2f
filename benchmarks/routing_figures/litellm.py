"""The complexity router of LiteLLM, run from its own wheel in its own virtual environment, on the same prompts and outcomes as ours.

It needs no training, and looks at nothing but the prompt. Its score decides who serves: version 1 weighs keywords and length, version 2
predicts how probably the simplest tier fails.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from nearfar.orchestrator.lab.statistics import routing_curve
from nearfar.orchestrator.routing.traces import Trace, agents_of

from .._environments import HOUR, cache_folder, last_line, python_with
from . import litellm_worker
from .data import LEAST_GAP
from .transfer import drawn, recorded

RELEASE: Final = "1.109.1"
NEEDED: Final = (
    *("aiohttp", "click", "fastuuid", "httpx[http2]", "importlib-metadata", "jinja2", "jsonschema", "openai", "pydantic"),
    *("pydantic-settings", "python-dotenv", "pyyaml", "tiktoken", "tokenizers"),
)
"""What importing its complexity router takes; not all that the wheel asks for, which some package indexes do not have."""
VERSIONS: Final = ("v1", "v2")
QUICK: Final = 400
"""Prompts of each set that a quick run draws."""


def figures(folder: Path, *, quick: bool, cache: Path | None = None) -> dict[str, Any]:
    """APGR of both versions on each recorded set. A quick run looks at some prompts, and installs nothing.

    Where LiteLLM is not installed and cannot be, each figure is a sentence that says so.
    """
    sets = {name: drawn(traces, most=QUICK) if quick else traces for name, traces in recorded(folder).items()}
    try:
        router = LiteLLM.installed(cache or cache_folder(), may_install=not quick)
        scored = router.scores([trace.prompt for traces in sets.values() for trace in traces])
    except LookupError as error:
        return {"litellm_apgr": f"not measured: {error}"}
    found, start = {}, 0
    for name, traces in sets.items():
        end = start + len(traces)
        found[name] = {version: apgrs(traces, every[start:end]) for version, every in scored.items()}
        start = end
    means = {name: {version: fmean(pairs.values()) for version, pairs in versions.items()} for name, versions in found.items()}
    return {"litellm_release": RELEASE, "litellm_apgr": means, "litellm_apgr_by_pair": found}


@dataclass(frozen=True, slots=True)
class LiteLLM:
    """LiteLLM, ready to run."""

    python: Path
    """Of its virtual environment."""

    @classmethod
    def installed(cls, cache: Path, *, may_install: bool) -> "LiteLLM":
        """In a virtual environment inside a folder, which is made at the first call. Raises `LookupError` where it cannot be."""
        wanted = [("--no-deps", f"litellm=={RELEASE}"), NEEDED]
        python = python_with(f"LiteLLM {RELEASE}", f"litellm-{RELEASE}", wanted, cache=cache, may_install=may_install)
        return cls(python)

    def scores(self, prompts: Sequence[str]) -> dict[str, list[float]]:
        """The score of each prompt by each of `VERSIONS`; the highest go far first. Raises `LookupError` where LiteLLM fails."""
        lines = "\n".join(map(json.dumps, prompts))
        # Otherwise LiteLLM fetches its list of prices from the network.
        environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        command = [str(self.python), "-I", litellm_worker.__file__]
        done = subprocess.run(command, input=lines, env=environment, capture_output=True, text=True, check=False, timeout=HOUR)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        if done.returncode or len(rows) != len(prompts):
            raise LookupError(f"the complexity router of LiteLLM {RELEASE} failed: {last_line(done.stderr)}")
        return {version: [float(row[place]) for row in rows] for place, version in enumerate(VERSIONS)}


def scores(prompts: Sequence[str], *, cache: Path | None = None) -> list[float]:
    """Of version 1, which does better. Installs LiteLLM at the first call. Raises `LookupError` where it cannot be installed or fails."""
    return LiteLLM.installed(cache or cache_folder(), may_install=True).scores(prompts)["v1"]


def apgrs(traces: Sequence[Trace], scores: Sequence[float]) -> dict[str, float]:
    """Of each pair of agents whose accuracies differ by at least 10 points, when they serve by these scores."""
    agents = agents_of(traces)
    outcomes = {agent: [trace.outcomes[agent].score or 0.0 for trace in traces] for agent in agents}
    pairs = [(near, far) for near in agents for far in agents if fmean(outcomes[far]) - fmean(outcomes[near]) >= LEAST_GAP]
    return {f"{near} -> {far}": routing_curve(scores, outcomes[near], outcomes[far]).recovered for near, far in pairs}
