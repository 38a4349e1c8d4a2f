"""What is erased on one device is gone on all: in every file, for devices that were away, and in old copies of the log."""

import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from sync_world import Node, synchronise

from nearfar.orchestrator.memory.operation import OwnedSubject
from nearfar.orchestrator.memory.sqlite import SqliteEngine
from nearfar.orchestrator.memory.store import MemoryStore
from nearfar.orchestrator.memory.sync import Replica
from nearfar.orchestrator.memory.sync.exchange import batches, receive
from nearfar.orchestrator.memory.sync.keys import SubjectKeys, tag_of
from nearfar.orchestrator.memory.sync.messages import Peer
from nearfar.protocols import StoreUnavailable
from nearfar.protocols.items import ItemAddress, Tier

NOTES = ("notes",)
CANARY = "canary-7f3a"
NOW = 1_700_000_000.0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, Node]]:
    users: dict[str, str | None] = {"hub": None, "phone": "anna", "laptop": "anna", "tablet": "anna"}
    made = {}
    for name, user in users.items():
        (tmp_path / name).mkdir()
        made[name] = Node(name, user, lambda: NOW, tmp_path / name)
    yield made
    for node in made.values():
        node.close()


def meet_at_hub(nodes: dict[str, Node], *names: str) -> None:
    for name in names:
        synchronise(nodes[name], nodes["hub"])


def hits(folder: Path, canary: str = CANARY) -> list[Path]:
    forms = [canary.encode(), canary.encode("utf-16-le"), canary.encode("utf-16-be")]
    return [file for file in folder.rglob("*") if file.is_file() and any(form in file.read_bytes() for form in forms)]


def test_nothing_of_an_erased_subject_is_left_in_any_file_of_any_replica(nodes: dict[str, Node], tmp_path: Path) -> None:
    phone, laptop, tablet = (nodes[name] for name in ("phone", "laptop", "tablet"))
    phone.store.put(NOTES, f"{CANARY} key", {"text": f"{CANARY} text"}, tier=Tier.USER, subject="carl")
    phone.store.put(NOTES, "private", {"text": f"{CANARY} private"}, subject="carl")
    phone.store.put(NOTES, "other", {"text": "about nobody"}, tier=Tier.USER)
    meet_at_hub(nodes, "phone", "laptop", "tablet")
    for store in (laptop.store, tablet.store):  # without knowing of each other
        store.put(NOTES, f"{CANARY} key", {"text": f"{CANARY} of {store.engine.device}"}, tier=Tier.USER, subject="carl")
    lineage = [ItemAddress(NOTES, f"{CANARY} key")]
    laptop.store.bound(lineage=lineage).put(NOTES, "summary", {"text": f"{CANARY} in short"}, tier=Tier.USER)
    meet_at_hub(nodes, "laptop", "tablet", "phone")
    assert {file.parent.name for file in hits(tmp_path)} == set(nodes)
    assert phone.store.conflicts()

    laptop.store.erase(subject="carl")
    meet_at_hub(nodes, "laptop", "tablet", "phone")
    assert hits(tmp_path) == []
    assert [item.key for item in tablet.store.search(NOTES)] == ["other"]


@pytest.mark.parametrize("erased", ["carl", "dora"])
def test_what_two_devices_wrote_about_two_people_goes_with_either(erased: str, nodes: dict[str, Node], tmp_path: Path) -> None:
    phone, laptop, tablet = (nodes[name] for name in ("phone", "laptop", "tablet"))
    phone.store.put(NOTES, "dinner", {"day": "Monday"}, tier=Tier.USER)
    meet_at_hub(nodes, "phone", "laptop", "tablet")
    for node, subject in ((phone, "carl"), (laptop, "dora")):  # without knowing of each other
        node.store.bound(subject=subject, tier=Tier.USER).patch(NOTES, "dinner", {subject: f"{CANARY} of {subject}"})
    meet_at_hub(nodes, "phone", "laptop", "tablet")
    tablet.store.bound(tier=Tier.USER).patch(NOTES, "dinner", {"place": "at home"})
    meet_at_hub(nodes, "tablet", "phone", "laptop")
    assert tablet.store.erase(subject=erased) == [ItemAddress(NOTES, "dinner")]
    meet_at_hub(nodes, "tablet", "phone", "laptop", "phone")
    assert hits(tmp_path) == []


def test_a_device_that_was_away_with_unsent_writes_erases_them_when_it_is_back(nodes: dict[str, Node], tmp_path: Path) -> None:
    phone, tablet = nodes["phone"], nodes["tablet"]
    phone.store.put(NOTES, "early", {"text": CANARY}, tier=Tier.USER, subject="carl")
    meet_at_hub(nodes, "phone", "tablet")
    tablet.store.put(NOTES, "away", {"text": CANARY}, tier=Tier.USER, subject="carl")
    phone.store.erase(subject="carl")
    meet_at_hub(nodes, "phone", "laptop")
    phone.store.put(NOTES, "anew", {"text": "meant to be"}, tier=Tier.USER, subject="carl")
    meet_at_hub(nodes, "phone")
    assert {file.parent.name for file in hits(tmp_path)} == {"tablet"}
    meet_at_hub(nodes, "tablet", "phone", "laptop")
    assert hits(tmp_path) == []
    assert [[item.key for item in node.store.search(NOTES)] for node in nodes.values()] == [["anew"]] * 4


def test_what_was_written_after_an_erasure_stays_as_a_sibling_that_another_device_carries_along() -> None:
    phone, tablet = Node("phone", "anna", lambda: NOW), Node("tablet", "anna", lambda: NOW + 1)
    phone.store.erase(subject="carl")
    synchronise(phone, tablet)
    phone.store.put(NOTES, "x", {"text": "meant to be"}, tier=Tier.SHARED, subject="carl")
    tablet.store.put(NOTES, "x", {"text": "of the tablet"}, tier=Tier.SHARED)
    synchronise(phone, tablet)
    tablet.store.put(NOTES, "x", {"text": "again of the tablet"}, tier=Tier.SHARED)
    synchronise(phone, tablet)
    for node in (phone, tablet):
        (conflict,) = node.store.conflicts()
        assert [lost.value for lost in conflict.lost] == [{"text": "meant to be"}]


def test_what_was_written_before_an_erasure_goes_also_where_another_device_carries_it_along() -> None:
    phone, tablet = Node("phone", "anna", lambda: NOW), Node("tablet", "anna", lambda: NOW + 1)
    phone.store.put(NOTES, "x", {"text": "about carl"}, tier=Tier.SHARED, subject="carl")
    tablet.store.put(NOTES, "x", {"text": "of the tablet"}, tier=Tier.SHARED)
    synchronise(phone, tablet)
    phone.store.erase(subject="carl")
    tablet.store.put(NOTES, "x", {"text": "again of the tablet"}, tier=Tier.SHARED)
    synchronise(phone, tablet)
    for node in (phone, tablet):
        assert node.store.conflicts() == []
        assert [item.value for item in node.store.search(NOTES)] == [{"text": "again of the tablet"}]


def test_what_is_below_an_erased_prefix_is_gone_everywhere_and_its_name_travels_not(nodes: dict[str, Node], tmp_path: Path) -> None:
    phone, tablet = nodes["phone"], nodes["tablet"]
    phone.store.put((CANARY, "deep"), "x", {"text": "a"}, tier=Tier.USER)
    phone.store.put(("rest",), "x", {"text": "b"}, tier=Tier.USER)
    meet_at_hub(nodes, "phone", "tablet")
    tablet.store.erase(prefix=(CANARY,))
    sent: list[bytes] = []
    for name in ("tablet", "phone"):
        synchronise(nodes[name], nodes["hub"], sent)
    assert hits(tmp_path) == []
    assert not any(CANARY.encode() in message for message in sent)
    assert [item.namespace for item in phone.store.search(())] == [("rest",)]


def test_a_copy_of_the_log_is_unreadable_once_its_subject_is_erased(nodes: dict[str, Node], tmp_path: Path) -> None:
    phone = nodes["phone"]
    phone.store.put(NOTES, "about carl", {"text": CANARY}, tier=Tier.USER, subject="carl")
    phone.store.put(NOTES, "about dora", {"text": "stays"}, tier=Tier.USER, subject="dora")
    with sqlite3.connect(tmp_path / "phone" / "phone.db") as connection:
        log = b"".join(payload for (payload,) in connection.execute("SELECT payload FROM operations"))
    connection.close()
    assert CANARY.encode() not in log
    phone.close()
    copy = tmp_path / "copy.db"
    shutil.copy(tmp_path / "phone" / "phone.db", copy)
    phone.restart()
    phone.store.erase(subject="carl")
    engine = SqliteEngine(copy, sealer=phone.keys)
    assert [head.address.key for _, head, _ in engine.operations(0, limit=10)] == ["about dora"]
    engine.close()


def test_a_batch_that_somebody_kept_is_unreadable_without_the_keys_that_came_with_it(nodes: dict[str, Node]) -> None:
    phone, laptop = nodes["phone"], nodes["laptop"]
    phone.store.put(NOTES, "x", {"text": CANARY}, tier=Tier.USER, subject="carl")
    sent = list(batches(phone.replica, laptop.peer(), laptop.replica.request(phone.peer(), "")))
    assert CANARY.encode() not in b"".join(payload for batch in sent for _, payload in batch.operations)
    assert [key.tag for batch in sent for key in batch.keys]


def test_an_erasure_that_was_interrupted_is_finished_when_the_store_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    with MemoryStore.open(path, user="anna", embedder=None) as store:
        store.put(NOTES, "x", {"text": CANARY}, subject="carl")
        with monkeypatch.context() as patch:

            def fail(_: object) -> None:
                raise StoreUnavailable("the disk is gone")

            patch.setattr(SqliteEngine, "scrub", fail)
            with pytest.raises(StoreUnavailable):
                store.erase(subject="carl")
        assert store.get(NOTES, "x") is None
    with MemoryStore.open(path, user="anna", embedder=None):
        assert hits(tmp_path) == []


def test_keys_are_their_owners_alone_and_shared_by_processes(tmp_path: Path) -> None:
    from nearfar.orchestrator.memory.operation import Dot

    path, dot = tmp_path / "keys", Dot("phone", 1)
    one, other = SubjectKeys(path), SubjectKeys(path)
    carl, dora = OwnedSubject("anna", "carl"), OwnedSubject("anna", "dora")
    sealed = one.seal(dot, {carl, dora}, b"[1]")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert other.unseal(dot, sealed) == b"[1]"
    assert one.seal(dot, set(), b"[1]") == b"[1]"
    ids = other.retire(tag_of("carl"), "anna")
    renewed = one.seal(dot, {carl}, b"[2]")
    other.destroy(ids)
    assert other.retire(tag_of("carl"), "ben") == []
    assert one.unseal(dot, sealed) is None
    assert other.unseal(dot, renewed) == b"[2]"
    secret = [key.key for key in one.handed_on([dora])]
    assert all(key in path.read_bytes() for key in secret)
    one.destroy(key.id for key in one.handed_on([dora]))
    for keys in (one, other):
        keys.close()
    assert not any(key in path.read_bytes() for key in secret)


def test_a_store_that_was_put_back_from_an_older_copy_gets_its_own_writes_again(tmp_path: Path) -> None:
    peer = Peer("peer", "anna")
    path, old = tmp_path / "phone.db", tmp_path / "old.db"
    laptop = MemoryStore.open(tmp_path / "laptop.db", user="anna", embedder=None)
    with MemoryStore.open(path, user="anna", embedder=None) as phone:
        phone.put(NOTES, "first", {"text": "1"}, tier=Tier.USER)
    shutil.copy(path, old)
    with MemoryStore.open(path, user="anna", embedder=None) as phone:
        _exchange(phone.replica(), laptop.replica(), peer)
        phone.put(NOTES, "second", {"text": "2"}, tier=Tier.USER)
        _exchange(phone.replica(), laptop.replica(), peer)
    for file in tmp_path.glob("phone.db*"):
        file.unlink()
    shutil.copy(old, path)
    with MemoryStore.open(path, user="anna", embedder=None) as phone:
        _exchange(phone.replica(), laptop.replica(), peer)
        phone.put(NOTES, "third", {"text": "3"}, tier=Tier.USER)
        _exchange(phone.replica(), laptop.replica(), peer)
        for store in (phone, laptop):
            assert {item.key for item in store.search(NOTES)} == {"first", "second", "third"}
    laptop.close()


def _exchange(one: Replica, other: Replica, peer: Peer) -> None:
    other.meet(peer, one.hello(), is_caller=False)
    one.meet(peer, other.hello(), is_caller=False)
    for sender, receiver in ((one, other), (other, one)):
        for batch in batches(sender, peer, receiver.request(peer, sender.hello().log)):
            receive(receiver, peer, sender.engine.device, batch)


def test_what_only_names_the_subject_in_its_text_is_gone_at_all_that_had_it(nodes: dict[str, Node], tmp_path: Path) -> None:
    phone, laptop = nodes["phone"], nodes["laptop"]
    phone.store.put(NOTES, "once", {"text": f"Carl lives at {CANARY}"}, tier=Tier.USER)
    phone.store.put(NOTES, "twice", {"text": f"{CANARY} of carl"}, tier=Tier.USER)
    phone.store.supersede(NOTES, "twice", {"text": f"CARL has {CANARY}"}, tier=Tier.USER)
    phone.store.put(NOTES, "withdrawn", {"text": f"{CANARY} of carl"}, tier=Tier.USER)
    meet_at_hub(nodes, "phone", "laptop", "tablet")
    phone.store.put(NOTES, "withdrawn", {"text": f"carl's {CANARY}"})
    assert len(hits(tmp_path)) == 4
    laptop.store.erase(subject="Carl")
    phone.store.erase(subject="Carl")
    meet_at_hub(nodes, "laptop", "phone", "tablet", "laptop")
    assert hits(tmp_path) == []


def test_keys_that_are_made_after_their_file_was_removed_are_kept(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="subjects' keys are part of an extra")
    from nearfar.orchestrator.memory.operation import Dot

    carl, keys = OwnedSubject("anna", "carl"), SubjectKeys(tmp_path / "keys")
    keys.seal(Dot("phone", 1), {carl}, b"[1]")
    (tmp_path / "keys").unlink()
    sealed = keys.seal(Dot("phone", 2), {carl}, b"[2]")
    keys.close()
    again = SubjectKeys(tmp_path / "keys")
    assert again.unseal(Dot("phone", 2), sealed) == b"[2]"
    again.close()
