"""The private files of tables that parts of nearfar share."""

import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from nearfar.orchestrator.storage import Tables, sqlite_files
from nearfar.orchestrator.storage.sqlite import SqliteDatabase
from nearfar.orchestrator.storage.sqlite_files import Naming
from nearfar.protocols import StoreCorrupt, StoreUnavailable

NAMING = Naming("run store", recovery="name another folder")
NOTES = Tables("notes", 1, "CREATE TABLE notes (note TEXT NOT NULL);\nCREATE INDEX by_note ON notes (note);\n")
PLACES = Tables("places", 3, "CREATE TABLE places (place TEXT NOT NULL);\n")


NoRoom = Callable[[int], AbstractContextManager[None]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "runs.db"


def notes(database: SqliteDatabase) -> list[str]:
    with database.reading() as connection:
        return [note for (note,) in connection.execute("SELECT note FROM notes")]


def test_parts_share_a_file_and_find_their_tables_again(path: Path) -> None:
    first = SqliteDatabase(path, NAMING)
    first.require(NOTES)
    first.require(PLACES)
    with first.writing() as connection:
        connection.execute("INSERT INTO notes VALUES ('kept')")
    first.close()
    second = SqliteDatabase(path, NAMING)
    second.require(PLACES)
    second.require(NOTES)
    assert notes(second) == ["kept"]
    second.close()


def test_a_block_that_fails_leaves_nothing(path: Path) -> None:
    database = SqliteDatabase(path, NAMING)
    database.require(NOTES)

    def failing() -> None:
        with database.writing() as connection:
            connection.execute("INSERT INTO notes VALUES ('gone')")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert notes(database) == []
    database.close()


def test_the_files_are_for_their_owner_alone(path: Path) -> None:
    database = SqliteDatabase(path, NAMING)
    database.require(NOTES)
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    database.close()


def test_tables_of_a_newer_version_are_refused_and_left_alone(path: Path) -> None:
    database = SqliteDatabase(path, NAMING)
    database.require(PLACES)
    with pytest.raises(StoreUnavailable, match="version 3"):
        database.require(Tables("places", 2, "DROP TABLE places;\n"))
    with database.reading() as connection:
        assert connection.execute("SELECT count(*) FROM places").fetchone() == (0,)
    database.close()


def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    path.parent.mkdir()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(StoreCorrupt, match="another program"):
        SqliteDatabase(path, NAMING)
    other = sqlite3.connect(path)
    assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
    other.close()


def test_a_file_that_is_no_database_is_damaged(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(os.urandom(5000))
    with pytest.raises(StoreCorrupt, match="is not a run store"):
        SqliteDatabase(path, NAMING)


def test_a_file_that_another_process_is_just_making_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        # Not yet with a log: from here, SQLite lets nobody wait who wants one.
        other.execute("BEGIN IMMEDIATE")
        waited: list[float] = []

        def wait(seconds: float) -> None:
            waited.append(seconds)
            other.execute("ROLLBACK")

        monkeypatch.setattr("nearfar.orchestrator.storage.sqlite.time.sleep", wait)
        with closing(SqliteDatabase(path, NAMING)) as database:
            database.require(NOTES)
            assert notes(database) == []
        assert waited


def test_files_that_others_make_and_remove_meanwhile_are_neither_refused_nor_missed(path: Path) -> None:
    sqlite_files.prepare(str(path), NAMING)
    log, index = (Path(f"{path}{suffix}") for suffix in (sqlite_files.LOG, sqlite_files.LOG_INDEX))
    done = threading.Event()

    def open_and_close() -> None:
        """Make and remove the files in SQLite's order."""
        while not done.is_set():
            log.touch()
            index.touch()
            index.unlink()
            log.unlink()

    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(open_and_close)
        try:
            for _ in range(3000):
                sqlite_files.prepare(str(path), NAMING)
        finally:
            done.set()
        others.result()


def test_a_child_process_must_open_its_own(path: Path) -> None:
    database = SqliteDatabase(path, NAMING)
    child = os.fork()
    if child == 0:
        try:
            database.reading().__enter__()
        except StoreUnavailable:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    database.close()


@pytest.fixture
def opened(path: Path) -> Iterator[SqliteDatabase]:
    with closing(SqliteDatabase(path, NAMING)) as database:
        database.require(NOTES)
        yield database


def note(database: SqliteDatabase, text: str) -> None:
    with database.writing() as connection:
        connection.execute("INSERT INTO notes VALUES (?)", (text,))


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_nothing_is_written_into_a_file_that_was_removed(opened: SqliteDatabase, path: Path, suffix: str) -> None:
    Path(f"{path}{suffix}").unlink()
    with pytest.raises(StoreUnavailable, match="removed or replaced"):
        note(opened, "lost")
    assert not Path(f"{path}{suffix}").exists()


def test_nothing_is_read_from_a_file_that_was_removed(opened: SqliteDatabase, path: Path) -> None:
    path.unlink()
    with pytest.raises(StoreUnavailable, match="removed or replaced"):
        notes(opened)
    assert not path.exists()


def test_a_backup_that_takes_the_place_of_an_open_file_is_not_written_to(opened: SqliteDatabase, path: Path) -> None:
    backup = path.with_name("backup")
    backup.write_bytes(path.read_bytes())
    backup.replace(path)
    with pytest.raises(StoreUnavailable, match="removed or replaced"):
        note(opened, "lost")


def test_a_file_that_is_put_back_is_used_again(opened: SqliteDatabase, path: Path) -> None:
    path.rename(path.with_name("moved"))
    with pytest.raises(StoreUnavailable, match="put the file back"):
        note(opened, "lost")
    path.with_name("moved").rename(path)
    note(opened, "kept")
    assert notes(opened) == ["kept"]


def test_a_file_where_the_folder_should_be_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("mine")
    with pytest.raises(StoreUnavailable, match="runs is no folder"):
        SqliteDatabase(tmp_path / "runs" / "more" / "runs.db", NAMING)


@pytest.fixture
def kept(path: Path) -> Path:
    with closing(SqliteDatabase(path, NAMING)) as database:
        database.require(NOTES)
        note(database, "kept")
    return path


def test_a_full_disk_can_be_read_and_is_written_to_when_there_is_room(kept: Path, no_room: NoRoom) -> None:
    with no_room(1_000):
        database = SqliteDatabase(kept, NAMING)
        database.require(NOTES)
        assert notes(database) == ["kept"]
        with pytest.raises(StoreUnavailable, match="disk I/O error"):
            note(database, "lost")
    note(database, "more")
    assert notes(database) == ["kept", "more"]
    database.close()


def test_a_log_with_writes_is_not_left_out_on_a_full_disk(kept: Path, tmp_path: Path, no_room: NoRoom) -> None:
    copied = tmp_path / "copied.db"
    with closing(SqliteDatabase(kept, NAMING)) as database:
        note(database, "in the log")
        for suffix in ("", "-wal"):
            Path(f"{copied}{suffix}").write_bytes(Path(f"{kept}{suffix}").read_bytes())
    with no_room(1_000), pytest.raises(StoreUnavailable, match="disk I/O error"):
        SqliteDatabase(copied, NAMING)
    with closing(SqliteDatabase(copied, NAMING)) as database:
        assert notes(database) == ["kept", "in the log"]


def test_what_changes_while_it_is_read_on_a_full_disk_is_an_error(kept: Path, no_room: NoRoom) -> None:
    def read() -> None:
        with database.reading() as connection:
            connection.execute("SELECT note FROM notes").fetchall()
            os.utime(kept)

    with no_room(1_000), closing(SqliteDatabase(kept, NAMING)) as database, pytest.raises(StoreUnavailable, match="disk I/O error"):
        read()
