"""Project the heads of an item to the row that readers see, and to the passages that searches compare.

The projection is the same on every device, so that only heads are synchronised.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from langgraph.store.base import get_text_at_path

from ...protocols.namespaces import ItemAddress
from .engine import Change, Row
from .merge import merge
from .operation import Operation, seconds

if TYPE_CHECKING:
    from .engine import Vector


WHOLE: Final = "$"
"""The path of the whole value."""
_PASSAGE: Final = 400
"""Characters of about 100 tokens of English: the shipped embedder reads 128, and would skip the middle of a longer text."""
_MOST_PASSAGES: Final = 32
"""The most passages of a text; longer texts have longer passages. Each passage costs time and memory."""
_WIDE: Final = 3
"""Weight of a character of a non-Latin script, in characters of English: it is often a token of its own."""
_PIECE: Final = re.compile(r"\S+\s*|\s+")


def texts_of(value: dict[str, Any], paths: Sequence[str]) -> tuple[str, ...]:
    """Return the passages at the paths, each once, in order."""
    found: dict[str, None] = {}
    for path in paths:
        for text in _at(value, path):
            found.update(dict.fromkeys(passages(text)))
    return tuple(found)


def passages(text: str) -> list[str]:
    """Cut the text into parts of about the same length, none of which an embedder has to cut. Parts end between words if there are any."""
    stripped = text.strip()
    weight = _weight(stripped)
    if weight <= _PASSAGE:
        return [stripped] if stripped else []
    count = min(_MOST_PASSAGES, math.ceil(weight / _PASSAGE))
    return [part for part in _cut(stripped, weight / count) if part]


def _cut(text: str, size: float) -> Iterator[str]:
    """Yield parts that begin with the first piece after each multiple of `size`."""
    part: list[str] = []
    before, end = 0, size
    for piece in _pieces(text, size):
        if before >= end:
            yield "".join(part).strip()
            part, end = [], end + size
        part.append(piece)
        before += _weight(piece)
    yield "".join(part).strip()


def _pieces(text: str, most: float) -> Iterator[str]:
    """Yield words; a word longer than a passage, such as all text of some scripts, is cut."""
    size = max(1, int(most) // _WIDE)
    for word in _PIECE.findall(text):
        yield from (word[start : start + size] for start in range(0, len(word), size))


def _weight(text: str) -> int:
    return len(text) if text.isascii() else sum(1 if one.isascii() else _WIDE for one in text)


def _at(value: dict[str, Any], path: str) -> list[str]:
    return [_all(value)] if path == WHOLE else get_text_at_path(value, path)


def _all(value: dict[str, Any]) -> str:
    """Return all texts in the value, a line for each part. The name of an only part is left out, since it says nothing then."""
    if len(value) == 1:
        (only,) = value.values()
        if isinstance(only, str):
            return only  # as below, and so are most values
    parts: list[tuple[str, str]] = []
    _collect(value, "", parts)
    return parts[0][1] if len(parts) == 1 else "\n".join(f"{name}: {text}" if name else text for name, text in parts)


def _collect(value: object, name: str, parts: list[tuple[str, str]]) -> None:
    if isinstance(value, str):
        parts.append((name, value))
    elif isinstance(value, dict):
        for inner, part in value.items():
            _collect(part, f"{name} {inner}".strip(), parts)
    elif isinstance(value, list):
        for part in value:
            _collect(part, name, parts)
    elif value is not None:
        parts.append((name, str(value).lower() if isinstance(value, bool) else str(value)))


def change_of(
    address: ItemAddress,
    heads: Sequence[Operation],
    *,
    now: float,
    fields: Sequence[str],
    vectors: "Mapping[str, Vector] | None" = None,
    payload: bytes | None = None,
) -> Change:
    """Return the change that puts an item into the state of `heads`, one or more.

    `fields` are the paths that are searched if the item has none of its own. `vectors` are those of texts, as far as they are made.
    `payload` is as in `Change`.
    """
    state = merge(heads)
    conflicts = len(state.siblings)
    if state.value is None:
        return Change(address, tuple(heads), None, conflicts=conflicts, payload=payload)
    meta = state.meta
    expires_at = None if meta.ttl is None else now + meta.ttl
    row = Row(address, state.value, meta, state.version, state.device, seconds(state.clock), expires_at, conflicts)
    texts = texts_of(state.value, fields if meta.index is None else meta.index)
    made = [vectors.get(text) for text in texts] if vectors else []
    complete = [vector for vector in made if vector is not None]
    return Change(address, tuple(heads), row, texts, complete if len(complete) == len(texts) else None, conflicts, payload)
