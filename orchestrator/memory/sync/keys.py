"""A key for each subject, in a file next to the store. Destroying the key makes data about the subject unreadable in all copies."""

import os
import secrets
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ....protocols import ConfigError, StoreCorrupt, StoreUnavailable
from ....protocols.system import CLOSED_ON_EXEC
from ...storage.sqlite_files import FileIdentity, identity, make_private
from ..operation import Dot, OwnedSubject

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_SEALED: Final = b"\x01"
"""First byte of a sealed payload; plain payloads are JSON and never begin with it."""
_ID_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_HEADER_BYTES: Final = 1 + _ID_BYTES + _NONCE_BYTES
_KEY_BYTES: Final = 32
_PATIENCE: Final = 10.0
"""Seconds that another process may take to write a key."""
_NO_KEYS: Final = "put it back from a backup, or move it away: earlier changes about a subject then reach no other device"
_SCHEMA: Final = "CREATE TABLE IF NOT EXISTS keys (id BLOB PRIMARY KEY, tag TEXT NOT NULL, key BLOB NOT NULL, is_current INTEGER NOT NULL)"


class SubjectKey(NamedTuple):
    """A key as replicas hand it on."""

    id: bytes
    tag: str
    """Tag of the subject, see `tag_of`, and the user whose subject it is."""
    key: bytes


def tag_of(subject: str) -> str:
    """Return a digest that stands for a subject if its name must not be stored. A guessed name can be checked against it."""
    return sha256(b"nearfar subject\0" + subject.encode()).hexdigest()


def opener(keys: Iterable[SubjectKey]) -> Callable[[Dot, bytes], bytes | None]:
    """Return a function that unseals with keys from a peer. They are not kept: operations that are taken over are sealed with own keys."""
    given = {key.id: key.key for key in keys}

    def unseal(dot: Dot, sealed: bytes) -> bytes | None:
        return _unsealed(dot, sealed, lambda id: _aes_gcm()(given[id]) if id in given else None)

    return unseal


def _key_tag(subject: OwnedSubject) -> str:
    return f"{tag_of(subject.name)} {subject.user}"


class SubjectKeys:
    """The keys of one replica, in the file at `path`; None: in memory. A `Sealer`.

    Several threads and processes may use the file. Raises `StoreUnavailable` and `StoreCorrupt` as engines do.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._lock = threading.RLock()
        self._ciphers: dict[bytes, AESGCM] = {}
        self._current: dict[str, bytes] = {}
        self._version: int | None = None
        """Version of the file, as SQLite counts the changes of other connections."""
        self._path = path
        self._opened: sqlite3.Connection | None = None
        self._file: FileIdentity | None = None

    def seal(self, dot: Dot, subjects: AbstractSet[OwnedSubject], payload: bytes) -> bytes:
        """Encrypt a payload with AES-256-GCM under a key of each subject, one layer per key."""
        for subject in sorted(subjects):
            id, cipher = self._current_cipher(_key_tag(subject))
            nonce = os.urandom(_NONCE_BYTES)
            payload = _SEALED + id + nonce + cipher.encrypt(nonce, payload, _bound_to(dot))
        return payload

    def unseal(self, dot: Dot, sealed: bytes) -> bytes | None:
        return _unsealed(dot, sealed, self._cipher)

    def handed_on(self, subjects: Iterable[OwnedSubject]) -> list[SubjectKey]:
        """Return the keys with which `seal` seals now, for a peer that is to read the operations."""
        with self._lock:
            ids = [self._current_cipher(_key_tag(subject))[0] for subject in subjects]
            return [SubjectKey(*row) for id in ids for row in self._rows("SELECT id, tag, key FROM keys WHERE id = ?", id)]

    def retire(self, tag: str, user: str | None) -> list[bytes]:
        """Retire the keys of a user's subject (None: of all users), so that new operations are sealed with a new key.

        Returns the ids of all earlier keys, which are to be destroyed.
        """
        if self._opened is None and (self._path is None or not os.path.exists(self._path)):
            return []
        own = f"{tag} {user}"
        with self._writing() as connection:
            rows = connection.execute("SELECT id, tag FROM keys").fetchall()
            found = [(id,) for id, one in rows if one == own or (user is None and one.startswith(tag))]
            self._current.clear()
            connection.executemany("UPDATE keys SET is_current = 0 WHERE id = ?", found)
            return [id for (id,) in found]

    def destroy(self, ids: Iterable[bytes]) -> None:
        """Destroy keys: everything sealed with them can never be read again. Durable when it returns."""
        rows = [(id,) for id in ids]
        if rows:
            with self._writing() as connection:
                connection.executemany("DELETE FROM keys WHERE id = ?", rows)
                self._ciphers.clear()
                self._current.clear()

    def close(self) -> None:
        """Close the file. It is opened again at the next use."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None
                self._ciphers.clear()
                self._current.clear()

    @property
    def _connection(self) -> sqlite3.Connection:
        """The connection, opened at first use: most stores have no items about a subject."""
        if self._opened is not None and not self._opened.in_transaction and self._lies_at() != self._file:
            self.close()  # a backup took its place, or it was removed: keys in a file without a name would be lost
        if self._opened is None:
            self._opened = _connect(self._path)
            self._file = self._lies_at()
        return self._opened

    def _lies_at(self) -> FileIdentity | None:
        return None if self._path is None else identity(os.fspath(self._path))

    def _current_cipher(self, tag: str) -> "tuple[bytes, AESGCM]":
        with self._lock:
            self._forget_if_changed()
            if tag not in self._current:
                self._current[tag] = self._make_current(tag)
            id = self._current[tag]
            cipher = self._cipher(id)
            assert cipher is not None  # a key is retired before it is destroyed
            return id, cipher

    def _make_current(self, tag: str) -> bytes:
        with self._writing() as connection:
            found = connection.execute("SELECT id FROM keys WHERE tag = ? AND is_current", (tag,)).fetchone()
            if found is not None:
                return bytes(found[0])
            id = secrets.token_bytes(_ID_BYTES)
            connection.execute("INSERT INTO keys VALUES (?, ?, ?, 1)", (id, tag, secrets.token_bytes(_KEY_BYTES)))
            return id

    def _cipher(self, id: bytes) -> "AESGCM | None":
        with self._lock:
            self._forget_if_changed()
            if id not in self._ciphers:
                found = self._rows("SELECT key FROM keys WHERE id = ?", id)
                if not found:
                    return None
                ((key,),) = found
                if type(key) is not bytes or len(key) != _KEY_BYTES:
                    raise _damaged("a key in it is invalid")
                self._ciphers[id] = _aes_gcm()(key)
            return self._ciphers[id]

    def _forget_if_changed(self) -> None:
        """Clear the caches if another process retired or destroyed keys."""
        ((version,),) = self._rows("PRAGMA data_version")
        if version != self._version:
            self._ciphers.clear()
            self._current.clear()
            self._version = version

    def _rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        with self._lock, _reported():
            return self._connection.execute(query, parameters).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _reported(), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection


def _unsealed(dot: Dot, sealed: bytes, cipher_of: "Callable[[bytes], AESGCM | None]") -> bytes | None:
    while sealed[:1] == _SEALED:
        cipher = cipher_of(sealed[1 : 1 + _ID_BYTES])
        if cipher is None:
            return None
        sealed = _decrypted(cipher, dot, sealed)
    return sealed


def _decrypted(cipher: "AESGCM", dot: Dot, sealed: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        return cipher.decrypt(sealed[1 + _ID_BYTES : _HEADER_BYTES], sealed[_HEADER_BYTES:], _bound_to(dot))
    except (InvalidTag, ValueError) as error:
        raise ValueError(f"the operation {dot.sequence} of device {dot.device} is damaged, or was sealed for another write") from error


def _bound_to(dot: Dot) -> bytes:
    return f"{dot.device}\0{dot.sequence}".encode()


def _aes_gcm() -> "type[AESGCM]":
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise ConfigError("items about a subject need the package cryptography", hint="pip install 'nearfar[memory]'") from error
    return AESGCM


def _connect(path: str | os.PathLike[str] | None) -> sqlite3.Connection:
    if path is not None:
        make_private(Path(path).parent)
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | CLOSED_ON_EXEC, stat.S_IRUSR | stat.S_IWUSR))
            os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)
        except OSError as error:
            hint = "name a file of yours, readable and writable, in its place"
            raise StoreUnavailable(f"the keys at {path} cannot be opened: {error.strerror}", hint=hint) from error
    with _reported():
        place = ":memory:" if path is None else os.path.abspath(path)
        connection = sqlite3.connect(place, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            # No write-ahead log, and a journal that is overwritten: a destroyed key must be in no file.
            for pragma in ("secure_delete = ON", "synchronous = EXTRA", "journal_mode = DELETE"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute(_SCHEMA)
            if connection.execute("SELECT 1 FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchone():
                raise _damaged("it has a trigger or a view that nearfar did not make")
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        hint = "end the process that holds the file, or check the disk, and try again"
        raise StoreUnavailable(f"the subjects' keys cannot be used: {error}", hint=hint) from error
    except sqlite3.DatabaseError as error:
        raise _damaged(str(error)) from error


def _damaged(how: str) -> StoreCorrupt:
    return StoreCorrupt(f"the file of the subjects' keys is damaged: {how}", hint=_NO_KEYS)
