"""`nearfar memory erase`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ...protocols import InvalidRequest
from ..escaping import printable
from ..memory.item import Address, Namespace
from ..memory.namespace_text import namespace_text, parse_namespace
from .cache_file import forget_answers
from .console import agreed, notes, output, print_json, reported, working
from .memory_store import opened
from .memory_text import counted, one_line
from .options import StoreChoice

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
    """Say what would go, ask, and erase it."""
    with reported(as_json=as_json), opened(choice) as store:
        erasure = Erasure(subject, prefix)
        found = store.traces(subject=erasure.about, prefix=erasure.namespace)
        if not as_json:
            _show(store, found)
        if found and not dry_run:
            if not yes and not agreed("Erase this for good, here and on every device that it went to?", as_json=as_json):
                notes.print("nothing was erased", style="dim")
                return
            with working("erasing every trace of it", shown=not as_json):
                found = store.erase(subject=erasure.about, prefix=erasure.namespace)
                forget_answers(choice.config, store)
        _tell(found, is_done=not dry_run, as_json=as_json)


def _show(store: "MemoryStore", found: Sequence[Address]) -> None:
    """What would go, by namespace, with examples."""
    if not found:
        notes.print("there is no trace of it", style="dim")
        return
    table = Table("namespace", "items", "for example", box=SIMPLE_HEAD, pad_edge=False)
    for namespace, count in sorted(Counter(address.namespace for address in found).items()):
        keys = [address.key for address in found if address.namespace == namespace][:_EXAMPLES]
        items = [item for key in keys if (item := store.get(namespace, key, refresh_ttl=False)) is not None]
        told = "\n".join(one_line(item.value) for item in items) or "(deleted already; something of it is still kept)"
        table.add_row(Text(printable(namespace_text(namespace))), f"{count:,}", Text(told, overflow="ellipsis", no_wrap=True))
    notes.print(table)


def _tell(found: Sequence[Address], *, is_done: bool, as_json: bool) -> None:
    if as_json:
        places = [{"namespace": address.namespace, "key": address.key} for address in found]
        print_json({"erased" if is_done else "would_be_erased": places})
    elif found and is_done:
        output.print(f"{counted(len(found), 'item')} erased: rows, words, vectors, log and cached answers are overwritten in every file")
        notes.print(
            "Other devices erase it with their next sync. Backups and exports that you made keep what they hold.",
            style="dim",
            soft_wrap=True,
        )
    elif found:
        output.print(f"{counted(len(found), 'item')} would be erased")
