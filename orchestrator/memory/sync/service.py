"""`MemoryService`: a replica to synchronise with, and a store for devices that have none of their own."""

from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc
from google.protobuf.message import Message

from ....protocols import InvalidRequest
from ....protocols.security import IDENTITY
from ....protocols.status import Context
from ....protocols.v1 import memory_pb2 as pb
from ...util.threads import in_thread
from . import wire
from .ahead import ahead
from .limits import IDLE_LIMIT, UNARY_LIMIT, Calls, in_time
from .messages import Batch, Hello
from .peer import Peer
from .receiving import receive
from .sending import batches
from .thin import Thin
from .watching import moves

if TYPE_CHECKING:
    from ..store import MemoryStore

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
        self._calls = Calls()
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
        with self._calls.one_of(peer.name):
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
