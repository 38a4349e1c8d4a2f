"""LangGraph's store interface, with the meaning that its documentation gives to each operation."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self

from langgraph.store.base import (
    NOT_PROVIDED,
    BaseStore,
    GetOp,
    ListNamespacesOp,
    MatchCondition,
    NamespacePath,
    NotProvided,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from ...protocols import InvalidRequest
from ...protocols.items import ItemAddress, Source, Tier
from ..util.runtime import in_thread
from ..util.settings import as_choice
from . import validation
from .changes import Watchers
from .engine import Engine
from .episodic import ranks_turns, search_turns
from .erasing import Sweeper
from .operation import Principal
from .provenance import Origin, current
from .ranking import Ranking
from .reading import Matches, MemoryItem, Query, Reader, SearchMode
from .sync.keys import SubjectKeys
from .vectors import WHOLE, Embedder
from .writing import Edit, ItemWriter

if TYPE_CHECKING:
    from .engine import Vector


class BasicStore(BaseStore):
    """A LangGraph `BaseStore` over an `Engine`. Asynchronous methods run in a thread and never block the event loop.

    A batch reads first and then does all its writes at once: its reads do not see its writes. Of several writes to one item the last one
    counts.
    """

    supports_ttl = True

    def __init__(
        self,
        engine: Engine,
        *,
        embedder: Embedder | None = None,
        fields: Sequence[str] = (WHOLE,),
        user: str = "",
        tier: Tier = Tier.DEVICE,
        ttl: TTLConfig | None = None,
        maximum_bytes: int = validation.MAXIMUM_BYTES,
        mode: SearchMode = SearchMode.HYBRID,
        now: Callable[[], float] = time.time,
        keys: SubjectKeys | None = None,
    ) -> None:
        """`keys` are the keys of the engine's sealer, if it has one."""
        self.engine = engine
        self.ttl_config = _checked(ttl)
        self._embedder = embedder
        self._fields = validation.fields(fields)
        self._maximum_bytes = maximum_bytes
        self._mode = as_choice("mode", mode, SearchMode)
        self._now = now
        self._origin = Origin(user=user, tier=as_choice("tier", tier, Tier))
        self._principal: Principal | None = None
        self._watchers = Watchers()
        self._erasing = Watchers()
        self._keys = keys or SubjectKeys(None)
        interval = validation.ttl_seconds((ttl or {}).get("sweep_interval_minutes"))
        self._sweeper = None if interval is None else Sweeper(engine, now, interval)

    @property
    def user(self) -> str:
        """The user whose memory the store holds."""
        return self._origin.user or ""

    def bound(
        self,
        *,
        agent: str | None = None,
        source: Source | None = None,
        tier: Tier | None = None,
        subject: str | None = None,
        lineage: Sequence[ItemAddress] = (),
    ) -> Self:
        """Return the store bound to one writer: these values are stamped on every write through it, and no written value can change that.

        Args:
            agent: name of the agent that writes
            source: where its words come from
            tier: the tier of its items
            subject: the person that they are about
            lineage: addresses of the items that they are derived from
        """
        origin = Origin(
            agent=agent,
            source=validation.source(source),
            tier=validation.tier(tier),
            subject=subject,
            lineage=tuple(lineage),
        )
        return self._as(origin.within(self._origin))

    def view(self, principal: Principal) -> Self:
        """Return the store as a `principal` may see it. Items that are not meant for the principal do not exist in it and cannot be
        overwritten.

        Writes are stamped as the principal's. If the principal is on another device, the default tier is `user`, since such items have
        already left that device.
        """
        is_here = principal.device == self.engine.device
        tier = self._origin.tier if is_here else Tier.USER
        seen = self._as(replace(self._origin, user=principal.user, tier=tier))
        seen._principal = principal
        return seen

    def for_user(self, user: str) -> Self:
        """Return the store for a task on behalf of `user`: unchanged for the store's own user and if none is named, else that user's
        `view`."""
        if not user or user == self._origin.user:
            return self
        known = self._principal or Principal(user, self.engine.device)
        return self.view(replace(known, user=user))

    @property
    def watchers(self) -> Watchers:
        """Callbacks that run after each write; code that writes past the store has to notify them."""
        return self._watchers

    @property
    def erasing(self) -> Watchers:
        """Callbacks that run after each erasure, including those that a sync brings, for code that keeps copies of the store's content.

        If one of them raises, the erasure raises too, and the next erasure finishes it.
        """
        return self._erasing

    @property
    def origin(self) -> Origin:
        """The origin that is stamped on a write through this store now."""
        return current(self._origin)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run LangGraph's operations `ops` together, and return their results in order."""
        ops = list(ops)
        edits = [self._edit(op.namespace, op.key, op.value, op.index, op.ttl) for op in ops if isinstance(op, PutOp)]
        results = self._found(ops)
        if edits:
            self._write(edits)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await in_thread(self.batch, list(ops))

    def get(self, namespace: tuple[str, ...], key: str, *, refresh_ttl: bool | None = None) -> MemoryItem | None:
        """Return the item, or None. The item's time to live starts again, unless `refresh_ttl` or the store's configuration says
        otherwise."""
        address = validation.place(namespace, key)
        (item,) = self._reader().get([address], [address] if self._refreshes(refresh_ttl) else [])
        return item

    async def aget(self, namespace: tuple[str, ...], key: str, *, refresh_ttl: bool | None = None) -> MemoryItem | None:
        return await in_thread(self.get, namespace, key, refresh_ttl=refresh_ttl)

    def put(  # type: ignore[override]  # it returns more than nothing
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | None | NotProvided = NOT_PROVIDED,
        if_version: str | None = None,
        tier: Tier | None = None,
        subject: str | None = None,
        valid_from: datetime | None = None,
    ) -> str:
        """Replace the value of an item, and return the new version.

        `index` names the paths that can be searched, False none. `ttl` is in minutes. With `if_version` (the version that was read, or
        `"absent"`) the item is written only if it was not written since. A write without a `tier` gets the store's.

        Raises `VersionConflict`, or `InvalidRequest` if the value cannot be stored.
        """
        edit = self._edit(
            namespace,
            key,
            value,
            index,
            self._default_ttl() if isinstance(ttl, NotProvided) else ttl,
            if_version=if_version,
            tier=validation.tier(tier),
            subject=subject,
            valid_from=None if valid_from is None else valid_from.timestamp(),
        )
        return self._write([edit])[0]

    async def aput(  # type: ignore[override]  # it returns more than nothing
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | None | NotProvided = NOT_PROVIDED,
        if_version: str | None = None,
        tier: Tier | None = None,
        subject: str | None = None,
        valid_from: datetime | None = None,
    ) -> str:
        options: dict[str, Any] = {"ttl": ttl, "if_version": if_version, "tier": tier, "subject": subject, "valid_from": valid_from}
        return await in_thread(self.put, namespace, key, value, index, **options)

    def delete(self, namespace: tuple[str, ...], key: str, *, if_version: str | None = None) -> None:
        """Delete the item, if there is one. Other devices delete it, too."""
        address = validation.place(namespace, key)
        self._write([Edit(address=address, value=_nothing, if_version=if_version)])

    async def adelete(self, namespace: tuple[str, ...], key: str, *, if_version: str | None = None) -> None:
        await in_thread(self.delete, namespace, key, if_version=if_version)

    def search(  # type: ignore[override]  # a list of a subclass, which no caller appends to
        self,
        namespace_prefix: tuple[str, ...],
        /,
        *,
        query: str | None = None,
        filter: dict[str, Any] | None = None,
        key_prefix: str = "",
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool | None = None,
        mode: SearchMode | None = None,
        ranking: Ranking | None = None,
        valid_at: datetime | None = None,
        include_superseded: bool = False,
    ) -> list[MemoryItem]:
        """Return items in or below a namespace: the best matches of the `query` or, without a query, the last updated ones.

        With a `filter`, as LangGraph has it, and a `key_prefix`, only items that fit and whose key begins with it are searched. Items that
        are no longer valid, or not yet, are left out, unless another moment (`valid_at`) or all of them (`include_superseded`) are asked
        for. `mode`: by words, by meaning, or both; without an embedder every search goes by words. `ranking` defines an item's `score`.
        """
        op = SearchOp(namespace_prefix, filter, limit, offset, query)
        moment = None if include_superseded else self._now() if valid_at is None else valid_at.timestamp()
        chosen, how = as_choice("mode", mode or self._mode, SearchMode), ranking or Ranking()
        asked = replace(self._query(op), key_prefix=key_prefix, mode=chosen, ranking=how, valid_at=moment)
        is_past = include_superseded or valid_at is not None
        return self._search(asked, refresh=self._refreshes(refresh_ttl), is_past=is_past)

    async def asearch(  # type: ignore[override]  # a list of a subclass, which no caller appends to
        self,
        namespace_prefix: tuple[str, ...],
        /,
        *,
        query: str | None = None,
        filter: dict[str, Any] | None = None,
        key_prefix: str = "",
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool | None = None,
        mode: SearchMode | None = None,
        ranking: Ranking | None = None,
        valid_at: datetime | None = None,
        include_superseded: bool = False,
    ) -> list[MemoryItem]:
        return await in_thread(
            self.search,
            namespace_prefix,
            query=query,
            filter=filter,
            key_prefix=key_prefix,
            limit=limit,
            offset=offset,
            refresh_ttl=refresh_ttl,
            mode=mode,
            ranking=ranking,
            valid_at=valid_at,
            include_superseded=include_superseded,
        )

    def matches(self, prefixes: Sequence[tuple[str, ...]], *, keywords: str, text: str, limit: int) -> list[Matches]:
        """Return the best items below each of the `prefixes`, by `keywords` and by the meaning of `text`, each with its own score. Items
        that are not valid now are left out. For callers that rank by more than `search` does."""
        places = [validation.prefix(prefix) for prefix in prefixes]
        return self._reader().matches(places, keywords=keywords, text=text, limit=limit, valid_at=self._now())

    def meaning(self, text: str) -> "Vector | None":
        """Return the unit vector that the store's embedder makes of a `text`; None if there is no embedder, or if it fails now."""
        return self._reader().meaning(text)

    def list_namespaces(
        self,
        *,
        prefix: NamespacePath | None = None,
        suffix: NamespacePath | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[tuple[str, ...]]:
        """Return the namespaces that hold items, in order: those that begin with `prefix` and end with `suffix`, in which `"*"` stands for
        any one label. Namespaces deeper than `max_depth` are cut to it."""
        given: dict[Literal["prefix", "suffix"], NamespacePath | None] = {"prefix": prefix, "suffix": suffix}
        conditions = tuple(MatchCondition(kind, path) for kind, path in given.items() if path)
        return self._namespaces(ListNamespacesOp(conditions, max_depth, limit, offset))

    async def alist_namespaces(
        self,
        *,
        prefix: NamespacePath | None = None,
        suffix: NamespacePath | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[tuple[str, ...]]:
        return await in_thread(self.list_namespaces, prefix=prefix, suffix=suffix, max_depth=max_depth, limit=limit, offset=offset)

    def _as(self, origin: Origin) -> Self:
        other = copy(self)
        other._origin = origin
        return other

    def _reader(self) -> Reader:
        omit_expired = (self.ttl_config or {}).get("omit_expired", True)
        return Reader(self.engine, self._embedder, self._now, self._principal, omit_expired, self.user)

    def _writer(self) -> ItemWriter:
        return ItemWriter(self.engine, self._embedder, self._fields, self._now, self.origin, self._principal)

    def _write(self, edits: Sequence[Edit]) -> list[str]:
        versions = self._writer().write(edits)
        self._watchers.notify()
        return versions

    def _found(self, ops: Sequence[Op]) -> list[Result]:
        """Return the results of the operations, None for writes. Items that are read by key are read in one query."""
        gets = [op for op in ops if isinstance(op, GetOp)]
        places = [validation.place(op.namespace, op.key) for op in gets]
        refreshed = [place for place, op in zip(places, gets, strict=True) if op.refresh_ttl]
        items = iter(self._reader().get(places, refreshed))
        return [next(items) if isinstance(op, GetOp) else self._looked_up(op) for op in ops]

    def _looked_up(self, op: Op) -> Result:
        match op:
            case SearchOp():
                found: list[SearchItem] = [*self._search(self._query(op), refresh=op.refresh_ttl)]
                return found
            case ListNamespacesOp():
                return self._namespaces(op)
            case PutOp():
                return None
            case _:
                raise InvalidRequest(f"a store has no operation {type(op).__name__}")

    def _search(self, query: Query, *, refresh: bool, is_past: bool = False) -> list[MemoryItem]:
        if ranks_turns(query) and not is_past:
            return search_turns(self, self._reader(), query, refresh=refresh)
        return self._reader().search(query, refresh=refresh)

    def _query(self, op: SearchOp) -> Query:
        limit, offset = validation.page(op.limit, op.offset)
        if op.query is not None and not isinstance(op.query, str):
            raise InvalidRequest(f"a query is text, not {type(op.query).__name__}")
        return Query(
            prefix=validation.prefix(op.namespace_prefix),
            key_prefix="",
            text=op.query,
            conditions=validation.conditions(op.filter),
            limit=limit,
            offset=offset,
            mode=self._mode,
            ranking=Ranking(),
            valid_at=self._now(),
        )

    def _edit(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any] | None,
        index: Literal[False] | list[str] | None,
        ttl: float | None,
        **asked: Any,  # noqa: ANN401 - further fields of an `Edit`
    ) -> Edit:
        if value is None:
            return Edit(address=validation.place(namespace, key), value=_nothing, **asked)
        checked = validation.value(value, self._maximum_bytes)
        paths = () if index is False else None if index is None else validation.fields(index)
        address = validation.address(namespace, key)
        return Edit(address=address, value=lambda _: checked, index=paths, ttl=validation.ttl_seconds(ttl), **asked)

    def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        limit, offset = validation.page(op.limit, op.offset)
        conditions = tuple(op.match_conditions or ())
        for condition in conditions:
            validation.prefix(condition.path)
            if condition.match_type not in ("prefix", "suffix"):
                raise InvalidRequest(f"namespaces match by prefix or suffix, not by {condition.match_type!r}")
        if op.max_depth is not None and op.max_depth < 1:
            raise InvalidRequest(f"max_depth is a whole number from 1 on, not {op.max_depth!r}")
        return self._reader().namespaces(conditions, max_depth=op.max_depth, limit=limit, offset=offset)

    def _default_ttl(self) -> float | None:
        return (self.ttl_config or {}).get("default_ttl")

    def _refreshes(self, asked: bool | None) -> bool:
        return (self.ttl_config or {}).get("refresh_on_read", True) if asked is None else asked


def _nothing(_: object) -> None:
    return None


def _checked(ttl: TTLConfig | None) -> TTLConfig | None:
    if ttl is not None:
        validation.ttl_seconds(ttl.get("default_ttl"))
    return ttl
