"""A process that spends: it makes calls of a fixed price until it has made all of them, and notes each where its provider would bill it.

    python budget_worker.py FOLDER BILL CALLS PRICE CAP WAY

WAY is `reserve`, Nearfar's own, or `check`: read what is spent, check it, call, write it.
"""

import os
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

CALL_SECONDS = 0.0005
"""Of each call: far less than any model takes, but time enough for another process to look."""


def main() -> None:
    folder, bill = map(Path, sys.argv[1:3])
    calls, price, cap = map(int, sys.argv[3:6])
    with bill.open("ab", buffering=0) as billed:
        spend = (_reserving if sys.argv[6] == "reserve" else _checking)(folder, price, cap, lambda: _call(billed.fileno(), price))
        print("ready", flush=True)
        sys.stdin.readline()
        granted = sum(spend() for _ in range(calls))
    print(granted, flush=True)


def _call(bill: int, price: int) -> None:
    os.write(bill, b"." * price)
    time.sleep(CALL_SECONDS)


def _reserving(folder: Path, price: int, cap: int, call: Callable[[], None]) -> Callable[[], bool]:
    """Each call is made between its reservation and its settlement."""
    from nearfar.orchestrator.budgets import BudgetScope, Caps, Claim, Shortage, Units, open_budgets
    from nearfar.orchestrator.task.stores import RunsConfig

    book = open_budgets(RunsConfig(folder=folder))
    claims = [Claim(BudgetScope("user", "all"), Caps(tokens=cap)), Claim(BudgetScope("day"))]
    amount = Units(tokens=price)

    def spend() -> bool:
        found = book.reserve(claims, least=amount, most=amount)
        if isinstance(found, Shortage):
            return False
        call()
        book.settle(found, amount)
        return True

    return spend


def _checking(folder: Path, price: int, cap: int, call: Callable[[], None]) -> Callable[[], bool]:
    """What a budget is that is only looked at."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "checked.db"
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE IF NOT EXISTS spent (name TEXT PRIMARY KEY, tokens INTEGER)")
        connection.execute("INSERT OR IGNORE INTO spent VALUES ('all', 0)")
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)

    def spend() -> bool:
        (spent,) = connection.execute("SELECT tokens FROM spent").fetchone()
        if spent + price > cap:
            return False
        call()
        connection.execute("UPDATE spent SET tokens = ?", (spent + price,))
        return True

    return spend


if __name__ == "__main__":
    main()
