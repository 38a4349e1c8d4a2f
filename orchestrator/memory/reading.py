"""Read and search items, as `MemoryItem`s with their provenance."""

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from langgraph.store.base import SearchItem

from ...protocols import ConfigError, NearfarError
from ...protocols.items import ItemAddress, Namespace, Source, Tier, namespace_text
from ..util.text import printable, spell_out
from .engine import Condition, Engine, Hit, ItemRow, ItemSelection, selects
from .operation import Principal
from .provenance import as_believed
from .ranking import Ranking, depth, fuse, keywords, weigh
from .vectors import Embedder, query_vector
from .writing import ARCHIVE_MARK

if TYPE_CHECKING:
    from langgraph.store.base import MatchCondition

    from .engine import Vector


class MemoryItem(SearchItem):
    """A stored item with its stamp. A copy: changing it changes nothing in the store."""

    __slots__ = (
        *("version", "user", "agent", "device", "source", "trust", "tier", "subject", "others", "lineage"),
        *("valid_from", "invalid_from", "expires_at", "conflicts", "is_anothers"),
    )

    def __init__(self, row: ItemRow, score: float | None = None, *, is_anothers: bool = False) -> None:
        meta = row.meta
        created_at = datetime.fromtimestamp(meta.created_at, UTC)
        updated_at = datetime.fromtimestamp(row.updated_at, UTC)
        super().__init__(row.address.namespace, row.address.key, row.value, created_at, updated_at, score)
        self.version: str = row.version
        """The version for `if_version`."""
        self.user: str = meta.user
        """The user who owns the item."""
        self.is_anothers: bool = is_anothers
        """True if another user than the reader wrote the item: it is trusted no more than untrusted content."""
        self.agent: str = meta.agent
        """The agent that wrote the item last; empty: the app itself."""
        self.device: str = row.device
        """The device on which the item was written last."""
        self.source: Source = meta.source
        self.trust: float = meta.trust
        self.tier: Tier = meta.tier
        self.subject: str = meta.subject
        self.others: tuple[str, ...] = meta.others
        """Further subjects of the item."""
        self.lineage: tuple[ItemAddress, ...] = meta.lineage
        self.valid_from: datetime | None = _moment(meta.valid_from)
        self.invalid_from: datetime | None = _moment(meta.invalid_from)
        self.expires_at: datetime | None = _moment(row.expires_at)
        self.conflicts: int = row.conflicts
        """Number of whole values that lost against this one and are not resolved; see `MemoryStore.conflicts`."""

    @property
    def address(self) -> ItemAddress:
        return ItemAddress(self.namespace, self.key)

    def dict(self) -> dict[str, Any]:
        """Return the item as plain JSON."""
        moments = {name: moment and moment.isoformat() for name in _MOMENTS for moment in [getattr(self, name)]}
        plain = {name: getattr(self, name) for name in _PLAIN}
        lineage = [[list(address.namespace), address.key] for address in self.lineage]
        return {**super().dict(), **plain, **moments, "others": [*self.others], "lineage": lineage}


_MOMENTS = ("valid_from", "invalid_from", "expires_at")
_PLAIN = ("version", "user", "agent", "device", "source", "trust", "tier", "subject", "conflicts")


def _moment(stamp: float | None) -> datetime | None:
    return None if stamp is None else datetime.fromtimestamp(stamp, UTC)


log = logging.getLogger(__name__)


class SearchMode(StrEnum):
    """The kind of comparison that a search makes."""

    HYBRID = "hybrid"
    """By words and by meaning."""
    KEYWORD = "keyword"
    SEMANTIC = "semantic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A search that is asked for."""

    prefix: Namespace
    key_prefix: str
    text: str | None
    conditions: tuple[Condition, ...]
    limit: int
    offset: int
    mode: SearchMode
    ranking: Ranking
    valid_at: float | None


class Matches(NamedTuple):
    """The results of a search below one prefix, with the engine's own scores, which say how much better one item is than another."""

    keyword: dict[ItemAddress, float]
    """Scores by words, on a scale of the engine's own."""
    semantic: dict[ItemAddress, float]
    """Cosine similarities."""
    items: dict[ItemAddress, MemoryItem]
    """All items that either search found."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads items as one principal, if there is one."""

    engine: Engine
    embedder: Embedder | None
    now: Callable[[], float]
    principal: Principal | None
    omit_expired: bool
    user: str = ""
    """The reading user: items that other users shared are trusted less."""

    def selection(
        self,
        prefix: Namespace = (),
        *,
        key_prefix: str = "",
        conditions: tuple[Condition, ...] = (),
        valid_at: float | None = None,
    ) -> ItemSelection:
        """Return the selection of items that the principal may see now."""
        now = self.now() if self.omit_expired else 0.0  # when nothing was over yet
        return ItemSelection(now, prefix, key_prefix, conditions, self.principal, valid_at)

    def get(self, addresses: Sequence[ItemAddress], refreshed: Sequence[ItemAddress]) -> list[MemoryItem | None]:
        """Return the items at the addresses; the time to live of those in `refreshed` starts again."""
        rows = self.engine.rows(list(dict.fromkeys(addresses)), self.selection())
        self._refresh([rows[address] for address in dict.fromkeys(refreshed) if address in rows])
        # A caller that asks for one item twice gets two copies.
        are_shared = len(rows) < len(addresses)
        found = map(rows.get, addresses)
        return [None if row is None else self.item(deepcopy(row) if are_shared else row) for row in found]

    def item(self, row: ItemRow, score: float | None = None) -> MemoryItem:
        """Return the item of a row, as its reader sees it."""
        if not row.meta.is_anothers(self.user):
            return MemoryItem(row, score)
        return MemoryItem(row._replace(meta=as_believed(row.meta, self.user)), score, is_anothers=True)

    def known(self, addresses: Sequence[ItemAddress]) -> list[ItemAddress]:
        """Return those of the items, deleted ones included, whose existence the principal may know of."""
        if self.principal is None or not addresses:
            return list(addresses)
        with self.engine.transaction() as transaction:
            heads = transaction.heads(addresses)
        sees = self.principal.sees
        return [one for one in addresses if one in heads and all(sees(one, head.meta, head.dot.device) for head in heads[one])]

    def search(self, query: Query, *, refresh: bool) -> list[MemoryItem]:
        """Return a page of the results, the best first; without a query text, the last updated first."""
        selection = self.selection(query.prefix, key_prefix=query.key_prefix, conditions=query.conditions, valid_at=query.valid_at)
        if query.limit == 0:
            return []
        if query.text is None or not query.text.strip():
            found: list[tuple[ItemRow, float | None]] = [
                (row, None) for row in self.engine.select(selection, limit=query.limit, offset=query.offset)
            ]
        else:
            hits = list(islice(self._ranked(query, query.text, selection), query.offset, query.offset + query.limit))
            rows = self._still_there(selection, hits)
            found = [(rows[hit.row], hit.score) for hit in hits if hit.row in rows]
        if refresh:
            self._refresh([row for row, _ in found])
        return [self.item(row, score) for row, score in found]

    def matches(self, prefixes: Sequence[Namespace], *, keywords: str, text: str, limit: int, valid_at: float) -> list[Matches]:
        """Return the `limit` best by words and as many by meaning, for each prefix. No time to live starts again."""
        vector = self.meaning(text)
        return [self._matches(self.selection(prefix, valid_at=valid_at), keywords, vector, limit) for prefix in prefixes]

    def meaning(self, text: str) -> "Vector | None":
        """Return the unit vector of a text; None if there is no embedder, or it fails now, or there is no text."""
        return self._vector(text, SearchMode.HYBRID) if text.strip() else None

    def _matches(self, selection: ItemSelection, keywords: str, vector: "Vector | None", limit: int) -> Matches:
        keyword = self.engine.keyword(keywords, selection, limit=limit)
        nearest = [] if vector is None else self.engine.nearest(vector, selection, limit=limit)
        rows = self._still_there(selection, [*keyword, *nearest])
        by_words, by_meaning = ({rows[hit.row].address: hit.score for hit in hits if hit.row in rows} for hits in (keyword, nearest))
        return Matches(by_words, by_meaning, {row.address: self.item(row) for row in rows.values()})

    def namespaces(self, conditions: "Sequence[MatchCondition]", *, max_depth: int | None, limit: int, offset: int) -> list[Namespace]:
        """Return the namespaces in order, each once."""
        fixed = next((_fixed(tuple(one.path)) for one in conditions if one.match_type == "prefix"), ())
        found = self.engine.namespaces(self.selection(fixed))
        matching = (namespace for namespace in found if all(_matches(namespace, one) for one in conditions))
        cut = dict.fromkeys(namespace[:max_depth] for namespace in matching)
        return sorted(cut)[offset : offset + limit]

    def _still_there(self, selection: ItemSelection, hits: Sequence[Hit]) -> dict[int, ItemRow]:
        """Return the rows of the hits, without those that were rewritten meanwhile and are no longer selected."""
        rows = self.engine.numbered(list({hit.row for hit in hits}))
        return {number: row for number, row in rows.items() if selects(selection, row)}

    def _ranked(self, query: Query, text: str, selection: ItemSelection) -> Iterator[Hit]:
        count = depth(query.offset + query.limit)
        vector = None if query.mode is SearchMode.KEYWORD else self._vector(text, query.mode)
        words = keywords(text) if query.mode is SearchMode.HYBRID else text
        keyword = [] if query.mode is SearchMode.SEMANTIC else self.engine.keyword(words, selection, limit=count)
        nearest = [] if vector is None else self.engine.nearest(vector, selection, limit=count)
        factors = self._factors(query.ranking, [*keyword, *nearest])
        if query.mode is SearchMode.HYBRID:
            return fuse(keyword, nearest, query.ranking, factors)
        return weigh([*keyword, *nearest], factors)

    def _factors(self, ranking: Ranking, hits: Sequence[Hit]) -> dict[int, float] | None:
        if not ranking.needs_rows:
            return None
        now = self.now()
        rows = self.engine.numbered(list({hit.row for hit in hits}))
        return {number: ranking.factor(row, now) for number, row in rows.items()}

    def _vector(self, text: str, mode: SearchMode) -> "Vector | None":
        if self.embedder is None:
            if mode is SearchMode.SEMANTIC:
                raise ConfigError("there is no embedder to search by meaning", hint="pip install 'nearfar[memory]', or give the store one")
            return None
        try:
            return query_vector(self.embedder, text)
        except NearfarError:
            raise
        except Exception as error:  # the user's own code: words still find something
            if mode is SearchMode.SEMANTIC:
                raise
            log.warning("embedding the query failed with %s; searching by words alone", type(error).__name__)
            return None

    def _refresh(self, rows: Sequence[ItemRow]) -> None:
        now = self.now()
        mortal = [row.address for row in rows if row.expires_at is not None and row.expires_at > now]
        if mortal:
            self.engine.refresh(mortal, now)


def _fixed(path: Namespace) -> Namespace:
    """Return the part of a path before its first wildcard, which a database can search by."""
    return path[: path.index("*")] if "*" in path else path


def _matches(namespace: Namespace, condition: "MatchCondition") -> bool:
    path = condition.path
    if len(path) > len(namespace):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[-len(path) :] if path else ()
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))


_VERSION: Final = re.compile(r"[0-9a-f]+@[^@+]+(\+[0-9a-f]+@[^@+]+)*")
_BATCH: Final = 200


def history(reader: Reader, address: ItemAddress) -> list[MemoryItem]:
    """Return the present and the earlier values of an item, the newest first."""
    past = sorted(_archived(reader, address), key=lambda row: (row.meta.invalid_from or 0, row.address.key), reverse=True)
    present = reader.get([address], [])[0]
    return [*([] if present is None else [present]), *map(MemoryItem, past)]


def _archived(reader: Reader, address: ItemAddress) -> Iterator[ItemRow]:
    begin = address.key + ARCHIVE_MARK
    selection = reader.selection(address.namespace, key_prefix=begin)
    for offset in count(0, _BATCH):
        rows = reader.engine.select(selection, limit=_BATCH, offset=offset)
        # Other items may have a key that begins the same.
        yield from (row for row in rows if row.address.namespace == address.namespace and _VERSION.fullmatch(row.address.key, len(begin)))
        if len(rows) < _BATCH:
            return


TIER_MEANINGS: Final = {
    Tier.DEVICE: "it never leaves the device that wrote it",
    Tier.USER: "it is sent to devices of the same user, and to the hub between them",
    Tier.SHARED: "it is sent to everyone who synchronises with this memory",
}
_TEXT_FIELDS: Final = ("text", "content", "fact", "value")
"""Fields of which the first one that is a text stands for the whole value in a line."""


def one_line(value: Mapping[str, Any]) -> str:
    """Return a value in one line, for a table: its text, or else all of it as JSON."""
    told = next((value[name] for name in _TEXT_FIELDS if isinstance(value.get(name), str)), None)
    return printable(" ".join((told if told is not None else value_text(value, indent=None)).split()))


def value_text(value: object, *, indent: int | None = 2) -> str:
    """Return a value as JSON, control characters written out."""
    return printable(json.dumps(value, ensure_ascii=False, indent=indent))


def address_text(address: ItemAddress) -> str:
    """Return the address of an item as the commands take it: namespace and key."""
    return spell_out(f"{namespace_text(address.namespace)} {address.key}")


def origin_text(item: MemoryItem) -> str:
    """Return the source of an item, with the agent that wrote it."""
    agent = f" {item.agent}" if item.agent else ""
    return printable(f"{item.source.value.replace('_', ' ')}{agent}")


def provenance(item: MemoryItem, here: str) -> Iterator[tuple[str, str | datetime]]:
    """Yield where an item comes from, how far it may travel and until when it counts, by name. `here` is the name of this device."""
    yield "tier", f"{item.tier}: {TIER_MEANINGS[item.tier]}"
    yield "from", f"{origin_text(item)}, trust {item.trust:g}"
    yield "written", item.updated_at
    if item.created_at != item.updated_at:
        yield "first written", item.created_at
    yield "on device", f"{item.device}, this one" if item.device == here else item.device
    yield "version", item.version
    for name, told in (("user", item.user), ("about", ", ".join(filter(None, (item.subject, *item.others))))):
        if told:
            yield name, told
    if item.lineage:
        yield "derived from", "\n".join(map(address_text, item.lineage))
    for name, moment in (("true from", item.valid_from), ("true until", item.invalid_from), ("forgotten", item.expires_at)):
        if moment is not None:
            yield name, moment


def when(item: MemoryItem) -> datetime:
    """Return the time that an item states, if it states one; else the time from which it is valid, or that of its creation."""
    at = item.value.get("at")
    try:
        moment = datetime.fromisoformat(at) if isinstance(at, str) else item.valid_from or item.created_at
    except ValueError:
        moment = item.created_at
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
