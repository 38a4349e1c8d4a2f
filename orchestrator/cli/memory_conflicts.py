"""`nearfar memory conflicts`."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ...protocols import InvalidRequest, NotFound
from ...protocols.namespaces import ItemAddress, parse_namespace
from ..util.escaping import printable
from .console import notes, output, print_json, reported
from .memory_store import opened
from .memory_text import address_text, counted, moment_text, one_line, origin_text, value_text
from .options import StoreChoice

if TYPE_CHECKING:
    from ..memory.conflicts import Conflict, LostValue
    from ..memory.store import MemoryStore

_PAGE = 200


def list_conflicts(choice: StoreChoice, *, limit: int, offset: int, as_json: bool) -> None:
    """Print the items that have values to decide on."""
    with reported(as_json=as_json), opened(choice) as store:
        found = store.conflicts(limit=limit, offset=offset)
    if as_json:
        print_json({"conflicts": [_described(conflict) for conflict in found]})
        return
    if not found:
        notes.print("nothing to decide", style="dim")
        return
    table = Table("item", "present", "lost", box=SIMPLE_HEAD, pad_edge=False)
    for conflict in found:
        present = "(deleted)" if conflict.item is None else one_line(conflict.item.value)
        table.add_row(*map(Text, (address_text(conflict.address), present, "\n".join(one_line(lost.value) for lost in conflict.lost))))
    output.print(table)
    notes.print("nearfar memory conflicts NAMESPACE KEY shows one side by side; with --keep it is decided", style="dim", soft_wrap=True)


def settle_conflict(namespace: str, key: str, keep: str | None, choice: StoreChoice, *, as_json: bool) -> None:
    """Print the values of one item side by side, or decide which of them stands."""
    with reported(as_json=as_json), opened(choice) as store:
        if not namespace or not key:
            raise InvalidRequest("which item is meant is not clear", hint="nearfar memory conflicts NAMESPACE KEY")
        conflict = _conflict_at(store, ItemAddress(parse_namespace(namespace), key))
        if keep is None:
            _show(conflict, as_json=as_json)
            return
        version = store.resolve(conflict.address.namespace, key, _chosen(conflict, keep))
    if as_json:
        print_json({"namespace": conflict.address.namespace, "key": key, "version": version})
    else:
        output.print(f"{address_text(conflict.address)} is decided", soft_wrap=True)


def _conflict_at(store: "MemoryStore", address: ItemAddress) -> "Conflict":
    offset = 0
    while page := store.conflicts(limit=_PAGE, offset=offset):
        for conflict in page:
            if conflict.address == address:
                return conflict
        offset += len(page)
    raise NotFound(f"{address_text(address)} has nothing to decide on", hint="nearfar memory conflicts lists what has")


def _chosen(conflict: "Conflict", keep: str) -> str:
    """The name of what is to stand: a number counts the lost values as they are shown."""
    if keep.isdigit() and 1 <= int(keep) <= len(conflict.lost):
        return conflict.lost[int(keep) - 1].name
    if keep in ("present", *(lost.name for lost in conflict.lost)):
        return keep
    raise InvalidRequest(f"there is no value {keep!r} to keep", hint=f"present, or 1 to {len(conflict.lost)}")


def _show(conflict: "Conflict", *, as_json: bool) -> None:
    if as_json:
        print_json(_described(conflict))
        return
    output.print(Text(f"{address_text(conflict.address)}: {counted(len(conflict.lost), 'value')} to decide on", style="bold"))
    present = conflict.item
    values = ["(deleted)" if present is None else value_text(present.value), *(value_text(lost.value) for lost in conflict.lost)]
    told = "" if present is None else f"{moment_text(present.updated_at)}\n{origin_text(present)}\n{present.tier}"
    names = ["present", *map(str, range(1, len(conflict.lost) + 1))]
    table = Table(*names, box=SIMPLE_HEAD, pad_edge=False)
    table.add_row(*map(Text, values))
    table.add_row(*map(Text, (told, *map(_origin, conflict.lost))), style="dim")
    output.print(table)
    command = f"nearfar memory conflicts {address_text(conflict.address)} --keep {'|'.join(names)}"
    notes.print(command, style="dim", soft_wrap=True)


def _origin(lost: "LostValue") -> str:
    agent = f" {lost.agent}" if lost.agent else ""
    return printable(f"{moment_text(lost.written_at)}\n{lost.source.value.replace('_', ' ')}{agent}\n{lost.tier}")


def _described(conflict: "Conflict") -> dict[str, object]:
    present = None if conflict.item is None else conflict.item.dict()
    lost = [{**asdict(each), "written_at": each.written_at.isoformat()} for each in conflict.lost]
    return {"namespace": conflict.address.namespace, "key": conflict.address.key, "present": present, "lost": lost}
