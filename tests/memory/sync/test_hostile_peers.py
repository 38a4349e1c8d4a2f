"""A peer that is broken or hostile changes nothing here: what it may not send is refused as a whole."""

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from itertools import pairwise
from operator import or_

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.store.base import PutOp
from sync_world import Node, greet, send, synchronise, take, through_wire

from nearfar.orchestrator.memory.merge import merge
from nearfar.orchestrator.memory.operation import Dot, Meta, Operation, Principal, Sibling, Stamp, address_tag, encode
from nearfar.orchestrator.memory.sync import wire
from nearfar.orchestrator.memory.sync.exchange import read_operation, receive
from nearfar.orchestrator.memory.sync.keys import tag_of
from nearfar.orchestrator.memory.sync.messages import (
    Batch,
    Erasure,
    Hello,
    Peer,
    SealedOperation,
    SharedFacts,
    WriteRange,
    decode_facts,
    encode_facts,
)
from nearfar.protocols import InvalidRequest, NearfarError, PermissionDenied, PrivacyViolation, SyncRefused
from nearfar.protocols.items import ItemAddress, Source, Tier
from nearfar.protocols.v1 import memory_pb2 as pb

NOTES = ("notes",)
NOW = 1_700_000_000.0
META = Meta(user="anna", tier=Tier.USER)
ENOUGH = Operation(Dot("phone", 1), 1, {}, ItemAddress(NOTES, "x"), {"text": "fine"}, META)


@pytest.fixture
def pair() -> Iterator[tuple[Node, Node]]:
    laptop, phone = Node("laptop", "anna", lambda: NOW), Node("phone", "anna", lambda: NOW)
    greet(phone, laptop)
    yield laptop, phone
    laptop.close()
    phone.close()


def batch(*operations: Operation, **changes: object) -> Batch:
    sealed = tuple(SealedOperation(operation.dot, encode(operation)) for operation in operations)
    return replace(Batch("log", 0, 1, sealed, known={"phone": 1}), **changes)  # type: ignore[arg-type]  # as given


@pytest.mark.parametrize(
    "operation",
    [
        ENOUGH._replace(address=ItemAddress((), "x")),
        ENOUGH._replace(address=ItemAddress(("",), "x")),
        ENOUGH._replace(address=ItemAddress(("a\0b",), "x")),
        ENOUGH._replace(address=ItemAddress(NOTES, "")),
        ENOUGH._replace(address=ItemAddress(NOTES, "x" * 5000)),
        ENOUGH._replace(value={"text": "x" * (2 << 20)}),
        ENOUGH._replace(value={"deep": eval("[" * 200 + "]" * 200)}),
        ENOUGH._replace(value={"text": "a\0b"}),
        ENOUGH._replace(value={"text": "a\\\0b"}),
        ENOUGH._replace(value={"a\0b": "text"}),
        ENOUGH._replace(meta=META._replace(subject="a\0b")),
        ENOUGH._replace(meta=META._replace(index=("a\0b",))),
        ENOUGH._replace(meta=META._replace(lineage=(ItemAddress(("a\0b",), "x"),))),
        ENOUGH._replace(meta=META._replace(user="ben")),
        ENOUGH._replace(meta=META._replace(trust=1.0, source=Source.MODEL)),
        ENOUGH._replace(meta=META._replace(trust=-1)),
        ENOUGH._replace(meta=META._replace(ttl=-1)),
        ENOUGH._replace(meta=META._replace(ttl=1e300)),
        ENOUGH._replace(meta=META._replace(agent="x" * 5000)),
        ENOUGH._replace(meta=META._replace(subject="carl", others=("",))),
        ENOUGH._replace(meta=META._replace(subject="carl", others=("x" * 5000,))),
        ENOUGH._replace(meta=META._replace(created_at=1e300)),
        ENOUGH._replace(meta=META._replace(valid_from=-1e300)),
        ENOUGH._replace(dot=Dot("laptop2", 1)),
        ENOUGH._replace(dot=Dot("", 1)),
        ENOUGH._replace(dot=Dot("phone", 0)),
        ENOUGH._replace(dot=Dot("phone", 1 << 62)),
        ENOUGH._replace(clock=1 << 62),
        ENOUGH._replace(context={"phone": 1}),
        ENOUGH._replace(unseen=(Dot("phone", 1),)),
        ENOUGH._replace(meta=META._replace(ttl=1e15)),
        ENOUGH._replace(meta=META._replace(agent="a\0b")),
        ENOUGH._replace(meta=META._replace(lineage=(ItemAddress(NOTES, "a\0b"),))),
        ENOUGH._replace(value={"a\0b": 1}),
        ENOUGH._replace(value={"count": (1 << 64) - 1}),
        ENOUGH._replace(context={"tablet": 1 << 62}),
        ENOUGH._replace(context={"": 1}),
        ENOUGH._replace(context={"x" * 5000: 1}),
        ENOUGH._replace(context={"tablet": 1 << 62}, unseen=(Dot("tablet", 1 << 62),)),
        ENOUGH._replace(siblings=(Sibling(Dot("tablet", 1), 1, {"deep": eval("[" * 200 + "]" * 200)}, META, {}),)),
        ENOUGH._replace(siblings=(Sibling(Dot("tablet", 1), 1, {"text": "x" * (2 << 20)}, META, {}),)),
        ENOUGH._replace(siblings=(Sibling(Dot("tablet", 1), 1, {"text": "a\0b"}, META, {}),)),
        ENOUGH._replace(siblings=(Sibling(Dot("tablet", 1 << 62), 1, {"text": "x"}, META, {}),)),
        ENOUGH._replace(siblings=(Sibling(Dot("tablet", 1), 1, {"text": "x"}, META, {"text": Stamp(1, "tablet", 1 << 62)}),)),
    ],
)
def test_an_operation_that_no_store_would_write_is_refused(pair: tuple[Node, Node], operation: Operation) -> None:
    laptop, phone = pair
    with pytest.raises(InvalidRequest):
        take(laptop, phone, batch(operation))
    assert laptop.all_heads() == {}
    assert "phone" not in laptop.replica.hello().known


def names(count: int) -> list[str]:
    return [f"{number:x}" for number in range(count)]


@given(
    devices=st.integers(4086, 4106) | st.just(0),
    sources=st.integers(4086, 4106) | st.just(0),
    people=st.integers(55, 75) | st.just(0),
    unseen=st.integers(0, 5),
)
@settings(max_examples=60)
def test_an_operation_names_so_many_others_and_no_more(devices: int, sources: int, people: int, unseen: int) -> None:
    subject, *others = names(people) or [""]
    lineage = tuple(ItemAddress(NOTES, name) for name in names(sources))
    meta = META._replace(lineage=lineage, subject=subject, others=tuple(others))
    missed = tuple(Dot(name, 1) for name in names(unseen))
    operation = ENOUGH._replace(context=dict.fromkeys(names(devices), 1), meta=meta, unseen=missed)
    is_fine = devices + unseen <= 4096 and sources <= 4096 and people <= 64
    with nullcontext() if is_fine else pytest.raises(InvalidRequest):
        read_operation(operation.dot, encode(operation), Peer("phone", "anna"), maximum_bytes=1 << 20)


def test_items_are_not_made_so_large_that_no_peer_would_take_them(pair: tuple[Node, Node]) -> None:
    laptop, phone = pair
    sources = [ItemAddress(("sources",), name) for name in names(4097)]
    phone.store.bound(tier=Tier.USER).batch(PutOp(*source, {}, index=False) for source in sources)
    phone.store.bound(lineage=sources[:-1], subject="0", tier=Tier.USER).put(NOTES, "x", {})
    for name in names(64):
        phone.store.bound(subject=name, tier=Tier.USER).patch(NOTES, "x", {name: 1})
    with pytest.raises(InvalidRequest, match="derived from 4,097"):
        phone.store.bound(lineage=sources).patch(NOTES, "x", {"n": 1})
    with pytest.raises(InvalidRequest, match="about 65 people"):
        phone.store.bound(subject="one more").patch(NOTES, "x", {"n": 1})
    synchronise(phone, laptop)
    assert laptop.store.get(NOTES, "x") is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"subject": "x" * 1024},
        {"subject": "a\0b"},
        {"ttl": 1e300},
        {"ttl": 1000 * 366 * 24 * 60 + 1},
        {"valid_from": datetime(1, 1, 1, tzinfo=UTC)},
        {"valid_from": datetime(9999, 12, 31, tzinfo=UTC)},
    ],
    ids=["long subject", "subject with NUL", "endless life", "long life", "first date", "last date"],
)
def test_a_user_of_a_hub_writes_nothing_that_would_keep_others_from_reading_it(fields: dict[str, object]) -> None:
    laptop, hub = Node("laptop", "anna", lambda: NOW), Node("hub", None, lambda: NOW)
    thin = hub.store.view(Principal("ben", "thin"))
    write = thin.supersede if "valid_from" in fields else thin.put
    with pytest.raises(InvalidRequest):
        write(("ben",), "poison", {"text": "x"}, tier=Tier.SHARED, **fields)  # type: ignore[arg-type]  # fields of either
    thin.put(("ben",), "longest", {"text": "x"}, tier=Tier.SHARED, subject="x" * 1000, ttl=1000 * 366 * 24 * 60)
    synchronise(laptop, hub)
    assert [item.key for store in (laptop.store, hub.store) for item in store.search(())] == ["longest"] * 2
    laptop.close()
    hub.close()


def test_devices_cannot_be_named_in_two_writes_that_are_too_many_for_one(pair: tuple[Node, Node]) -> None:
    laptop, phone = pair
    half = [dict.fromkeys(names(6000)[part * 3000 : (part + 1) * 3000], 1) for part in range(2)]
    first, second = (ENOUGH._replace(dot=Dot("phone", 1 + part), clock=1 + part, context=half[part]) for part in range(2))
    take(laptop, phone, batch(first, known={"phone": 1}))
    with pytest.raises(InvalidRequest, match="devices wrote to"):
        take(laptop, phone, batch(second, start=1, end=2, known={"phone": 2}))


@pytest.mark.parametrize(("erasures", "devices"), [(100_000, 10_000), (100_001, 0), (0, 10_001)])
def test_a_hello_states_so_many_facts_and_no_more(erasures: int, devices: int) -> None:
    facts = SharedFacts({name: Erasure(name, "tag", None, "anna") for name in names(erasures)}, users=dict.fromkeys(names(devices), "anna"))
    message = wire.hello_to_proto(Hello("phone", NOW, {}, facts, "log"))
    with nullcontext() if erasures <= 100_000 and devices <= 10_000 else pytest.raises(InvalidRequest, match="erasures"):
        assert wire.hello_from_proto(message).facts == facts


def test_facts_that_come_bit_by_bit_are_refused_when_they_are_too_many(pair: tuple[Node, Node]) -> None:
    laptop, _ = pair
    peer = Peer("phone", "anna")
    laptop.replica.absorb(peer, SharedFacts(users=dict.fromkeys(names(9000), "anna")))
    with pytest.raises(InvalidRequest, match="devices"):
        laptop.replica.absorb(peer, SharedFacts(users=dict.fromkeys(names(11_000)[9000:], "anna")))


def bulky(number: int) -> SharedFacts:
    """One of ben's erasures that takes half a megabyte."""
    boundaries = dict.fromkeys((f"{number}-{name}" + "x" * 200 for name in names(2000)), 1)
    return SharedFacts({str(number): Erasure(str(number), "tag", None, "ben", boundaries)})


@pytest.mark.parametrize("stated", [
    SharedFacts({str(number): Erasure(str(number), "tag", None, "ben") for number in range(25_001)}),
    SharedFacts(users={str(number): "ben" for number in range(2501)}),
    reduce(or_, map(bulky, range(20))),
], ids=["erasures", "devices", "bytes"])  # fmt: skip
def test_facts_of_one_user_leave_room_for_those_of_others_at_a_hub(stated: SharedFacts) -> None:
    hub, anna = Node("hub", None, lambda: NOW), Node("laptop", "anna", lambda: NOW)
    anna.store.put(("anna",), "note", {"text": "x"}, tier=Tier.USER)
    synchronise(anna, hub)
    with pytest.raises(InvalidRequest, match="of 'ben' at the hub"):
        hub.replica.absorb(Peer("tablet", "ben"), stated)
    anna.store.erase(prefix=("anna",))
    synchronise(anna, hub)
    assert hub.store.search(()) == []
    anna.close()
    hub.close()


def test_a_user_without_a_store_fills_a_hub_with_erasures_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.orchestrator.memory.sync.messages._MOST_ERASURES", 10)
    hub = Node("hub", None, lambda: NOW)
    thin = hub.store.view(Principal("ben", "thin"))
    for number in range(2):
        thin.erase(prefix=("ben", str(number)))
    with pytest.raises(InvalidRequest, match="of 'ben' at the hub"):
        thin.erase(prefix=("ben", "more"))
    hub.store.view(Principal("anna", "thin")).erase(prefix=("anna",))
    hub.close()


@pytest.mark.parametrize(
    "operation",
    [
        ENOUGH._replace(meta=META._replace(tier=Tier.DEVICE)),
        ENOUGH._replace(siblings=(Sibling(Dot("phone", 1), 1, {"text": "x"}, META._replace(tier=Tier.DEVICE), {}),)),
    ],
)
def test_content_that_must_not_leave_its_device_is_refused(pair: tuple[Node, Node], operation: Operation) -> None:
    laptop, phone = pair
    with pytest.raises(PrivacyViolation):
        take(laptop, phone, batch(operation._replace(dot=Dot("phone", 2))))
    assert laptop.all_heads() == {}


def test_a_text_about_the_escape_of_nul_is_taken(pair: tuple[Node, Node]) -> None:
    laptop, phone = pair
    text = r"\u0000 and \\u0000"
    take(laptop, phone, batch(ENOUGH._replace(value={"text": text})))
    assert [item.value["text"] for item in laptop.store.search(NOTES)] == [text]


def test_one_bad_operation_keeps_the_good_ones_of_its_batch_out(pair: tuple[Node, Node]) -> None:
    laptop, phone = pair
    with pytest.raises(InvalidRequest):
        take(laptop, phone, batch(ENOUGH, ENOUGH._replace(dot=Dot("phone", 2), clock=1 << 62)))
    assert laptop.all_heads() == {}


def test_a_peer_cannot_speak_for_devices_of_others_nor_count_their_writes(pair: tuple[Node, Node]) -> None:
    laptop, phone = pair
    take(laptop, phone, batch(ENOUGH, known={"phone": 1, "tablet": 1 << 40, "laptop": 1 << 40}))
    assert laptop.replica.hello().known.get("tablet", 0) == 0


def test_a_gap_is_refused_and_a_replay_changes_nothing(pair: tuple[Node, Node]) -> None:
    laptop, phone = pair
    with pytest.raises(SyncRefused):
        take(laptop, phone, batch(ENOUGH, start=5, end=6))
    first = batch(ENOUGH)
    assert take(laptop, phone, first).operations == 1
    before = laptop.engine.position()
    assert take(laptop, phone, first).operations == 0
    assert laptop.engine.position() == before


def test_a_sealed_operation_that_was_changed_on_its_way_is_refused(pair: tuple[Node, Node]) -> None:
    laptop, phone = pair
    phone.store.put(NOTES, "x", {"text": "about carl"}, tier=Tier.USER, subject="carl")
    (sent,) = send(phone, laptop)
    ((dot, payload),) = sent.operations
    changed = payload[:-1] + bytes([payload[-1] ^ 1])
    for operation in (SealedOperation(dot, changed), SealedOperation(Dot("phone", 2), payload)):
        with pytest.raises(InvalidRequest, match="sealed for another write"):
            take(laptop, phone, replace(sent, operations=(operation,)))
    with pytest.raises(SyncRefused, match="did not send"):
        take(laptop, phone, replace(sent, keys=()))


def test_a_device_from_the_future_neither_wins_for_ever_nor_drags_others_along(pair: tuple[Node, Node]) -> None:
    laptop, _ = pair
    future = Node("future", "anna", lambda: NOW + 400 * 86_400)
    future.store.put(NOTES, "x", {"text": "from the future"}, tier=Tier.USER)
    synchronise(future, laptop)
    laptop.store.put(NOTES, "x", {"text": "now"}, tier=Tier.USER)
    laptop.store.put(NOTES, "unrelated", {"text": "now"}, tier=Tier.USER)
    synchronise(future, laptop)
    for node in (laptop, future):
        assert (item := node.store.get(NOTES, "x")) is not None
        assert item.value == {"text": "now"}
    (head,) = laptop.heads(ItemAddress(NOTES, "unrelated"))
    assert head.clock >> 16 <= (NOW + 61) * 1000
    future.close()


def test_a_user_cannot_erase_what_is_anothers(pair: tuple[Node, Node]) -> None:
    laptop, _ = pair
    laptop.store.put(NOTES, "x", {"text": "about carl"}, tier=Tier.SHARED, subject="carl")
    tablet = Node("tablet", "ben", lambda: NOW)
    synchronise(tablet, laptop)
    everybody = Erasure("e" * 32, tag_of("carl"), None, None)
    as_anna = replace(everybody, id="f" * 32, user="anna")
    for erasure in (everybody, as_anna):
        laptop.replica.absorb(tablet.peer(), SharedFacts({erasure.id: erasure}))
    laptop.replica.absorb(tablet.peer(), SharedFacts(revoked=frozenset({"laptop", "phone"}), users={"phone": "ben"}))
    assert laptop.store.get(NOTES, "x") is not None
    assert laptop.replica.facts().revoked == frozenset()
    tablet.close()


@pytest.fixture
def hub() -> Iterator[Node]:
    node = Node("hub", None, lambda: NOW)
    yield node
    node.close()


def test_a_user_cannot_take_a_device_of_which_its_owner_told_the_hub(pair: tuple[Node, Node], hub: Node) -> None:
    laptop, phone = pair
    laptop.store.put(NOTES, "x", {"text": "tea"}, tier=Tier.USER)
    synchronise(laptop, phone)
    synchronise(phone, hub)
    thief = replace(phone.replica.hello(), device="laptop")
    with pytest.raises(PermissionDenied, match="another user"):
        hub.replica.meet(Peer("bens phone", "ben"), through_wire(thief), is_caller=True)
    laptop.store.put(NOTES, "y", {"text": "milk"}, tier=Tier.USER)
    synchronise(laptop, phone)
    for device in (phone, laptop):
        synchronise(device, hub)
    assert {address.key for address in hub.all_heads()} == {"x", "y"}


def test_one_credential_cannot_fill_the_hubs_list_of_devices(hub: Node) -> None:
    ben = Peer("bens phone", "ben")
    for number in range(100):
        hub.replica.meet(ben, Hello(f"store{number}", NOW, {}, SharedFacts(), "log"), is_caller=True)
    with pytest.raises(PermissionDenied, match="100 devices"):
        hub.replica.meet(ben, Hello("one more", NOW, {}, SharedFacts(), "log"), is_caller=True)
    hub.replica.meet(ben, Hello("store0", NOW, {}, SharedFacts(), "log"), is_caller=True)
    assert len(hub.replica.facts().users) == 100


@pytest.mark.parametrize(("erasures", "devices"), [(20_001, 0), (0, 2001)])
def test_one_user_cannot_take_the_room_that_others_have_at_a_hub(pair: tuple[Node, Node], hub: Node, erasures: int, devices: int) -> None:
    facts = SharedFacts({name: Erasure(name, "tag", None, "ben") for name in names(erasures)}, users=dict.fromkeys(names(devices), "ben"))
    with pytest.raises(InvalidRequest, match="'ben'"):
        hub.replica.absorb(Peer("bens phone", "ben"), facts)
    _, phone = pair
    phone.store.put(NOTES, "x", {"text": "about carl"}, tier=Tier.USER, subject="carl")
    phone.store.erase(subject="carl")
    synchronise(phone, hub)
    assert len(hub.replica.facts().erasures) == 1


@pytest.mark.parametrize("tier", [Tier.USER, Tier.SHARED])
def test_a_user_cannot_erase_anothers_items_by_saying_that_they_were_overwritten(pair: tuple[Node, Node], hub: Node, tier: Tier) -> None:
    _, phone = pair
    phone.store.put(NOTES, "x", {"text": "tea"}, tier=tier)
    synchronise(phone, hub)
    forged = Erasure("e" * 32, tag_of("carl"), None, "ben", {}, {address_tag(ItemAddress(NOTES, "x")): {"phone": 1 << 40}})
    hub.replica.absorb(Peer("bens phone", "ben"), SharedFacts({forged.id: forged}))
    for text in ("tea", "milk"):
        phone.store.put(NOTES, "x", {"text": text}, tier=tier)
        synchronise(phone, hub)
        assert [merge(node.heads(ItemAddress(NOTES, "x"))).value for node in (hub, phone)] == [{"text": text}] * 2


def test_nobody_makes_a_hub_their_own() -> None:
    hub, phone = Node("hub", None, lambda: NOW), Node("phone", "anna", lambda: NOW)
    greet(phone, hub)
    hub.replica.absorb(phone.peer(), SharedFacts(users={"hub": "anna", "laptop": "anna"}))
    assert hub.replica.facts().users == {"phone": "anna", "laptop": "anna"}
    hub.close()
    phone.close()


@pytest.mark.parametrize("name", ["x" * 257, "x\0", "x\x1b[2J", "x\n"])
def test_a_replica_of_an_impossible_name_is_refused_before_anything_of_it_is_kept(pair: tuple[Node, Node], name: str) -> None:
    laptop, _ = pair
    for hello in (Hello(name, NOW, {}, SharedFacts(), "log"), Hello("tablet", NOW, {}, SharedFacts(), name)):
        with pytest.raises(InvalidRequest, match="name"):
            laptop.replica.meet(Peer("tablet", "anna"), through_wire(hello), is_caller=True)
    assert laptop.replica.facts().users == {"laptop": "anna", "phone": "anna"}


@pytest.mark.parametrize("now", [float("nan"), float("inf"), float("-inf")])
def test_a_clock_that_shows_no_time_is_refused(now: float) -> None:
    with pytest.raises(InvalidRequest, match="clock"):
        through_wire(Hello("tablet", now, {}, SharedFacts(), "log"))


def test_a_hub_cannot_make_a_replica_count_the_writes_of_more_devices_than_are_told(pair: tuple[Node, Node]) -> None:
    laptop, _ = pair
    hub = Peer("hub", "", is_relay=True)
    for claims in (dict.fromkeys(names(10_001), 1), {"x" * 257: 1}, {"": 1}):
        with pytest.raises(InvalidRequest, match="devices"):
            receive(laptop.replica, hub, "hub", Batch("log", 0, 1, known=claims))
    assert laptop.replica.hello().known.keys() <= {"laptop", "phone"}


@given(st.binary(max_size=200))
def test_noise_in_the_place_of_a_batch_is_refused_or_is_an_empty_batch(noise: bytes) -> None:
    laptop, phone = Node("laptop", "anna", lambda: NOW), Node("phone", "anna", lambda: NOW)
    greet(phone, laptop)
    try:
        message = pb.Batch.FromString(noise)
    except DecodeError:
        return
    with suppress(NearfarError):
        take(laptop, phone, wire.batch_from_proto(message))
    assert laptop.all_heads() == {}


@pytest.mark.parametrize(
    "columns",
    [
        pb.Operations(devices=["phone"], device=[0], sequence=[1], length=[3], payloads=b"{}"),
        pb.Operations(devices=["phone"], device=[0], sequence=[1, 2], length=[2], payloads=b"{}"),
        pb.Operations(devices=["phone"], device=[1], sequence=[1], length=[2], payloads=b"{}"),
    ],
)
def test_columns_of_operations_that_do_not_fit_together_are_refused(columns: pb.Operations) -> None:
    with pytest.raises(InvalidRequest):
        wire.batch_from_proto(pb.Batch(log="log", end=1, operations=columns))


@given(st.binary(max_size=120))
def test_noise_in_the_place_of_an_operation_is_refused(noise: bytes) -> None:
    laptop, phone = Node("laptop", "anna", lambda: NOW), Node("phone", "anna", lambda: NOW)
    greet(phone, laptop)
    with pytest.raises(NearfarError):
        take(laptop, phone, batch(ENOUGH, operations=(SealedOperation(Dot("phone", 1), noise),)))
    assert laptop.all_heads() == {}


@pytest.mark.parametrize(
    "noise",
    [b"", b"[]", b"{}", b"[[],[],[]]", b'[[["","","",null,{},{}]],[],{}]', b"[[],[1],{}]", b'[[["a","b",null,"",{"c":-1},{}]],[],{}]'],
)
def test_facts_that_cannot_be_are_refused(noise: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        decode_facts(noise)


def test_facts_are_the_same_after_they_were_written_and_read() -> None:
    erasure = Erasure("e" * 32, None, "tag", "anna", {"phone": 3}, {"item": {"phone": 2}})
    facts = SharedFacts({erasure.id: erasure}, frozenset({"tablet"}), {"phone": "anna"})
    assert decode_facts(encode_facts(facts)) == facts


@pytest.mark.parametrize("came", [(), (1,), (2, 3), (4095, 4096), (5000, 9000), (4096, 8191, 8192, 10_000)])
def test_holes_are_the_numbers_that_did_not_come_across_any_boundary(pair: tuple[Node, Node], came: tuple[int, ...]) -> None:
    laptop, phone = pair
    sent = [ENOUGH._replace(dot=Dot("phone", number), address=ItemAddress(NOTES, f"x{number}")) for number in came]
    take(laptop, phone, batch(*sent, known={"phone": 10_000}))
    missing = [number for first, last in laptop.replica.holes("phone") for number in range(first, last + 1)]
    assert missing == [number for number in range(1, 10_001) if number not in came]
    assert all(later > last + 1 for (_, last), (later, _) in pairwise(laptop.replica.holes("phone")))


def test_billions_of_writes_that_a_hub_claims_are_one_hole(pair: tuple[Node, Node]) -> None:
    laptop, _ = pair
    receive(laptop.replica, Peer("hub", "", is_relay=True), "hub", Batch("log", 0, 1, known={"tablet": (1 << 32) - 1}))
    assert laptop.replica.holes("tablet") == [(1, (1 << 32) - 1)]


def test_holes_that_are_more_than_can_be_counted_are_refused(pair: tuple[Node, Node]) -> None:
    laptop, phone = pair
    with pytest.raises(InvalidRequest):
        take(laptop, phone, batch(holes=(WriteRange("phone", 1, (1 << 62) - 1),) * 8))


@pytest.mark.parametrize("hole", [WriteRange("phone", 0, 1), WriteRange("phone", 3, 2), WriteRange("phone", 1, 1 << 62)])
def test_holes_that_cannot_be_are_refused(pair: tuple[Node, Node], hole: WriteRange) -> None:
    laptop, phone = pair
    with pytest.raises(InvalidRequest):
        take(laptop, phone, batch(holes=(hole,)))
