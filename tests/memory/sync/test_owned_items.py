"""What a user shares at a hub stays theirs: nobody else replaces, deletes or decides it, and others' words are told as others'."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
from sync_world import Node, greet, synchronise, take

from nearfar.orchestrator.memory.in_tasks import relevant, render
from nearfar.orchestrator.memory.operation import Dot, Meta, Operation, Principal, Sibling, encode
from nearfar.orchestrator.memory.provenance import label_of_recalled, recalled_item
from nearfar.orchestrator.memory.sync.messages import Batch, SealedOperation
from nearfar.orchestrator.task.labels import Integrity
from nearfar.orchestrator.task.stores import RecallConfig
from nearfar.protocols import InvalidRequest, PermissionDenied
from nearfar.protocols.items import LEAST_TRUST, ItemAddress, Tier

NOTES = ("anna", "notes")
PLACE = ItemAddress(NOTES, "account")
NOW = 1_700_000_000.0
MINE = {"text": "the account is 1234"}
THEIRS = {"text": "the account is 6666"}


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node, Node]]:
    """Anna's phone, whose shared item has reached the hub and Ben's tablet."""
    anna, ben, hub = Node("phone", "anna", lambda: NOW), Node("tablet", "ben", lambda: NOW + 9), Node("hub", None, lambda: NOW)
    anna.store.put(*PLACE, MINE, tier=Tier.SHARED)
    for node in (anna, ben):
        synchronise(node, hub)
    yield anna, ben, hub
    for node in (anna, ben, hub):
        node.close()


def is_annas(node: Node) -> bool:
    item = node.store.get(*PLACE)
    return item is not None and (item.value, item.user, item.conflicts) == (MINE, "anna", 0)


def test_on_another_users_device_nobody_replaces_deletes_or_decides_what_is_shared(nodes: tuple[Node, Node, Node]) -> None:
    _, ben, hub = nodes
    remote = hub.store.view(Principal("ben", "thin"))
    for store in (ben.store, remote):
        writes: list[Callable[[], object]] = [
            partial(store.put, *PLACE, THEIRS, tier=Tier.SHARED),
            partial(store.put, *PLACE, THEIRS),
            partial(store.delete, *PLACE),
            partial(store.patch, *PLACE, {"more": 1}),
            partial(store.append, *PLACE, "more", [1]),
            partial(store.supersede, *PLACE, THEIRS),
            partial(store.invalidate, *PLACE, at=None),
        ]
        for write in writes:
            with pytest.raises(PermissionDenied, match="'anna'"):
                write()
    assert all(map(is_annas, nodes))


def _write(value: dict[str, str] | None, *, knows: bool, clock: int, **changes: object) -> Operation:
    meta = Meta(user="ben", tier=Tier.SHARED, created_at=NOW)
    made = Operation(Dot("tablet", 1), clock, {"phone": 1} if knows else {}, PLACE, value, meta, reach=Tier.SHARED)
    return made._replace(**changes)  # type: ignore[arg-type]  # as given


def _send(ben: Node, to: Node, operation: Operation) -> int:
    sealed = SealedOperation(operation.dot, encode(operation))
    log = ben.replica.hello().log
    return take(to, ben, replace(Batch(log, 0, 1, (sealed,), known={"tablet": 1}))).refused


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("value", [THEIRS, None])
@pytest.mark.parametrize("clock", [1, 1 << 61])
def test_a_device_that_asks_nobody_has_its_write_over_anothers_item_refused(
    nodes: tuple[Node, Node, Node], knows: bool, value: dict[str, str] | None, clock: int
) -> None:
    anna, ben, hub = nodes
    assert _send(ben, hub, _write(value, knows=knows, clock=clock)) == 1
    greet(ben, anna)
    assert _send(ben, anna, _write(value, knows=knows, clock=clock)) == 1
    synchronise(anna, hub)
    assert is_annas(anna)
    assert is_annas(hub)


def test_nobody_puts_words_into_anothers_mouth_as_a_value_that_lost(nodes: tuple[Node, Node, Node]) -> None:
    _, ben, hub = nodes
    forged = Sibling(Dot("tablet", 1), 1, THEIRS, Meta(user="anna", tier=Tier.SHARED, created_at=NOW), {})
    with pytest.raises(InvalidRequest, match="another user"):
        _send(ben, hub, _write(THEIRS, knows=False, clock=1, address=ItemAddress(("ben",), "x"), siblings=(forged,)))


def test_of_two_who_share_one_address_unknowingly_the_first_at_the_hub_has_it_and_nothing_is_lost() -> None:
    anna, ben, hub = Node("phone", "anna", lambda: NOW), Node("tablet", "ben", lambda: NOW + 9), Node("hub", None, lambda: NOW)
    anna.store.put(*PLACE, MINE, tier=Tier.SHARED)
    ben.store.put(*PLACE, THEIRS, tier=Tier.SHARED)
    for node in (anna, ben, anna, ben):
        synchronise(node, hub)
    assert is_annas(anna)
    assert is_annas(hub)
    (conflict,) = ben.store.conflicts()
    present = ben.store.get(*PLACE)
    assert present is not None
    assert sorted(map(str, (present.value, *(lost.value for lost in conflict.lost)))) == sorted(map(str, (MINE, THEIRS)))


def test_a_deleted_item_stays_its_owners_until_it_is_erased(nodes: tuple[Node, Node, Node]) -> None:
    anna, ben, hub = nodes
    anna.store.delete(*PLACE)
    for node in (anna, ben):
        synchronise(node, hub)
    with pytest.raises(PermissionDenied):
        ben.store.put(*PLACE, THEIRS, tier=Tier.SHARED)
    anna.store.erase(prefix=NOTES)
    for node in (anna, ben):
        synchronise(node, hub)
    ben.store.put(*PLACE, THEIRS, tier=Tier.SHARED)


def test_what_another_user_shared_is_untrusted_and_says_whose_it_is(nodes: tuple[Node, Node, Node]) -> None:
    anna, ben, hub = nodes
    as_ben = anna.store.for_user("ben")
    (own,), (foreign,) = (relevant(store, "account 1234", RecallConfig()) for store in (anna.store, as_ben))
    assert (own.trust, own.is_anothers, foreign.trust, foreign.is_anothers) == (0.8, False, LEAST_TRUST, True)
    assert 'internal_tool of user "anna" 0.2' in render([foreign], 1000).text
    assert "of user" not in render([own], 1000).text
    labels = [label_of_recalled(recalled_item(item), is_private=False) for item in (own, foreign)]
    assert [label.integrity for label in labels] == [Integrity.TRUSTED, Integrity.UNTRUSTED]
    assert labels[1].origins == ("memory anna/notes/account of user anna",)
    assert relevant(as_ben, "account 1234", RecallConfig(minimum_trust=0.5)) == []
    for store in (ben.store, hub.store.view(Principal("ben", "thin"))):
        item = store.get(*PLACE)
        assert item is not None
        assert (item.user, item.trust) == ("anna", LEAST_TRUST)


def test_what_is_made_of_anothers_item_is_believed_no_more_than_it(nodes: tuple[Node, Node, Node]) -> None:
    _, ben, _ = nodes
    ben.store.bound(lineage=[PLACE]).put(("ben",), "summary", {"text": "an account"})
    item = ben.store.get(("ben",), "summary")
    assert item is not None
    assert item.trust == LEAST_TRUST


@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.USER, Tier.SHARED])
def test_what_another_user_made_of_an_item_outlives_its_erasure(tier: Tier) -> None:
    hub, anna, ben = (Node(name, user, lambda: NOW) for name, user in (("hub", None), ("phone", "anna"), ("tablet", "ben")))
    source = ItemAddress(("ben",), "x")
    ben.store.put(*source, {"text": "of carl"}, tier=Tier.SHARED, subject="carl")
    synchronise(ben, hub)
    synchronise(anna, hub)
    anna.store.bound(lineage=[source]).put(("anna",), "summary", {"text": "somebody"}, tier=tier)
    synchronise(anna, hub)
    ben.store.erase(subject="carl")
    synchronise(ben, hub)
    synchronise(anna, hub)
    assert [item.key for item in anna.store.search(())] == ["summary"]
    for node in (hub, anna, ben):
        node.close()
