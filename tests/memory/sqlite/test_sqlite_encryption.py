"""The file encrypted by SQLCipher."""

from pathlib import Path

import pytest
from sqlite_writes import ALL, files_of, put, value_of, vector

pytest.importorskip("sqlcipher3", reason="encryption is an extra")

from nearfar.orchestrator.memory.sqlite import SqliteEngine
from nearfar.orchestrator.memory.sqlite.recovering import recover
from nearfar.protocols import ConfigError, StoreCorrupt
from nearfar.protocols.items import ItemAddress

A = ItemAddress(("diary",), "secretkey")
KEY = "0123456789abcdef" * 4


def is_plain(folder: Path) -> bool:
    secrets = (b"secret", b"diary", b"SQLite format", vector(3, 1, 4).tobytes()[:12])
    return any(secret in data for data in files_of(folder).values() for secret in secrets)


@pytest.mark.parametrize("key", [KEY, "it's a passphrase"])
def test_nothing_can_be_read_in_the_files_but_with_the_key(tmp_path: Path, key: str) -> None:
    engine = SqliteEngine(tmp_path / "memory.db", embedder="test/8", key=lambda: key)
    put(engine, A, {"text": "a secret"}, vectors=[vector(3, 1, 4)])
    assert not is_plain(tmp_path)
    engine.close()
    assert not is_plain(tmp_path)
    again = SqliteEngine(tmp_path / "memory.db", embedder="test/8", key=lambda: key)
    assert value_of(again, A) == {"text": "a secret"}
    assert len(again.keyword("secret", ALL, limit=1)) == len(again.nearest(vector(3, 1, 4), ALL, limit=1)) == 1
    again.scrub()
    assert not is_plain(tmp_path)
    again.close()


def test_a_wrong_or_missing_key_is_told(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    SqliteEngine(path, key=lambda: KEY).close()
    before = files_of(tmp_path)
    with pytest.raises(StoreCorrupt, match="key"):
        SqliteEngine(path, key=lambda: "f" * 64)
    with pytest.raises(StoreCorrupt, match="key"):
        SqliteEngine(path)
    assert files_of(tmp_path) == before
    plain = tmp_path / "plain.db"
    SqliteEngine(plain).close()
    with pytest.raises(StoreCorrupt, match="key"):
        SqliteEngine(plain, key=lambda: KEY)


@pytest.mark.parametrize("key", ["", "with\0zero"])
def test_an_empty_key_does_not_mean_no_encryption(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match="key"):
        SqliteEngine(tmp_path / "memory.db", key=lambda: key)


def test_what_is_recovered_stays_encrypted(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    engine = SqliteEngine(path, key=lambda: KEY)
    put(engine, A, {"text": "a secret"})
    engine.close()
    assert recover(path, key=lambda: KEY).items == 1
    assert not is_plain(tmp_path)
    engine = SqliteEngine(path, key=lambda: KEY)
    assert value_of(engine, A) == {"text": "a secret"}
    engine.close()
