"""`nearfar memory edit | delete | conflicts`: change items and decide between values."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from ...protocols import ConfigError, InvalidRequest, NotFound, VersionConflict
from ...protocols.namespaces import ItemAddress, parse_namespace
from ...protocols.tiers import Tier
from . import options
from .memory_store import (
    KeyArgument,
    Limit,
    NamespaceArgument,
    Offset,
    Store,
    StoreChoice,
    address_text,
    item_at,
    one_line,
    open_store,
    origin_text,
    parse_tier,
    value_text,
)
from .printing import Line, Note, counted, moment_text, show, styled, table
from .running import report_errors

if TYPE_CHECKING:
    from ..memory.changes import Conflict, LostValue
    from ..memory.reading import MemoryItem
    from ..memory.store import MemoryStore

_PAGE: Final = 200


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
        _tell("is written", address, version, as_json=as_json)


def delete_item(
    namespace: NamespaceArgument, key: KeyArgument, store: Store = None, config: options.Config = None, as_json: options.AsJson = False
) -> None:
    """Delete an item, here and, with the next sync, on your other devices. `erase` also removes every trace of it."""
    with report_errors(as_json=as_json), open_store(StoreChoice(store, config)) as opened:
        item = item_at(opened, namespace, key)
        opened.delete(item.namespace, item.key, if_version=item.version)
        _tell("is deleted", item.address, item.version, as_json=as_json)


def show_conflicts(
    namespace: Annotated[str, typer.Argument(help="Namespace of an item. Default: list all items with conflicts.")] = "",
    key: Annotated[str, typer.Argument(help="Key of the item.")] = "",
    keep: Annotated[str | None, typer.Option(help="The value to keep: `present`, or the number of a value that lost.")] = None,
    limit: Limit = 20,
    offset: Offset = 0,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Show values that lost against a change made at the same time on another device, side by side, and decide between them."""
    with report_errors(as_json=as_json), open_store(StoreChoice(store, config)) as opened:
        if not (namespace or key or keep is not None):
            found = opened.conflicts(limit=limit, offset=offset)
            show({"conflicts": [_described(conflict) for conflict in found]}, _list_lines(found), as_json=as_json)
            return
        if not namespace or not key:
            raise InvalidRequest("the item is not named in full", hint="nearfar memory conflicts NAMESPACE KEY")
        conflict = _conflict_at(opened, ItemAddress(parse_namespace(namespace), key))
        if keep is None:
            show(_described(conflict), _conflict_lines(conflict), as_json=as_json)
            return
        version = opened.resolve(conflict.address.namespace, key, _chosen(conflict, keep))
    data = {"namespace": conflict.address.namespace, "key": key, "version": version}
    show(data, [f"{address_text(conflict.address)} is decided"], as_json=as_json)


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
        return _parsed(text)
    except InvalidRequest as error:
        path = _keep_draft(text)
        raise InvalidRequest(error.message, hint=f"what you wrote is kept in {path}; {address_text(address)} is as it was") from error


def _from_options(address: ItemAddress, value: str | None, fields: Sequence[str], before: "MemoryItem | None") -> dict[str, Any]:
    if value is None and before is None and not fields:
        raise NotFound(f"there is no item {address_text(address)}", hint="give it a --value, or --set fields of it")
    base = {} if before is None else before.value
    if value is not None:
        base = _parsed(sys.stdin.read() if value == "-" else value)
    return {**base, **dict(map(_parse_field, fields))}


def _parse_field(text: str) -> tuple[str, object]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise InvalidRequest(f"{text!r} sets no field", hint="--set FIELD=VALUE, such as --set text=milk or --set count=3")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _parsed(text: str) -> dict[str, Any]:
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


def _conflict_at(store: "MemoryStore", address: ItemAddress) -> "Conflict":
    offset = 0
    while page := store.conflicts(limit=_PAGE, offset=offset):
        for conflict in page:
            if conflict.address == address:
                return conflict
        offset += len(page)
    raise NotFound(f"{address_text(address)} has no conflicts", hint="nearfar memory conflicts lists the items that have some")


def _chosen(conflict: "Conflict", keep: str) -> str:
    """Return the name of the value to keep. A number counts the lost values in the order in which they are shown."""
    if keep.isdigit() and 1 <= int(keep) <= len(conflict.lost):
        return conflict.lost[int(keep) - 1].name
    if keep in ("present", *(lost.name for lost in conflict.lost)):
        return keep
    raise InvalidRequest(f"there is no value {keep!r} to keep", hint=f"present, or 1 to {len(conflict.lost)}")


def _list_lines(found: Sequence["Conflict"]) -> Iterator[Line]:
    if not found:
        yield Note("no conflicts")
        return
    rows = []
    for conflict in found:
        present = "(deleted)" if conflict.item is None else one_line(conflict.item.value)
        rows.append((address_text(conflict.address), present, "\n".join(one_line(lost.value) for lost in conflict.lost)))
    yield table(("item", "present", "lost"), rows)
    yield Note("nearfar memory conflicts NAMESPACE KEY shows the values of one item; --keep decides between them")


def _conflict_lines(conflict: "Conflict") -> Iterator[Line]:
    yield Text(f"{address_text(conflict.address)}: {counted(len(conflict.lost), 'value')} to decide on", style="bold")
    present = conflict.item
    values = ["(deleted)" if present is None else value_text(present.value), *(value_text(lost.value) for lost in conflict.lost)]
    told = "" if present is None else f"{moment_text(present.updated_at)}\n{origin_text(present)}\n{present.tier}"
    names = ["present", *map(str, range(1, len(conflict.lost) + 1))]
    yield table(names, [values, styled((told, *map(_lost_origin, conflict.lost)), "dim")])
    yield Note(f"nearfar memory conflicts {address_text(conflict.address)} --keep {'|'.join(names)}")


def _lost_origin(lost: "LostValue") -> str:
    agent = f" {lost.agent}" if lost.agent else ""
    return f"{moment_text(lost.written_at)}\n{lost.source.value.replace('_', ' ')}{agent}\n{lost.tier}"


def _described(conflict: "Conflict") -> dict[str, object]:
    present = None if conflict.item is None else conflict.item.dict()
    lost = [{**asdict(each), "written_at": each.written_at.isoformat()} for each in conflict.lost]
    return {"namespace": conflict.address.namespace, "key": conflict.address.key, "present": present, "lost": lost}
