"""What is committed is handed to the disk where somebody asks for it."""

import os
import threading
from contextlib import closing
from pathlib import Path

import pytest

from nearfar.orchestrator.storage.sqlite import Disk, SqliteDatabase
from nearfar.orchestrator.storage.sqlite_files import Naming
from nearfar.protocols import StoreUnavailable

NAMING = Naming(what="store", recovery="remove it")


def test_the_log_and_its_folder_are_handed_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    plain = os.fsync

    def watched(file: int) -> None:
        synced.append(os.fstat(file).st_ino)
        plain(file)

    with closing(SqliteDatabase(tmp_path / "store.db", NAMING)) as database:
        monkeypatch.setattr(os, "fsync", watched)
        database.sync()
        assert synced == [(tmp_path / "store.db-wal").stat().st_ino, tmp_path.stat().st_ino]
        with database.writing() as connection:  # no lock was lost with the file that was closed
            connection.execute("CREATE TABLE notes (text TEXT)")


def test_those_who_ask_while_the_disk_is_busy_share_its_next_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store.db-wal").touch()
    disk, turns = Disk(str(tmp_path / "store.db")), 0
    is_busy, may_end = threading.Event(), threading.Event()

    def slow(file: int) -> None:
        nonlocal turns
        turns += 1
        is_busy.set()
        may_end.wait(10)

    monkeypatch.setattr(os, "fsync", slow)
    threads = [threading.Thread(target=disk.sync) for _ in range(20)]
    threads[0].start()
    assert is_busy.wait(10)
    for thread in threads[1:]:
        thread.start()
    while disk._asked < len(threads):
        threads[1].join(0.001)
    may_end.set()
    for thread in threads:
        thread.join()
    assert turns == 4, "the log and the folder, once for the first and once for all others"


def test_a_disk_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(file: int) -> None:
        raise OSError(5, "Input/output error")

    with closing(SqliteDatabase(tmp_path / "store.db", NAMING)) as database:
        monkeypatch.setattr(os, "fsync", fails)
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            database.sync()
