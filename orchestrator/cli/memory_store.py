"""Open the store that the `memory` commands work on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import typer
from rich.text import Text

from ...protocols import ConfigError, NotFound
from ...protocols.items import Source, Tier, parse_namespace
from ..compose.memory import memory_path, open_memory
from ..task.stores import MemoryConfig
from .options import parse_name, read_section

if TYPE_CHECKING:
    from ...protocols.items import Namespace
    from ..memory.reading import MemoryItem
    from ..memory.store import MemoryStore

_PAGE: Final = 500
_TIER_STYLES: Final = {Tier.DEVICE: "green", Tier.USER: "yellow", Tier.SHARED: "red"}

Store = Annotated[
    str | None,
    typer.Option("--store", help="SQLite file or postgres://... Default: as in nearfar.toml, or memory/memory.db in $NEARFAR_HOME."),
]
NamespaceArgument = Annotated[str, typer.Argument(metavar="NAMESPACE", help="Labels separated by /, such as notes/ana.")]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The item's name in its namespace.")]
Prefix = Annotated[str, typer.Option("--namespace", "-n", help="Only items in or below this namespace, such as notes/ana.")]
TierName = Annotated[str | None, typer.Option("--tier", help="Only items of this tier: device, user or shared.")]
Limit = Annotated[int, typer.Option(min=1, help="Largest number of items to print.")]
Offset = Annotated[int, typer.Option(min=0, help="Number of items to skip first.")]


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """The memory that a command works on, as named by its options."""

    store: str | None
    """A path or `postgres://...` that takes the place of `[memory]`."""
    config: Path | None


def chosen_memory(choice: StoreChoice) -> MemoryConfig:
    """Return the `[memory]` section with `--store` applied. Raises `ConfigError` for an address that holds a password."""
    config = read_section(choice.config, "memory", MemoryConfig)
    if choice.store is None:
        return config
    if is_postgres(choice.store):
        _check_no_password(choice.store)
        return config
    return config.model_copy(update={"path": Path(choice.store), "postgres_variable": None})


def is_postgres(store: str) -> bool:
    """Return True if `--store` names a database and not a file."""
    return store.startswith(("postgres://", "postgresql://"))


def _check_no_password(address: str) -> None:
    """Raise `ConfigError` for an address with a password: every user of this machine could read it in the list of processes."""
    try:
        has_password = urlsplit(address).password is not None or "password=" in address
    except ValueError:
        has_password = True  # a password may be why the address is malformed
    if has_password:
        hint = "export it as PGPASSWORD, or the whole address under the name that [memory] has as postgres_variable"
        raise ConfigError("the address of --store holds a password, which other users of this machine can see", hint=hint)


@contextmanager
def open_store(choice: StoreChoice, *, creates: bool = False) -> Iterator["MemoryStore"]:
    """Open the store. Its writes count as the user's own words.

    Raises `NotFound` if its file does not exist, unless the command `creates` it.
    """
    config = chosen_memory(choice)
    database = choice.store if choice.store is not None and is_postgres(choice.store) else None
    path = memory_path(config)
    if database is None and path is not None and not creates and not path.exists():
        hint = "`nearfar memory add` and `import` create one, and so do tasks with [memory]"
        raise NotFound(f"there is no memory at {path} yet", hint=hint)
    store = open_memory(config, database=database)
    try:
        yield store.bound(source=Source.USER)
    finally:
        store.close()


def items_of(store: "MemoryStore", prefix: "Namespace", tier: Tier | None) -> Iterator["MemoryItem"]:
    """Yield all items in or below a namespace, of one tier or of all, the last changed first."""
    offset = 0
    while page := store.search(prefix, limit=_PAGE, offset=offset, refresh_ttl=False):
        yield from (item for item in page if tier is None or item.tier is tier)
        offset += len(page)


def parse_tier(text: str | None) -> Tier | None:
    """Return the tier that an option names; None without it. Raises `InvalidRequest`."""
    return None if text is None else parse_name(text, Tier, "tier")


def item_at(store: "MemoryStore", namespace: str, key: str) -> "MemoryItem":
    """Return the item with this key. Raises `NotFound`."""
    found = store.get(parse_namespace(namespace), key, refresh_ttl=False)
    if found is None:
        raise NotFound(f"there is no item {key!r} in {namespace}", hint=f"nearfar memory list --namespace {namespace} shows the items")
    return found


def tier_text(tier: Tier) -> Text:
    """Return the name of a tier in its colour: the further its items may travel, the warmer."""
    return Text(tier.value, style=_TIER_STYLES[tier])
