"""Survives kill -9: the process dies in the middle of a payment, another one resumes the run, and nothing happens twice."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from sqlite3 import connect
from tempfile import TemporaryDirectory

from nearfar import Hybrid, RunsConfig, RunStore, effect_key, effect_transaction, tool

NEAR = os.environ.get("NEARFAR_NEAR", "near")  # the two small models that ship with nearfar, or yours
FAR = os.environ.get("NEARFAR_FAR", "far")
TASK = "Please add Harvest Lunch on Sunday at 13, then pay Mira Holm what their invoice asks for."
FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else None


def say(text: str) -> None:
    print(f"  [{os.environ.get('PROCESS')}] {text}", flush=True)


@tool(effect="read", source="internal_tool")
def find_mails(sender: str) -> str:
    """Ids and subjects of the mails from a person."""
    say(f"find_mails({sender})")
    return "m2 invitation; m3 invoice"


@tool(effect="read", source="internal_tool")
def read_mail(mail: str) -> str:
    """The text of a mail, named by its id."""
    say(f"read_mail({mail})")
    return "Please pay me 45."


@tool(effect="transactional", source="internal_tool")
def add_event(title: str, day: str, hour: int) -> str:
    """Put an event into the calendar; the hour is a full one from 8 to 20."""
    say(f"add_event({title}, {day}, {hour})")
    calendar = effect_transaction(FOLDER / "calendar.db")  # the entry and the record of this call are written together, or neither
    calendar.execute("CREATE TABLE IF NOT EXISTS events (title TEXT, day TEXT, hour INTEGER)")
    calendar.execute("INSERT INTO events VALUES (?, ?, ?)", (title, day, hour))
    return "added"


@tool(effect="idempotent", source="internal_tool")
def pay(person: str, amount: int) -> str:
    """Pay a person an amount. This cannot be undone."""
    say(f"pay({person}, {amount})")
    payment = FOLDER / "bank" / effect_key()  # a real bank takes this key as idempotency key
    if payment.exists():
        say("the bank knows this key already: no second payment")
        return "paid"
    payment.write_text(f"{person} {amount}")
    say("the bank has taken the payment; the process dies before it hears of it (kill -9)")
    os.kill(os.getpid(), signal.SIGKILL)
    return "paid"


async def work() -> None:
    """Serve the task. The key names the run, so a second process resumes it."""
    async with Hybrid(near=NEAR, far=FAR, tools=[find_mails, read_mail, add_event, pay], records=FOLDER) as hybrid:
        result = await hybrid.run(TASK, idempotency_key="sunday", strategy="pevr", sensitivity="public")
        say(f"{result.agent} answers: {result.text}")


def start(folder: Path, process: str) -> int:
    """Run `work` in a process of its own and return how it ended."""
    return subprocess.run([sys.executable, __file__, str(folder)], env={**os.environ, "PROCESS": process}, check=False).returncode


def main() -> None:
    print("task:", TASK, flush=True)
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bank").mkdir()
        ended = start(folder, "first")
        print("first process ended with", ended, flush=True)
        if ended > 0:
            raise SystemExit("it failed before it could die")
        with closing(RunStore.open(RunsConfig(folder=folder))) as runs:
            run = runs.show("sunday")
            print("the run is", "interrupted" if run.is_orphaned else run.state, flush=True)
        print("second process ended with", start(folder, "second"))
        print("payments:", *(payment.read_text() for payment in (folder / "bank").iterdir()))
        with closing(connect(folder / "calendar.db")) as calendar:
            print("calendar:", *calendar.execute("SELECT title, day, hour FROM events"))


if __name__ == "__main__":
    main() if FOLDER is None else asyncio.run(work())
