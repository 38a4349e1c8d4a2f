"""Open the engine and the embedder that a user names."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from ...protocols import ConfigError
from ..util.arguments import require_methods
from .encoding import Sealer
from .engine import Engine
from .sync.keys import SubjectKeys
from .vectors import Embedder, ShippedEmbedder, from_index_config

if TYPE_CHECKING:
    from langgraph.store.base import IndexConfig

EmbedderChoice = Embedder | Literal["shipped"] | None
"""`"shipped"` uses the shipped embedder if its packages are installed; None: no embedder, and items are found by words."""


def open_keys(where: str | os.PathLike[str]) -> SubjectKeys:
    """Open the subjects' keys of a store: in a file next to the store's file, else in memory."""
    return SubjectKeys(None if _is_server(where) or where == ":memory:" else f"{os.fspath(where)}.keys")


def _is_server(where: str | os.PathLike[str]) -> bool:
    return os.fspath(where).startswith(("postgres://", "postgresql://"))


def open_engine(
    where: str | os.PathLike[str], embedder: Embedder | None, key: Callable[[], str] | None, sealer: Sealer | None = None
) -> Engine:
    """Open the engine for a path, a `postgres://` address, or `":memory:"`; with a `key`, the file at the path is encrypted.

    With a `sealer`, the log of a file has operations about a subject readable by the subject's key alone.
    """
    name = None if embedder is None else embedder.name
    place = os.fspath(where)
    is_server = _is_server(where)
    if key is not None and (is_server or place == ":memory:"):
        raise ConfigError("only a store in a file can be encrypted with a key", hint="leave the key out; a server encrypts its own disk")
    if is_server:
        from .postgres.engine import PostgresEngine

        return PostgresEngine(place, embedder=name)
    from .sqlite.engine import SqliteEngine

    return SqliteEngine(place, embedder=name, key=key, sealer=sealer)


def choose_embedder(choice: EmbedderChoice, index: "IndexConfig | None") -> Embedder | None:
    """Return the embedder that the configuration names, else the chosen one."""
    configured = None if index is None else from_index_config(index)
    if configured is not None:
        return configured
    if choice == "shipped":
        return ShippedEmbedder() if ShippedEmbedder.is_installed() else None
    require_methods("embedder", choice, ("name",), 'an Embedder, "shipped" or None')
    return choice
