"""The memory store: LangGraph's interface, and what it leaves out."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from ...protocols import InvalidRequest, NotFound
from . import validation
from .basic_store import BasicStore, in_thread
from .engine import Change
from .indexing import WHOLE
from .item import Tier
from .opening import EmbedderChoice, choose_embedder, open_engine
from .writing import Edit, Value

if TYPE_CHECKING:
    from langgraph.store.base import IndexConfig, TTLConfig

_BATCH = 500
"""Items per transaction, where there may be many."""


class MemoryStore(BasicStore):
    """What agents remember, on this device, kept in step with others'. See docs/memory.md.

    Open it with `MemoryStore.open`, and close it when it is no longer needed; it is a context manager, too.
    """

    @classmethod
    def open(
        cls,
        where: str | os.PathLike[str] = ":memory:",
        *,
        user: str = "",
        embedder: EmbedderChoice = "shipped",
        index: "IndexConfig | None" = None,
        ttl: "TTLConfig | None" = None,
        tier: Tier = Tier.DEVICE,
        maximum_bytes: int = validation.MAXIMUM_BYTES,
    ) -> Self:
        """The store in a file, which is created if need be, in a Postgres database (`postgres://...`), or in memory.

        `index` is LangGraph's: `fields` are the paths that are searched where a write names none, `embed` and `dims` an embedder.
        """
        chosen = choose_embedder(embedder, index)
        fields = (None if index is None else index.get("fields")) or [WHOLE]
        engine = open_engine(where, chosen)
        return cls(engine, embedder=chosen, fields=fields, user=user, ttl=ttl, tier=tier, maximum_bytes=maximum_bytes)

    def append(self, namespace: tuple[str, ...], key: str, field: str, items: Sequence[Any]) -> str:
        """Add to the end of the list in a field, and return the new version; whoever else appends meanwhile loses nothing.

        The item and the list are made if they are not there. Raises `InvalidRequest` where the field is no list.
        """
        added = validation.value({field: list(items)})[field]

        def extended(before: Value | None) -> Value:
            present = (before or {}).get(field, [])
            if not isinstance(present, list):
                raise InvalidRequest(f"field {field!r} is no list", hint="append to another one")
            return {**(before or {}), field: [*present, *added]}

        return self._change(namespace, key, extended)

    async def aappend(self, namespace: tuple[str, ...], key: str, field: str, items: Sequence[Any]) -> str:
        return await in_thread(self.append, namespace, key, field, items)

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
        """Set some fields of an item and remove others, leave the rest as it is, and return the new version. Raises `NotFound`."""
        changed = validation.value(fields, self._maximum_bytes)
        gone = set(remove)

        def patched(before: Value | None) -> Value:
            if before is None:
                raise NotFound(f"there is no item {key!r} in {'/'.join(namespace)}")
            return {name: part for name, part in {**before, **changed}.items() if name not in gone}

        return self._change(namespace, key, patched, if_version=if_version, tier=tier and Tier(tier))

    async def apatch(
        self,
        namespace: tuple[str, ...],
        key: str,
        fields: Mapping[str, Any],
        *,
        remove: Sequence[str] = (),
        if_version: str | None = None,
        tier: Tier | None = None,
    ) -> str:
        return await in_thread(self.patch, namespace, key, fields, remove=remove, if_version=if_version, tier=tier)

    def index_pending(self) -> int:
        """Embed what could not be embedded when it was written, and return how many items these were."""
        writer, done = self._writer(), 0
        while made := writer.index_pending(_BATCH):
            done += made
        return done

    async def aindex_pending(self) -> int:
        return await in_thread(self.index_pending)

    def sweep(self) -> int:
        """Forget the items whose time to live is over, and return how many these were."""
        done = 0
        while expired := self.engine.expired(self._now(), limit=_BATCH):
            with self.engine.transaction() as transaction:
                transaction.apply([Change(address, (), None) for address in expired])
            done += len(expired)
        return done

    async def asweep(self) -> int:
        return await in_thread(self.sweep)

    def close(self) -> None:
        """Release the database. Views and bound stores are of no use any more."""
        self.engine.close()

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
        return self._write([Edit(address=address, value=checked, is_total=False, if_version=if_version, tier=tier)])[0]
