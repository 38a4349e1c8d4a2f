"""Damaged files: an error that says what to do, never another value; and what can be saved is saved."""

import contextlib
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlite_writes import ALL, NOW, files_of, put, value_of, vector

from nearfar import MemoryStore
from nearfar.orchestrator.memory.operation import Meta
from nearfar.orchestrator.memory.sqlite import SqliteEngine
from nearfar.orchestrator.memory.sqlite.recovering import LEAP, recover
from nearfar.protocols import StoreCorrupt, StoreUnavailable, SyncRefused
from nearfar.protocols.items import ItemAddress

ADDRESSES = [ItemAddress(("notes", str(number % 4)), f"key {number}") for number in range(100)]
VALUES = {address: {"text": f"word{number} " * (number % 40 + 1), "number": number} for number, address in enumerate(ADDRESSES)}


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database file with `VALUES`."""
    path = tmp_path_factory.mktemp("intact") / "memory.db"
    engine = SqliteEngine(path, embedder="test/8")
    for number, (address, value) in enumerate(VALUES.items()):
        put(engine, address, value, vectors=[vector(1, number)])
    engine.close()
    return path.read_bytes()


def damaged(data: bytes, chance: random.Random) -> bytes:
    """As disks and people damage files: bits, pages, ends."""
    changed = bytearray(data)
    match chance.choice(["bit", "bits", "page", "junk", "end"]):
        case "bit":
            changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case "bits":
            for _ in range(20):
                changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case "page":
            start = chance.randrange(len(data) // 4096) * 4096
            changed[start : start + 4096] = bytes(4096)
        case "junk":
            start = chance.randrange(len(data) - 200)
            changed[start : start + 200] = chance.randbytes(200)
        case "end":
            del changed[chance.randrange(1, len(data)) :]
    return bytes(changed)


def look_at_everything(path: Path) -> bool:
    """Whether the values are all there and right; raises what the engine raises."""
    engine = SqliteEngine(path, embedder="test/8")
    try:
        found = {address: row.value for address, row in engine.rows(ADDRESSES, ALL).items()}
        engine.select(ALL, limit=1000, offset=0)
        engine.keyword("word5 word7", ALL, limit=10)
        engine.nearest(vector(1, 3), ALL, limit=10)
        engine.namespaces(ALL)
        engine.changes(0, limit=1000)
        engine.operations(0, limit=1000)
        engine.traces(subject="nobody")
        engine.unembedded(limit=10)
    finally:
        engine.close()
    return found == VALUES


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_file_is_an_error_or_does_no_harm_and_recovery_restores_no_wrong_value(intact: bytes, tmp_path: Path, seed: int) -> None:
    path = tmp_path / "memory.db"
    broken = damaged(intact, random.Random(seed))
    path.write_bytes(broken)
    with contextlib.suppress(StoreCorrupt, SyncRefused):
        assert look_at_everything(path)
    path.write_bytes(broken)
    try:
        recovery = recover(path, now=lambda: NOW)
    except StoreCorrupt:
        assert path.read_bytes() == broken
        return
    assert Path(recovery.damaged).read_bytes() == broken
    engine = SqliteEngine(path, embedder="test/8")
    rows = engine.rows(ADDRESSES, ALL)
    assert all(row.value == VALUES[address] for address, row in rows.items())
    assert len(rows) == recovery.items >= len(ADDRESSES) - recovery.unreadable
    engine.close()


def test_recovery_keeps_operations_settings_and_the_device_and_reuses_none_of_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    engine = SqliteEngine(path)
    put(engine, ADDRESSES[0], {"text": "kept"}, meta=Meta(ttl=60))
    put(engine, ADDRESSES[1], {"text": "deleted"})
    put(engine, ADDRESSES[1], None)
    with engine.transaction() as transaction:
        transaction.set("name", "value")
        transaction.learn({"other": 7}, 0)
    before = engine.operations(0, limit=10), engine.rows(ADDRESSES, ALL), engine.device
    engine.close()
    recovery = recover(path, now=lambda: NOW)
    assert (recovery.items, recovery.remade, recovery.unreadable, recovery.is_same_device) == (2, 0, 0, True)
    engine = SqliteEngine(path)
    operations = engine.operations(0, limit=10)
    assert [logged.operation for logged in operations] == [logged.operation for logged in before[0]]
    assert (engine.rows(ADDRESSES, ALL), engine.device) == before[1:]
    assert len(engine.keyword("kept", ALL, limit=10)) == 1
    with engine.transaction() as transaction:
        assert transaction.setting("name") == "value"
        assert transaction.known() == {"other": 7, engine.device: 3 + LEAP}
    engine.close()


def test_an_item_of_which_a_part_is_lost_is_made_anew_from_the_other(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    engine = SqliteEngine(path)
    for address in ADDRESSES[:4]:
        put(engine, address, VALUES[address])
    with engine._connections.writing() as connection:
        connection.execute("UPDATE contents SET content = x'00' WHERE item = (SELECT item FROM items WHERE key = 'key 0')")
        connection.execute("DELETE FROM operations WHERE item = (SELECT item FROM items WHERE key = 'key 1')")
        connection.execute("DELETE FROM items WHERE key = 'key 3'")
    with pytest.raises(StoreCorrupt):
        value_of(engine, ADDRESSES[0])
    engine.close()
    assert recover(path, now=lambda: NOW).remade == 3
    engine = SqliteEngine(path)
    assert [value_of(engine, address) for address in ADDRESSES[:4]] == [VALUES[address] for address in ADDRESSES[:4]]
    assert len(engine.operations(0, limit=10)) == 4
    assert len(engine.keyword("word0", ALL, limit=10)) == 1
    engine.close()


_KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from sqlite_writes import put
from nearfar.orchestrator.memory.operation import ItemAddress
from nearfar.orchestrator.memory.sqlite import SqliteEngine
engine = SqliteEngine(sys.argv[1])
put(engine, ItemAddress(("notes",), "a"), {"text": "in the log"})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_log_that_was_removed_after_a_crash_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    subprocess.run([sys.executable, "-c", _KILLED, str(path), str(Path(__file__).parent)], check=False)
    kept = files_of(tmp_path)
    assert kept.keys() == {"memory.db", "memory.db-wal", "memory.db-shm"}
    (tmp_path / "memory.db-wal").unlink()
    with pytest.raises(StoreCorrupt, match="removed"):
        SqliteEngine(path)
    (tmp_path / "memory.db-wal").write_bytes(kept["memory.db-wal"])
    engine = SqliteEngine(path)
    assert value_of(engine, ItemAddress(("notes",), "a")) == {"text": "in the log"}
    engine.close()


@pytest.mark.parametrize("content", [b"this is no database", b"\x00" * 5000, random.Random(0).randbytes(20_000)])
def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "memory.db"
    path.write_bytes(content)
    for opening in (SqliteEngine, recover):
        with pytest.raises(StoreCorrupt):
            opening(path)
    assert files_of(tmp_path) == {"memory.db": content}


@pytest.mark.parametrize("version", [0, 1, 5])
def test_another_programs_database_stays_as_it_is_byte_for_byte(tmp_path: Path, version: int) -> None:
    path = tmp_path / "memory.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE items (theirs)")
        other.execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="not a memory store"):
        SqliteEngine(path)
    assert files_of(tmp_path) == {"memory.db": before}


@pytest.mark.parametrize(
    "planted",
    [
        "CREATE TRIGGER t AFTER INSERT ON items BEGIN DELETE FROM items; END",
        "CREATE TRIGGER t AFTER DELETE ON contents BEGIN INSERT INTO settings VALUES (hex(old.content), ''); END",
        "CREATE VIEW t AS SELECT * FROM contents",
    ],
)
def test_a_file_in_which_triggers_or_views_were_planted_is_refused(tmp_path: Path, planted: str) -> None:
    path = tmp_path / "memory.db"
    SqliteEngine(path).close()
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute(planted)
    with pytest.raises(StoreCorrupt, match="that nearfar did not make"):
        SqliteEngine(path)


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        ("CREATE TRIGGER t AFTER DELETE ON keys BEGIN INSERT INTO keys VALUES (old.id, old.tag, old.key, 0); END", "trigger"),
        ("UPDATE keys SET key = 'text'", "is invalid"),
        ("UPDATE keys SET key = x'00'", "is invalid"),
    ],
)
def test_damaged_keys_of_subjects_are_an_error_of_the_store(tmp_path: Path, planted: str, told: str) -> None:
    path = tmp_path / "memory.db"
    with MemoryStore.open(path, embedder=None) as store:
        store.put(("notes",), "a", {"text": "x"}, subject="carl")
    with contextlib.closing(sqlite3.connect(f"{path}.keys")) as other, other:
        other.execute(planted)
    with pytest.raises(StoreCorrupt, match=told), MemoryStore.open(path, embedder=None) as store:
        store.put(("notes",), "b", {"text": "x"}, subject="carl")


def test_keys_of_subjects_that_others_may_read_are_taken_from_them(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    keys = tmp_path / "memory.db.keys"
    keys.touch(mode=0o644)
    with MemoryStore.open(path, embedder=None) as store:
        store.put(("notes",), "a", {"text": "x"}, subject="carl")
    assert keys.stat().st_mode & 0o777 == 0o600


def test_another_programs_database_and_one_of_a_newer_nearfar_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    engine = SqliteEngine(path)
    with engine._connections.writing() as connection:
        connection.execute("PRAGMA user_version = 99")
    engine.close()
    with pytest.raises(SyncRefused, match="99"):
        SqliteEngine(path)
    other = tmp_path / "other.db"
    engine = SqliteEngine(other)
    with engine._connections.writing() as connection:
        connection.execute("PRAGMA application_id = 1")
    engine.close()
    with pytest.raises(StoreCorrupt, match="not a memory store"):
        SqliteEngine(other)


def test_a_place_where_no_file_can_be_is_said_to_be_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        SqliteEngine(tmp_path / "file" / "memory.db")
    with pytest.raises(StoreUnavailable, match="no file"):
        SqliteEngine(tmp_path)
