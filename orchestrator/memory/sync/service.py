"""`MemoryService`: a replica to synchronise with, and a store for devices that have none of their own."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc
import orjson
from google.protobuf.message import Message

from ....protocols import InvalidRequest, PermissionDenied, PrivacyViolation
from ....protocols.access import Access, CallerShares, Clock, Context
from ....protocols.items import Tier
from ....protocols.security import IDENTITY, Tokens
from ....protocols.server import listening
from ....protocols.tls import ServerTls
from ....protocols.v1 import memory_pb2 as pb
from ...util.runtime import in_thread
from .. import validation
from ..operation import Principal
from ..reading import MemoryItem
from . import wire
from .exchange import batches, receive
from .messages import Batch, Hello, Peer
from .wire import IDLE_LIMIT, UNARY_LIMIT, ahead, in_time, moves

if TYPE_CHECKING:
    from ..store import MemoryStore


_TIERS: Final = {pb.MEMORY_TIER_DEVICE: Tier.DEVICE, pb.MEMORY_TIER_USER: Tier.USER, pb.MEMORY_TIER_SHARED: Tier.SHARED}
_NUMBERS: Final = {tier: number for number, tier in _TIERS.items()}
_PAGE: Final = 10
_LARGEST_PAGE: Final = 100
_SECONDS_PER_MINUTE: Final = 60
_CALLS: Final = 8
"""Calls that one caller may have open at once: two replicas need three."""


class Thin:
    """Answers the calls of `MemoryService` that need no replica on the other side. Its methods block."""

    def __init__(self, store: "MemoryStore") -> None:
        self._store = store

    def put(self, peer: Peer, request: pb.PutRequest) -> pb.PutResponse:
        tier = _TIERS.get(request.tier, Tier.DEVICE) if request.HasField("tier") else None
        if tier is Tier.DEVICE:
            raise PrivacyViolation("an item of tier device must not leave its device", hint="keep it there, or write it with tier user")
        version = self._view(peer).put(
            tuple(request.address.namespace),
            request.address.key,
            _object(request.value),
            ttl=request.ttl / _SECONDS_PER_MINUTE if request.HasField("ttl") else None,
            if_version=request.if_version if request.HasField("if_version") else None,
            tier=tier,
            subject=request.subject or None,
        )
        return pb.PutResponse(version=version)

    def get(self, peer: Peer, request: pb.GetRequest) -> pb.GetResponse:
        item = self._view(peer).get(tuple(request.address.namespace), request.address.key)
        return pb.GetResponse(item=None if item is None else item_to_proto(item))

    def search(self, peer: Peer, request: pb.SearchRequest) -> pb.SearchResponse:
        if request.limit > _LARGEST_PAGE:
            raise InvalidRequest(
                f"a page of {request.limit} items is too large", hint=f"ask for {_LARGEST_PAGE} at most, then for the next"
            )
        found = self._view(peer).search(
            tuple(request.namespace),
            query=request.query or None,
            filter=_object(request.filter) if request.filter else None,
            limit=request.limit or _PAGE,
            offset=request.offset,
        )
        return pb.SearchResponse(items=map(item_to_proto, found))

    def delete(self, peer: Peer, request: pb.DeleteRequest) -> pb.DeleteResponse:
        if_version = request.if_version if request.HasField("if_version") else None
        self._view(peer).delete(tuple(request.address.namespace), request.address.key, if_version=if_version)
        return pb.DeleteResponse()

    def erase(self, peer: Peer, request: pb.EraseRequest) -> pb.EraseResponse:
        view = self._view(peer)
        match request.WhichOneof("what"):
            case "subject":
                gone = view.erase(subject=request.subject)
            case "prefix":
                gone = view.erase(prefix=tuple(request.prefix.namespace))
            case _:
                raise InvalidRequest("an erasure needs either a subject or a namespace prefix", hint="give one of them")
        return pb.EraseResponse(items=len(gone))

    def _view(self, peer: Peer) -> "MemoryStore":
        return self._store.view(Principal(user=peer.user, device=peer.name))


def item_to_proto(item: MemoryItem) -> pb.MemoryItem:
    return pb.MemoryItem(
        address=pb.MemoryAddress(namespace=item.namespace, key=item.key),
        value=orjson.dumps(item.value),
        version=item.version,
        tier=_NUMBERS[item.tier],
        user=item.user,
        agent=item.agent,
        source=item.source,
        trust=item.trust,
        subject=item.subject,
        created_at=item.created_at.timestamp(),
        updated_at=item.updated_at.timestamp(),
        conflicts=item.conflicts,
        score=item.score,
    )


def _object(encoded: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(encoded)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest("the value is no JSON", hint="send a JSON object") from error
    if not isinstance(value, dict):
        raise InvalidRequest("the value is no JSON object", hint='wrap it: {"text": ...}')
    return value


Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)
Identify = Callable[[str], Peer]
"""Returns the peer for the name that its token has. Raises `PermissionDenied`."""

SERVICE: Final = pb.DESCRIPTOR.services_by_name["MemoryService"].full_name


class MemoryService:
    """Serves a store to the peers that `identify` knows. A hub has the items of several users."""

    def __init__(self, store: "MemoryStore", identify: Identify, *, is_hub: bool) -> None:
        self._store = store
        self._replica = store.replica(is_hub=is_hub)
        self._identify = identify
        self._shares = CallerShares()
        self._thin = Thin(store)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers for `protocols.server.serve(further={SERVICE: ...})`."""
        thin = self._thin
        rpcs: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Put": self._unary(thin.put, pb.PutRequest),
            "Get": self._unary(thin.get, pb.GetRequest),
            "Search": self._unary(thin.search, pb.SearchRequest),
            "Delete": self._unary(thin.delete, pb.DeleteRequest),
            "Erase": self._unary(thin.erase, pb.EraseRequest),
            "Greet": self._unary(self._greet, pb.Hello),
        }
        rpcs["Pull"] = grpc.unary_stream_rpc_method_handler(self._pull, pb.PullRequest.FromString, pb.Batch.SerializeToString)
        rpcs["Push"] = grpc.stream_stream_rpc_method_handler(self._push, pb.PushMessage.FromString, pb.PushReply.SerializeToString)
        rpcs["Watch"] = grpc.unary_stream_rpc_method_handler(self._watch, pb.WatchRequest.FromString, pb.Changed.SerializeToString)
        return grpc.method_handlers_generic_handler(SERVICE, rpcs)

    async def close(self) -> None:
        """Do nothing: written data is durable, and interrupted callers continue from it."""

    def _unary(self, method: Callable[[Peer, Request], Reply], request_type: type[Request]) -> "grpc.RpcMethodHandler[Request, Reply]":
        async def handle(request: Request, context: Context) -> Reply:
            with self._call() as peer:
                with in_time(UNARY_LIMIT):
                    reply = await in_thread(method, peer, request)
                self._store.watchers.notify()
                return reply

        return grpc.unary_unary_rpc_method_handler(handle, request_type.FromString, lambda reply: reply.SerializeToString())

    def _greet(self, peer: Peer, message: pb.Hello) -> pb.Hello:
        self._replica.meet(peer, wire.hello_from_proto(message), is_caller=True)
        return wire.hello_to_proto(self._replica.hello())

    async def _pull(self, message: pb.PullRequest, context: Context) -> None:
        with self._call() as peer:
            await in_thread(self._greet, peer, message.hello)
            sending = batches(self._replica, peer, wire.request_from_proto(message.continuation))
            async with aclosing(ahead(lambda: in_thread(next, sending, None))) as made:
                async for batch in made:
                    await in_thread(self._replica.check_peer, peer, message.hello.device)
                    await _write(context, wire.batch_to_proto(batch))

    async def _push(self, _: object, context: Context) -> None:
        with self._call() as peer:
            hello = await _read_hello(context)
            await in_thread(self._replica.meet, peer, hello, is_caller=True)
            request = await in_thread(self._replica.request, peer, hello.log)
            await _write(context, pb.PushReply(continuation=wire.request_to_proto(request)))
            async with aclosing(ahead(lambda: _read_batch(context))) as arriving:
                async for batch in arriving:
                    received = await in_thread(receive, self._replica, peer, hello.device, batch)
                    self._store.watchers.notify()
                    await _write(context, pb.PushReply(received=wire.received_to_proto(received)))

    async def _watch(self, message: pb.WatchRequest, context: Context) -> None:
        with self._call() as peer:
            await in_thread(self._greet, peer, message.hello)
            async with aclosing(moves(self._replica, self._store.watchers)) as positions:
                async for position in positions:
                    await in_thread(self._replica.check_peer, peer, message.hello.device)
                    await _write(context, pb.Changed(position=position))

    @contextmanager
    def _call(self) -> Iterator[Peer]:
        """Identify the caller, and count the call while it is open."""
        peer = self._identify(IDENTITY.get().caller)
        with self._shares.call((peer.name, peer.user), _CALLS):
            yield peer


async def _write(context: Context, message: Message) -> None:
    with in_time(IDLE_LIMIT):
        await context.write(message)


async def _read_hello(context: Context) -> Hello:
    with in_time(IDLE_LIMIT):
        message = await context.read()
    if not isinstance(message, pb.PushMessage) or message.WhichOneof("message") != "hello":
        raise InvalidRequest("a push begins with a hello", hint="the peer is broken, or not a nearfar store")
    return wire.hello_from_proto(message.hello)


async def _read_batch(context: Context) -> Batch | None:
    """Return the next batch of a push; None at its end."""
    with in_time(IDLE_LIMIT):
        message = await context.read()
    if not isinstance(message, pb.PushMessage):
        return None
    if message.WhichOneof("message") != "batch":
        raise InvalidRequest("after its hello, a push has batches only", hint="the peer is broken, or not a nearfar store")
    return wire.batch_from_proto(message.batch)


_SHUTDOWN_LIMIT: Final = 5.0


@dataclass(frozen=True, slots=True)
class MemoryServer:
    """A store that is being served."""

    address: str
    """The address at which it really listens."""
    replace_tokens: Callable[[Tokens], None]
    """Let in the callers with these tokens and no others; raises as `protocols.server.Server.replace_tokens`."""


def peers_of(users: Mapping[str, str]) -> Identify:
    """Return a function that identifies callers: `users` names the user of each caller. Raises `ConfigError` for an invalid user name."""
    for user in users.values():
        validation.check_user(user)

    def identify(name: str) -> Peer:
        if name not in users:
            hint = f'in nearfar.toml of the hub, then start it again: [hub.workers.{name or "NAME"}] user = "..."'
            raise PermissionDenied(f"the hub has no user for {name or 'a caller without a token'}", hint=hint)
        return Peer(name, users[name])

    return identify


@asynccontextmanager
async def serve_memory(
    store: "MemoryStore",
    address: str,
    *,
    tokens: Tokens,
    users: Mapping[str, str],
    tls: ServerTls | None = None,
    insecure: bool = False,
    is_hub: bool = False,
    clock: Clock | None = None,
) -> AsyncIterator[MemoryServer]:
    """Serve a store until the context ends.

    `tokens` maps each caller's name to its bearer token, or is the content of a token file; `users` maps the name to the user of the
    device. Tokens expire by `clock`. Raises `ConfigError` as `protocols.serve` does.
    """
    access = Access(tokens, clock=clock)
    service = MemoryService(store, peers_of(users), is_hub=is_hub)
    serving = listening(
        {SERVICE: service.handlers()},
        address,
        access=access,
        tls=tls,
        insecure=insecure,
        closing=service.close,
        time_limit=_SHUTDOWN_LIMIT,
    )
    async with serving as bound:
        yield MemoryServer(str(bound), access.replace_tokens)
