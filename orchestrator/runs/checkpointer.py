"""A LangGraph checkpointer for runs: ordered by numbers of its own, as LangGraph's ids go by a clock that may be set back."""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Any, Final
from zlib import crc32

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from ...protocols import Cancelled, StoreUnavailable, Unsupported
from ..storage import DatabaseSession, TableDatabase, Writer
from ..util.runtime import in_thread
from . import (
    EPOCH,
    LEAST_BYTES,
    PART,
    VERSION,
    Contents,
    Lease,
    damaged_run,
    keep_attachments,
    read_attachments,
    with_attachments,
    without_attachments,
)
from .leases import check_lease

_KINDS: Final = ("bytearray", "bytes", "msgpack", "null")
"""Kinds of serialized values; the serializer would read others."""
_COLUMNS: Final = "run, namespace, checkpoint, parent, version, kind, content, checksum, metadata"
_PUT: Final = """
INSERT INTO checkpoints (run, namespace, sequence, checkpoint, parent, version, kind, content, checksum, metadata)
VALUES (?, ?, (SELECT coalesce(max(sequence), 0) + 1 FROM checkpoints WHERE run = ?), ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run, namespace, checkpoint) DO UPDATE SET sequence = excluded.sequence, parent = excluded.parent, version = excluded.version,
    kind = excluded.kind, content = excluded.content, checksum = excluded.checksum, metadata = excluded.metadata
"""
_PUT_PENDING: Final = """
INSERT INTO pending (run, namespace, checkpoint, task, place, path, channel, kind, content, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run, namespace, checkpoint, task, place) DO
"""
_REPLACE: Final = "UPDATE SET channel = excluded.channel, kind = excluded.kind, content = excluded.content, checksum = excluded.checksum"
Tuples = list[CheckpointTuple]
Pending = list[PendingWrite]
_PARTS: Final = ("id", "channel_values", "channel_versions", "versions_seen")
"""Keys of every checkpoint."""


class RunCheckpointer(BaseCheckpointSaver[int]):
    """Keeps the checkpoints of the graphs of a thread, and the writes of the tasks behind each.

    A run's id is its thread's. With its `EPOCH` in `configurable`, only the run's present owner can write, and each graph's last checkpoint
    alone is kept. Graphs of the app's own keep their history. Writes are stored when the call returns. Values are plain data and the types
    that LangGraph needs: nothing else is made of them when they are read. Raises `RunBusy` if another process has the run, `Cancelled` if
    it was cancelled, and the database's errors.
    """

    def __init__(self, database: TableDatabase, writer: Writer) -> None:
        super().__init__(serde=JsonPlusSerializer(pickle_fallback=False, allowed_json_modules=None, allowed_msgpack_modules=None))
        self._database = database
        self._writer = writer

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        run, namespace = _place(config)
        identifier, part = get_checkpoint_id(config), _part(config)
        with self._database.reading() as session:
            query = f"SELECT {_COLUMNS} FROM checkpoints WHERE run = ? AND namespace = ? AND coalesce(?, checkpoint) = checkpoint"
            row = session.execute(f"{query} ORDER BY sequence DESC LIMIT 1", (run, namespace, identifier or None)).fetchone()
            return None if row is None else self._tuple(session, row, part)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await in_thread(self.get_tuple, config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield the stored checkpoints, the newest first."""
        yield from self._list(config, filter or {}, before)[:limit]

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        for each in (await in_thread(self._list, config, filter or {}, before))[:limit]:
            yield each

    def put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        self._writer.submit(self._put(config, checkpoint, metadata)).result()
        return _config(config, checkpoint["id"])

    async def aput(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        if await self._writer.write(self._put(config, checkpoint, metadata)):
            raise Cancelled(f"run {_place(config)[0]} was cancelled")
        return _config(config, checkpoint["id"])

    def put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        self._writer.submit(self._put_pending(config, writes, task_id, task_path)).result()

    async def aput_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        await self._writer.write(self._put_pending(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        self._writer.submit(partial(drop_checkpoints, run=thread_id)).result()

    async def adelete_thread(self, thread_id: str) -> None:
        await self._writer.write(partial(drop_checkpoints, run=thread_id))

    def _put(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata) -> "partial[bool]":
        if metadata.get("counters_since_delta_snapshot"):
            raise Unsupported("this checkpointer keeps no differences, which DeltaChannel writes", hint="use LangGraph's own checkpointer")
        run, namespace = _place(config)
        kind, content, attached = self._dumped(config, checkpoint)
        parent = get_checkpoint_id(config)
        told = json.dumps(get_checkpoint_metadata(config, metadata))
        row = (run, namespace, run, checkpoint["id"], parent, VERSION, kind, content, _checksum(kind, content, told), told)
        return partial(_put_checkpoint, lease=_lease(config), row=row, attached=attached)

    def _put_pending(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task: str, path: str) -> "partial[None]":
        run, namespace = _place(config)
        identifier = get_checkpoint_id(config)
        rows = []
        attached: Contents = {}
        for place, (channel, value) in enumerate(writes):
            kind, content, found = self._dumped(config, value)
            attached |= found
            place_of = WRITES_IDX_MAP.get(channel, place)
            rows.append((run, namespace, identifier, task, place_of, path, channel, kind, content, _checksum(kind, content, channel)))
        replaces = all(channel in WRITES_IDX_MAP for channel, _ in writes)
        return partial(_put_pending, lease=_lease(config), rows=rows, replaces=replaces, attached=attached)

    def _dumped(self, config: RunnableConfig, value: Any) -> tuple[str, bytes, Contents]:  # noqa: ANN401 - a value of any channel
        """Return a value as it is stored, and the attachments that were taken out of it. Graphs of the app's own keep them."""
        kind, content = self.serde.dumps_typed(value)
        attached: Contents = {}
        if _lease(config) is not None and len(content) >= LEAST_BYTES:
            plain = without_attachments(value, attached)
            kind, content = self.serde.dumps_typed(plain) if attached else (kind, content)
        return kind, content, attached

    def _list(self, config: RunnableConfig | None, wanted: dict[str, Any], before: RunnableConfig | None) -> Tuples:
        asked = {} if config is None else config["configurable"]
        conditions = {"run": asked.get("thread_id"), "namespace": asked.get("checkpoint_ns"), "checkpoint": asked.get("checkpoint_id")}
        given = {column: value for column, value in conditions.items() if value is not None}
        where = " AND ".join([*(f"{column} = ?" for column in given), "1 = 1"])
        parameters: list[object] = list(given.values())
        if before is not None:
            where += " AND sequence < (SELECT min(earlier.sequence) FROM checkpoints AS earlier WHERE earlier.checkpoint = ?)"
            parameters.append(get_checkpoint_id(before))
        with self._database.reading() as session:
            query = f"SELECT {_COLUMNS} FROM checkpoints WHERE {where} ORDER BY sequence DESC"
            found = [self._tuple(session, row) for row in session.execute(query, parameters).fetchall()]
        return [each for each in found if all(each.metadata.get(name) == value for name, value in wanted.items())]

    def _tuple(self, session: DatabaseSession, row: Sequence[Any], part: str = "") -> CheckpointTuple:
        run, namespace, identifier, parent, version, kind, content, checksum, metadata = row
        if not isinstance(version, int):
            raise damaged_run(run)
        if version > VERSION:
            message = f"the checkpoint of run {run} is of version {version}, and this nearfar knows version {VERSION}"
            raise StoreUnavailable(message, hint="update nearfar on this machine")
        attached = read_attachments(session, run)
        checkpoint = self._load(run, kind, content, checksum, metadata, attached)
        if not isinstance(checkpoint, dict) or any(name not in checkpoint for name in _PARTS):
            raise damaged_run(run)
        place: RunnableConfig = {"configurable": {"thread_id": run, "checkpoint_ns": namespace.removeprefix(part)}}
        return CheckpointTuple(
            config=_config(place, identifier),
            checkpoint=checkpoint,  # type: ignore[arg-type]  # a TypedDict, whose parts are there
            metadata=json.loads(metadata),
            parent_config=None if parent is None else _config(place, parent),
            pending_writes=self._pending(session, (run, namespace, identifier), attached),
        )

    def _pending(self, session: DatabaseSession, behind: tuple[str, str, str], attached: Contents) -> Pending:
        """Return the writes behind a checkpoint, which its run, namespace and id name."""
        query = (
            "SELECT task, channel, kind, content, checksum FROM pending WHERE run = ? AND namespace = ? AND checkpoint = ? "
            "ORDER BY path, task, place"
        )
        rows = session.execute(query, behind).fetchall()
        return [
            (task, channel, self._load(behind[0], kind, content, checksum, channel, attached))
            for task, channel, kind, content, checksum in rows
        ]

    def _load(self, run: str, kind: str, content: bytes, checksum: int, told: str, attached: Contents) -> Any:  # noqa: ANN401 - a value of any channel
        try:
            if kind not in _KINDS or _checksum(kind, content, told) != checksum:
                raise damaged_run(run)
            value = self.serde.loads_typed((kind, content))
            return with_attachments(value, attached, run) if attached else value
        except (ValueError, TypeError) as error:
            raise damaged_run(run) from error


def _checksum(kind: str, content: bytes, told: str) -> int:
    """Return the checksum of a value and of the columns that describe it."""
    return crc32(content, crc32(f"{kind} {told}".encode()))


def drop_checkpoints(session: DatabaseSession, *, run: str) -> None:
    for table in ("checkpoints", "pending", "attachments"):
        session.execute(f"DELETE FROM {table} WHERE run = ?", (run,))


def _put_checkpoint(session: DatabaseSession, *, lease: Lease | None, row: Sequence[Any], attached: Contents) -> bool:
    """Store a checkpoint, a run's in place of the one before. Return whether the run is to be cancelled: it then ends here, with all its
    work stored."""
    is_cancelled = False
    if lease is not None:
        is_cancelled = check_lease(session, lease, steps=1)
        for table in ("checkpoints", "pending"):
            session.execute(f"DELETE FROM {table} WHERE run = ? AND namespace = ?", row[:2])
        keep_attachments(session, lease.run, attached)
    session.execute(_PUT, row)
    return is_cancelled


def _put_pending(
    session: DatabaseSession, *, lease: Lease | None, rows: Sequence[Sequence[Any]], replaces: bool, attached: Contents
) -> None:
    if lease is not None:
        check_lease(session, lease)
        keep_attachments(session, lease.run, attached)
    for row in rows:
        session.execute(_PUT_PENDING + (_REPLACE if replaces else "NOTHING"), row)


def _place(config: RunnableConfig) -> tuple[str, str]:
    """Return the id of the run, and the namespace of the graph within it."""
    asked = config["configurable"]
    return str(asked["thread_id"]), _part(config) + str(asked.get("checkpoint_ns", ""))


def _part(config: RunnableConfig) -> str:
    """Return the prefix of the part's namespaces."""
    name = config["configurable"].get(PART)
    return "" if name is None else f"{name}/"


def _lease(config: RunnableConfig) -> Lease | None:
    epoch = config["configurable"].get(EPOCH)
    return None if epoch is None else Lease(_place(config)[0], epoch)


def _config(place: RunnableConfig, checkpoint: str) -> RunnableConfig:
    asked = place["configurable"]
    return {"configurable": {"thread_id": asked["thread_id"], "checkpoint_ns": asked.get("checkpoint_ns", ""), "checkpoint_id": checkpoint}}
