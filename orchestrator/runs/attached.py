"""The attachments in the checkpoints of a run. Each is stored once, and the checkpoints name it by its hash."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from ...protocols.attachments import Attachment
from ..storage import DatabaseSession, Tables
from .run import damaged_run

TABLES: Final = Tables(
    part="attachments",
    version=1,
    sql="CREATE TABLE attachments (run TEXT NOT NULL, digest BLOB NOT NULL, content TEXT NOT NULL, PRIMARY KEY (run, digest));\n",
)
LEAST_BYTES: Final = 16_384
"""Bytes of a stored value, or characters of an attachment, from which taking attachments out is worth the time."""
_KEYS: Final = frozenset(Attachment.model_fields)
Contents = dict[bytes, str]
"""Attachments in base64, by their hashes."""


def without_attachments(value: Any, contents: Contents) -> Any:  # noqa: ANN401 - plain data of any form
    """Return plain data with a hash in the place of the data of each attachment, which go into `contents`.

    A hash is bytes, which a run's own data never have there.
    """
    if isinstance(value, list):
        return [without_attachments(each, contents) for each in value]
    if not isinstance(value, dict):
        return value
    data = value.get("data")
    if value.keys() == _KEYS and isinstance(data, str) and len(data) >= LEAST_BYTES:
        digest = sha256(data.encode()).digest()
        contents[digest] = data
        return {**value, "data": digest}
    return {name: without_attachments(each, contents) for name, each in value.items()}


def with_attachments(value: Any, contents: Mapping[bytes, str], run: str) -> Any:  # noqa: ANN401 - as above
    """Return plain data of a `run` with its attachments again. Raises `StoreCorrupt` if one is missing."""
    if isinstance(value, list):
        return [with_attachments(each, contents, run) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == _KEYS and isinstance(digest := value["data"], bytes):
        if digest not in contents:
            raise damaged_run(run)
        return {**value, "data": contents[digest]}
    return {name: with_attachments(each, contents, run) for name, each in value.items()}


def keep_attachments(session: DatabaseSession, run: str, contents: Contents) -> None:
    """Store the attachments that the run does not have yet."""
    if not contents:
        return
    known = {bytes(digest) for (digest,) in session.execute("SELECT digest FROM attachments WHERE run = ?", (run,)).fetchall()}
    for digest in contents.keys() - known:
        session.execute("INSERT INTO attachments (run, digest, content) VALUES (?, ?, ?)", (run, digest, contents[digest]))


def read_attachments(session: DatabaseSession, run: str) -> Contents:
    """Return the attachments of a run. Raises `StoreCorrupt` if one is damaged."""
    rows = session.execute("SELECT digest, content FROM attachments WHERE run = ?", (run,)).fetchall()
    contents = {bytes(digest): str(content) for digest, content in rows}
    if any(sha256(content.encode()).digest() != digest for digest, content in contents.items()):
        raise damaged_run(run)
    return contents
