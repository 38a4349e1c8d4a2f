"""Vectors of texts, made by whatever embedder the store has been given."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ...protocols import ConfigError
from ..embedding import embedder as shipped

if TYPE_CHECKING:
    import numpy
    from langchain_core.embeddings import Embeddings
    from langgraph.store.base import IndexConfig
    from numpy.typing import NDArray

    from .engine import Vector


@runtime_checkable
class Embedder(Protocol):
    """What turns texts into vectors. Calls come from any thread, and never while the database is locked."""

    @property
    def name(self) -> str:
        """Of the model and its version: vectors of different names are never compared."""
        ...

    @property
    def width(self) -> int:
        """Numbers per vector."""
        ...

    def embed_all(self, texts: Sequence[str]) -> "NDArray[numpy.float32] | Sequence[Sequence[float]]":
        """A vector of each text, of any length but zero."""
        ...


class ShippedEmbedder:
    """all-MiniLM-L6-v2 on this device, loaded when it is first needed."""

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
        self._embeddings = embeddings
        self.width = width
        self.name = name or _derived_name(embeddings, width)

    def embed_all(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        from langgraph.store.base.embed import EmbeddingsLambda

        if isinstance(self._embeddings, EmbeddingsLambda) and not hasattr(self._embeddings, "func"):
            return _wait_for(lambda: self._embeddings.aembed_documents(list(texts)))
        return self._embeddings.embed_documents(list(texts))


def from_index_config(index: "IndexConfig") -> LangChainEmbedder | None:
    """The embedder that the configuration names, if it names one. A further entry `name` says what model it is.

    Raises `ConfigError` where its width is missing.
    """
    from langgraph.store.base import ensure_embeddings

    if index.get("embed") is None:
        return None
    width = index.get("dims")
    if not isinstance(width, int) or width < 1:
        raise ConfigError("index names an embedder and not its width", hint='add "dims"')
    given = dict(index).get("name")
    named = index["embed"] if isinstance(index["embed"], str) else getattr(index["embed"], "__qualname__", None)
    return LangChainEmbedder(ensure_embeddings(index["embed"]), width=width, name=given if isinstance(given, str) else _named(named, width))


def unit_vectors(embedder: Embedder, texts: Sequence[str]) -> "list[Vector]":
    """A vector of length 1 for each text. Raises `ConfigError` where the embedder gives something else than it promised."""
    import numpy

    if not texts:
        return []
    made = numpy.asarray(embedder.embed_all(texts), dtype=numpy.float32)
    expected = (len(texts), embedder.width)
    if made.shape != expected:
        hint = f"its vectors have to have {embedder.width} numbers each"
        raise ConfigError(f"embedder {embedder.name!r} gave an array of shape {made.shape} where {expected} was expected", hint=hint)
    if not numpy.isfinite(made).all():
        raise ConfigError(f"embedder {embedder.name!r} gave numbers that are not finite", hint="use another one")
    lengths = numpy.linalg.norm(made, axis=1, keepdims=True)
    return list(made / numpy.where(lengths == 0, 1, lengths))


def _derived_name(embeddings: "Embeddings", width: int) -> str:
    model: Any = getattr(embeddings, "model", None) or getattr(embeddings, "model_name", None)
    kind = type(embeddings)
    return f"{kind.__module__}.{kind.__qualname__}/{model if isinstance(model, str) else ''}/{width}"


def _named(name: str | None, width: int) -> str | None:
    return name and f"{name}/{width}"


def _wait_for(call: "Callable[[], Awaitable[list[list[float]]]]") -> list[list[float]]:
    """The result of an asynchronous function, from a thread that may have a running loop: it gets a loop of its own."""
    outcome: list[list[list[float]] | BaseException] = []

    def work() -> None:
        async def awaited() -> list[list[float]]:
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
