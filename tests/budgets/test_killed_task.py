"""A task whose process is killed in the middle of a paid call."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nearfar import Hybrid, Policy
from nearfar.orchestrator.budgets import BudgetScope, open_budgets
from nearfar.orchestrator.budgets.account import USUAL_OUTPUT
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import BudgetExceeded, Prices, ScriptedAgent, Side

pytestmark = pytest.mark.anyio

PRICES = {"input": 10, "output": 10, "source": "a test", "as_of": "2026-11-18"}
POLICY = {"strategy": "cloud", "mode": "only_in_cloud", "sensitivity": "public", "limits": {"user": {"dollars": 0.1}}}
TASK = f"""
import sys
from pathlib import Path
import anyio
from nearfar import Hybrid, Policy
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import Prices, ScriptedAgent, Side

def answer(request):
    print("asked", flush=True)
    return ["Lima", anyio.Event()]

async def main():
    far = ScriptedAgent(answer, name="far", side=Side.FAR, prices=Prices.model_validate({PRICES!r}))
    async with Hybrid(far=far, policy=Policy.model_validate({POLICY!r}), records=RunsConfig(folder=Path(sys.argv[1]))) as hybrid:
        await hybrid.run("What is the capital of Peru?", user="ana")

anyio.run(main)
"""


def killed_in_a_call(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", TASK, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        os.kill(process.pid, signal.SIGKILL)


async def test_the_most_that_it_can_have_cost_is_spent_when_the_next_process_begins(tmp_path: Path) -> None:
    killed_in_a_call(tmp_path)
    book = open_budgets(RunsConfig(folder=tmp_path))
    balance = book.balance(BudgetScope("user", "ana"))
    book.close()
    assert not any(balance.reserved)
    assert 0 < balance.spent.of("dollars") - USUAL_OUTPUT * 10 / 1e6 < 0.01
    far = ScriptedAgent([], name="far", side=Side.FAR, prices=Prices.model_validate(PRICES))
    limits = {**POLICY, "limits": {"user": {"dollars": 0.05}}}
    async with Hybrid(far=far, policy=Policy.model_validate(limits), records=RunsConfig(folder=tmp_path)) as hybrid:
        with pytest.raises(BudgetExceeded, match="limit for the user"):
            await hybrid.run("What is the capital of Peru?", user="ana")
