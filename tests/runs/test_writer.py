"""The thread that writes for all runs of a process."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from nearfar.orchestrator.runs.store import RunStore
from nearfar.orchestrator.storage import DatabaseSession
from nearfar.orchestrator.storage.sqlite import SqliteDatabase
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import StoreUnavailable


def test_where_nobody_can_write_all_who_wait_are_told_so_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_begun, may_take_over, attempts = threading.Event(), threading.Event(), list[int]()

    def wait(session: DatabaseSession) -> None:
        has_begun.set()
        may_take_over.wait()

    @contextmanager
    def refused(database: SqliteDatabase) -> Iterator[DatabaseSession]:
        attempts.append(1)
        raise StoreUnavailable("another process is writing")
        yield

    with closing(RunStore.open(RunsConfig(folder=tmp_path))) as store:
        first = store.writer.submit(wait)
        assert has_begun.wait(10)
        waiting = [store.writer.submit(wait) for _ in range(20)]
        with monkeypatch.context() as patched:
            patched.setattr(SqliteDatabase, "writing", refused)
            may_take_over.set()
            assert first.exception() is None
            assert all(isinstance(each.exception(), StoreUnavailable) for each in waiting)
    assert len(attempts) == 1
