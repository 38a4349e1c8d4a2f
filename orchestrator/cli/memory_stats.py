"""`nearfar memory stats`."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ...protocols.namespaces import namespace_text
from ...protocols.tiers import TIERS
from ..util.escaping import spelled_out
from .console import notes, output, print_json, reported, working
from .memory_store import items_of, opened
from .memory_text import counted, size_text, tier_text
from .options import StoreChoice

if TYPE_CHECKING:
    from ..memory.store import MemoryStore

_SHOWN = 15
"""Namespaces in the table; the rest is one line."""


def show_stats(choice: StoreChoice, *, as_json: bool) -> None:
    """Print what there is."""
    with reported(as_json=as_json), opened(choice) as store, working("counting", shown=not as_json):
        known = store.stats()
        by_namespace: Counter[tuple[str, ...]] = Counter()
        by_tier: Counter[str] = Counter()
        by_source: Counter[str] = Counter()
        for item in items_of(store, (), None):
            by_namespace[item.namespace] += 1
            by_tier[item.tier.value] += 1
            by_source[item.source.value] += 1
        devices = _devices(store)
    if as_json:
        namespaces = [{"namespace": namespace, "items": count} for namespace, count in by_namespace.most_common()]
        told = {"tiers": by_tier, "sources": by_source, "namespaces": namespaces, "devices": list(map(asdict, devices))}
        print_json({"device": devices[0].name, **known, **told})
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("items", _items_line(known))
    table.add_row("tiers", Text(", ").join(Text.assemble(f"{by_tier[tier]:,} ", tier_text(tier)) for tier in TIERS))
    table.add_row("from", ", ".join(f"{count:,} {source.replace('_', ' ')}" for source, count in by_source.most_common()) or "nobody")
    table.add_row("vectors", f"{known['vectors']:,}")
    table.add_row("size", size_text(known["bytes"]))
    table.add_row("devices", "\n".join(map(_device_line, devices)))
    output.print(table)
    _show_namespaces(by_namespace)


@dataclass(frozen=True, slots=True)
class Device:
    """What the store knows of a device that has written to it."""

    name: str
    writes: int
    user: str
    is_this: bool
    is_revoked: bool


def _devices(store: "MemoryStore") -> list[Device]:
    """This one first."""
    facts, here = store.replica().facts(), store.engine.device
    with store.engine.transaction() as transaction:
        writes = {here: 0} | transaction.known()
    names = [here, *sorted({*writes, *facts.users} - {here})]
    return [Device(name, writes.get(name, 0), facts.users.get(name, ""), name == here, name in facts.revoked) for name in names]


def _device_line(device: Device) -> str:
    marks = [spelled_out(device.user)] * bool(device.user) + ["this one"] * device.is_this + ["shut out"] * device.is_revoked
    return ", ".join([spelled_out(device.name), counted(device.writes, "write"), *marks])


def _items_line(known: Mapping[str, int]) -> str:
    conflicts = f", {counted(known['conflicts'], 'conflict')} to decide on" if known["conflicts"] else ""
    return f"{known['items']:,}, and {known['deleted']:,} deleted{conflicts}"


def _show_namespaces(counts: Counter[tuple[str, ...]]) -> None:
    if not counts:
        return
    table = Table("namespace", "items", box=SIMPLE_HEAD, pad_edge=False)
    for namespace, count in counts.most_common(_SHOWN):
        table.add_row(Text(spelled_out(namespace_text(namespace))), f"{count:,}")
    output.print(table)
    if len(counts) > _SHOWN:
        notes.print(f"and {len(counts) - _SHOWN:,} namespaces more", style="dim")
