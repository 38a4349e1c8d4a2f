"""Translate a selection into a condition in SQL, and search by words and by meaning.

Words are ranked with bm25 in SQL, since Postgres's own ranking does not know how rare a word is (Robertson and Zaragoza, *The
Probabilistic Relevance Framework: BM25 and Beyond*, 2009). Texts are cut into words here, and not by Postgres's own parser: that one
depends on the database's locale, takes addresses and hyphenated words for one word, and knows no script that is written without spaces.

Vectors are in pgvector: a table for each embedder, since vectors of different embedders cannot be compared. The index is HNSW (Malkov and
Yashunin, arXiv 1603.09320), which finds nearly all of the nearest ones. A small selection is searched without it, and so exactly.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import orjson

from ....protocols import ConfigError, InvalidRequest
from ....protocols.items import Namespace, Tier
from ..engine import UNSPACED, Condition, Hit, ItemSelection, Operator
from ..operation import Principal
from .tables import as_json, number_of

if TYPE_CHECKING:
    from ...storage.postgres import Connection
    from ..engine import Vector


_Term = tuple[str, list[object]]
"""A condition with its parameters."""

_ORDERS: Final = {
    Operator.GREATER: ">",
    Operator.GREATER_OR_EQUAL: ">=",
    Operator.LESS: "<",
    Operator.LESS_OR_EQUAL: "<=",
}


class Where:
    """The condition `sql` with its `parameters`."""

    def __init__(self, selection: ItemSelection) -> None:
        terms: list[_Term] = [
            ("content IS NOT NULL", []),
            ("(expires_at IS NULL OR expires_at > %s)", [selection.now]),
            below([selection.prefix]),
        ]
        if selection.key_prefix:
            terms.append(("starts_with(key, %s)", [selection.key_prefix]))
        if selection.valid_at is not None:
            terms.append(("(valid_from IS NULL OR valid_from <= %s)", [selection.valid_at]))
            terms.append(("(invalid_from IS NULL OR invalid_from > %s)", [selection.valid_at]))
        if selection.principal is not None:
            terms += _meant_for(selection.principal)
        terms += map(_meets, selection.conditions)
        self.sql = " AND ".join(sql for sql, _ in terms)
        self.parameters = [parameter for _, parameters in terms for parameter in parameters]


def is_small(connection: "Connection", where: Where, most: int) -> bool:
    """Return whether the condition selects at most `most` items."""
    statement = f"SELECT count(*) FROM (SELECT FROM items WHERE {where.sql} LIMIT %s) AS selected"
    return connection.execute(statement, [*where.parameters, most + 1]).fetchone() != (most + 1,)


def below(prefixes: Iterable[Namespace]) -> _Term:
    """Return the condition that `namespace` is in or below any of the prefixes."""
    places = list(prefixes)
    if () in places:
        return "TRUE", []
    # The index finds numbers, which several namespaces may share; therefore names are compared, too.
    terms = " OR ".join(f"prefixes @> ARRAY[%s::bigint] AND namespace[1:{len(place)}] = %s::text[]" for place in places)
    return f"({terms or 'FALSE'})", [parameter for place in places for parameter in (number_of(place), list(place))]


def _meant_for(principal: Principal) -> list[_Term]:
    user, device = principal.user, principal.device
    allowed = "(tier = %s OR owner = %s AND (tier = %s OR tier = %s AND device = %s))"
    return [
        ("trust >= %s", [principal.minimum_trust]),
        ("TRUE", []) if principal.believes_others else ("owner IN ('', %s)", [user]),
        (allowed, [Tier.SHARED, user, Tier.USER, Tier.DEVICE, device]),
        below(principal.prefixes),
    ]


def _meets(condition: Condition) -> _Term:
    # Unlike `#>`, this operator never reads a name as an index into a list.
    fields = ["(fields" + " -> %s::text" * len(path) + ")" for path in condition.paths]
    field = fields[0] if len(fields) == 1 else f"coalesce({', '.join(fields)})"
    path: list[object] = [name for path in condition.paths for name in path]
    match condition.comparison:
        case Operator.EQUAL:
            return _equals(field, path, condition)
        case Operator.NOT_EQUAL:
            operand = as_json(condition.operand)
            return ("TRUE", []) if operand is None else (f"{_present(field)} <> %s::jsonb", [*path, operand])
        case order:
            return _compares(field, path, _ORDERS[order], condition.operand)


def _equals(field: str, path: list[object], condition: Condition) -> _Term:
    text = as_json(condition.operand)
    if text is None:
        return "FALSE", []
    if condition.operand is None:
        return f"{_present(field)} = %s::jsonb", [*path, text]
    containing = [_object(names, text) for names in condition.paths]
    # The index finds containing values, which are not always equal.
    contains = " OR ".join("fields @> %s::jsonb" for _ in containing)
    return f"(({contains}) AND {field} = %s::jsonb)", [*containing, *path, text]


def _present(field: str) -> str:
    """Return the expression of the field, or null if it is missing."""
    return f"coalesce({field}, 'null'::jsonb)"


def _object(path: tuple[str, ...], text: str) -> str:
    for name in reversed(path):
        text = f"{{{as_json(name)}: {text}}}"
    return text


def _compares(field: str, path: list[object], order: str, operand: object) -> _Term:
    if isinstance(operand, str):
        term = f"""(jsonb_typeof({field}) = 'string' AND ({field} #>> '{{}}') COLLATE "C" {order} %s)"""
        return term, [*path, *path, operand]
    if isinstance(operand, int | float) and not isinstance(operand, bool) and not math.isnan(operand):
        # As text, since a float8 loses digits when it is cast to numeric.
        term = f"(CASE WHEN jsonb_typeof({field}) = 'number' THEN {field}::numeric {order} %s::numeric ELSE FALSE END)"
        return term, [*path, *path, repr(operand)]
    return "FALSE", []


_WORD: Final = re.compile(f"([{UNSPACED}]+)|[^\\W_{UNSPACED}]+")
_DIACRITICS: Final = re.compile("[\u0300-\u036f]")
_LONGEST: Final = 64
"""Characters of a word that are compared."""
_MOST_BYTES: Final = 1_000_000
"""The capacity of a tsvector is a megabyte."""
_OVERHEAD: Final = 6
"""Bytes of a tsvector for each occurrence of a word, apart from the word itself."""
MOST_QUERIED: Final = 64
"""The most words of a query; further ones are not searched for."""


def words_of(text: str) -> list[str]:
    """Return the words of a stored text, in order and as often as they occur, for as long as they fit.

    In a script without spaces, the words are each character and each two neighbours.
    """
    kept: list[str] = []
    size = 0
    for match in _WORD.finditer(_plain(text)):
        for word in _parts(match[0], with_characters=True) if match[1] else (match[0][:_LONGEST],):
            size += len(word.encode()) + _OVERHEAD
            if size > _MOST_BYTES:
                return kept
            kept.append(word)
    return kept


def words_asked(query: str) -> list[str]:
    """Return the different words of a query. In a script without spaces, they are each two neighbours: single characters are too common."""
    found: dict[str, None] = {}
    for match in _WORD.finditer(_plain(query)):
        found.update(dict.fromkeys(_parts(match[0], with_characters=False) if match[1] else (match[0][:_LONGEST],)))
        if len(found) >= MOST_QUERIED:
            break
    return list(found)[:MOST_QUERIED]


def _parts(run: str, *, with_characters: bool) -> Iterator[str]:
    if with_characters or len(run) == 1:
        yield from run
    for first, second in zip(run, run[1:], strict=False):
        yield first + second


def _plain(text: str) -> str:
    """Return the text in small letters, without the diacritics of European scripts: those of others distinguish words."""
    return unicodedata.normalize("NFC", _DIACRITICS.sub("", unicodedata.normalize("NFKD", text.casefold())))


_MOST_RANKED: Final = 3_000
"""In a larger selection, only items with the rarest words are ranked: as many words as together are in at most this many items. If they
find too few, all words are searched for, in the items that changed last."""
_COUNTED: Final = 1_000
"""Items with a word are counted up to this number; the counts of more common words are estimated."""
_SAMPLED: Final = 1_000
"""Items from which the counts are estimated."""

# The index has stems; words with the same one are one word.
_COUNTS: Final = """
SELECT stem, (
  SELECT count(*) FROM (SELECT FROM items WHERE items.words @@ quote_literal(stem)::tsquery LIMIT %s) AS containing
), documents, words
FROM replica, (SELECT DISTINCT (tsvector_to_array(to_tsvector('words', word)))[1] AS stem FROM unnest(%s::text[]) AS word) AS stems
WHERE stem IS NOT NULL
"""
_SHARES: Final = """
SELECT stem, count(*) FILTER (WHERE items.words @@ quote_literal(stem)::tsquery)::float8 / count(*)
FROM items TABLESAMPLE SYSTEM (%s) REPEATABLE (0), unnest(%s::text[]) AS stem WHERE items.words IS NOT NULL GROUP BY stem
"""
# For one word that occurs n times, ts_rank is 6/π² (1 + 1/2² + ... + 1/n²); what is missing of 1 is very nearly 6/π² / (n + 1/2).
_RANKED: Final = """
SELECT number, (
  SELECT sum(rarity * occurrences * 2.2 / (occurrences + 1.2 * (0.25 + 0.75 * length / %s::float8)))
  FROM (
    SELECT rarity, round(6 / (pi() * pi() * (1 - ts_rank('{{1, 1, 1, 1}}', words, stem))) - 0.5) AS occurrences
    FROM unnest(%s::tsquery[], %s::float8[]) AS asked (stem, rarity) OFFSET 0
  ) AS terms
) AS score
FROM (SELECT number, words, length FROM items WHERE {where} AND words @@ %s::tsquery ORDER BY number DESC LIMIT %s) AS candidates
ORDER BY score DESC, number LIMIT %s
"""


@dataclass(frozen=True, slots=True)
class _Query:
    """The query's words with their rarity."""

    rarity: dict[str, float]
    """Rarity of each stem, the rarest first."""
    rarest: list[str]
    """The rarest stems that together few enough items have, but at least one."""
    average_length: float
    """Average length of all documents, in words."""


def best_by_words(connection: "Connection", query: str, selection: ItemSelection, limit: int) -> list[Hit]:
    asked = _understood(connection, words_asked(query))
    if asked is None:
        return []
    where = Where(selection)
    stems = list(asked.rarity)
    used = stems if asked.rarest == stems or is_small(connection, where, _MOST_RANKED) else asked.rarest
    hits = _ranked(connection, asked, used, where, limit)
    return hits if len(hits) == limit or used == stems else _ranked(connection, asked, stems, where, limit)


def _understood(connection: "Connection", words: Sequence[str]) -> _Query | None:
    """Return the query's words with their rarity; None if no item has any of them."""
    rows = connection.execute(_COUNTS, [_COUNTED, list(words)]).fetchall()
    counts = {stem: float(count) for stem, count, _, _ in rows if count}
    if not counts:
        return None
    _, _, documents, length = rows[0]
    common = [stem for stem, count in counts.items() if count >= _COUNTED]
    if common:
        sample = connection.execute(_SHARES, [min(100, 100 * _SAMPLED / documents), common])
        counts.update({stem: max(counts[stem], share * documents) for stem, share in sample})
    ordered = sorted(counts, key=lambda stem: (counts[stem], stem))
    rarity = {stem: math.log(1 + (documents - counts[stem] + 0.5) / (counts[stem] + 0.5)) for stem in ordered}
    return _Query(rarity, _rarest(ordered, counts), length / documents)


def _rarest(ordered: Sequence[str], counts: Mapping[str, float]) -> list[str]:
    totals = accumulate(counts[stem] for stem in ordered)
    return [stem for stem, total in zip(ordered, totals, strict=True) if total <= _MOST_RANKED] or list(ordered[:1])


def _ranked(connection: "Connection", asked: _Query, used: Sequence[str], where: Where, limit: int) -> list[Hit]:
    queries = [_matching([stem]) for stem in asked.rarity]
    parameters = [asked.average_length, queries, list(asked.rarity.values()), *where.parameters, _matching(used), _MOST_RANKED, limit]
    return [Hit(*row) for row in connection.execute(_RANKED.format(where=where.sql), parameters)]


def _matching(stems: Sequence[str]) -> str:
    """Return the tsquery for items that have any of the stems, which are letters and digits."""
    return " | ".join(f"'{stem}'" for stem in stems)


_INDEXED_AS_FLOAT: Final = 2000
_INDEXED_AT_ALL: Final = 4000
"""The widest vectors that pgvector's index takes, in single and in half precision."""
_SMALL: Final = 1_000
"""Items of a selection that is searched without the index."""
SETTINGS: Final = {
    # The index continues until the selection has let enough through. Results out of order are sorted afterwards.
    "hnsw.iterative_scan": "relaxed_order",
    "hnsw.ef_search": "100",
}
"""Settings of each connection."""

_EXACT: Final = """
SELECT number, coalesce(max(1 - nullif(vector <=> %s::{type}, 'NaN')), 0) AS score FROM {table} JOIN items ON item = number
WHERE {where} GROUP BY number ORDER BY score DESC, number LIMIT %s
"""
# `OFFSET 0` has the selection look at each candidate by itself: the planner takes it for far narrower than it is, and would otherwise
# compare the vectors of everything that it lets through.
_INDEXED: Final = """
SELECT item, 1 - min(distance) AS score, sum(count) FROM (
  SELECT item, vector <=> %s::{type} AS distance, 1 AS count
  FROM {table} CROSS JOIN LATERAL (SELECT FROM items WHERE number = item AND {where} OFFSET 0) AS selected
  ORDER BY vector <=> %s::{type} LIMIT %s
) AS passages GROUP BY item ORDER BY score DESC, item
"""


@dataclass(frozen=True, slots=True)
class VectorTable:
    """The table of an embedder's vectors."""

    number: int
    """The embedder's number."""
    embedder: str
    width: int

    @property
    def name(self) -> str:
        return f"vectors_{self.number}"

    @property
    def type(self) -> str:
        return f"vector({self.width})" if self.width <= _INDEXED_AS_FLOAT else f"halfvec({self.width})"

    @property
    def statements(self) -> tuple[str, ...]:
        """The statements that create the table."""
        columns = f"item bigint NOT NULL REFERENCES items ON DELETE CASCADE, passage integer NOT NULL, vector {self.type} NOT NULL"
        table = f"CREATE TABLE {self.name} ({columns}, PRIMARY KEY (item, passage))"
        if self.width > _INDEXED_AT_ALL:
            return (table,)
        kind = self.type.partition("(")[0]
        return table, f"CREATE INDEX {self.name}_nearest ON {self.name} USING hnsw (vector {kind}_cosine_ops)"

    def check(self, vectors: "Iterable[Vector]") -> None:
        """Raise `InvalidRequest` if a vector is not of the embedder's width."""
        for vector in vectors:
            if vector.shape != (self.width,):
                message = f"a vector of shape {vector.shape} is not from embedder {self.embedder}, whose vectors have width {self.width}"
                raise InvalidRequest(message, hint="give every embedder, and every version of one, a name of its own")

    def insert(self, connection: "Connection", rows: "Iterable[tuple[int, Sequence[Vector]]]") -> None:
        """Insert the vectors of all passages of items."""
        # They may exist already, if the engine had another embedder in between.
        statement = f"INSERT INTO {self.name} (item, passage, vector) VALUES (%s, %s, %s::{self.type}) ON CONFLICT DO NOTHING"
        passages = [(item, passage, written(vector)) for item, vectors in rows for passage, vector in enumerate(vectors)]
        with connection.cursor() as cursor:
            cursor.executemany(statement, passages)

    def add(self, connection: "Connection", made: "Mapping[int, Sequence[Vector]]") -> None:
        """Add vectors to those items that still exist and that no other transaction has locked."""
        statement = "SELECT number FROM items WHERE number = ANY(%s) AND embedder IS DISTINCT FROM %s FOR UPDATE SKIP LOCKED"
        there = [number for (number,) in connection.execute(statement, [list(made), self.number])]
        self.insert(connection, ((number, made[number]) for number in there))
        connection.execute("UPDATE items SET embedder = %s, claimed_by = NULL WHERE number = ANY(%s)", [self.number, there])

    def count(self, connection: "Connection") -> int:
        (count,) = connection.execute(f"SELECT count(*) FROM {self.name}").fetchone() or (0,)
        return int(count)

    def nearest(self, connection: "Connection", vector: "Vector", selection: ItemSelection, limit: int) -> list[Hit]:
        """Return the nearest items. Raises `InvalidRequest` if the vector is of another width."""
        self.check([vector])
        where = Where(selection)
        hits = None if is_small(connection, where, _SMALL) else self._by_index(connection, where, written(vector), limit)
        return hits if hits is not None else self._exactly(connection, where, written(vector), limit)

    def _exactly(self, connection: "Connection", where: Where, vector: str, limit: int) -> list[Hit]:
        statement = _EXACT.format(type=self.type, table=self.name, where=where.sql)
        return [Hit(*row) for row in connection.execute(statement, [vector, *where.parameters, limit])]

    def _by_index(self, connection: "Connection", where: Where, vector: str, limit: int) -> list[Hit] | None:
        """Search by the index; return None if it has given up before it found enough."""
        statement = _INDEXED.format(type=self.type, table=self.name, where=where.sql)
        candidates = limit
        while True:
            rows = connection.execute(statement, [vector, *where.parameters, vector, candidates]).fetchall()
            if len(rows) >= limit:
                return [Hit(number, score) for number, score, _ in rows[:limit]]
            if sum(passages for _, _, passages in rows) < candidates:
                return None
            candidates *= 2  # several passages are of the same item


class Vectors:
    """The vectors of the engine's embedder; without one, there are none."""

    def __init__(self, embedder: str | None) -> None:
        self.embedder = embedder
        self._table: VectorTable | None = None

    def prepare(self, connection: "Connection") -> None:
        """Install pgvector if it is missing. Raises `ConfigError` if the database has no pgvector."""
        from psycopg.errors import FeatureNotSupported, InsufficientPrivilege, UndefinedFile

        if self.embedder is None or connection.execute("SELECT to_regtype('vector')").fetchone() != (None,):
            return
        hint = "run CREATE EXTENSION vector as a user with that right; or set embed = false in [memory], to search by words alone"
        try:
            connection.execute("CREATE EXTENSION vector SCHEMA public")
        except (FeatureNotSupported, InsufficientPrivilege, UndefinedFile) as error:
            raise ConfigError("this database has no pgvector, but search by meaning needs it", hint=hint) from error

    def table(self, connection: "Connection") -> VectorTable | None:
        """Return the embedder's table; None if it has made no vectors so far. Call it only when no uncommitted data is visible."""
        if self._table is None:
            self._table = self._found(connection)
        return self._table

    def table_for(self, connection: "Connection", batches: "Sequence[tuple[int, Sequence[Vector]]]") -> VectorTable | None:
        """Return the table for these vectors, checked; each batch has a number of texts. The row of `replica` must be locked."""
        for texts, vectors in batches:
            if len(vectors) != texts:
                raise InvalidRequest(f"an item with {texts} texts cannot have {len(vectors)} vectors")
        first = next((vectors[0] for _, vectors in batches if len(vectors)), None)
        if first is None:
            return None
        table = self._table or self._found(connection) or self._made(connection, len(first))
        for _, vectors in batches:
            table.check(vectors)
        return table

    def _found(self, connection: "Connection") -> VectorTable | None:
        row = connection.execute("SELECT number, name, width FROM embedders WHERE name = %s", [self.embedder]).fetchone()
        return None if row is None else VectorTable(*row)

    def _made(self, connection: "Connection", width: int) -> VectorTable:
        if self.embedder is None:
            raise InvalidRequest("vectors need an embedder", hint="name the embedder when the store is opened")
        insert = "INSERT INTO embedders (name, width) VALUES (%s, %s) RETURNING number"
        (number,) = connection.execute(insert, [self.embedder, width]).fetchone() or (0,)
        table = VectorTable(number, self.embedder, width)
        for statement in table.statements:
            connection.execute(statement)
        return table


def written(vector: "Vector") -> str:
    """Return the vector as pgvector reads it."""
    return orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY).decode()
