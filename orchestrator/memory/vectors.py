"""Project the heads of an item to the row that readers see and the passages that searches compare, and embed passages.

The projection is the same on every device, so that only heads are synchronised.
"""

import asyncio
import math
import re
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast, runtime_checkable

from langgraph.store.base import get_text_at_path

from ...protocols import ConfigError
from ...protocols.items import ItemAddress
from ..util import embedding as shipped
from .engine import Change, ItemRow
from .merge import merge
from .operation import Operation, seconds

if TYPE_CHECKING:
    import numpy
    from langchain_core.embeddings import Embeddings
    from langgraph.store.base import IndexConfig
    from numpy.typing import NDArray

    from .engine import Vector


T = TypeVar("T")


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors. Calls come from any thread, and never while the database is locked."""

    @property
    def name(self) -> str:
        """Name of the model and its version: vectors of different names are never compared."""

    @property
    def width(self) -> int:
        """Numbers per vector."""

    def embed_all(self, texts: Sequence[str]) -> "NDArray[numpy.float32] | Sequence[Sequence[float]]":
        """Return a vector for each of the `texts`, of any length but zero."""


class QueryEmbedder(Embedder, Protocol):
    """An embedder that reads questions in another way than their answers."""

    def embed_query(self, text: str) -> Sequence[float]:
        """Return the vector of a question."""


class ShippedEmbedder:
    """all-MiniLM-L6-v2 on this device, loaded at first use."""

    name = shipped.NAME
    width = shipped.WIDTH

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._model: shipped.MiniLmEmbedder | None = None

    @staticmethod
    def is_installed() -> bool:
        return all(find_spec(module) is not None for module in ("numpy", "onnxruntime", "tokenizers"))

    def embed_all(self, texts: Sequence[str]) -> "NDArray[numpy.float32]":
        with self._lock:
            self._model = self._model or shipped.MiniLmEmbedder()
        return self._model.embed_all(texts)


class LangChainEmbedder:
    """Embeddings of LangChain, as LangGraph's `IndexConfig` names them."""

    def __init__(self, embeddings: "Embeddings", *, width: int, name: str | None = None) -> None:
        from langgraph.store.base.embed import EmbeddingsLambda

        self._embeddings = embeddings
        # LangGraph wraps a function of either kind in the same class.
        self._is_asynchronous = isinstance(embeddings, EmbeddingsLambda) and not hasattr(embeddings, "func")
        self.width = width
        self.name = name or _name_of(embeddings, width)

    def embed_all(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        if self._is_asynchronous:
            return _wait_for(lambda: self._embeddings.aembed_documents(list(texts)))
        return self._embeddings.embed_documents(list(texts))

    def embed_query(self, text: str) -> Sequence[float]:
        if self._is_asynchronous:
            return _wait_for(lambda: self._embeddings.aembed_query(text))
        return self._embeddings.embed_query(text)


def from_index_config(index: "IndexConfig") -> LangChainEmbedder | None:
    """Return the embedder that the configuration names, if it names one. A further entry `name` names its model.

    Raises `ConfigError` if its width is missing.
    """
    from langgraph.store.base import ensure_embeddings

    if index.get("embed") is None:
        return None
    width = index.get("dims")
    if not isinstance(width, int) or width < 1:
        raise ConfigError("index names an embedder without its width", hint='add "dims"')
    given = dict(index).get("name")
    name = given if isinstance(given, str) else _name_of(index["embed"], width)
    return LangChainEmbedder(ensure_embeddings(index["embed"]), width=width, name=name)


def unit_vectors(embedder: Embedder, texts: Sequence[str]) -> "list[Vector]":
    """Return a vector of length 1 for each text. Raises `ConfigError` if the embedder breaks its contract."""
    return _unit(embedder, embedder.embed_all(texts), len(texts)) if texts else []


def query_vector(embedder: Embedder, text: str) -> "Vector":
    """Return the vector of a question, of length 1."""
    # An isinstance check against the protocol would take as long as the rest of this function.
    asks = hasattr(embedder, "embed_query")
    made = [cast("QueryEmbedder", embedder).embed_query(text)] if asks else embedder.embed_all([text])
    return _unit(embedder, made, 1)[0]


def _unit(embedder: Embedder, vectors: "NDArray[numpy.float32] | Sequence[Sequence[float]]", count: int) -> "list[Vector]":
    import numpy

    expected = (count, embedder.width)
    try:
        made = numpy.asarray(vectors, dtype=numpy.float32)
    except (ValueError, TypeError) as error:
        raise _misfit(embedder, f"gave no array of numbers: {error}") from error
    if made.shape != expected:
        raise _misfit(embedder, f"gave an array of shape {made.shape} where {expected} was expected")
    lengths = numpy.sqrt(numpy.einsum("ij,ij->i", made, made, dtype=numpy.float64))
    if not all(map(math.isfinite, lengths)):
        raise ConfigError(f"embedder {embedder.name!r} gave numbers that are not finite", hint="use another embedder")
    lengths[lengths == 0] = 1
    return list(made / lengths.astype(numpy.float32)[:, None])


def _misfit(embedder: Embedder, how: str) -> ConfigError:
    return ConfigError(f"embedder {embedder.name!r} {how}", hint=f"its vectors must have {embedder.width} numbers each")


def _name_of(embed: object, width: int) -> str:
    """Return a name for an embedder: a function's own name, an object's class and model, or the text that names a provider's model."""
    if isinstance(embed, str):
        return f"{embed}/{width}"
    model: object = getattr(embed, "model", None) or getattr(embed, "model_name", None)
    named = embed if hasattr(embed, "__qualname__") else type(embed)
    return "/".join((f"{named.__module__}.{named.__qualname__}", *([model] if isinstance(model, str) else []), str(width)))


def _wait_for(call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of an asynchronous function, from a thread that may have a running loop: it gets a loop of its own."""
    outcome: list[T | BaseException] = []

    def work() -> None:
        async def awaited() -> T:
            return await call()

        try:
            outcome.append(asyncio.run(awaited()))
        except BaseException as error:  # a thread boundary: raised again below
            outcome.append(error)

    thread = threading.Thread(target=work, name="nearfar embedding", daemon=True)
    thread.start()
    thread.join()
    (result,) = outcome
    if isinstance(result, BaseException):
        raise result
    return result


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
    row = ItemRow(address, state.value, meta, state.version, state.device, seconds(state.clock), expires_at, conflicts)
    texts = texts_of(state.value, fields if meta.index is None else meta.index)
    made = [vectors.get(text) for text in texts] if vectors else []
    complete = [vector for vector in made if vector is not None]
    return Change(address, tuple(heads), row, texts, complete if len(complete) == len(texts) else None, conflicts, payload)
