"""Budgets: four processes on one cap, one of them killed and started again, compared with a budget that is only looked at."""

import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from nearfar.orchestrator.budgets import BudgetScope, open_budgets
from nearfar.orchestrator.task.stores import RunsConfig

from .abandoning import abandoned

_WORKER: Final = Path(__file__).with_name("budget_worker.py")
_PROCESSES: Final = 4
_CALLS: Final = 300
_PRICE: Final = 5
_CAP: Final = 1000
_SECONDS: Final = 60
_Worker = subprocess.Popen[str]


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """`budget_overspend`: tokens beyond the cap; `budget_lost`: tokens that a provider billed and the book does not know of."""
    rounds = 1 if quick else 5
    found = [_spent_by_processes() for _ in range(rounds)]
    return {
        "budget_overspend": max(max(billed - _CAP, 0) for billed, _ in found),
        "budget_lost": max(max(billed - counted, 0) for billed, counted in found),
        "budget_spent_of_cap": min(billed for billed, _ in found) / _CAP,
        "budget_overspend_read_check_write": max(_spent_by_looking() for _ in range(rounds)) - _CAP,
        "budget_kills": rounds,
        **abandoned(quick=quick),
    }


def _spent_by_processes() -> tuple[int, int]:
    """What was billed to four processes with one cap, and what their book says. One is killed at work, and another takes its place."""
    with tempfile.TemporaryDirectory() as name:
        folder, bill = Path(name, "runs"), Path(name, "bill")
        workers = [_started(folder, bill, "reserve") for _ in range(_PROCESSES)]
        spare = _started(folder, bill, "reserve")
        _begin(*workers)
        _wait_for(bill, _CAP // 4)
        workers[0].kill()
        _end(workers.pop(0))
        _begin(spare)
        for worker in (*workers, spare):
            _end(worker)
        with closing(open_budgets(RunsConfig(folder=folder))) as book:
            counted = book.balance(BudgetScope("user", "all"))
        assert not any(counted.reserved), "the reservations of the dead are settled"
        return bill.stat().st_size, counted.spent.tokens


def _spent_by_looking() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder, bill = Path(name, "runs"), Path(name, "bill")
        workers = [_started(folder, bill, "check") for _ in range(_PROCESSES)]
        _begin(*workers)
        for worker in workers:
            _end(worker)
        return bill.stat().st_size


def _started(folder: Path, bill: Path, way: str) -> _Worker:
    command = [sys.executable, str(_WORKER), str(folder), str(bill), str(_CALLS), str(_PRICE), str(_CAP), way]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _begin(*workers: _Worker) -> None:
    """All at the same time."""
    for worker in workers:
        assert worker.stdout is not None, "a pipe"
        worker.stdout.readline()
    for worker in workers:
        assert worker.stdin is not None, "a pipe"
        worker.stdin.write("go\n")
        worker.stdin.flush()


def _end(worker: _Worker) -> None:
    worker.communicate(timeout=_SECONDS)


def _wait_for(bill: Path, size: int) -> None:
    give_up = time.monotonic() + _SECONDS
    while bill.stat().st_size < size and time.monotonic() < give_up:
        time.sleep(0.001)
