"""Several processes on one file, processes that are killed, disks that are full."""

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlite_writes import ALL, NOW, put, value_of

from nearfar.orchestrator.memory.sqlite import SqliteEngine
from nearfar.protocols.items import ItemAddress

COUNTERS = [ItemAddress(("counters",), str(number)) for number in range(3)]

_BEGIN = """
import os, resource, signal, sys
sys.path.insert(0, sys.argv[2])
from sqlite_writes import ALL, NOW, put, put_within, value_of
from nearfar.orchestrator.memory.operation import ItemAddress, Meta
from nearfar.orchestrator.memory.sqlite import SqliteEngine
from nearfar.protocols import StoreUnavailable
engine = SqliteEngine(sys.argv[1])
"""

_COUNT = """
name, rounds = sys.argv[3], int(sys.argv[4])
for round in range(rounds):
    address = ItemAddress(("counters",), str(round % 3))
    with engine.transaction() as transaction:
        heads = transaction.heads([address]).get(address, ())
        count = heads[0].value["count"] if heads else 0
        put_within(transaction, engine.device, address, {"count": count + 1, "text": f"count {count}"}, meta=Meta())
    put(engine, ItemAddress((name,), str(round)), {"text": f"own {round}"})
    assert len(engine.select(ALL, limit=10, offset=0)) > 0
engine.close()
"""

_WRITE_FOR_EVER = """
name, number = sys.argv[3], 0
while True:
    put(engine, ItemAddress((name,), str(number)), {"text": f"{name} {number} " * (number % 50)})
    print(number, flush=True)
    number += 1
"""

_FILL_THE_DISK = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
written = 0
try:
    while True:
        put(engine, ItemAddress(("notes",), str(written)), {"text": "filling the disk " * 100})
        written += 1
except StoreUnavailable as error:
    print(error.hint)
found = [value_of(engine, ItemAddress(("notes",), str(number))) is not None for number in range(written + 1)]
print(found == [True] * written + [False])
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
put(engine, ItemAddress(("notes",), str(written)), {"text": "room again"})
print(written)
os.kill(os.getpid(), signal.SIGKILL)
"""

_FORK = """
put(engine, ItemAddress(("notes",), "a"), {"text": "of the parent"})
child = os.fork()
if child == 0:
    try:
        engine.rows([], ALL)
    except StoreUnavailable as error:
        own = SqliteEngine(sys.argv[1])
        put(own, ItemAddress(("notes",), "b"), {"text": "of the child"})
        own.close()
        engine.close()
        print(error)
    sys.exit()
os.waitpid(child, 0)
print(value_of(engine, ItemAddress(("notes",), "a")), value_of(engine, ItemAddress(("notes",), "b")))
engine.close()
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Runs a script in a process of its own, with the database open."""

    def started(script: str, *arguments: object) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", _BEGIN + script, str(tmp_path / "memory.db"), str(Path(__file__).parent), *map(str, arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return started


def outcome(process: "subprocess.Popen[str]") -> list[str]:
    """The lines that it has printed."""
    with process:
        output, errors = process.communicate(timeout=60)
    assert not errors, errors
    return output.splitlines()


def test_four_processes_lose_no_update_and_meet_no_lock(tmp_path: Path, start: Start) -> None:
    rounds = 45
    for process in [start(_COUNT, f"process {number}", rounds) for number in range(4)]:
        assert outcome(process) == []
    engine = SqliteEngine(tmp_path / "memory.db")
    assert sum(row.value["count"] for row in engine.rows(COUNTERS, ALL).values()) == 4 * rounds
    assert engine.statistics()["items"] == 4 * rounds + len(COUNTERS)
    with engine.transaction() as transaction:
        assert transaction.reserve(1, NOW)[0] == 2 * 4 * rounds + 1
    engine.close()


def test_writers_that_are_killed_lose_nothing_of_what_was_acknowledged(tmp_path: Path, start: Start) -> None:
    chance = random.Random(5)
    acknowledged: dict[str, int] = {}
    for turn in range(2):
        writers = {f"writer {turn} {number}": start(_WRITE_FOR_EVER, f"writer {turn} {number}") for number in range(4)}
        for process in writers.values():
            assert process.stdout is not None
            for _ in range(chance.randrange(1, 40)):
                process.stdout.readline()
        for name, process in writers.items():
            process.send_signal(signal.SIGKILL)
            with process:
                output, _ = process.communicate(timeout=60)
            acknowledged[name] = max((int(line) for line in output.splitlines()[:-1]), default=0)
    engine = SqliteEngine(tmp_path / "memory.db")
    with engine._connections.outside() as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.execute("INSERT INTO words (words) VALUES ('integrity-check')")
    for name, last in acknowledged.items():
        addresses = [ItemAddress((name,), str(number)) for number in range(last + 1)]
        assert len(engine.rows(addresses, ALL)) == len(addresses)
    engine.close()


def test_a_full_disk_fails_the_write_loses_nothing_before_it_and_is_no_problem_afterwards(tmp_path: Path, start: Start) -> None:
    hint, is_right, written = outcome(start(_FILL_THE_DISK))
    assert "disk" in hint
    assert (is_right, int(written) > 10) == ("True", True)
    engine = SqliteEngine(tmp_path / "memory.db")
    assert engine.statistics()["items"] == int(written) + 1
    engine.close()


def test_an_engine_is_not_used_by_a_process_that_was_forked_from_its_own(start: Start) -> None:
    (told, found) = outcome(start(_FORK))
    assert "forked" in told
    assert json.loads(found.replace("} {", "},{").replace("'", '"').join("[]")) == [{"text": "of the parent"}, {"text": "of the child"}]


def test_a_writer_waits_for_a_transaction_of_another_process(tmp_path: Path, start: Start) -> None:
    engine = SqliteEngine(tmp_path / "memory.db")
    with engine.transaction() as transaction:
        other = start('put(engine, ItemAddress(("notes",), "a"), {"text": "later"}); print("written"); engine.close()')
        transaction.set("name", "value")
        assert other.poll() is None
    assert outcome(other) == ["written"]
    assert value_of(engine, ItemAddress(("notes",), "a")) == {"text": "later"}
    put(engine, ItemAddress(("notes",), "a"), {"text": "after"})
    engine.close()
