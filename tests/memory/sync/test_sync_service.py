"""Replicas that meet over gRPC: the same as in one process, with tokens, deadlines and lost connections."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import grpc
import pytest
from certificates import HOSTS, Authority
from in_memory_engine import InMemoryEngine
from langgraph.store.base import PutOp

from nearfar.orchestrator.memory.engine import Logged
from nearfar.orchestrator.memory.store import MemoryStore
from nearfar.orchestrator.memory.sync import service, wire
from nearfar.orchestrator.memory.sync.exchange import batches
from nearfar.orchestrator.memory.sync.messages import SCHEMA, Batch, Peer, Request
from nearfar.orchestrator.memory.sync.service import serve_memory
from nearfar.orchestrator.memory.sync.session import (
    Neighbour,
    Outcome,
    Synchronised,
    SyncProgress,
    connected,
    keep_in_sync,
    plan,
    sync_once,
)
from nearfar.protocols import ConfigError, NearfarError, PermissionDenied, RateLimited, SyncRefused, Unauthenticated, Unavailable
from nearfar.protocols.items import Tier
from nearfar.protocols.security import ANY_CERTIFICATE, TokenRecord
from nearfar.protocols.tls import ClientTls, ServerTls
from nearfar.protocols.v1 import memory_pb2 as pb
from nearfar.protocols.v1.memory_pb2_grpc import MemoryServiceStub

pytestmark = pytest.mark.anyio

NOTES = ("notes",)
TOKENS = {"phone": "token-of-the-phone", "laptop": "token-of-the-laptop", "tablet": "token-of-the-tablet"}
USERS = {"phone": "anna", "laptop": "anna", "tablet": "ben"}
HUB = Peer("hub", "", is_relay=True)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[dict[str, MemoryStore]]:
    users = {"hub": "", "phone": "anna", "laptop": "anna", "tablet": "ben"}
    opened = {name: MemoryStore.open(tmp_path / f"{name}.db", user=user, embedder=None) for name, user in users.items()}
    yield opened
    for store in opened.values():
        store.close()


@asynccontextmanager
async def hub(stores: dict[str, MemoryStore]) -> AsyncIterator[str]:
    async with serve_memory(stores["hub"], "localhost:0", tokens=TOKENS, users=USERS, is_hub=True) as server:
        yield server.address


def metadata(device: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {TOKENS[device]}"),)


def neighbour(address: str, device: str, **changes: object) -> Neighbour:
    return Neighbour(**{"peer": HUB, "address": address, "token": TOKENS[device], **changes})  # type: ignore[arg-type]  # as given


async def test_what_one_device_writes_comes_to_another_one_through_the_hub_and_device_tier_does_not(stores: dict[str, MemoryStore]) -> None:
    phone, laptop = stores["phone"], stores["laptop"]
    phone.put(NOTES, "for both", {"text": "tea"}, tier=Tier.USER)
    phone.put(NOTES, "mine", {"text": "secret"})
    async with hub(stores) as address:
        sent = await sync_once(phone, neighbour(address, "phone"))
        received = await sync_once(laptop, neighbour(address, "laptop"))
    assert (sent.sent.operations, sent.sent.holes) == (1, 1)
    assert (received.received.operations, received.received.holes) == (1, 0)
    assert [item.key for item in laptop.search(NOTES)] == ["for both"]
    assert stores["hub"].replica(is_hub=True).holes(phone.engine.device) == [(2, 2)]


async def test_a_device_that_is_known_by_its_certificate_needs_no_token(stores: dict[str, MemoryStore], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (certificate, key), (own, own_key) = authority.issue(*HOSTS), authority.issue("phone")
    tls = ServerTls(certificate=certificate, private_key=key, client_roots=authority.certificate)
    trusted, shown = ClientTls(roots=authority.certificate), ClientTls(roots=authority.certificate, certificate=own, private_key=own_key)
    records = [TokenRecord(id="a", caller="phone", certificate=ANY_CERTIFICATE)]
    stores["phone"].put(NOTES, "for both", {"text": "tea"}, tier=Tier.USER)
    async with serve_memory(stores["hub"], "localhost:0", tokens=records, users=USERS, tls=tls, is_hub=True) as server:
        with pytest.raises(Unauthenticated, match="demands a certificate"):
            await sync_once(stores["phone"], neighbour(server.address, "phone", token=None, tls=trusted))
        done = await sync_once(stores["phone"], neighbour(server.address, "phone", token=None, tls=shown))
    assert done.sent.operations == 1


async def test_a_user_sees_nothing_of_another_one_but_what_is_shared(stores: dict[str, MemoryStore]) -> None:
    stores["phone"].put(("anna",), "private", {"text": "diary"}, tier=Tier.USER)
    stores["phone"].put(("all",), "public", {"text": "menu"}, tier=Tier.SHARED)
    async with hub(stores) as address:
        await sync_once(stores["phone"], neighbour(address, "phone"))
        await sync_once(stores["tablet"], neighbour(address, "tablet"))
    assert [item.key for item in stores["tablet"].search(())] == ["public"]
    assert "diary" not in repr(stores["tablet"].engine.operations(0, limit=10))


async def test_a_plan_says_what_would_leave_and_sends_nothing(stores: dict[str, MemoryStore]) -> None:
    phone = stores["phone"]
    phone.put(NOTES, "for both", {"text": "tea"}, tier=Tier.USER)
    phone.put(NOTES, "mine", {"text": "secret"})
    async with hub(stores) as address:
        planned = await plan(phone, neighbour(address, "phone"))
    assert (planned[NOTES].items, planned[NOTES].held_back, planned[NOTES].examples) == (1, 1, [(NOTES, "for both")])
    assert stores["hub"].search(()) == []


async def test_conflicting_values_are_kept_on_both_devices_and_decided_on_one(stores: dict[str, MemoryStore]) -> None:
    phone, laptop = stores["phone"], stores["laptop"]
    phone.put(NOTES, "dinner", {"text": "six"}, tier=Tier.USER)
    laptop.put(NOTES, "dinner", {"text": "eight"}, tier=Tier.USER)
    async with hub(stores) as address:
        for device in ("phone", "laptop", "phone"):
            await sync_once(stores[device], neighbour(address, device))
        (conflict,) = phone.conflicts()
        assert laptop.conflicts()[0].lost == conflict.lost
        phone.resolve(NOTES, "dinner", keep={"text": "seven"})
        for device in ("phone", "laptop"):
            await sync_once(stores[device], neighbour(address, device))
    assert laptop.conflicts() == []
    assert (item := laptop.get(NOTES, "dinner")) is not None
    assert item.value == {"text": "seven"}


async def test_replicas_that_are_kept_in_sync_hear_of_each_other_without_being_asked(stores: dict[str, MemoryStore]) -> None:
    phone, laptop = stores["phone"], stores["laptop"]
    outcomes: list[Outcome] = []

    def report(_: Neighbour, outcome: Outcome) -> None:
        outcomes.append(outcome)

    async with hub(stores) as address, anyio.create_task_group() as tasks:
        for device in ("phone", "laptop"):
            tasks.start_soon(keep_in_sync, stores[device], [neighbour(address, device)], report)
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(_until_known, laptop, "news")
            await phone.aput(NOTES, "news", {"text": "fresh"}, tier=Tier.USER)
        tasks.cancel_scope.cancel()
    assert all(isinstance(outcome, Synchronised) for outcome in outcomes)


async def _until_known(store: MemoryStore, key: str) -> None:
    with anyio.fail_after(20):
        async for change in store.watch(since=0):
            if change.address is not None and change.address.key == key:
                return


async def test_a_peer_that_is_away_is_tried_again_and_found(stores: dict[str, MemoryStore], tmp_path: Path) -> None:
    phone = stores["phone"]
    phone.put(NOTES, "early", {"text": "bird"}, tier=Tier.USER)
    failed = anyio.Event()

    def report(_: Neighbour, outcome: Outcome) -> None:
        if isinstance(outcome, NearfarError):
            failed.set()

    address = f"unix:{tmp_path / 'hub.sock'}"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_in_sync, phone, [neighbour(address, "phone")], report)
        with anyio.fail_after(20):
            await failed.wait()
        async with serve_memory(stores["hub"], address, tokens=TOKENS, users=USERS, is_hub=True):
            await _until_known(stores["hub"], "early")
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("token", "error"), [("wrong", Unauthenticated), ("token-of-nobody", PermissionDenied)])
async def test_a_caller_without_a_part_in_the_memory_is_refused(
    stores: dict[str, MemoryStore], token: str, error: type[NearfarError]
) -> None:
    tokens = {**TOKENS, "nobody": "token-of-nobody"}
    async with serve_memory(stores["hub"], "localhost:0", tokens=tokens, users=USERS, is_hub=True) as server:
        with pytest.raises(error):
            await sync_once(stores["phone"], neighbour(server.address, "phone", token=token))


async def test_a_device_is_bound_to_the_credential_that_it_came_with(stores: dict[str, MemoryStore]) -> None:
    async with hub(stores) as address:
        await sync_once(stores["phone"], neighbour(address, "phone"))
        with pytest.raises(PermissionDenied, match="another credential"):
            await sync_once(stores["phone"], neighbour(address, "tablet"))


async def test_a_revoked_device_is_refused_by_every_replica_that_has_heard_of_it(stores: dict[str, MemoryStore]) -> None:
    phone, laptop, second_hub = stores["phone"], stores["laptop"], stores["tablet"]
    async with hub(stores) as address, serve_memory(second_hub, "localhost:0", tokens=TOKENS, users=USERS, is_hub=True) as second:
        phone.put(NOTES, "before", {"text": "kept"}, tier=Tier.USER)
        for device in ("phone", "laptop"):
            await sync_once(stores[device], neighbour(address, device))
        laptop.replica().revoke(phone.engine.device)
        for where in (address, second.address):
            await sync_once(laptop, neighbour(where, "laptop"))
            with pytest.raises(SyncRefused, match="is revoked"):
                await sync_once(phone, neighbour(where, "phone"))
    assert laptop.get(NOTES, "before") is not None


class _Revoking(InMemoryEngine):
    """Shuts a device out while a page of the log is read that is not the first."""

    shut_out = ""

    def operations(self, after: int, *, limit: int) -> list[Logged]:
        if after and self.shut_out:
            MemoryStore(self).replica(is_hub=True).revoke(self.shut_out)
        return super().operations(after, limit=limit)


async def test_a_device_that_is_shut_out_in_the_middle_of_a_pull_gets_nothing_further(stores: dict[str, MemoryStore]) -> None:
    phone, laptop, engine = stores["phone"], stores["laptop"], _Revoking()
    phone.bound(tier=Tier.USER).batch(PutOp(NOTES, str(number), {"text": "x" * 400}) for number in range(3000))
    async with serve_memory(MemoryStore(engine), "localhost:0", tokens=TOKENS, users=USERS, is_hub=True) as server:
        await sync_once(phone, neighbour(server.address, "phone"))
        engine.shut_out = laptop.engine.device
        with pytest.raises(SyncRefused, match="is revoked"):
            await sync_once(laptop, neighbour(server.address, "laptop"))
    assert len(laptop.search(NOTES, limit=5000)) <= 1000


async def test_nothing_further_is_sent_to_a_peer_that_is_shut_out_in_the_middle(stores: dict[str, MemoryStore]) -> None:
    phone = stores["phone"]
    phone.bound(tier=Tier.USER).batch(PutOp(NOTES, str(number), {"text": "x" * 400}) for number in range(10_000))

    def revoke(progress: SyncProgress) -> None:
        phone.replica().revoke(stores["hub"].engine.device)

    async with hub(stores) as address:
        with pytest.raises(SyncRefused, match="is revoked"):
            await sync_once(phone, neighbour(address, "phone"), report=revoke)
    assert len(stores["hub"].search(NOTES, limit=10_000)) <= 1000


async def test_a_device_that_is_shut_out_hears_no_longer_what_is_new(stores: dict[str, MemoryStore]) -> None:
    hello = stores["laptop"].replica().hello()
    async with hub(stores) as address, connected(address, token=TOKENS["laptop"]) as link, aclosing(link.watch(hello)) as positions:
        await anext(positions)
        stores["hub"].replica(is_hub=True).revoke(stores["laptop"].engine.device)
        stores["hub"].put(NOTES, "later", {"text": "not for it"}, tier=Tier.SHARED)
        with pytest.raises(SyncRefused, match="is revoked"):
            await anext(positions)


@pytest.mark.parametrize(("schema", "older"), [(SCHEMA - 1, "the peer"), (SCHEMA + 1, "this side")])
async def test_a_peer_with_another_schema_is_told_which_side_to_update(stores: dict[str, MemoryStore], schema: int, older: str) -> None:
    hello = wire.hello_to_proto(stores["phone"].replica().hello())
    hello.schema, hello.facts = schema, b"what this schema cannot read"
    async with hub(stores) as address, connected(address, token=TOKENS["phone"]) as link:
        with pytest.raises(SyncRefused, match=f"on {older}"):
            await link.greet(wire.hello_from_proto(hello))
    async with hub(stores) as address, grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match=f"schema {schema}"):
            await MemoryServiceStub(channel).Greet(hello, metadata=metadata("phone"))


async def test_a_push_that_begins_with_anything_but_a_hello_is_refused(stores: dict[str, MemoryStore]) -> None:
    async with hub(stores) as address, grpc.aio.insecure_channel(address) as channel:
        call = MemoryServiceStub(channel).Push(iter([pb.PushMessage(batch=pb.Batch(log="x"))]), metadata=metadata("phone"))
        with pytest.raises(grpc.aio.AioRpcError, match="begins with a hello"):
            await call.read()


async def test_a_caller_has_so_many_calls_open_and_no_more(stores: dict[str, MemoryStore]) -> None:
    async with hub(stores) as address, connected(address, token=TOKENS["phone"]) as link, AsyncExitStack() as stack:
        hello = stores["phone"].replica().hello()
        for _ in range(8):
            watched = await stack.enter_async_context(aclosing(link.watch(hello)))
            await anext(watched)
        with pytest.raises(RateLimited):
            await link.greet(hello)
        async with connected(address, token=TOKENS["laptop"]) as other:
            await other.greet(stores["laptop"].replica().hello())


_HUB = """
import asyncio, sys
from nearfar.orchestrator.memory.store import MemoryStore
from nearfar.orchestrator.memory.sync.service import serve_memory

async def main(path, address):
    with MemoryStore.open(path, embedder=None) as store:
        async with serve_memory(store, address, tokens={}, users={"": "anna"}, is_hub=True):
            print("ready", flush=True)
            await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


@contextmanager
def hub_process(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", _HUB, folder / "far.db", f"unix:{folder / 'far.sock'}"], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_a_hub_that_is_killed_in_the_middle_has_all_that_it_confirmed_and_gets_the_rest(
    stores: dict[str, MemoryStore], tmp_path: Path
) -> None:
    phone, far = stores["phone"], Neighbour(peer=HUB, address=f"unix:{tmp_path / 'far.sock'}")
    phone.bound(tier=Tier.USER).batch(PutOp(NOTES, str(number), {"text": "x" * 200}) for number in range(8000))
    confirmed = 0

    def kill(progress: SyncProgress) -> None:
        nonlocal confirmed
        if confirmed := progress.sent.operations:
            process.kill()

    with hub_process(tmp_path) as process, pytest.raises(Unavailable):
        await sync_once(phone, far, report=kill)
    assert confirmed
    with MemoryStore.open(tmp_path / "far.db", embedder=None) as store:
        kept = len(store.search(NOTES, limit=10_000))
    assert confirmed <= kept < 8000
    with hub_process(tmp_path):
        rest = await sync_once(phone, far)
    assert rest.sent.operations == 8000 - kept


async def test_a_pull_that_breaks_off_goes_on_where_it_was(stores: dict[str, MemoryStore]) -> None:
    phone, laptop = stores["phone"], stores["laptop"]
    for number in range(3000):
        phone.put(NOTES, str(number), {"text": "x" * 200}, tier=Tier.USER)
    async with hub(stores) as address:
        await sync_once(phone, neighbour(address, "phone"))
        with pytest.raises(_Broken):
            await sync_once(laptop, neighbour(address, "laptop"), report=_break)
        begun = len(laptop.search(NOTES, limit=5000))
        assert 0 < begun < 3000
        rest = await sync_once(laptop, neighbour(address, "laptop"))
    assert rest.received.operations == 3000 - begun
    assert len(laptop.search(NOTES, limit=5000)) == 3000


class _Broken(Exception):
    """Stands for whatever ends a synchronisation."""


def _break(progress: SyncProgress) -> None:
    if progress.received.operations:
        raise _Broken


async def test_the_clocks_difference_is_told(stores: dict[str, MemoryStore], tmp_path: Path) -> None:
    late = MemoryStore(InMemoryEngine(), user="anna", now=lambda: 1_000_000_000.0)
    async with hub(stores) as address:
        result = await sync_once(late, neighbour(address, "phone"))
    assert result.skew > 500_000_000
    late.close()


async def test_a_device_without_a_store_uses_the_hubs_as_its_user(stores: dict[str, MemoryStore]) -> None:
    place = pb.MemoryAddress(namespace=NOTES, key="thin")
    async with hub(stores) as address, grpc.aio.insecure_channel(address) as channel:
        stub = MemoryServiceStub(channel)
        anna, ben = metadata("phone"), metadata("tablet")
        put = await stub.Put(pb.PutRequest(address=place, value=b'{"text": "green tea"}', subject="carl"), metadata=anna)
        assert (await stub.Get(pb.GetRequest(address=place), metadata=anna)).item.version == put.version
        assert not (await stub.Get(pb.GetRequest(address=place), metadata=ben)).HasField("item")
        (found,) = (await stub.Search(pb.SearchRequest(namespace=NOTES, query="tea"), metadata=anna)).items
        assert (found.tier, found.user, found.value) == (pb.MEMORY_TIER_USER, "anna", b'{"text":"green tea"}')
        with pytest.raises(grpc.aio.AioRpcError, match="is at version"):
            await stub.Put(pb.PutRequest(address=place, value=b"{}", if_version="absent"), metadata=anna)
        with pytest.raises(grpc.aio.AioRpcError, match="must not leave its device"):
            await stub.Put(pb.PutRequest(address=place, value=b"{}", tier=pb.MEMORY_TIER_DEVICE), metadata=anna)
        assert (await stub.Erase(pb.EraseRequest(subject="carl"), metadata=ben)).items == 0
        assert (await stub.Erase(pb.EraseRequest(subject="carl"), metadata=anna)).items == 1
        assert not (await stub.Get(pb.GetRequest(address=place), metadata=anna)).HasField("item")


async def test_replicas_that_lie_about_where_they_are_get_nothing_but_their_own(stores: dict[str, MemoryStore]) -> None:
    stores["phone"].put(("anna",), "private", {"text": "diary"}, tier=Tier.USER)
    async with hub(stores) as address:
        await sync_once(stores["phone"], neighbour(address, "phone"))
        async with connected(address, token=TOKENS["tablet"]) as link:
            hello = stores["tablet"].replica().hello()
            pulled = [batch async for batch in link.pull(hello, Request({}, "", 0, takes_all=True))]
    assert [len(batch.operations) for batch in pulled] == [0]
    assert pulled[0].holes


@pytest.mark.parametrize("user", ["x" * 257, "a\0b", "\ud800"])
async def test_a_user_who_cannot_be_told_of_is_refused_before_anything_is_kept(stores: dict[str, MemoryStore], user: str) -> None:
    with pytest.raises(ConfigError, match="no valid name of a user"):
        async with serve_memory(stores["hub"], "localhost:0", tokens=TOKENS, users={"phone": user}, is_hub=True):
            pass
    with pytest.raises(ConfigError, match="no valid name of a user"):
        MemoryStore.open(user=user, embedder=None)


@pytest.mark.parametrize("kept", [0, 1])
async def test_a_hub_that_sends_only_a_part_is_not_taken_for_one_that_sent_all(
    stores: dict[str, MemoryStore], monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    def some(*arguments: Any, **options: Any) -> Iterator[Batch]:  # noqa: ANN401
        return islice(batches(*arguments, **options, batch_bytes=1), kept)

    monkeypatch.setattr(service, "batches", some)
    for number in range(3):
        stores["hub"].put(NOTES, str(number), {"text": "tea"}, tier=Tier.SHARED)
    async with hub(stores) as address:
        with pytest.raises(Unavailable, match="before it had sent all"):
            await sync_once(stores["phone"], neighbour(address, "phone"))
    assert len(stores["phone"].search(NOTES)) == kept
