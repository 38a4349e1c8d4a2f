"""Routing policy: rules in a file, what they decide and why, and what a threshold costs before it ships.

The rules are in `nearfar.toml`. `traces.jsonl` holds what both shipped models really did with 240 tasks.
"""

import asyncio
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from nearfar import DeviceState, DeviceStateSource, Hybrid, HybridArguments, PowerSource

HERE = Path(__file__).parent
POLICY, TRACES = HERE / "nearfar.toml", HERE / "traces.jsonl"
MODELS: HybridArguments = {}  # the two of the file, unless the environment names yours
if "NEARFAR_NEAR" in os.environ:
    MODELS["near"] = os.environ["NEARFAR_NEAR"]
if "NEARFAR_FAR" in os.environ:
    MODELS["far"] = os.environ["NEARFAR_FAR"]


def device_at(battery: float) -> DeviceStateSource:
    """Stand for a device on battery; without this, the machine's own sensors are read."""
    return lambda: DeviceState(battery=battery, power_source=PowerSource.BATTERY)


async def explain() -> None:
    """Ask who would serve a task. Nothing is run."""
    async with Hybrid.from_config(POLICY, **MODELS) as hybrid:
        for task, tags, battery in (
            ("Who is the mayor of Port Elster?", [], 0.9),
            ("Is this patient ill?", ["medical"], 0.9),
            ("Who is the mayor of Port Elster?", [], 0.1),
        ):
            hybrid.device_state = device_at(battery)
            decision = hybrid.explain_route(task, tags=tags)
            print(f"{task} [battery {battery:.0%}{''.join(f', {tag}' for tag in tags)}]")
            print("  asks:", " then ".join(decision.candidates))
            print("  because:", decision.reasons[0])


def policy(command: str, *arguments: str) -> dict:
    """Run a `nearfar policy` command and return its JSON."""
    line = [sys.executable, "-m", "nearfar", "policy", command, *arguments, "--config", str(POLICY), "--json"]
    return json.loads(subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout)


def rehearse() -> None:
    """Replay recorded outcomes through the router, then find the threshold that keeps 95 % of the far model's score."""
    with TemporaryDirectory() as folder:
        found = policy("simulate", "--traces", str(TRACES), "--words-only", "--out", folder)
    print("simulated on 240 recorded tasks:")
    shown = [*found["singles"], *(line for line in found["front"] if line["far_share"]["value"] == 0.5)]
    for line in sorted(shown, key=lambda line: line["far_share"]["value"]):
        share, score, dollars = (line[name]["value"] for name in ("far_share", "score", "dollars"))
        print(f"  far serves {share:.0%}: {score:.0%} right, ${dollars:.5f} a task")
    chosen = policy("calibrate", "--traces", str(TRACES), "--words-only", "--quality", "95%")
    share, score = chosen["expected"]["far_share"]["value"], chosen["expected"]["score"]["value"]
    print(f"calibrated for 95 % of far's score: threshold {chosen['threshold']:.2f}; far serves {share:.0%}, {score:.0%} right")


if __name__ == "__main__":
    asyncio.run(explain())
    if find_spec("torch"):
        rehearse()
    else:
        print("simulate and calibrate train a small head: pip install 'nearfar[train]'")
