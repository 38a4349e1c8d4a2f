"""Which store the `memory` commands open, and in whose name they write."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ...protocols import ConfigError, InvalidRequest, NotFound
from ...protocols.namespaces import parse_namespace
from ...protocols.tiers import Source, Tier
from ..compose.memory import memory_path, open_memory
from ..task.sections.memory import MemoryConfig
from .configuration import read_config
from .options import StoreChoice

if TYPE_CHECKING:
    from ...protocols.namespaces import Namespace
    from ..memory.reading import MemoryItem
    from ..memory.store import MemoryStore

_PAGE = 500


def chosen_memory(choice: StoreChoice) -> MemoryConfig:
    """The `[memory]` section, with the option laid over it."""
    loaded = read_config(choice.config)
    config = (loaded.memory if loaded is not None else None) or MemoryConfig()
    if choice.store is None:
        return config
    if is_postgres(choice.store):
        _check_no_password(choice.store)
        return config
    return config.model_copy(update={"path": Path(choice.store), "postgres_variable": None})


def is_postgres(store: str) -> bool:
    """Whether `--store` names a database and no file."""
    return store.startswith(("postgres://", "postgresql://"))


def _check_no_password(address: str) -> None:
    """Raise `ConfigError` for an address with a password, which every user of this machine could see among the processes."""
    try:
        has_password = urlsplit(address).password is not None or "password=" in address
    except ValueError:
        has_password = True  # it may be one that makes the address malformed
    if has_password:
        hint = "export it as PGPASSWORD, or the whole address under the name that [memory] has as postgres_variable"
        raise ConfigError("the address of --store holds a password, which other users of this machine can see", hint=hint)


@contextmanager
def opened(choice: StoreChoice, *, creates: bool = False) -> Iterator["MemoryStore"]:
    """The store, which writes what the user says. Raises `NotFound` where there is none, unless the command `creates` it."""
    config = chosen_memory(choice)
    database = choice.store if choice.store is not None and is_postgres(choice.store) else None
    path = memory_path(config)
    if database is None and path is not None and not creates and not path.exists():
        raise NotFound(f"there is no memory at {path} yet", hint="`nearfar memory edit` and `import` begin one, and tasks with [memory] do")
    store = open_memory(config, database=database)
    try:
        yield store.bound(source=Source.USER)
    finally:
        store.close()


def items_of(store: "MemoryStore", prefix: "Namespace", tier: Tier | None) -> Iterator["MemoryItem"]:
    """All items in or below a namespace that may go this far, the last changed first."""
    offset = 0
    while page := store.search(prefix, limit=_PAGE, offset=offset, refresh_ttl=False):
        yield from (item for item in page if tier is None or item.tier is tier)
        offset += len(page)


def parse_tier(text: str | None) -> Tier | None:
    """The tier of an option."""
    try:
        return None if text is None else Tier(text)
    except ValueError:
        raise InvalidRequest(f"there is no tier {text!r}", hint=f"the tiers are {', '.join(Tier)}") from None


def item_at(store: "MemoryStore", namespace: str, key: str) -> "MemoryItem":
    """The item. Raises `NotFound`."""
    found = store.get(parse_namespace(namespace), key, refresh_ttl=False)
    if found is None:
        raise NotFound(f"there is no item {key!r} in {namespace}", hint=f"nearfar memory list --namespace {namespace} shows what there is")
    return found
