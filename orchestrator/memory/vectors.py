"""Make vectors of texts with the store's embedder."""

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol, TypeVar, cast, runtime_checkable

from ...protocols import ConfigError
from ..util.embedding import embedder as shipped

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
        ...

    @property
    def width(self) -> int:
        """Numbers per vector."""
        ...

    def embed_all(self, texts: Sequence[str]) -> "NDArray[numpy.float32] | Sequence[Sequence[float]]":
        """Return a vector for each text, of any length but zero."""
        ...


class QueryEmbedder(Embedder, Protocol):
    """An embedder that reads questions in another way than their answers."""

    def embed_query(self, text: str) -> Sequence[float]:
        """Return the vector of a question."""
        ...


class ShippedEmbedder:
    """all-MiniLM-L6-v2 on this device, loaded at first use."""

    name = shipped.NAME
    width = shipped.WIDTH

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._model: shipped.Embedder | None = None

    @staticmethod
    def is_installed() -> bool:
        return all(find_spec(module) is not None for module in ("numpy", "onnxruntime", "tokenizers"))

    def embed_all(self, texts: Sequence[str]) -> "NDArray[numpy.float32]":
        with self._lock:
            self._model = self._model or shipped.Embedder()
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
    hint = f"its vectors must have {embedder.width} numbers each"
    try:
        made = numpy.asarray(vectors, dtype=numpy.float32)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"embedder {embedder.name!r} gave no array of numbers: {error}", hint=hint) from error
    if made.shape != expected:
        raise ConfigError(f"embedder {embedder.name!r} gave an array of shape {made.shape} where {expected} was expected", hint=hint)
    lengths = numpy.sqrt(numpy.einsum("ij,ij->i", made, made, dtype=numpy.float64))
    if not all(map(math.isfinite, lengths)):
        raise ConfigError(f"embedder {embedder.name!r} gave numbers that are not finite", hint="use another embedder")
    lengths[lengths == 0] = 1
    return list(made / lengths.astype(numpy.float32)[:, None])


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
