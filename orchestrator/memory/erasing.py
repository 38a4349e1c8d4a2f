"""Find what an erasure would remove, in this store and in records of others, and forget items that have expired."""

import html
import json
import logging
import re
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import unquote

from ...protocols import StoreError
from ...protocols.items import ItemAddress, Namespace
from .engine import Change, Engine
from .operation import Operation

_LEAST_NAME: Final = 2
_DEPTH: Final = 3
"""Layers of escapes that are undone: a result of a tool in a record is JSON in JSON by itself."""
_ESCAPE: Final = re.compile(r"(?:\\u[0-9a-fA-F]{4})+|\\.")
_PLAIN: Final = str.maketrans({**dict.fromkeys("\u2018\u2019\u02bc", "'"), **dict.fromkeys("\u2010\u2012\u2013\u2014\u2212", "-")})
_UNSPACED: Final = ("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
"""Scripts that are written without spaces and whose letters are not wide."""
_LEAST_TEXT: Final = 8
"""Characters of a text below which a match says nothing: "yes" and "tea" are in most runs."""


@dataclass(frozen=True, slots=True)
class Wording:
    """A name, and texts of items, as other texts may repeat them: in other cases, forms of Unicode and spacing, or escaped."""

    name: re.Pattern[str] | None = None
    texts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, name: str | None, values: Iterable[Any] = ()) -> "Wording":
        """Return the wording of a name and of values. Short texts, and names that are a number or one letter, are not searched for."""
        folded = (reading for value in values for text in leaves(value) for reading in _readings(text))
        return cls(_pattern(fold(name or "")), frozenset(text for text in folded if len(text) >= _LEAST_TEXT))

    def is_named_in(self, value: Any) -> bool:  # noqa: ANN401 - a value as JSON has it
        """Return whether any text in a value has the name, as whole words."""
        return self.name is not None and any(self.name.search(reading) for text in leaves(value) for reading in _readings(text))

    def is_in(self, text: str) -> bool:
        """Return whether a text has the name, or repeats a text."""
        readings = list(_readings(text))
        is_named = self.name is not None and any(map(self.name.search, readings))
        return is_named or any(one in reading for reading in readings for one in self.texts)


def fold(text: str) -> str:
    """Return a text without irrelevant differences: case, forms of Unicode, invisible characters, kinds of white space and of marks."""
    plain = unicodedata.normalize("NFKC", text).translate(_PLAIN)
    if not plain.isascii():
        plain = "".join(character for character in plain if unicodedata.category(character) != "Cf")
    return " ".join(plain.casefold().split())


def _readings(text: str) -> Iterator[str]:
    """Yield a text, folded, as it stands and with its escapes undone: tools return JSON and HTML, often one inside of the other."""
    yield fold(text)
    for _ in range(_DEPTH):
        text, before = html.unescape(unquote(_ESCAPE.sub(_unescaped, text))), text
        if text == before:
            return
        yield fold(text)


def _unescaped(escape: re.Match[str]) -> str:
    try:
        return str(json.loads(f'"{escape[0]}"'))
    except ValueError:  # no escape of JSON
        return escape[0]


def leaves(value: Any) -> Iterator[str]:  # noqa: ANN401 - a value as JSON has it
    """Yield all texts and numbers in a value, the names of its fields among them."""
    match value:
        case str():
            yield value
        case Mapping():
            for name, part in value.items():
                yield str(name)
                yield from leaves(part)
        case list() | tuple() | set() | frozenset():
            for part in value:
                yield from leaves(part)
        case int() | float() if not isinstance(value, bool):
            yield str(value)


def _pattern(name: str) -> re.Pattern[str] | None:
    """Return a pattern for a folded name between other words; scripts that are written without spaces have no such ends of words."""
    if len(name) < _LEAST_NAME or name.isdecimal():
        return None
    before = "" if _is_unspaced(name[0]) else r"(?<!\w)"
    behind = "" if _is_unspaced(name[-1]) else r"(?!\w)"
    return re.compile(before + re.escape(name) + behind)


def _is_unspaced(letter: str) -> bool:
    """Return whether a letter is of a script that puts no spaces between words."""
    return unicodedata.east_asian_width(letter) in "WF" or unicodedata.name(letter, "").startswith(_UNSPACED)


_PAGE = 1000


def traces(engine: Engine, *, prefix: Namespace | None, subject: str | None) -> list[ItemAddress]:
    """Return the addresses of the items that would be erased, deleted ones included if any of their data is still stored.

    Items about a subject are those with its stamp, and those whose text has its name.
    """
    found = engine.traces(prefix=prefix, subject=subject) + _naming(engine, subject)
    reached: dict[ItemAddress, None] = {}
    while new := [address for address in found if address not in reached]:
        reached.update(dict.fromkeys(new))
        found = engine.traces(derived_from=new)
    return sorted(reached)


def operations_of(engine: Engine) -> Iterator[Operation]:
    """Yield all operations of the replica."""
    position = 0
    while page := engine.operations(position, limit=_PAGE):
        yield from (logged.operation for logged in page)
        position = page[-1].position


@dataclass(frozen=True, slots=True)
class Erased:
    """Items to erase, as records of other stores hold them: by their addresses, by their texts, and by the name of their subject."""

    addresses: frozenset[ItemAddress]
    wording: Wording

    @classmethod
    def of(cls, engine: Engine, addresses: list[ItemAddress], subject: str | None) -> Self:
        """Return the addresses and texts of the items; call it before they are erased."""
        with engine.transaction() as transaction:
            heads = [head for found in transaction.heads(addresses).values() for head in found]
        values = [write.value for head in heads for write in head.writes]
        return cls(frozenset(addresses), Wording.of(subject, values))

    def is_in(self, record: Any) -> bool:  # noqa: ANN401 - a value as JSON has it
        """Return whether a record names an item as recalled, names the subject, or repeats the text of an item."""
        return any(address in self.addresses for address in recalled_in(record)) or any(map(self.wording.is_in, leaves(record)))


def recalled_in(record: Any) -> Iterator[ItemAddress]:  # noqa: ANN401 - a value as JSON has it
    """Yield the addresses of all items that a record reports as recalled, at any depth."""
    match record:
        case Mapping():
            match record:
                case {"namespace": [*namespace], "key": str(key), "version": str(), "tier": str(), "trust": _}:
                    yield ItemAddress(tuple(map(str, namespace)), key)
            for part in record.values():
                yield from recalled_in(part)
        case list() | tuple():
            for part in record:
                yield from recalled_in(part)


def record_of(content: str) -> Any:  # noqa: ANN401 - a value as JSON has it
    """Return the decoded record, or its text if it is damaged."""
    try:
        return json.loads(content)
    except ValueError:
        return content


def _naming(engine: Engine, subject: str | None) -> list[ItemAddress]:
    """Return the items with the name in a value, or in one that lost against it."""
    wording = Wording.of(subject)
    if wording.name is None:
        return []
    return [one.address for one in operations_of(engine) if any(wording.is_named_in(write.value) for write in one.writes)]


log = logging.getLogger(__name__)

_BATCH: Final = 500


def sweep(engine: Engine, now: Callable[[], float]) -> int:
    """Forget expired items, and return their number. Each replica does it for itself: other devices' items may have been read since."""
    done = 0
    while expired := engine.expired(now(), limit=_BATCH):
        with engine.transaction() as transaction:
            # One may have been written or read since.
            still = set(engine.expired(now(), limit=_BATCH))
            due = [address for address in expired if address in still]
            transaction.apply([Change(address, (), None) for address in due])
        done += len(due)
    return done


class Sweeper:
    """Sweeps at an interval in seconds, in a thread of its own, until it is closed."""

    def __init__(self, engine: Engine, now: Callable[[], float], seconds: float) -> None:
        self._engine = engine
        self._now = now
        self._seconds = seconds
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nearfar memory sweeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and return when it no longer uses the engine."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._seconds):
            try:
                sweep(self._engine, self._now)
            except StoreError as error:  # a thread boundary: the database may be there again the next time
                log.warning("expired items could not be deleted: %s", error)
