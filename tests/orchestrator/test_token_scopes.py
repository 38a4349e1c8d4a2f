"""Every RPC of every server, with a token of every scope: a token does what it was made for and nothing else."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio
import grpc
import pytest
from a2a.types import a2a_pb2

from nearfar.orchestrator.memory.store import MemoryStore
from nearfar.orchestrator.memory.sync.service import MemoryService, peers_of, serve_memory
from nearfar.protocols import NearfarError, PermissionDenied, ScriptedAgent, Unsupported
from nearfar.protocols.access import REQUIRED, Access
from nearfar.protocols.hub import Hub, HubService, serve_hub
from nearfar.protocols.security import Scope, TokenRecord, hashed
from nearfar.protocols.server import listening, serve
from nearfar.protocols.status import from_rpc_error
from nearfar.protocols.v1 import agent_pb2, hub_pb2, memory_pb2

pytestmark = pytest.mark.anyio

SERVICES = {
    service.full_name: [f"/{service.full_name}/{method.name}" for method in service.methods]
    for module in (agent_pb2, hub_pb2, memory_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
}
AGENTS, HUB, MEMORY = (f"nearfar.v1.{name}Service" for name in ("Agent", "Hub", "Memory"))
CALLERS = [TokenRecord(id=scope, caller=scope, digest=hashed(f"good for {scope}"), scopes=frozenset({scope})) for scope in Scope]
USERS = {caller.caller: "anna" for caller in CALLERS}


@asynccontextmanager
async def gateway() -> AsyncIterator[str]:
    async with serve(ScriptedAgent([]), tokens=CALLERS) as server:
        yield server.address


@asynccontextmanager
async def memory() -> AsyncIterator[str]:
    with MemoryStore.open(":memory:", embedder=None) as store:
        async with serve_memory(store, "localhost:0", tokens=CALLERS, users=USERS, is_hub=True) as server:
            yield server.address


@asynccontextmanager
async def hub_with_memory() -> AsyncIterator[str]:
    with MemoryStore.open(":memory:", embedder=None) as store:
        further = {MEMORY: MemoryService(store, peers_of(USERS), is_hub=True).handlers()}
        async with serve_hub(Hub(CALLERS), further=further) as address:
            yield address


SERVERS = {"gateway": (gateway, {AGENTS}), "hub": (hub_with_memory, {HUB, MEMORY}), "memory": (memory, {MEMORY})}


async def outcome(channel: grpc.aio.Channel, method: str, scope: Scope) -> NearfarError | None:
    """What an empty message is answered with: of a kind that it is not is seen after it was let in."""
    metadata = (("authorization", f"Bearer good for {scope}"),)
    ask: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(method)
    call = ask(b"", metadata=metadata, timeout=20)
    try:
        await call.read()
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    finally:
        call.cancel()
    return None


@pytest.mark.parametrize("name", SERVERS)
async def test_a_token_does_what_it_was_made_for_and_nothing_else(name: str) -> None:
    serving, services = SERVERS[name]
    methods = [method for service in services for method in SERVICES[service]]
    with anyio.fail_after(60):
        async with serving() as address, grpc.aio.insecure_channel(address) as channel:
            found = {(method, scope): await outcome(channel, method, scope) for method in methods for scope in Scope}
    for (method, scope), error in found.items():
        needed = REQUIRED[method]
        if needed is None:
            assert isinstance(error, Unsupported | PermissionDenied), method
        elif scope is needed:
            assert not isinstance(error, PermissionDenied | Unsupported), (method, scope, error)
        else:
            assert isinstance(error, PermissionDenied), (method, scope, error)
            assert f"scope {str(needed)!r}" in error.message


def test_every_rpc_is_in_the_table_of_scopes() -> None:
    of_a2a = {f"/lf.a2a.v1.A2AService/{method.name}" for method in a2a_pb2.DESCRIPTOR.services_by_name["A2AService"].methods}
    assert REQUIRED.keys() == {method for methods in SERVICES.values() for method in methods} | of_a2a
    tried: Mapping[str, set[str]] = {name: services for name, (_, services) in SERVERS.items()}
    assert set().union(*tried.values()) == SERVICES.keys()


async def test_what_has_no_scope_is_for_nobody_who_needs_a_token() -> None:
    async def close() -> None:
        """There is nothing to end."""

    services = {HUB: HubService(Hub(CALLERS)).local_handlers()}
    for tokens in (CALLERS, None):
        serving = listening(services, "localhost:0", access=Access(tokens), tls=None, insecure=False, closing=close, time_limit=1.0)
        async with serving as address, grpc.aio.insecure_channel(str(address)) as channel:
            errors = [await outcome(channel, f"/{HUB}/List", scope) for scope in Scope]
        assert all(isinstance(error, PermissionDenied) if tokens else error is None for error in errors)
