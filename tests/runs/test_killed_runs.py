"""Runs whose process is killed at every step of an agent or a tool, under each strategy."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("killed_runs.py")
STEPS = {"device": 7, "pevr": 9, "eva": 9, "minions": 5, "subtasks": 4, "roles": 8, "opinion": 11, "speculate": 7}
"""At least so many steps there are at which it dies."""
PARTS = 3
AT_ONCE = {"device": 1, "pevr": 1, "eva": 1, "minions": 3, "subtasks": 2, "roles": 1, "opinion": 1, "speculate": 3}
"""Agents that are asked side by side, and so once more where the process dies meanwhile."""


@pytest.mark.parametrize("strategy", STEPS)
def test_a_run_that_is_killed_anywhere_is_finished_and_no_effect_is_repeated(strategy: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, PROGRAM, tmp_path, strategy], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert len(outcomes) > STEPS[strategy]
    assert {outcome["answer"] for outcome in outcomes} == {"a bridge"}
    undisturbed = outcomes[-1]
    for outcome in outcomes:
        assert outcome["effects"] <= undisturbed["effects"]
        assert outcome["most"] <= (PARTS if strategy == "subtasks" else 1)
        # Parts run side by side, and each may have been asked when the process died; else one agent is.
        assert outcome["asked"] - undisturbed["asked"] <= AT_ONCE[strategy]
