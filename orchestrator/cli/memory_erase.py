"""`nearfar memory erase`: remove every trace of items from the memory, runs, traces, logs and cached answers."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from ...protocols import InvalidRequest, StoreUnavailable
from ...protocols.namespaces import ItemAddress, namespace_text, parse_namespace
from ..memory.erasing import Erased, record_of
from ..runs.erasing import Holding, find_holding, forget_holding
from ..util.escaping import spell_out
from ..util.json_text import drop_lines
from . import options
from .cache import clear_answers, forget_answers
from .memory_store import Store, StoreChoice, one_line, open_store
from .printing import Line, Note, counted, print_lines, show, spinner, table
from .running import confirm, report_errors

if TYPE_CHECKING:
    from ..memory.store import MemoryStore

_EXAMPLES: Final = 5


def erase_items(
    subject: Annotated[str, typer.Option(help="Erase everything about this person, in every namespace.")] = "",
    prefix: Annotated[str, typer.Option(help="Erase everything in or below this namespace, such as notes/ana.")] = "",
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Remove items so that no file holds a trace of them, here and, with the next sync, on your other devices. This cannot be undone."""
    with report_errors(as_json=as_json), open_store(StoreChoice(store, config)) as opened:
        if bool(subject) == bool(prefix):
            raise InvalidRequest("name what to erase: --subject or --prefix", hint="use one of them")
        namespace, about, runs = parse_namespace(prefix) if prefix else None, subject or None, options.runs_config(config)
        found = opened.traces(subject=about, prefix=namespace)
        erased = Erased.of(opened.engine, found, about)
        with spinner("looking through runs, traces and logs", shown=not as_json):
            held = find_holding(runs, erased)
            logs = ErasedLogs(config, erased, held.all)
        if not as_json:
            print_lines(_plan_lines(opened, found, held))
        if (found or held.all or logs.lines) and not dry_run:
            if not yes and not confirm("Erase this for good, here and on every device that has it?", as_json=as_json):
                print_lines([Note("nothing was erased")])
                return
            with spinner("erasing every trace of it", shown=not as_json):
                # Runs and traces first: they are found by what the items still say.
                forget_holding(runs, held)
                logs.drop()
                found = opened.erase(subject=about, prefix=namespace)
                clear_answers(config, opened)
        elif not dry_run:  # an earlier erasure has deleted it, and could not overwrite it
            forget_holding(runs, held)
            forget_answers(config, opened)
        _tell(found, held, logs.lines, is_done=not dry_run, as_json=as_json)


class ErasedLogs:
    """The lines of the logs of the router and of `auto` that hold something erased, or that belong to one of `runs`.

    Raises `StoreUnavailable` if a log cannot be read or written.
    """

    def __init__(self, path: Path | None, erased: Erased, runs: Collection[str]) -> None:
        self._erased = erased
        self._runs = frozenset(runs)
        config = options.read_config(path)
        named = () if config is None else (config.policy.router.log, config.policy.auto.reports)
        self._files = [file for file in named if file is not None and file.exists()]
        try:
            self.lines = sum(self._is_dropped(line) for file in self._files for line in file.read_bytes().split(b"\n") if line)
        except OSError as error:
            raise self._unusable(error) from error

    def drop(self) -> None:
        """Remove the lines."""
        try:
            for file in self._files:
                drop_lines(file, self._is_dropped)
        except OSError as error:
            raise self._unusable(error) from error

    def _is_dropped(self, line: bytes) -> bool:
        record = record_of(line.decode("utf-8", "replace"))
        is_of_run = isinstance(record, dict) and record.get("id") in self._runs
        return is_of_run or self._erased.is_in(record)

    def _unusable(self, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(f"a log of the policy cannot be used: {error.strerror}", hint="[policy.router] log, [policy.auto] reports")


def _plan_lines(store: "MemoryStore", found: Sequence[ItemAddress], held: Holding) -> Iterator[Line]:
    """Yield a table of the items by namespace, with examples, and the runs that hold them."""
    if not found and not held.all:
        yield Note("there is no trace of it")
    if found:
        yield Note(table(("namespace", "items", "for example"), _rows(store, found)), "")
    if held.all:
        shown = ", ".join(map(spell_out, held.all[:_EXAMPLES])) + (", ..." if len(held.all) > _EXAMPLES else "")
        yield Note(f"{_recorded_text(held)} of it: {shown}", "")


def _recorded_text(held: Holding) -> str:
    return f"{counted(len(held.runs), 'run')} and {counted(len(held.traces), 'trace')}"


def _rows(store: "MemoryStore", found: Sequence[ItemAddress]) -> Iterator[tuple[str | Text, ...]]:
    for namespace, count in sorted(Counter(address.namespace for address in found).items()):
        keys = [address.key for address in found if address.namespace == namespace][:_EXAMPLES]
        items = [item for key in keys if (item := store.get(namespace, key, refresh_ttl=False)) is not None]
        told = "\n".join(one_line(item.value) for item in items) or "(deleted already, but some of it is still kept)"
        yield spell_out(namespace_text(namespace)), f"{count:,}", Text(told, overflow="ellipsis", no_wrap=True)


def _tell(found: Sequence[ItemAddress], held: Holding, lines: int, *, is_done: bool, as_json: bool) -> None:
    items = [{"namespace": address.namespace, "key": address.key} for address in found]
    data = {"erased" if is_done else "would_be_erased": items, "runs": list(held.runs), "traces": list(held.traces), "log_lines": lines}
    show(data, _end_lines(found, held, lines, is_done=is_done), as_json=as_json)


def _end_lines(found: Sequence[ItemAddress], held: Holding, lines: int, *, is_done: bool) -> Iterator[Line]:
    if not (found or held.all or lines):
        return
    told = counted(len(found), "item")
    told += f", {_recorded_text(held)}" if held.all else ""
    told += f", {counted(lines, 'line')} of logs" if lines else ""
    if not is_done:
        yield f"{told} would be erased"
        return
    yield f"{told} erased: rows, words, vectors, logs and cached answers are overwritten in every file"
    yield Note(
        "Other devices erase it with their next sync; each finds items by name, runs and traces only where the command is run there. "
        "Backups and exports that you made keep what they hold."
    )
