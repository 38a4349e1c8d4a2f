"""`nearfar memory list | search | show`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...protocols import InvalidRequest
from ...protocols.namespaces import parse_namespace
from ..memory.reading import SearchMode
from ..util.escaping import printable
from .console import notes, output, print_json, reported
from .memory_store import item_at, items_of, opened, parse_tier
from .memory_text import (
    TIER_MEANINGS,
    address_text,
    ago,
    counted,
    moment_text,
    one_line,
    origin_text,
    tier_text,
    value_text,
)
from .options import StoreChoice

if TYPE_CHECKING:
    from ..memory.reading import MemoryItem

_SEARCHED = 100
"""Items that are looked for at a time."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which items a command is about."""

    namespace: str
    tier: str | None
    limit: int
    offset: int


def list_items(wanted: Wanted, choice: StoreChoice, *, as_json: bool) -> None:
    """Print items, the last changed first."""
    with reported(as_json=as_json), opened(choice) as store:
        found = items_of(store, parse_namespace(wanted.namespace), parse_tier(wanted.tier))
        _show_page(_page(found, wanted), wanted, as_json=as_json)


def search_items(query: str, mode: str, wanted: Wanted, choice: StoreChoice, *, as_json: bool) -> None:
    """Print what matches, the best first."""
    with reported(as_json=as_json), opened(choice) as store:
        prefix, tier = parse_namespace(wanted.namespace), parse_tier(wanted.tier)

        def matching() -> Iterator["MemoryItem"]:
            offset = 0
            while page := store.search(prefix, query=query, mode=parse_mode(mode), limit=_SEARCHED, offset=offset, refresh_ttl=False):
                yield from (item for item in page if tier is None or item.tier is tier)
                offset += len(page)

        _show_page(_page(matching(), wanted), wanted, as_json=as_json)


def parse_mode(text: str) -> SearchMode:
    """The mode of an option."""
    try:
        return SearchMode(text)
    except ValueError:
        raise InvalidRequest(f"there is no mode {text!r}", hint=f"the modes are {', '.join(SearchMode)}") from None


def show_item(namespace: str, key: str, choice: StoreChoice, *, as_json: bool) -> None:
    """Print an item with all that is known of it."""
    with reported(as_json=as_json), opened(choice) as store:
        item = item_at(store, namespace, key)
        earlier = [each for each in store.history(item.namespace, item.key) if each.version != item.version]
        here = store.engine.device
    if as_json:
        print_json({"item": item.dict(), "history": [each.dict() for each in earlier]})
        return
    output.print(Text(address_text(item.address), style="bold"), soft_wrap=True)
    output.print(Padding(Text(value_text(item.value)), (1, 2)))
    output.print(_provenance_table(item, here))
    for each in earlier:
        until = "earlier" if each.invalid_from is None else f"until {moment_text(each.invalid_from)}"
        output.print(Text(f"\n{until}, by {origin_text(each)}:", style="dim"))
        output.print(Padding(Text(value_text(each.value), style="dim"), (0, 2)))
    if item.conflicts:
        place = address_text(item.address)
        notes.print(f"\n{counted(item.conflicts, 'value')} lost against it: nearfar memory conflicts {place}", style="yellow")


def _provenance_table(item: "MemoryItem", here: str) -> Table:
    """What was stamped on an item, as seen on the device `here`."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, told in _provenance(item, here):
        table.add_row(name, told)
    return table


def _provenance(item: "MemoryItem", here: str) -> Iterator[tuple[str, Text | str]]:
    yield "tier", Text.assemble(tier_text(item.tier), f": {TIER_MEANINGS[item.tier]}")
    yield "from", f"{origin_text(item)}, trust {item.trust:g}"
    yield "written", f"{moment_text(item.updated_at)}, {ago(item.updated_at)}"
    if item.created_at != item.updated_at:
        yield "first written", moment_text(item.created_at)
    yield "on device", f"{item.device}, this one" if item.device == here else item.device
    yield "version", item.version
    for name, told in (("user", item.user), ("about", ", ".join(filter(None, (item.subject, *item.others))))):
        if told:
            yield name, printable(told)
    if item.lineage:
        yield "derived from", "\n".join(map(address_text, item.lineage))
    for name, moment in (("true from", item.valid_from), ("true until", item.invalid_from), ("forgotten", item.expires_at)):
        if moment is not None:
            yield name, moment_text(moment)


def _page(found: Iterable["MemoryItem"], wanted: Wanted) -> list["MemoryItem"]:
    """What is asked for, and one more where there is one."""
    return list(islice(found, wanted.offset, wanted.offset + wanted.limit + 1))


def _show_page(page: Sequence["MemoryItem"], wanted: Wanted, *, as_json: bool) -> None:
    shown, has_more = page[: wanted.limit], len(page) > wanted.limit
    if as_json:
        print_json({"items": [item.dict() for item in shown], "more": has_more})
        return
    if not shown:
        notes.print("nothing further" if wanted.offset else "nothing there", style="dim")
        return
    for item in shown:
        _show(item)
    if has_more:
        notes.print(f"more: --offset {wanted.offset + len(shown)}", style="dim")


def _show(item: "MemoryItem") -> None:
    """Two lines: where it is and what is stamped on it, and as much of its value as the width of the terminal has room for."""
    head = Text.assemble((address_text(item.address), "bold"), "  ", tier_text(item.tier))
    head.append(f"  {origin_text(item)}, {ago(item.updated_at)}", style="dim")
    if item.conflicts:
        head.append(f"  {counted(item.conflicts, 'conflict')}", style="yellow")
    output.print(head, soft_wrap=True)
    output.print(Text(f"  {one_line(item.value)}"), no_wrap=True, overflow="ellipsis", crop=True)
