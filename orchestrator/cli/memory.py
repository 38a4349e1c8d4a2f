"""`nearfar memory`: the group, with `list`, `search`, `show` and `stats`; the other commands are in the modules `memory_...`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.padding import Padding
from rich.text import Text

from ...protocols.items import TIERS, Tier, namespace_text, parse_namespace
from ..memory.reading import SearchMode, address_text, one_line, origin_text, provenance, value_text
from ..util.escaping import spell_out
from . import memory_edit, memory_files, memory_sleep, memory_sync, options
from .memory_store import (
    KeyArgument,
    Limit,
    NamespaceArgument,
    Offset,
    Prefix,
    Store,
    StoreChoice,
    TierName,
    item_at,
    items_of,
    open_store,
    parse_tier,
    tier_text,
)
from .printing import Line, Note, ago, count_text, fact_table, moment_text, output, show, size_text, spinner, table
from .running import report_errors

if TYPE_CHECKING:
    from ..memory.reading import MemoryItem
    from ..memory.store import MemoryStore

_SEARCHED: Final = 100
"""Items in a page of search results."""
_NAMESPACES: Final = 15
"""Namespaces that `stats` lists; the others are counted in one line."""

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_items(
    namespace: Prefix = "",
    tier: TierName = None,
    limit: Limit = 20,
    offset: Offset = 0,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """List items, the last changed first."""
    with report_errors(as_json=as_json), open_store(StoreChoice(store, config)) as opened:
        _show_page(items_of(opened, parse_namespace(namespace), parse_tier(tier)), limit, offset, as_json=as_json)


@app.command("search")
def search(
    query: Annotated[str, typer.Argument(help="Words, or a question.")],
    namespace: Prefix = "",
    tier: TierName = None,
    mode: Annotated[str, typer.Option(help="hybrid, keyword or semantic.")] = "hybrid",
    limit: Limit = 10,
    offset: Offset = 0,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Find items by words and by meaning, the best first."""
    with report_errors(as_json=as_json), open_store(StoreChoice(store, config)) as opened:
        found = _matches(opened, query, options.parse_name(mode, SearchMode, "mode"), namespace, parse_tier(tier))
        _show_page(found, limit, offset, as_json=as_json)


@app.command("show")
def show_item(
    namespace: NamespaceArgument, key: KeyArgument, store: Store = None, config: options.Config = None, as_json: options.AsJson = False
) -> None:
    """Show an item: its value, provenance and tier, its earlier values, and the number of conflicts."""
    with report_errors(as_json=as_json), open_store(StoreChoice(store, config)) as opened:
        item = item_at(opened, namespace, key)
        earlier = [each for each in opened.history(item.namespace, item.key) if each.version != item.version]
        here = opened.engine.device
    show({"item": item.dict(), "history": [each.dict() for each in earlier]}, _item_lines(item, earlier, here), as_json=as_json)


app.command("add")(memory_edit.add_item)
app.command("edit")(memory_edit.edit_item)
app.command("delete")(memory_edit.delete_item)
app.command("conflicts")(memory_sync.show_conflicts)
app.command("export")(memory_files.export_items)
app.command("import")(memory_files.import_items)
app.command("erase")(memory_edit.erase_items)
app.command("sync")(memory_sync.sync)
app.command("revoke")(memory_sync.revoke_device)
app.add_typer(memory_sleep.app, name="sleep")


@app.command("stats")
def show_stats(store: Store = None, config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Show the number of items by tier, source and namespace, the size of the memory, its devices and open conflicts."""
    by_namespace: Counter[tuple[str, ...]] = Counter()
    by_tier: Counter[str] = Counter()
    by_source: Counter[str] = Counter()
    choice = StoreChoice(store, config)
    with report_errors(as_json=as_json), open_store(choice) as opened, spinner("counting", shown=not as_json):
        known = opened.stats()
        for item in items_of(opened, (), None):
            by_namespace[item.namespace] += 1
            by_tier[item.tier.value] += 1
            by_source[item.source.value] += 1
        devices = _devices(opened)
    namespaces = [{"namespace": namespace, "items": count} for namespace, count in by_namespace.most_common()]
    told = {"tiers": by_tier, "sources": by_source, "namespaces": namespaces, "devices": list(map(asdict, devices))}
    lines: list[Line] = [fact_table(_stats_facts(known, by_tier, by_source, devices)), *_namespace_lines(by_namespace)]
    show({"device": devices[0].name, **known, **told}, lines, as_json=as_json)


app.command("recover")(memory_files.recover)


def _matches(store: "MemoryStore", query: str, mode: SearchMode, namespace: str, tier: Tier | None) -> Iterator["MemoryItem"]:
    prefix, offset = parse_namespace(namespace), 0
    while page := store.search(prefix, query=query, mode=mode, limit=_SEARCHED, offset=offset, refresh_ttl=False):
        yield from (item for item in page if tier is None or item.tier is tier)
        offset += len(page)


def _show_page(found: Iterable["MemoryItem"], limit: int, offset: int, *, as_json: bool) -> None:
    page = list(islice(found, offset, offset + limit + 1))
    shown, has_more = page[:limit], len(page) > limit
    if as_json:
        show({"items": [item.dict() for item in shown], "more": has_more}, (), as_json=True)
        return
    for item in shown:
        _print_item(item)
    lines = [Note("nothing further" if offset else "nothing there")] * (not shown)
    lines += [Note(f"more: --offset {offset + len(shown)}")] * has_more
    show(None, lines, as_json=False)


def _print_item(item: "MemoryItem") -> None:
    """Print two lines: address and provenance, and as much of the value as fits into the width of the terminal."""
    head = Text.assemble((address_text(item.address), "bold"), "  ", tier_text(item.tier))
    head.append(f"  {origin_text(item)}, {ago(item.updated_at)}", style="dim")
    if item.conflicts:
        head.append(f"  {count_text(item.conflicts, 'conflict')}", style="yellow")
    output.print(head, soft_wrap=True)
    output.print(Text(f"  {one_line(item.value)}"), no_wrap=True, overflow="ellipsis", crop=True)


def _item_lines(item: "MemoryItem", earlier: Sequence["MemoryItem"], here: str) -> Iterator[Line]:
    yield Text(address_text(item.address), style="bold")
    yield Padding(Text(value_text(item.value)), (1, 2))
    yield Padding(fact_table(_provenance(item, here)), (0, 0, 0, 2))
    for each in earlier:
        until = "earlier" if each.invalid_from is None else f"until {moment_text(each.invalid_from)}"
        yield Text(f"\n{until}, by {origin_text(each)}:", style="dim")
        yield Padding(Text(value_text(each.value), style="dim"), (0, 2))
    if item.conflicts:
        command = f"nearfar memory conflicts {address_text(item.address)}"
        yield Note(f"\n{count_text(item.conflicts, 'value')} lost against it: {command}", "yellow")


def _provenance(item: "MemoryItem", here: str) -> Iterator[tuple[str, Text | str]]:
    for name, told in provenance(item, here):
        if name == "tier":
            yield name, Text.assemble(tier_text(item.tier), str(told).removeprefix(item.tier))
        elif isinstance(told, datetime):
            yield name, moment_text(told) + (f", {ago(told)}" if name == "written" else "")
        else:
            yield name, told


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """A device that has written to the store."""

    name: str
    writes: int
    user: str
    is_this: bool
    is_revoked: bool


def _devices(store: "MemoryStore") -> list[KnownDevice]:
    """Return the devices that the store knows, this one first."""
    facts, here = store.replica().facts(), store.engine.device
    with store.engine.transaction() as transaction:
        writes = {here: 0} | transaction.known()
    names = [here, *sorted({*writes, *facts.users} - {here})]
    return [KnownDevice(name, writes.get(name, 0), facts.users.get(name, ""), name == here, name in facts.revoked) for name in names]


def _stats_facts(
    known: Mapping[str, int], by_tier: Counter[str], by_source: Counter[str], devices: Sequence[KnownDevice]
) -> Iterator[tuple[str, Text | str]]:
    conflicts = f", {count_text(known['conflicts'], 'conflict')} to decide on" if known["conflicts"] else ""
    yield "items", f"{known['items']:,}, and {known['deleted']:,} deleted{conflicts}"
    yield "tiers", Text(", ").join(Text.assemble(f"{by_tier[tier]:,} ", tier_text(tier)) for tier in TIERS)
    yield "from", ", ".join(f"{count:,} {source.replace('_', ' ')}" for source, count in by_source.most_common()) or "no source"
    yield "vectors", f"{known['vectors']:,}"
    yield "size", size_text(known["bytes"])
    yield "devices", "\n".join(map(_device_text, devices))


def _device_text(device: KnownDevice) -> str:
    marks = [spell_out(device.user)] * bool(device.user) + ["this one"] * device.is_this + ["shut out"] * device.is_revoked
    return ", ".join([spell_out(device.name), count_text(device.writes, "write"), *marks])


def _namespace_lines(counts: Counter[tuple[str, ...]]) -> Iterator[Line]:
    if not counts:
        return
    yield table(
        ("namespace", "items"), ((spell_out(namespace_text(name)), f"{count:,}") for name, count in counts.most_common(_NAMESPACES))
    )
    if len(counts) > _NAMESPACES:
        yield Note(f"and {len(counts) - _NAMESPACES:,} namespaces more")
