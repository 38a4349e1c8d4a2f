"""The memory store: LangGraph's interface, and the operations that it lacks."""

import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, Self

from langgraph.store.base import IndexConfig, TTLConfig

from ...protocols import ConfigError, InvalidRequest, NotFound, PermissionDenied
from ...protocols.items import ItemAddress, Namespace, Tier, within
from ..util.runtime import in_thread, threaded
from ..util.settings import as_choice, as_path, require, require_callable, require_methods
from . import validation
from .basic_store import BasicStore
from .changes import Conflict, MemoryChange, changes_after, conflicts, count_visible, name_of, read_conflict, watch_changes
from .engine import Engine
from .erasing import sweep, traces
from .operation import Sealer
from .reading import MemoryItem, SearchMode, history
from .sync import Replica, books
from .sync.keys import SubjectKeys
from .transfer import Imported, batches, edits_of, export
from .vectors import WHOLE, Embedder, ShippedEmbedder, from_index_config
from .writing import Edit, Value

EmbedderChoice = Embedder | Literal["shipped"] | None
"""`"shipped"` uses the shipped embedder if its packages are installed; None: no embedder, and items are found by words."""


def open_keys(where: str | os.PathLike[str]) -> SubjectKeys:
    """Open the subjects' keys of a store: in a file next to the store's file, else in memory."""
    return SubjectKeys(None if _is_server(where) or where == ":memory:" else f"{os.fspath(where)}.keys")


def _is_server(where: str | os.PathLike[str]) -> bool:
    return os.fspath(where).startswith(("postgres://", "postgresql://"))


def open_engine(
    where: str | os.PathLike[str], embedder: Embedder | None, key: Callable[[], str] | None, sealer: Sealer | None = None
) -> Engine:
    """Open the engine for a path, a `postgres://` address, or `":memory:"`; with a `key`, the file at the path is encrypted.

    With a `sealer`, the log of a file has operations about a subject readable by the subject's key alone.
    """
    name = None if embedder is None else embedder.name
    place = os.fspath(where)
    is_server = _is_server(where)
    if key is not None and (is_server or place == ":memory:"):
        raise ConfigError("only a store in a file can be encrypted with a key", hint="leave the key out; a server encrypts its own disk")
    if is_server:
        from .postgres import PostgresEngine

        return PostgresEngine(place, embedder=name)
    from .sqlite import SqliteEngine

    return SqliteEngine(place, embedder=name, key=key, sealer=sealer)


def choose_embedder(choice: EmbedderChoice, index: "IndexConfig | None") -> Embedder | None:
    """Return the embedder that the configuration names, else the chosen one."""
    configured = None if index is None else from_index_config(index)
    if configured is not None:
        return configured
    if choice == "shipped":
        return ShippedEmbedder() if ShippedEmbedder.is_installed() else None
    require_methods("embedder", choice, ("name",), 'an Embedder, "shipped" or None')
    return choice


_BATCH = 500
"""Items per transaction in bulk operations."""


class MemoryStore(BasicStore):
    """The memory of agents on this device, synchronised with other devices. See docs/memory.md.

    Open it with `MemoryStore.open`, and close it when it is no longer needed; it is a context manager, too.

    Arguments of several functions:
        namespace, namespace_prefix, prefix: labels from the outermost to the innermost, such as `("people", "ana")`; as a prefix,
            everything in or below it
        key: the item's name in its namespace
        value: a JSON object
        index: paths in the value that can be searched; False: none
        if_version: write only if this is still the item's version; `"absent"`: only if there is no item
        tier: `device`, `user` or `shared`: the devices that the item may travel to; None: the store's, or the item's present one
        subject: the person that the item is about, for `erase`
        valid_from: the moment from which the value is true; None: now
        refresh_ttl: whether reading an item lets its time to live start again; None: as the store is configured
        limit, offset: most items to return, and items to skip first
    """

    @classmethod
    def open(
        cls,
        where: str | os.PathLike[str] = ":memory:",
        *,
        user: str = "",
        embedder: EmbedderChoice = "shipped",
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        tier: Tier = Tier.DEVICE,
        maximum_bytes: int = validation.MAXIMUM_BYTES,
        mode: SearchMode | None = None,
        key: Callable[[], str] | None = None,
    ) -> Self:
        """Open the store in the file `where`, which is created if it is missing, in a Postgres database (`postgres://...`), or in memory.

        With a `key`, which is called at each connection, the file is encrypted; keep such a key in a keyring. `index` is LangGraph's:
        `fields` are the paths that are searched if a write names none, `embed` and `dims` an embedder. With such an embedder a search ranks
        as in LangGraph's own stores, by meaning alone, unless `mode` says otherwise.

        Args:
            user: the user whose memory it is; empty: a user without other devices
            embedder: makes the vectors for the search by meaning: the one that ships with nearfar, an `Embedder`, or None for a search by
                words alone
            ttl: LangGraph's configuration of how long items live, in minutes; None: for ever
            tier: the tier of items that are written without one
            maximum_bytes: largest value that can be written, as JSON
        """
        _check_arguments(where, user=user, index=index, ttl=ttl, maximum_bytes=maximum_bytes, key=key)
        tier, mode = as_choice("tier", tier, Tier), None if mode is None else as_choice("mode", mode, SearchMode)
        chosen = choose_embedder(embedder, index)
        fields = (None if index is None else index.get("fields")) or [WHOLE]
        default = SearchMode.SEMANTIC if index is not None and index.get("embed") is not None else SearchMode.HYBRID
        with ExitStack() as opening:
            keys = open_keys(where)
            opening.callback(keys.close)
            engine = open_engine(where, chosen, key, keys)
            opening.callback(engine.close)
            store = cls(
                engine,
                embedder=chosen,
                fields=fields,
                user=user,
                ttl=ttl,
                tier=tier,
                maximum_bytes=maximum_bytes,
                mode=mode or default,
                keys=keys,
            )
            opening.pop_all()  # the store closes them
            opening.callback(store.close)
            store.replica().finish_erasing()
            opening.pop_all()
            return store

    def append(self, namespace: tuple[str, ...], key: str, field: str, items: Sequence[Any]) -> str:
        """Append `items` to the list in a `field`, and return the new version; concurrent appends lose nothing.

        The item and the list are created if they are missing. Raises `InvalidRequest` if the field is no list.
        """
        added = validation.value({field: list(items)}, self._maximum_bytes)[field]

        def extended(before: Value | None) -> Value:
            present = (before or {}).get(field, [])
            if not isinstance(present, list):
                raise InvalidRequest(f"field {field!r} is no list", hint="append to a field that has a list, or to a new one")
            return {**(before or {}), field: [*present, *added]}

        return self._change(namespace, key, extended)

    aappend = threaded(append)

    def patch(
        self,
        namespace: tuple[str, ...],
        key: str,
        fields: Mapping[str, Any],
        *,
        remove: Sequence[str] = (),
        if_version: str | None = None,
        tier: Tier | None = None,
    ) -> str:
        """Set some `fields` of an item and `remove` others, leave the rest unchanged, and return the new version. Raises `NotFound`."""
        changed = validation.value(fields, self._maximum_bytes)
        gone = set(remove)

        def patched(before: Value | None) -> Value:
            if before is None:
                raise NotFound(f"there is no item {key!r} in {'/'.join(namespace)}")
            return {name: part for name, part in {**before, **changed}.items() if name not in gone}

        return self._change(namespace, key, patched, if_version=if_version, tier=validation.tier(tier))

    apatch = threaded(patch)

    def supersede(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        valid_from: datetime | None = None,
        if_version: str | None = None,
        tier: Tier | None = None,
        subject: str | None = None,
    ) -> str:
        """Replace the value of an item from a moment on, by default now, and return the new version.

        The earlier value is kept as no longer valid: a search does not find it any more, `history` does.
        """
        moment = self._now() if valid_from is None else valid_from.timestamp()
        edit = self._edit(namespace, key, value, index, self._default_ttl())
        stamped = replace(edit, valid_from=moment, archives=True, if_version=if_version, tier=validation.tier(tier), subject=subject)
        return self._write([stamped])[0]

    asupersede = threaded(supersede)

    def invalidate(self, namespace: tuple[str, ...], key: str, *, at: datetime | None, if_version: str | None = None) -> str:
        """Set the moment `at` which an item becomes invalid, or with None that it still is valid, and return the new version. Raises
        `NotFound`.

        The item's value, tier and trust stay; a search does not find it any more.
        """
        present = self.get(namespace, key, refresh_ttl=False)
        if present is None:
            raise NotFound(f"there is no item {key!r} in {'/'.join(namespace)}")
        address = validation.place(namespace, key)
        row = self.engine.rows([address], self._reader().selection())[address]
        told = row.meta._replace(invalid_from=None if at is None else at.timestamp())
        edit = Edit(
            address=address, value=_same, is_patch=True, index=told.index, ttl=told.ttl, told=told, if_version=if_version or row.version
        )
        return self.bound(source=told.source)._write([edit])[0]

    ainvalidate = threaded(invalidate)

    def history(self, namespace: tuple[str, ...], key: str) -> list[MemoryItem]:
        """Return the item and its superseded values, the newest first."""
        return history(self._reader(), validation.place(namespace, key))

    ahistory = threaded(history)

    def conflicts(self, *, limit: int = 100, offset: int = 0) -> list[Conflict]:
        """Return items with values that lost because two devices wrote them without knowing of each other; see `resolve`."""
        return conflicts(self._reader(), *validation.page(limit, offset))

    aconflicts = threaded(conflicts)

    def resolve(self, namespace: tuple[str, ...], key: str, keep: str | Mapping[str, Any] = "present") -> str:
        """Resolve a conflict, on all devices, and return the new version. `keep`: the present value, a lost one by its name, or a new
        value.

        Raises `NotFound` if there is no such conflict, and `VersionConflict` if the item was written in between.
        """
        address = validation.place(namespace, key)
        version, siblings = read_conflict(self._reader(), address)
        if keep == "present":
            return self._write([Edit(address=address, value=_same, is_total=False, is_patch=True, if_version=version, decides=True)])[0]
        if isinstance(keep, str):
            kept = next((one for one in siblings if name_of(one) == keep), None)
            if kept is None:
                raise NotFound(f"no value {keep!r} was lost", hint=f"choose from present, {', '.join(map(name_of, siblings))}")
            siblings, value = (kept,), dict(kept.value)
        else:
            value = validation.value(keep, self._maximum_bytes)
        parts = tuple(one.meta for one in siblings)
        edit = Edit(address=address, value=lambda _: value, is_total=False, if_version=version, parts=parts, decides=True)
        return self._write([edit])[0]

    aresolve = threaded(resolve)

    def changes(self, since: int = 0, *, prefix: tuple[str, ...] = (), limit: int = 200) -> tuple[list[MemoryChange], int]:
        """Return the changes after the position `since`, in order, and the position to continue from. The list may be empty before the end
        of the feed; at the end the position stays the same."""
        return changes_after(self._reader(), since, prefix=validation.prefix(prefix), limit=limit)

    achanges = threaded(changes)

    def watch(self, prefix: tuple[str, ...] = (), *, since: int | None = None) -> AsyncGenerator[MemoryChange]:
        """Yield changes as they happen, from now on or after the position `since`, including those of other processes. Close it when
        done."""
        return watch_changes(self._reader(), self._watchers, prefix=validation.prefix(prefix), since=since)

    def traces(self, *, subject: str | None = None, prefix: tuple[str, ...] | None = None) -> list[ItemAddress]:
        """Return the addresses of the items that `erase` would forget, deleted ones included if any of their data is still stored. A
        view returns those that its principal may see."""
        return self._reader().known(traces(self.engine, prefix=None if prefix is None else validation.prefix(prefix), subject=subject))

    def erase(self, *, subject: str | None = None, prefix: tuple[str, ...] | None = None) -> list[ItemAddress]:
        """Forget everything about a subject, or in or below a namespace, with its history and all that was derived from it.

        An item is about a subject if it has its stamp, or its name in the text, as whole words in any case; see `memory.wording`. Rows,
        vectors and index are overwritten in every file, and other devices do the same with their next sync. A view erases its
        principal's own items. Returns the addresses of the items.
        """
        if (subject is None) == (prefix is None) or subject == "":
            raise InvalidRequest("an erasure needs either a subject or a namespace prefix", hint="give one of them")
        if subject is not None:
            validation.check_name(subject)
        place = None if prefix is None else validation.prefix(prefix)
        erased = self.replica().erase(subject=subject, prefix=place, on_behalf_of=self._eraser(place))
        self._watchers.notify()
        return erased

    aerase = threaded(erase)

    def export(self, *, prefix: tuple[str, ...] = (), tier: Tier | None = None) -> Iterator[str]:
        """Return items as lines of JSON, with all their stamps, including items that are no longer valid. Lost values are left out."""
        return export(self._reader(), prefix=validation.prefix(prefix), tier=validation.tier(tier))

    def import_lines(self, lines: Iterable[str], *, overwrite: bool = False, dry_run: bool = False) -> Imported:
        """Import exported items (`lines` of JSON): as the store's user, with their tiers, and with no more trust than the importing user
        has.

        A line may have namespace, key and value alone: it is a new write of the importing user. Items that the store has with another value
        are left unchanged, unless `overwrite` is set. A second import of the same lines changes nothing. `dry_run` only reports what would
        be done. Raises `InvalidRequest` before anything is written, if a line is no item.
        """
        edits, imported = edits_of(self._reader(), lines, overwrite=overwrite, maximum_bytes=self._maximum_bytes, ttl=self._default_ttl())
        for batch in () if dry_run else batches(edits):
            self._write(batch)
        return imported

    def replica(self, *, is_hub: bool = False) -> Replica:
        """Return the store as a replica to synchronise, see docs/sync.md. With `is_hub` it has the items of several users, and is trusted
        by them."""
        user = None if is_hub else self._origin.user or ""
        return Replica(
            engine=self.engine,
            keys=self._keys,
            user=user,
            fields=self._fields,
            now=self._now,
            maximum_bytes=self._maximum_bytes,
            erased=self._erasing.notify,
        )

    def erasures(self) -> str:
        """Return a digest of all erasures that the store has heard of, empty if there are none: it changes with each."""
        with self.engine.transaction() as transaction:
            return books.erasures(transaction)

    def stats(self) -> dict[str, int]:
        """Return the numbers of items, deleted items, operations, items with conflicts, vectors and bytes, in the whole store.

        A view counts what its principal may see: items, deleted items, items with conflicts, and bytes of values.
        """
        if self._principal is not None:
            return count_visible(self._reader())
        return self.engine.statistics()

    def index_pending(self) -> int:
        """Embed the items whose embedding failed when they were written, and return their number."""
        writer, done = self._writer(), 0
        while made := writer.index_pending(_BATCH):
            done += made
        return done

    aindex_pending = threaded(index_pending)

    def sweep(self) -> int:
        """Forget the items that have expired, and return their number."""
        return sweep(self.engine, self._now)

    asweep = threaded(sweep)

    def close(self) -> None:
        """Close the database. Views and bound stores of it cannot be used any more."""
        if self._sweeper is not None:
            self._sweeper.close()
        self.engine.close()
        self._keys.close()

    async def aclose(self) -> None:
        await in_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _change(
        self,
        namespace: tuple[str, ...],
        key: str,
        change: Callable[[Value | None], Value],
        *,
        if_version: str | None = None,
        tier: Tier | None = None,
    ) -> str:
        def checked(before: Value | None) -> Value:
            return validation.value(change(before), self._maximum_bytes)

        address = validation.address(namespace, key)
        return self._write([Edit(address=address, value=checked, is_total=False, is_patch=True, if_version=if_version, tier=tier)])[0]

    def _eraser(self, place: Namespace | None) -> str | None:
        if self._principal is None:
            return None
        if (
            not any(place is not None and within(place, prefix) for prefix in self._principal.prefixes)
            and () not in self._principal.prefixes
        ):
            raise PermissionDenied("an erasure of items that you may not see is not allowed", hint="erase below a namespace of your own")
        return self._principal.user


def _same(value: Value | None) -> Value | None:
    return value


def _check_arguments(where: object, *, user: object, index: object, ttl: object, maximum_bytes: object, key: object) -> None:
    """Raise `ConfigError` for an argument of a wrong type."""
    as_path("where", where)
    require("user", user, str, "a text")
    if isinstance(user, str):
        validation.check_user(user)
    require("index", index, dict, "a mapping as LangGraph's IndexConfig")
    require("ttl", ttl, dict, "a mapping as LangGraph's TTLConfig", hint='ttl={"default_ttl": MINUTES}')
    require("maximum_bytes", maximum_bytes, int, "a number of bytes")
    require_callable("key", key, "a function that returns the key")
