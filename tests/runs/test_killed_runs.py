"""Runs whose process is killed at every step of an agent or a tool, under each strategy."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("killed_runs.py")
STEPS = {"device": 7, "pevr": 9, "eva": 9, "minions": 5, "subtasks": 4}
"""At least so many steps there are at which it dies."""


@pytest.mark.parametrize("strategy", STEPS)
def test_a_run_that_is_killed_anywhere_is_finished_and_no_effect_is_repeated(strategy: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, PROGRAM, tmp_path, strategy], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert len(outcomes) > STEPS[strategy]
    assert {outcome["answer"] for outcome in outcomes} == {"a bridge"}
    assert {outcome["most"] for outcome in outcomes} <= {0, 1}
