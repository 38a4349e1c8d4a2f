"""`nearfar memory`: see, correct, move, synchronise and erase what this device remembers; consolidate it in batches."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.padding import Padding
from rich.text import Text

from ...protocols import Agent, NotFound
from ...protocols.items import TIERS, Tier, namespace_text, parse_namespace
from ..compose import near_handle, read_device_state
from ..memory.consolidation import Consolidator
from ..memory.consolidation_journal import ConsolidationBatch, ConsolidationJournal, ConsolidationResult, journals, scopes
from ..memory.reading import SearchMode, address_text, one_line, origin_text, provenance, value_text
from ..task.stores import MemoryConfig
from ..util.text import printable, spell_out
from . import memory_edit, memory_store, memory_sync, options
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
from .running import (
    Line,
    Note,
    ago,
    count_text,
    fact_table,
    moment_text,
    output,
    print_json,
    report_errors,
    show,
    size_text,
    spinner,
    table,
    warn,
)

if TYPE_CHECKING:
    from ...protocols.items import Namespace
    from ..memory.reading import MemoryItem
    from ..memory.store import MemoryStore

BatchName = Annotated[str, typer.Argument(metavar="BATCH", help="Id of the batch, or its beginning. `nearfar memory sleep list` shows it.")]

sleep = typer.Typer(help="Sum up, merge and correct what is remembered, in batches that can be reverted.", invoke_without_command=True)


@sleep.callback()
def consolidate(
    context: typer.Context,
    now: Annotated[bool, typer.Option("--now", help="Also on battery, and if it is unknown whether this device is charging.")] = False,
    near: options.Near = None,
    namespace: Prefix = "",
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Sum up, merge and correct what is remembered while this device is charging. A batch can be reverted until it is confirmed.

    An interrupted run is continued by the next one.
    """
    if context.invoked_subcommand is not None:
        return
    choice = StoreChoice(store, config)
    with report_errors(as_json=as_json), open_store(choice) as opened:
        with spinner("going through what is remembered", shown=not as_json):
            slept = asyncio.run(_consolidate(opened, parse_namespace(namespace), choice, near, now=now))
        if as_json:
            print_json([{"namespace": scope, **asdict(each)} for scope, each in slept])
            return
        for scope, each in slept:
            show(None, _slept_lines(scope, each), as_json=False)
            _warn_about(scope, each)
        if not slept:
            show(None, [Note("there is nothing to consolidate")], as_json=False)


@sleep.command("list")
def list_batches(store: Store = None, config: options.Config = None, as_json: options.AsJson = False) -> None:
    """List the batches, the last first."""
    with report_errors(as_json=as_json), open_store(StoreChoice(store, config)) as opened:
        found = [batch for journal in journals(opened) for batch in journal.batches()]
    batches = sorted(found, key=lambda batch: (batch.began_at, batch.id), reverse=True)
    show([asdict(batch) for batch in batches], _list_lines(batches), as_json=as_json)


@sleep.command("revert")
def revert_batch(batch: BatchName, store: Store = None, config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Revert a batch: remove its summaries and reinstate the facts that it retired. The same batch is not made again."""
    with report_errors(as_json=as_json), open_store(StoreChoice(store, config)) as opened:
        journal, batch = _find_batch(opened, batch)
        reverted = journal.revert(batch)
    told = f"{count_text(reverted.removed, 'item')} removed, {count_text(reverted.reinstated, 'item')} true again"
    show(asdict(reverted), [told], as_json=as_json)
    for address in () if as_json else reverted.left:
        warn(f"{address_text(address)} was changed since, and stays as it is")


@sleep.command("confirm")
def confirm_batch(batch: BatchName, store: Store = None, config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Keep a batch for good. The items that it was made from stay, too."""
    with report_errors(as_json=as_json), open_store(StoreChoice(store, config)) as opened:
        journal, batch = _find_batch(opened, batch)
        confirmed = journal.confirm(batch)
    told = f"{batch} is kept: {count_text(confirmed.created, 'item')} made, {count_text(confirmed.retired, 'item')} retired"
    show(asdict(confirmed), [told], as_json=as_json)


async def _consolidate(
    store: "MemoryStore", prefix: "Namespace", choice: StoreChoice, near: str | None, *, now: bool
) -> list[tuple["Namespace", ConsolidationResult]]:
    state = None if now else read_device_state
    policy = options.read_section(choice.config, "memory", MemoryConfig).sleep
    async with _near_agent(choice, near) as agent:
        sleepers = [(scope, Consolidator(store, scope, agent=agent, device_state=state, policy=policy)) for scope in scopes(store, prefix)]
        return [(scope, await sleeper.run()) for scope, sleeper in sleepers]


@asynccontextmanager
async def _near_agent(choice: StoreChoice, near: str | None) -> AsyncIterator[Agent | None]:
    """Open the model of this device; yield None without one, and for a model that knows only one small world."""
    config = options.read_config(choice.config)
    member = near_handle(near if near is not None else None if config is None else config.near)
    if member is None:
        yield None
        return
    try:
        agent = await member.open()
        if agent.card.world is not None:
            warn(f"{agent.card.model} knows nothing but {agent.card.world}: summaries are made of the turns' own sentences")
        yield agent if agent.card.world is None else None
    finally:
        await member.aclose()


def _find_batch(store: "MemoryStore", begins: str) -> tuple[ConsolidationJournal, str]:
    """Return the only batch whose id begins like that, with its journal. Raises `NotFound`, or `InvalidRequest` if there are several."""
    homes = {each.id: journal for journal in journals(store) for each in journal.batches()}
    batch = options.pick_id(begins, list(homes), "batch") if begins else begins
    if batch not in homes:
        raise NotFound(f"there is no batch {printable(batch)!r}", hint="`nearfar memory sleep list` shows them all")
    return homes[batch], batch


def _list_lines(batches: Sequence[ConsolidationBatch]) -> Iterator[Line]:
    if not batches:
        yield Note("nothing was consolidated yet")
        return
    yield table(("batch", "began", "made", "retired", "state"), map(_cells, batches))


def _cells(batch: ConsolidationBatch) -> tuple[str, ...]:
    return (batch.id, batch.began_at[:16].replace("T", " "), f"{batch.created:,}", f"{batch.retired:,}", batch.state.value)


def _slept_lines(scope: "Namespace", slept: ConsolidationResult) -> Iterator[Line]:
    if slept.batch is not None:
        by_model = f", {slept.by_model:,} of them by the model" if slept.by_model else ""
        summaries = "1 summary" if slept.summaries == 1 else f"{slept.summaries:,} summaries"
        yield Text(f"{summaries} made{by_model}, {count_text(slept.retired, 'fact')} retired{_where(scope)}")
        yield Note(f"`nearfar memory sleep revert {slept.batch}` reverts it")
    elif slept.stopped is None:
        yield Note(Text(f"nothing new to consolidate{_where(scope)}"))


def _warn_about(scope: "Namespace", slept: ConsolidationResult) -> None:
    for problem in dict.fromkeys(slept.refused):
        warn(f"a summary of the model was not used: {printable(problem)}")
    if slept.stopped is not None:
        rest = "" if slept.batch else ", or use --now"
        warn(f"stopped{_where(scope)}, since {slept.stopped}; the next run continues there{rest}")


def _where(scope: "Namespace") -> str:
    return f" in {printable(namespace_text(scope))}" if scope else ""


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
app.command("export")(memory_store.export_items)
app.command("import")(memory_store.import_items)
app.command("erase")(memory_edit.erase_items)
app.command("sync")(memory_sync.sync)
app.command("revoke")(memory_sync.revoke_device)
app.add_typer(sleep, name="sleep")


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


app.command("recover")(memory_store.recover)


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
