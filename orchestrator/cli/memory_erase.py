"""`nearfar memory erase`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ...protocols import InvalidRequest
from ...protocols.namespaces import ItemAddress, Namespace, namespace_text, parse_namespace
from ..memory.erasing import Erased
from ..runs.erasing import Holding, forget_holding, holding
from ..util.escaping import spelled_out
from .cache_file import clear_answers, forget_answers
from .console import agreed, notes, output, print_json, reported, working
from .erased_logs import ErasedLogs
from .memory_store import opened
from .memory_text import counted, one_line
from .options import StoreChoice
from .runs_table import runs_config

if TYPE_CHECKING:
    from ..memory.store import MemoryStore

_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Erasure:
    """What is to go: one of both."""

    subject: str
    prefix: str

    def __post_init__(self) -> None:
        """Raises `InvalidRequest` unless one is given."""
        if bool(self.subject) == bool(self.prefix):
            raise InvalidRequest("what to erase is named by --subject or by --prefix", hint="give one of them")

    @property
    def namespace(self) -> Namespace | None:
        return parse_namespace(self.prefix) if self.prefix else None

    @property
    def about(self) -> str | None:
        return self.subject or None


def erase_items(subject: str, prefix: str, choice: StoreChoice, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Say what would go, ask, and erase it: runs and traces first, which are found by what the items still say."""
    with reported(as_json=as_json), opened(choice) as store:
        erasure, runs = Erasure(subject, prefix), runs_config(choice.config)
        found = store.traces(subject=erasure.about, prefix=erasure.namespace)
        erased = Erased.of(store.engine, found, erasure.about)
        with working("looking through runs, traces and logs", shown=not as_json):
            held = holding(runs, erased)
            logs = ErasedLogs(choice.config, erased, held.all)
        if not as_json:
            _show(store, found, held)
        if (found or held.all or logs.lines) and not dry_run:
            if not yes and not agreed("Erase this for good, here and on every device that it went to?", as_json=as_json):
                notes.print("nothing was erased", style="dim")
                return
            with working("erasing every trace of it", shown=not as_json):
                forget_holding(runs, held)
                logs.drop()
                found = store.erase(subject=erasure.about, prefix=erasure.namespace)
                clear_answers(choice.config, store)
        elif not dry_run:  # what an earlier erasure has deleted, and was kept from overwriting
            forget_holding(runs, held)
            forget_answers(choice.config, store)
        _tell(found, held, logs.lines, is_done=not dry_run, as_json=as_json)


def _show(store: "MemoryStore", found: Sequence[ItemAddress], held: Holding) -> None:
    """What would go, by namespace, with examples, and the runs that hold it."""
    if not found and not held.all:
        notes.print("there is no trace of it", style="dim")
    if found:
        _show_items(store, found)
    if held.all:
        shown = ", ".join(map(spelled_out, held.all[:_EXAMPLES])) + (", ..." if len(held.all) > _EXAMPLES else "")
        notes.print(f"{_recorded(held)} of it: {shown}", soft_wrap=True)


def _recorded(held: Holding) -> str:
    return f"{counted(len(held.runs), 'run')} and {counted(len(held.traces), 'trace')}"


def _show_items(store: "MemoryStore", found: Sequence[ItemAddress]) -> None:
    table = Table("namespace", "items", "for example", box=SIMPLE_HEAD, pad_edge=False)
    for namespace, count in sorted(Counter(address.namespace for address in found).items()):
        keys = [address.key for address in found if address.namespace == namespace][:_EXAMPLES]
        items = [item for key in keys if (item := store.get(namespace, key, refresh_ttl=False)) is not None]
        told = "\n".join(one_line(item.value) for item in items) or "(deleted already; something of it is still kept)"
        table.add_row(Text(spelled_out(namespace_text(namespace))), f"{count:,}", Text(told, overflow="ellipsis", no_wrap=True))
    notes.print(table)


def _tell(found: Sequence[ItemAddress], held: Holding, lines: int, *, is_done: bool, as_json: bool) -> None:
    what = (
        counted(len(found), "item")
        + (f", {_recorded(held)}" if held.all else "")
        + (f", {counted(lines, 'line')} of logs" if lines else "")
    )
    if as_json:
        places = [{"namespace": address.namespace, "key": address.key} for address in found]
        name = "erased" if is_done else "would_be_erased"
        print_json({name: places, "runs": list(held.runs), "traces": list(held.traces), "log_lines": lines})
    elif (found or held.all or lines) and is_done:
        output.print(f"{what} erased: rows, words, vectors, logs and cached answers are overwritten in every file")
        notes.print(
            "Other devices erase it with their next sync; each finds items by name, runs and traces only where the command is run there. "
            "Backups and exports that you made keep what they hold.",
            style="dim",
            soft_wrap=True,
        )
    elif found or held.all or lines:
        output.print(f"{what} would be erased")
