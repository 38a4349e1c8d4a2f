"""Stores that were put back from a backup, or cloned, and have gone on writing before anybody noticed."""

import shutil
from pathlib import Path

import pytest
from sync_world import Node, synchronise, take

from nearfar.orchestrator.memory.sync.messages import Batch
from nearfar.protocols import InvalidRequest
from nearfar.protocols.items import Tier

NOTES = ("notes",)
NOW = 1_700_000_000.0


def test_a_store_that_was_put_back_and_wrote_on_loses_neither_its_old_nor_its_new_writes(tmp_path: Path) -> None:
    phone = _phone_with_backup(tmp_path)
    hub, laptop = _node(tmp_path, "hub"), _node(tmp_path, "laptop")
    _put(phone, "lost with the device", 3)
    _synchronise_all(hub, phone, laptop)
    phone.close()
    phone = _node(tmp_path / "backup", "phone")
    _put(phone, "written after the restoration", 5)
    for _ in range(2):
        _synchronise_all(hub, phone, laptop)
    _check_all_have(3 + 5, hub, phone, laptop)


def test_a_store_and_its_clone_both_keep_what_they_write(tmp_path: Path) -> None:
    phone = _phone_with_backup(tmp_path)
    hub = _node(tmp_path, "hub")
    clone = _node(tmp_path / "backup", "phone")
    _put(phone, "of the phone", 3)
    _put(clone, "of the clone", 3)
    for _ in range(3):
        _synchronise_all(hub, phone, clone)
    _check_all_have(3 + 3, hub, phone, clone)


def test_a_hub_that_was_put_back_gets_everything_again_and_gives_it_to_all(tmp_path: Path) -> None:
    phone, laptop = _phone_with_backup(tmp_path), _node(tmp_path, "laptop")
    hub = _node(tmp_path, "hub")
    _put(phone, "lost with the hub", 3)
    _synchronise_all(hub, phone, laptop)
    hub.close()
    shutil.copy(tmp_path / "backup" / "hub.db", tmp_path / "hub.db")
    hub = _node(tmp_path, "hub")
    _put(laptop, "written after the restoration", 2)
    for _ in range(2):
        _synchronise_all(hub, phone, laptop)
    _check_all_have(3 + 2, hub, phone, laptop)


@pytest.mark.parametrize("number", [1 << 33, (1 << 63) - 1, (1 << 64) - 1])
def test_a_peer_cannot_use_up_the_numbers_of_writes(tmp_path: Path, number: int) -> None:
    phone, laptop = _node(tmp_path, "phone"), _node(tmp_path, "laptop")
    synchronise(phone, laptop)
    log = phone.replica.hello().log
    with pytest.raises(InvalidRequest):
        take(laptop, phone, Batch(log, 0, 1, known={phone.device: number}))
    take(laptop, phone, Batch(log, 0, 1, known={laptop.device: number}))
    _put(laptop, "goes on", 1)
    assert laptop.replica.hello().known[laptop.device] == 1


def _node(folder: Path, name: str) -> Node:
    return Node(name, None if name == "hub" else "anna", lambda: NOW, folder)


def _phone_with_backup(folder: Path) -> Node:
    """That has synchronised once, and a copy of its store and the hub's of that time in `backup`."""
    hub, phone = _node(folder, "hub"), _node(folder, "phone")
    _put(phone, "in the backup", 2)
    synchronise(phone, hub)
    phone.close()
    hub.close()
    shutil.copytree(folder, folder / "backup", ignore=lambda *_: ["backup"])
    return _node(folder, "phone")


def _put(node: Node, key: str, count: int) -> None:
    for number in range(count):
        node.store.put(NOTES, f"{key} {number}", {"text": "a note"}, tier=Tier.USER)


def _synchronise_all(hub: Node, *devices: Node) -> None:
    for device in devices:
        synchronise(device, hub)


def _check_all_have(count: int, *nodes: Node) -> None:
    """Beside what is in the backup."""
    keys = [{item.key for item in node.store.search(NOTES, limit=100)} for node in nodes]
    assert all(len(one) == 2 + count and one == keys[0] for one in keys)
    for node in nodes:
        node.close()
