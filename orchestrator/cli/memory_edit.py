"""`nearfar memory edit | delete`."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...protocols import InvalidRequest, NotFound, VersionConflict
from ...protocols.namespaces import ItemAddress, parse_namespace
from ...protocols.tiers import Tier
from .console import output, print_json, reported
from .memory_editor import edited_text, keep_draft
from .memory_store import item_at, opened, parse_tier
from .memory_text import address_text
from .options import StoreChoice

if TYPE_CHECKING:
    from ..memory.reading import MemoryItem
    from ..memory.store import MemoryStore


@dataclass(frozen=True, slots=True)
class Edit:
    """What is to change; nothing at all opens the editor."""

    value: str | None
    fields: tuple[str, ...]
    tier: str | None

    @property
    def needs_editor(self) -> bool:
        return self.value is None and not self.fields and self.tier is None


def edit_item(namespace: str, key: str, edit: Edit, choice: StoreChoice, *, as_json: bool) -> None:
    """Write the item anew, as long as it still says what it said when the command began."""
    with reported(as_json=as_json), opened(choice, creates=True) as store:
        address, tier = ItemAddress(parse_namespace(namespace), key), parse_tier(edit.tier)
        before = store.get(address.namespace, key, refresh_ttl=False)
        value = _from_editor(address, before) if edit.needs_editor else _from_options(address, edit, before)
        if before is not None and value == before.value and tier in (None, before.tier):
            _tell("is as it was", address, before.version, as_json=as_json)
            return
        try:
            version = _write(store, address, value, before, tier)
        except VersionConflict as error:
            path = keep_draft(_as_text(value))
            hint = f"what you wrote is kept in {path}: look at what it says now, then `edit --value - < {path}`"
            raise VersionConflict(f"{address_text(address)} was changed while you edited it", hint=hint) from error
        _tell("is written", address, version, as_json=as_json)


def delete_item(namespace: str, key: str, choice: StoreChoice, *, as_json: bool) -> None:
    """Delete the item."""
    with reported(as_json=as_json), opened(choice) as store:
        item = item_at(store, namespace, key)
        store.delete(item.namespace, item.key, if_version=item.version)
        _tell("is deleted", item.address, item.version, as_json=as_json)


def _write(store: "MemoryStore", address: ItemAddress, value: dict[str, Any], before: "MemoryItem | None", tier: Tier | None) -> str:
    if before is None:
        return store.put(address.namespace, address.key, value, tier=tier, if_version="absent")
    removed = [name for name in before.value if name not in value]
    return store.patch(address.namespace, address.key, value, remove=removed, tier=tier or before.tier, if_version=before.version)


def _from_editor(address: ItemAddress, before: "MemoryItem | None") -> dict[str, Any]:
    """What the user makes of the value. What cannot be read is kept, so that no work is lost."""
    text = edited_text(_as_text({"text": ""} if before is None else before.value))
    try:
        return _parsed(text)
    except InvalidRequest as error:
        path = keep_draft(text)
        raise InvalidRequest(error.message, hint=f"what you wrote is kept in {path}; {address_text(address)} is as it was") from error


def _from_options(address: ItemAddress, edit: Edit, before: "MemoryItem | None") -> dict[str, Any]:
    if edit.value is None and before is None and not edit.fields:
        raise NotFound(f"there is no item {address_text(address)}", hint="give it a --value, or --set fields of it")
    base = {} if before is None else before.value
    if edit.value is not None:
        base = _parsed(sys.stdin.read() if edit.value == "-" else edit.value)
    return {**base, **dict(map(_field, edit.fields))}


def _field(text: str) -> tuple[str, object]:
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


def _tell(what: str, address: ItemAddress, version: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"namespace": address.namespace, "key": address.key, "version": version, "outcome": what})
    else:
        output.print(f"{address_text(address)} {what}", soft_wrap=True)
