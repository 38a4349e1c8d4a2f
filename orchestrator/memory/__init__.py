"""The memory of an app: open the store that a `[memory]` section names, recover it, and give it to tasks."""

from contextlib import closing
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...protocols import DeviceStateSource
from ...protocols.secrets import secret
from ...protocols.system import data_folder
from ..task.stores import MemoryConfig, RecallConfig
from ..util.settings import Location

if TYPE_CHECKING:
    from langgraph.store.base import TTLConfig

    from ..agents import AgentPool
    from .consolidation import BackgroundConsolidation
    from .in_tasks import TaskMemory
    from .sqlite.recovering import Recovery
    from .store import MemoryStore


def memory_path(config: MemoryConfig) -> Path | None:
    """Return the file that a `[memory]` section names; None: it names a database."""
    if config.postgres_variable is not None:
        return None
    return config.path or data_folder() / "memory" / "memory.db"


def open_memory(config: MemoryConfig, *, database: str | None = None) -> "MemoryStore":
    """Open the store of a `[memory]` section; `database` is a `postgres://` address in its place.

    Raises `ConfigError` where a secret is not set, `StoreUnavailable` or `StoreCorrupt`.
    """
    from .store import MemoryStore

    if database is None and config.postgres_variable is not None:
        database = secret(config.postgres_variable)
    where = database or memory_path(config)
    assert where is not None, "it is a file or a database"
    ttl: TTLConfig | None = None if config.ttl is None else {"default_ttl": config.ttl / 60, "refresh_on_read": True}
    key = None if config.key_variable is None or database is not None else partial(secret, config.key_variable)
    embedder: Literal["shipped"] | None = "shipped" if config.embed else None
    return MemoryStore.open(where, user=config.user, tier=config.tier, ttl=ttl, embedder=embedder, key=key)


def recover_memory(config: MemoryConfig) -> "Recovery":
    """Put what can be read of the file of a `[memory]` section in its place. Raises `StoreCorrupt` where nothing can be read."""
    from .sqlite.recovering import recover
    from .store import open_keys

    path = memory_path(config)
    assert path is not None, "only files are recovered"
    with closing(open_keys(path)) as keys:
        return recover(path, key=None if config.key_variable is None else partial(secret, config.key_variable), sealer=keys)


def task_memory(given: "MemoryStore | TaskMemory | MemoryConfig | Location | None") -> "TaskMemory | None":
    """Return the memory that a `Hybrid` is given, as tasks use it. The caller closes a store that is opened here."""
    if given is None:
        return None
    from .in_tasks import TaskMemory, memory_tools
    from .store import MemoryStore

    if isinstance(given, (str, PathLike)):
        return TaskMemory(MemoryStore.open(given))
    if isinstance(given, MemoryConfig):
        store = open_memory(given)
        tools = memory_tools(store, recall=given.recall or RecallConfig()) if given.tools else ()
        return TaskMemory(store, recall=given.recall, remember=given.remember, tools=tools, sleep=given.sleep)
    return given if isinstance(given, TaskMemory) else TaskMemory(given)


def memory_rest(memory: "TaskMemory", pool: "AgentPool", device_state: DeviceStateSource) -> "BackgroundConsolidation | None":
    """Return the consolidation of the memory while the device rests; None if it is not configured."""
    if memory.sleep is None:
        return None
    from .consolidation import BackgroundConsolidation

    return BackgroundConsolidation(memory.store, memory.sleep, pool, device_state)
