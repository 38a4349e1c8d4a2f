"""`nearfar memory add | edit | delete | erase`: add items, change them, delete them, or remove every trace of them."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from ...protocols import ConfigError, InvalidRequest, NotFound, StoreUnavailable, VersionConflict
from ...protocols.items import ItemAddress, Source, Tier, namespace_text, parse_namespace
from ..memory.erasing import Erased
from ..memory.in_tasks import NOTES, note_key
from ..memory.reading import address_text, one_line
from ..memory.writing import ABSENT
from ..runs.erasing import ErasedLogs, Holding, erase_calls, find_holding, forget_holding
from ..task.stores import RunsConfig
from ..util.text import spell_out
from . import options
from .cache import clear_answers, forget_answers
from .memory_store import KeyArgument, NamespaceArgument, Store, StoreChoice, item_at, open_store, parse_tier
from .running import Line, Note, confirm, count_text, print_lines, read_prompt, report_errors, show, spinner, table

if TYPE_CHECKING:
    from ..memory.reading import MemoryItem
    from ..memory.store import MemoryStore

_EXAMPLES: Final = 5


def add_item(
    text: Annotated[str, typer.Argument(help="A fact or decision, in a full sentence. - reads it from standard input.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the item, such as notes/ana.")] = namespace_text(NOTES),
    key: Annotated[str, typer.Option(help="Key of the item. Default: made from the text, so that a text is added once.")] = "",
    subject: Annotated[str | None, typer.Option(help="The person that it is about, for `erase --subject`.")] = None,
    tier: Annotated[str | None, typer.Option(help="Its tier: device, user or shared. Default: as [memory] tier says.")] = None,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Add a note that later tasks can recall. It counts as your own words."""
    with report_errors(as_json=as_json):
        note = read_prompt(text, as_json=as_json).strip()
        if not note:
            raise InvalidRequest("the note is empty", hint='nearfar memory add "Ana is allergic to nuts."')
        with open_store(StoreChoice(store, config), creates=True) as opened:
            address = ItemAddress(parse_namespace(namespace), key or note_key(note))
            before = opened.get(address.namespace, address.key, refresh_ttl=False)
            if before is not None and (key or before.source is Source.USER):
                if before.value.get("text") != note:
                    hint = f"`nearfar memory edit {address_text(address)}` changes it"
                    raise VersionConflict(f"there is an item {address_text(address)} already", hint=hint)
                _tell("is there already", address, before.version, as_json=as_json)
                return
            version = opened.put(
                address.namespace,
                address.key,
                {"text": note},
                tier=parse_tier(tier),
                subject=subject,
                if_version=ABSENT if before is None else before.version,
            )
            _tell("is added", address, version, as_json=as_json)


def edit_item(
    namespace: NamespaceArgument,
    key: KeyArgument,
    value: Annotated[str | None, typer.Option(help="The new value, a JSON object. - reads it from standard input.")] = None,
    fields: Annotated[
        list[str] | None, typer.Option("--set", help="FIELD=VALUE, as JSON or as plain text. May be repeated. Other fields stay.")
    ] = None,
    tier: Annotated[str | None, typer.Option(help="The new tier: device, user or shared.")] = None,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Change an item or create one, in $EDITOR or with the options. A change that was made meanwhile is not overwritten."""
    with report_errors(as_json=as_json), open_store(StoreChoice(store, config), creates=True) as opened:
        address, new_tier = ItemAddress(parse_namespace(namespace), key), parse_tier(tier)
        before = opened.get(address.namespace, key, refresh_ttl=False)
        uses_editor = value is None and not fields and tier is None
        new = _from_editor(address, before) if uses_editor else _from_options(address, value, fields or (), before)
        if before is not None and new == before.value and new_tier in (None, before.tier):
            _tell("is as it was", address, before.version, as_json=as_json)
            return
        try:
            version = _write(opened, address, new, before, new_tier)
        except VersionConflict as error:
            path = _keep_draft(_as_text(new))
            hint = f"what you wrote is kept in {path}: look at what it says now, then `edit --value - < {path}`"
            raise VersionConflict(f"{address_text(address)} was changed while you edited it", hint=hint) from error
        except (InvalidRequest, StoreUnavailable) as error:  # it is too large, or the disk is full
            if not uses_editor:
                raise
            path = _keep_draft(_as_text(new))
            raise type(error)(error.message, hint=f"what you wrote is kept in {path}; then `edit --value - < {path}`") from error
        _tell("is written", address, version, as_json=as_json)


def delete_item(
    namespace: NamespaceArgument, key: KeyArgument, store: Store = None, config: options.Config = None, as_json: options.AsJson = False
) -> None:
    """Delete an item, here and, with the next sync, on your other devices. `erase` also removes every trace of it."""
    with report_errors(as_json=as_json), open_store(StoreChoice(store, config)) as opened:
        item = item_at(opened, namespace, key)
        opened.delete(item.namespace, item.key, if_version=item.version)
        _tell("is deleted", item.address, item.version, as_json=as_json)


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
        namespace, about, runs = (
            parse_namespace(prefix) if prefix else None,
            subject or None,
            options.read_section(config, "runs", RunsConfig),
        )
        found = opened.traces(subject=about, prefix=namespace)
        erased = Erased.of(opened.engine, found, about)
        with spinner("looking through runs, traces and logs", shown=not as_json):
            held = find_holding(runs, erased)
            logs = ErasedLogs(_logs(config), erased, held.all)
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
                erase_calls()
                found = opened.erase(subject=about, prefix=namespace)
                clear_answers(config, opened)
        elif not dry_run:  # an earlier erasure has deleted it, and could not overwrite it
            forget_holding(runs, held)
            erase_calls()
            forget_answers(config, opened)
        _tell_erased(found, held, logs.lines, is_done=not dry_run, as_json=as_json)


def _logs(path: Path | None) -> Sequence[Path | None]:
    config = options.read_config(path)
    return () if config is None else (config.policy.router.log, config.policy.auto.reports)


def _tell(outcome: str, address: ItemAddress, version: str, *, as_json: bool) -> None:
    data = {"namespace": address.namespace, "key": address.key, "version": version, "outcome": outcome}
    show(data, [f"{address_text(address)} {outcome}"], as_json=as_json)


def _write(store: "MemoryStore", address: ItemAddress, value: dict[str, Any], before: "MemoryItem | None", tier: Tier | None) -> str:
    if before is None:
        return store.put(address.namespace, address.key, value, tier=tier, if_version="absent")
    removed = [name for name in before.value if name not in value]
    return store.patch(address.namespace, address.key, value, remove=removed, tier=tier or before.tier, if_version=before.version)


def _from_editor(address: ItemAddress, before: "MemoryItem | None") -> dict[str, Any]:
    """Let the user edit the value and return it. A text that is no JSON object is kept in a file, so that no work is lost."""
    text = _edit_text(_as_text({"text": ""} if before is None else before.value))
    try:
        return _parse_value(text)
    except InvalidRequest as error:
        path = _keep_draft(text)
        raise InvalidRequest(error.message, hint=f"what you wrote is kept in {path}; {address_text(address)} is as it was") from error


def _from_options(address: ItemAddress, value: str | None, fields: Sequence[str], before: "MemoryItem | None") -> dict[str, Any]:
    if value is None and before is None and not fields:
        raise NotFound(f"there is no item {address_text(address)}", hint="give it a --value, or --set fields of it")
    base = {} if before is None else before.value
    if value is not None:
        base = _parse_value(sys.stdin.read() if value == "-" else value)
    return {**base, **dict(map(_parse_field, fields))}


def _parse_field(text: str) -> tuple[str, object]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise InvalidRequest(f"{text!r} sets no field", hint="--set FIELD=VALUE, such as --set text=milk or --set count=3")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _parse_value(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"the value is not JSON: {error}", hint='write an object, such as {"text": "..."}') from error
    if not isinstance(value, dict):
        raise InvalidRequest("the value is no JSON object", hint='wrap it: {"text": ...}')
    return value


def _as_text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _edit_text(text: str) -> str:
    """Open the user's editor on a file that only they can read, and return the text that they leave.

    Raises `ConfigError` if no editor is set or it fails; nothing was changed then.
    """
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise ConfigError("there is no editor: neither VISUAL nor EDITOR is set", hint="export EDITOR=nano, or use --set or --value")
    with tempfile.TemporaryDirectory(prefix="nearfar-") as folder:
        path = Path(folder) / "value.json"
        path.write_text(text, encoding="utf-8")
        try:
            code = subprocess.run([*shlex.split(editor), str(path)], check=False).returncode
        except OSError as error:
            raise ConfigError(f"the editor cannot be started: {error}", hint="check $VISUAL and $EDITOR") from error
        if code:
            raise ConfigError(f"the editor ended with code {code}, so nothing was changed")
        return path.read_text(encoding="utf-8")


def _keep_draft(text: str) -> Path:
    """Write the user's text into a file that only they can read, and return its path."""
    handle, name = tempfile.mkstemp(prefix="nearfar-", suffix=".json", text=True)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    return Path(name)


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
    return f"{count_text(len(held.runs), 'run')} and {count_text(len(held.traces), 'trace')}"


def _rows(store: "MemoryStore", found: Sequence[ItemAddress]) -> Iterator[tuple[str | Text, ...]]:
    for namespace, count in sorted(Counter(address.namespace for address in found).items()):
        keys = [address.key for address in found if address.namespace == namespace][:_EXAMPLES]
        items = [item for key in keys if (item := store.get(namespace, key, refresh_ttl=False)) is not None]
        told = "\n".join(one_line(item.value) for item in items) or "(deleted already, but some of it is still kept)"
        yield spell_out(namespace_text(namespace)), f"{count:,}", Text(told, overflow="ellipsis", no_wrap=True)


def _tell_erased(found: Sequence[ItemAddress], held: Holding, lines: int, *, is_done: bool, as_json: bool) -> None:
    items = [{"namespace": address.namespace, "key": address.key} for address in found]
    data = {"erased" if is_done else "would_be_erased": items, "runs": list(held.runs), "traces": list(held.traces), "log_lines": lines}
    show(data, _end_lines(found, held, lines, is_done=is_done), as_json=as_json)


def _end_lines(found: Sequence[ItemAddress], held: Holding, lines: int, *, is_done: bool) -> Iterator[Line]:
    if not (found or held.all or lines):
        return
    told = count_text(len(found), "item")
    told += f", {_recorded_text(held)}" if held.all else ""
    told += f", {count_text(lines, 'line')} of logs" if lines else ""
    if not is_done:
        yield f"{told} would be erased"
        return
    yield f"{told} erased: rows, words, vectors, logs and cached answers are overwritten in every file"
    yield Note(
        "Other devices erase it with their next sync; each finds items by name, runs and traces only where the command is run there. "
        "Backups and exports that you made keep what they hold."
    )
