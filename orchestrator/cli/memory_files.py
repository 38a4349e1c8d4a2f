"""`nearfar memory export | import`."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ...protocols import ConfigError
from ...protocols.namespaces import parse_namespace
from .console import notes, output, print_json, reported, working
from .memory_store import opened, parse_tier
from .memory_text import address_text, counted
from .options import StoreChoice

if TYPE_CHECKING:
    from ...protocols.namespaces import ItemAddress
    from ..memory.transfer import Imported

_LONGEST_LINE = 1 << 25
"""Characters: the longest value, and as many names as an item may have."""
_SHOWN = 10
"""Items that are named each; of the rest it is said how many they are."""


def export_to(file: str, namespace: str, tier: str | None, choice: StoreChoice, *, as_json: bool) -> None:
    """Write the items, and say how many they were."""
    with reported(as_json=as_json), opened(choice) as store:
        lines = store.export(prefix=parse_namespace(namespace), tier=parse_tier(tier))
        if file == "-":
            _write(lines, sys.stdout)
            return
        with working("writing", shown=not as_json), _own_file(Path(file)) as written:
            count = _write(lines, written)
    if as_json:
        print_json({"file": file, "items": count})
    else:
        output.print(f"{counted(count, 'item')} in {file}", soft_wrap=True)


def import_from(file: str, choice: StoreChoice, *, overwrite: bool, dry_run: bool, as_json: bool) -> None:
    """Take the items in, and say what became of them."""
    with reported(as_json=as_json), _lines_of(file) as lines, opened(choice, creates=True) as store, working("reading", shown=not as_json):
        imported = store.import_lines(lines, overwrite=overwrite, dry_run=dry_run)
    if as_json:
        kept = [{"namespace": address.namespace, "key": address.key} for address in imported.kept]
        counts = {"added": imported.added, "replaced": imported.replaced, "unchanged": imported.unchanged}
        print_json({**counts, "kept": kept, "dry_run": dry_run})
        return
    output.print(_told(imported, dry_run=dry_run))
    if imported.kept:
        _show_kept(imported.kept)


def _told(imported: "Imported", *, dry_run: bool) -> str:
    would = "would be " if dry_run else ""
    parts = [f"{counted(imported.added, 'item')} {would}added", f"{imported.unchanged:,} there already"]
    if imported.replaced:
        parts.insert(1, f"{imported.replaced:,} {would}replaced")
    return ", ".join(parts)


def _show_kept(kept: "tuple[ItemAddress, ...]") -> None:
    notes.print(f"{counted(len(kept), 'item')} here say something else, and stay; --overwrite replaces them:", style="yellow")
    for address in kept[:_SHOWN]:
        notes.print(f"  {address_text(address)}", soft_wrap=True)
    if len(kept) > _SHOWN:
        notes.print(f"  and {len(kept) - _SHOWN:,} more", style="dim")


def _write(lines: Iterable[str], file: TextIO) -> int:
    count = 0
    for line in lines:
        file.write(line + "\n")
        count += 1
    return count


@contextmanager
def _own_file(path: Path) -> Iterator[TextIO]:
    """A new file that only its owner may read; half of one is not left behind."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{path} is there already", hint="name another file: an export overwrites nothing") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            yield file
    except BaseException:  # also Ctrl-C, which is raised again
        path.unlink(missing_ok=True)
        raise


@contextmanager
def _lines_of(file: str) -> Iterator[Iterable[str]]:
    if file == "-":
        yield _decoded(sys.stdin, "standard input")
        return
    with open(file, encoding="utf-8") as opened_file:
        yield _decoded(opened_file, file)


def _decoded(opened_file: TextIO, file: str) -> Iterator[str]:
    """Yield lines. One that is longer than any item can be is not read to its end."""
    try:
        while line := opened_file.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE:
                raise ConfigError(f"{file} has a line that is too long for an item", hint="import what `export` wrote")
            yield line
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not text in UTF-8: {error.reason}", hint="import what `export` wrote") from error
