"""From what a user names to the engine and the embedder that it takes."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from ...protocols import ConfigError
from ..util.arguments import require_methods
from .encoding import Sealer
from .engine import Engine
from .in_memory import InMemoryEngine
from .sync.keys import SubjectKeys
from .vectors import Embedder, ShippedEmbedder, from_index_config

if TYPE_CHECKING:
    from langgraph.store.base import IndexConfig

EmbedderChoice = Embedder | Literal["shipped"] | None
"""The shipped one is used where what it needs is installed; None: there is none, and items are found by their words."""


def open_keys(where: str | os.PathLike[str]) -> SubjectKeys:
    """The subjects' keys of a store: in a file beside its own, elsewhere in memory."""
    return SubjectKeys(None if _is_server(where) or where == ":memory:" else f"{os.fspath(where)}.keys")


def _is_server(where: str | os.PathLike[str]) -> bool:
    return os.fspath(where).startswith(("postgres://", "postgresql://"))


def open_engine(
    where: str | os.PathLike[str], embedder: Embedder | None, key: Callable[[], str] | None, sealer: Sealer | None = None
) -> Engine:
    """The engine for a path, a `postgres://` address, or `":memory:"`; with a `key`, the file at the path is encrypted.

    With a `sealer`, a file has what is about somebody readable in its log by their key alone.
    """
    name = None if embedder is None else embedder.name
    place = os.fspath(where)
    is_server = _is_server(where)
    if key is not None and (is_server or place == ":memory:"):
        raise ConfigError("only a store in a file is encrypted by its key", hint="leave the key out; a server encrypts its own disk")
    if place == ":memory:":
        return InMemoryEngine(embedder=name)
    if is_server:
        from .postgres.engine import PostgresEngine

        return PostgresEngine(place, embedder=name)
    from .sqlite.engine import SqliteEngine

    return SqliteEngine(place, embedder=name, key=key, sealer=sealer)


def choose_embedder(choice: EmbedderChoice, index: "IndexConfig | None") -> Embedder | None:
    """What the configuration names, or else what is chosen."""
    configured = None if index is None else from_index_config(index)
    if configured is not None:
        return configured
    if choice == "shipped":
        return ShippedEmbedder() if ShippedEmbedder.is_installed() else None
    require_methods("embedder", choice, ("name",), 'an Embedder, "shipped" or None')
    return choice
