"""Open the memory that the commands work on, export it, import into it, and recover it."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO
from urllib.parse import urlsplit

import typer
from rich.text import Text

from ...protocols import ConfigError, NotFound
from ...protocols.items import Source, Tier, parse_namespace
from ...protocols.system import creating
from ..memory import memory_path, open_memory, recover_memory
from ..task.stores import MemoryConfig
from . import options
from .options import parse_name, read_section
from .running import Line, Note, confirm, count_text, report_errors, show, spinner

if TYPE_CHECKING:
    from ...protocols.items import Namespace
    from ..memory.reading import MemoryItem
    from ..memory.sqlite.recovering import Recovery
    from ..memory.store import MemoryStore
    from ..memory.transfer import Imported

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
    if database is None and path is not None and not creates and not os.path.lexists(path):
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


_LONGEST_LINE: Final = 1 << 25
"""Characters: the longest value, and as many names as an item may have."""
_SHOWN: Final = 10
"""Items that are listed by name; the others are counted in one line."""


def export_items(
    file: Annotated[str, typer.Argument(help="A file that does not exist yet, readable by you alone. - for standard output.")],
    namespace: Prefix = "",
    tier: TierName = None,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Write items to a file, one JSON object in each line, with their provenance."""
    with report_errors(as_json=as_json), open_store(StoreChoice(store, config)) as opened:
        lines = opened.export(prefix=parse_namespace(namespace), tier=parse_tier(tier))
        if file == "-":
            _write(lines, sys.stdout)
            return
        with spinner("writing", shown=not as_json), _create_file(Path(file)) as written:
            count = _write(lines, written)
    show({"file": file, "items": count}, [f"{count_text(count, 'item')} in {file}"], as_json=as_json)


def import_items(
    file: Annotated[str, typer.Argument(help="A file that `export` wrote. - for standard input.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace items that have another value here.")] = False,
    dry_run: options.DryRun = False,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Import items from a file. All lines are checked first. Items that have another value here are kept and listed."""
    choice, progress = StoreChoice(store, config), spinner("reading", shown=not as_json)
    with report_errors(as_json=as_json), _open_lines(file) as lines, open_store(choice, creates=True) as opened, progress:
        imported = opened.import_lines(lines, overwrite=overwrite, dry_run=dry_run)
    kept = [{"namespace": address.namespace, "key": address.key} for address in imported.kept]
    counts = {"added": imported.added, "replaced": imported.replaced, "unchanged": imported.unchanged}
    show({**counts, "kept": kept, "dry_run": dry_run}, _import_lines(imported, dry_run=dry_run), as_json=as_json)


def recover(store: Store = None, config: options.Config = None, yes: options.Yes = False, as_json: options.AsJson = False) -> None:
    """Save the readable items of a damaged file into a new file in its place. The damaged file is kept next to it."""
    choice = StoreChoice(store, config)
    with report_errors(as_json=as_json):
        chosen = chosen_memory(choice)
        path = memory_path(chosen)
        if path is None or (choice.store is not None and is_postgres(choice.store)):
            raise ConfigError(
                "a Postgres database is recovered with its own tools", hint="restore it from a backup; `recover` is for files"
            )
        if not path.exists():
            raise NotFound(f"there is no memory at {path}", hint="--store names another file")
        if not yes and not confirm(f"Replace {path} by what can be read of it? The old file is kept next to it.", as_json=as_json):
            return
        with spinner("reading what can be read", shown=not as_json):
            recovery = recover_memory(chosen)
    show(asdict(recovery), _recovery_lines(recovery), as_json=as_json)


def _import_lines(imported: "Imported", *, dry_run: bool) -> Iterator[Line]:
    would = "would be " if dry_run else ""
    parts = [f"{count_text(imported.added, 'item')} {would}added", f"{imported.unchanged:,} there already"]
    if imported.replaced:
        parts.insert(1, f"{imported.replaced:,} {would}replaced")
    yield ", ".join(parts)
    if imported.kept:
        told = f"{count_text(len(imported.kept), 'item')} here have another value and are kept; --overwrite replaces them:"
        yield Note(told, "yellow")
    from ..memory.reading import address_text  # with LangGraph, which `nearfar serve` does without

    for address in imported.kept[:_SHOWN]:
        yield Note(f"  {address_text(address)}", "")
    if len(imported.kept) > _SHOWN:
        yield Note(f"  and {len(imported.kept) - _SHOWN:,} more")


def _recovery_lines(recovery: "Recovery") -> Iterator[Line]:
    yield f"{count_text(recovery.items, 'item')} saved; {count_text(recovery.unreadable, 'place')} in the file could not be read"
    if recovery.remade:
        yield Note(f"{count_text(recovery.remade, 'item')} may have an earlier value", "yellow")
    if not recovery.is_same_device:
        yield Note("the device has a new name: what was written before counts as another device's", "yellow")
    yield Note(f"the damaged file is {recovery.damaged}; it keeps what is erased later, so delete it when it is not needed")


def _write(lines: Iterable[str], file: TextIO) -> int:
    count = 0
    for line in lines:
        file.write(line + "\n")
        count += 1
    return count


@contextmanager
def _create_file(path: Path) -> Iterator[TextIO]:
    """Create a file that only its owner may read, and that appears when all of it is written."""
    try:
        with creating(path, mode=0o600) as fresh, fresh.open("w", encoding="utf-8") as file:
            yield file
    except FileExistsError:
        raise ConfigError(f"{path} is there already", hint="name another file: an export overwrites nothing") from None


@contextmanager
def _open_lines(file: str) -> Iterator[Iterable[str]]:
    if file == "-":
        yield _read_lines(sys.stdin, "standard input")
        return
    with open(file, encoding="utf-8") as opened_file:
        yield _read_lines(opened_file, file)


def _read_lines(opened_file: TextIO, file: str) -> Iterator[str]:
    """Yield lines. Raise `ConfigError` for one that is longer than any item, without reading it to its end."""
    try:
        while line := opened_file.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE:
                raise ConfigError(f"{file} has a line that is too long for an item", hint="import a file that `export` wrote")
            yield line
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not text in UTF-8: {error.reason}", hint="import a file that `export` wrote") from error
