"""Validate values, names and filters before anything is written."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson
from langgraph.store.base import InvalidNamespaceError

from ...protocols import ConfigError, InvalidRequest
from ...protocols.items import ItemAddress, Namespace, Source, Tier
from ..task.stores import LONGEST_LIFE
from ..util.settings import as_choice
from .engine import Condition, Operator
from .operation import Meta

MAXIMUM_BYTES: Final = 1 << 20
"""The most bytes of a value as JSON, unless the store is told otherwise."""
_DEEPEST: Final = 64
_LONGEST_LABEL: Final = 256
_MOST_LABELS: Final = 32
_LONGEST_KEY: Final = 768
_LONGEST_PLACE: Final = 1024
"""Characters of a key to read: the key of a superseded item names its version, too."""
MOST_SOURCES: Final = 4096
"""The most items that one item was derived from."""
MOST_SUBJECTS: Final = 64
"""The most people that one item is about."""
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1
_RESERVED: Final = "langgraph"
_LONGEST_NAMES: Final = 1024
"""Characters of the names in a meta: its user, agent and subject together, and each of the others."""
_LONGEST_USER: Final = 256
_TIMES: Final = (-62_135_510_400.0, 253_370_764_800.0)
"""Seconds since the epoch: from the first year plus a day to the last year less a year, so that all time zones have a date for each."""


class InvalidNamespace(InvalidRequest, InvalidNamespaceError):
    """The namespace is invalid. It is LangGraph's own error, too, so that code for any store can catch it."""


def prefix(labels: Sequence[str]) -> Namespace:
    """Return a namespace to look into; `()` is all of them."""
    if isinstance(labels, str) or not isinstance(labels, Sequence):
        raise InvalidNamespace(f"a namespace is a tuple of labels, not {labels!r:.80}", hint='write ("notes",) for a single label')
    if len(labels) > _MOST_LABELS:
        raise InvalidNamespace(f"a namespace of {len(labels)} labels is too deep", hint=f"use at most {_MOST_LABELS}")
    for label in labels:
        _check_label(label)
    return tuple(labels)


def namespace(labels: Sequence[str]) -> Namespace:
    """Return a namespace to write into."""
    checked = prefix(labels)
    if not checked:
        raise InvalidNamespace("the namespace is empty", hint="use at least one label")
    if checked[0] == _RESERVED:
        raise InvalidNamespace(f"namespaces below {_RESERVED!r} belong to LangGraph itself", hint="begin with another label")
    return checked


def address(labels: Sequence[str], key: object) -> ItemAddress:
    """Return an address to write to."""
    return ItemAddress(namespace(labels), _key(key, _LONGEST_KEY))


def place(labels: Sequence[str], key: object) -> ItemAddress:
    """Return an address to read from."""
    return ItemAddress(prefix(labels), _key(key, _LONGEST_PLACE))


def value(given: object, maximum_bytes: int = MAXIMUM_BYTES) -> dict[str, Any]:
    """Return a copy of the value, of plain JSON types, which every replica returns to readers."""
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"a value is a mapping, not {type(given).__name__}", hint='wrap it: {"text": ...}')
    copy: dict[str, Any] = _Copier(maximum_bytes).copied(given, "value")
    size = len(orjson.dumps(copy))
    if size > maximum_bytes:
        raise _too_large(maximum_bytes, f"{size:,} bytes")
    return copy


def check_meta(meta: Meta) -> None:
    """Raise `InvalidRequest` for a meta that peers would refuse, or that could not be read again."""
    names = (meta.user, meta.agent, meta.subject)
    if not _are_texts((*names, *meta.others)):
        raise InvalidRequest("a name is not text, or has a character that cannot be stored: NUL, or half of a surrogate pair")
    if sum(map(len, names)) > _LONGEST_NAMES or not all(0 < len(name) <= _LONGEST_NAMES for name in meta.others):
        raise InvalidRequest("the names of user, agent and subject are too long", hint=f"use at most {_LONGEST_NAMES:,} characters")
    if meta.lineage and not all(_are_texts((*source.namespace, source.key)) for source in meta.lineage):
        raise InvalidRequest("the item is derived from one whose name cannot be stored")
    first, last = _TIMES
    if not (first <= meta.created_at <= last and first <= (meta.valid_from or 0) <= last and first <= (meta.invalid_from or 0) <= last):
        raise InvalidRequest("the item has a time that cannot be stored", hint="use a date in the years 1 to 9998")
    if meta.ttl is not None and not 0 < meta.ttl <= LONGEST_LIFE:
        raise InvalidRequest(f"the time to live must be above 0 seconds and at most {LONGEST_LIFE:g}, not {meta.ttl:g}")
    _check_origin(meta)


def is_name(given: object, most: int) -> bool:
    """Return whether a device, a user or a log can have this name."""
    return isinstance(given, str) and 0 < len(given) <= most and given.isprintable()


def check_user(given: str) -> None:
    """Raise `ConfigError` for a user name that replicas could not tell each other."""
    if len(given) > _LONGEST_USER or not _is_text(given):
        hint = f"use at most {_LONGEST_USER} characters, none of them NUL or half of a surrogate pair"
        raise ConfigError(f"{given!r:.80} is no valid name of a user", hint=hint)


def check_name(given: object) -> None:
    """Raise `InvalidRequest` for a name that cannot be searched for."""
    if not isinstance(given, str) or not given or not _is_text(given):
        raise InvalidRequest(f"a name must be text that can be stored, not {given!r:.80}")


def _check_origin(meta: Meta) -> None:
    """Raise `InvalidRequest` if an item has more lineage or subjects than can travel with it."""
    if len(meta.lineage) > MOST_SOURCES:
        hint = f"name {MOST_SOURCES:,} at most, or put the item again instead of changing it"
        raise InvalidRequest(f"the item is derived from {len(meta.lineage):,} others", hint=hint)
    if len(meta.others) >= MOST_SUBJECTS:
        raise InvalidRequest(
            f"the item is about {1 + len(meta.others)} people", hint=f"make several items, each about {MOST_SUBJECTS} at most"
        )


def fields(given: Sequence[str]) -> tuple[str, ...]:
    """Return the paths to searchable fields."""
    if isinstance(given, str) or not all(isinstance(path, str) and path and _is_text(path) for path in given):
        raise InvalidRequest(f"the fields to search are a list of paths, not {given!r:.80}", hint='such as ["text", "messages[*].content"]')
    return tuple(given)


def ttl_seconds(minutes: object) -> float | None:
    """Return the time to live in seconds from LangGraph's minutes; None is for ever."""
    if minutes is None:
        return None
    if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not 0 < minutes <= LONGEST_LIFE / 60:
        reason = f"a time to live must be a number of minutes above 0 and at most {LONGEST_LIFE / 60:,.0f}, not {minutes!r:.40}"
        raise InvalidRequest(reason, hint="None keeps the item for ever")
    return minutes * 60.0


def page(limit: object, offset: object) -> tuple[int, int]:
    """Return the limit and offset of a page."""
    for name, number in (("limit", limit), ("offset", offset)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise InvalidRequest(f"{name} is a whole number from 0 on, not {number!r}")
    assert isinstance(limit, int)  # checked above
    assert isinstance(offset, int)
    return limit, offset


def tier(given: Tier | None) -> Tier | None:
    """Return the tier that a write or a search names, if it names one. Raises `ConfigError` that lists them."""
    return None if given is None else as_choice("tier", given, Tier)


def source(given: Source | None) -> Source | None:
    """Return the source that a writer names, if it names one. Raises `ConfigError` that lists them."""
    return None if given is None else as_choice("source", given, Source)


def conditions(given: Mapping[str, Any] | None) -> tuple[Condition, ...]:
    """Return the conditions of LangGraph's filter. A nested object without operators is compared field by field, so it may leave out
    some."""
    if given is not None and not isinstance(given, Mapping):
        raise InvalidRequest(f"a filter is an object, not {given!r:.80}", hint='{"town": "Bonn"} finds items whose field town is Bonn')
    return tuple(condition for name, wanted in (given or {}).items() for condition in _conditions((name,), wanted))


def _conditions(path: tuple[str, ...], wanted: object) -> list[Condition]:
    if not isinstance(path[-1], str):
        raise InvalidRequest(f"a filter names fields by text, not by {path[-1]!r}")
    if len(path) > _DEEPEST:
        raise InvalidRequest("the filter is nested too deeply")
    if not isinstance(wanted, Mapping) or not wanted:
        return [_condition(path, Operator.EQUAL, wanted)]
    if not any(isinstance(name, str) and name.startswith("$") for name in wanted):
        return [condition for name, inner in wanted.items() for condition in _conditions((*path, name), inner)]
    try:
        return [_condition(path, Operator(name), operand) for name, operand in wanted.items()]
    except ValueError as error:
        known = ", ".join(Operator)
        raise InvalidRequest(f"the filter of {'.'.join(path)!r} has an unknown operator", hint=f"use {known}") from error


def _condition(path: tuple[str, ...], comparison: Operator, operand: object) -> Condition:
    if not _is_in_no_store(operand):
        return Condition(path, comparison, _operand(operand))
    # Like infinity, which cannot be stored either: no value equals it, and none is greater.
    is_equality = comparison in (Operator.EQUAL, Operator.NOT_EQUAL)
    return Condition(path, comparison if is_equality else Operator.GREATER, math.inf)


def _is_in_no_store(operand: object) -> bool:
    """Return whether the operand is of a storable type, but no stored value can equal it: not a number, or a text that cannot be stored."""
    return (isinstance(operand, float) and math.isnan(operand)) or (isinstance(operand, str) and not _is_text(operand))


def _operand(given: object) -> object:
    if isinstance(given, float) and math.isinf(given):
        return given
    if isinstance(given, int) and not isinstance(given, bool) and not _LEAST <= given <= _MOST:
        return _nearest_float(given)
    return _Copier(MAXIMUM_BYTES).copied(given, "filter")


def _nearest_float(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


class _NoJson(Exception):
    """A part of a value cannot be stored. Its path is found while the error passes upwards, since few values are wrong."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.path = ""


class _Copier:
    """Copies JSON of a limited number of bytes."""

    def __init__(self, maximum_bytes: int) -> None:
        self._maximum_bytes = maximum_bytes
        self._left = maximum_bytes
        """Bytes left for parts not seen yet, each at least one. It ends values that name a part over and over again."""
        self._open: set[int] = set()
        """The containers around the current part."""

    def copied(self, given: object, name: str) -> Any:  # noqa: ANN401 - JSON
        try:
            return self._copy(given)
        except _NoJson as error:
            raise InvalidRequest(f"{name}{error.path} {error.reason}", hint=error.hint) from None

    def _copy(self, given: object) -> Any:  # noqa: ANN401 - JSON
        self._left -= len(given) if isinstance(given, str) else 1
        if self._left < 0:
            raise _too_large(self._maximum_bytes, "more")
        match given:
            case str():
                return _text(given)
            case None | bool():
                return given
            case int():
                return _integer(given)
            case float():
                return _number(given)
            case Mapping() | list() | tuple():
                return self._container(given)
            case _:
                raise _NoJson(f"is no JSON: {type(given).__name__}", "use texts, numbers, booleans, None, lists and dicts")

    def _container(self, given: "Mapping[object, object] | Sequence[object]") -> Any:  # noqa: ANN401 - JSON
        if id(given) in self._open:
            raise _NoJson("contains itself")
        if len(self._open) >= _DEEPEST:
            raise _NoJson(f"is more than {_DEEPEST} levels deep")
        self._open.add(id(given))
        if isinstance(given, Mapping):
            copy: Any = {self._name(name): self._part(part, f".{name!s:.40}") for name, part in given.items()}
        else:
            copy = [self._part(part, f"[{index}]") for index, part in enumerate(given)]
        self._open.discard(id(given))
        return copy

    def _part(self, given: object, step: str) -> Any:  # noqa: ANN401 - JSON
        try:
            return self._copy(given)
        except _NoJson as error:
            error.path = step + error.path
            raise

    def _name(self, name: object) -> str:
        if not isinstance(name, str):
            raise _NoJson(f"has a key that is no text: {name!r:.80}")
        self._left -= len(name)
        return _text(name)


def _text(given: str) -> str:
    if not _is_text(given):
        raise _NoJson("has a character that cannot be stored: NUL, or half of a surrogate pair", "remove it")
    return str.__str__(given)


def _are_texts(given: Iterable[object]) -> bool:
    return all(isinstance(name, str) and _is_text(name) for name in given)


def _is_text(given: str) -> bool:
    if given.isascii():
        return "\0" not in given
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in given


def _integer(given: int) -> int:
    if not _LEAST <= given <= _MOST:
        raise _NoJson("is a whole number of more than 64 bits", "store it as text")
    return int(given)


def _number(given: float) -> float:
    if not math.isfinite(given):
        raise _NoJson(f"is {given}, which JSON does not have", "store None")
    return float(given)


def _check_label(label: object) -> None:
    if not isinstance(label, str):
        raise InvalidNamespace(f"a namespace label is text, not {label!r:.80}")
    if not label or "." in label:
        raise InvalidNamespace(f"the namespace label {label!r:.80} is empty or has a period in it")
    if not _is_text(label):
        raise InvalidNamespace(f"the namespace label {label!r:.80} has a character that cannot be stored")
    if len(label) > _LONGEST_LABEL:
        raise InvalidNamespace(f"a namespace label of {len(label)} characters is too long", hint=f"use at most {_LONGEST_LABEL}")


def _key(key: object, most: int) -> str:
    text = str(key)
    if not text or len(text) > most:
        raise InvalidRequest(f"a key has 1 to {most} characters, not {len(text)}")
    if not _is_text(text):
        raise InvalidRequest(f"the key {text!r:.80} has a character that cannot be stored")
    return text


def _too_large(maximum_bytes: int, size: str) -> InvalidRequest:
    hint = "store a reference to it, or open the store with a larger maximum_bytes"
    return InvalidRequest(f"the value is too large: at most {maximum_bytes:,} bytes of JSON, not {size}", hint=hint)
