"""Which calls a server answers: each one is let in by its scope, and ended when its token is worth nothing any more."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

import anyio
import grpc

from .credentials import Credentials, credentials_of
from .errors import NearfarError, PermissionDenied, Unauthenticated
from .security import IDENTITY, OWNER_HINT, Authenticator, Identity, system_time
from .status import Context
from .tokens import Scope, Tokens

REQUIRED: Final[Mapping[str, Scope | None]] = {
    "/nearfar.v1.AgentService/Describe": Scope.DESCRIBE,
    "/nearfar.v1.AgentService/Step": Scope.STEPS,
    "/nearfar.v1.AgentService/Cancel": Scope.STEPS,
    "/nearfar.v1.HubService/Attach": Scope.ATTACH,
    "/nearfar.v1.HubService/List": None,
    "/nearfar.v1.MemoryService/Put": Scope.MEMORY,
    "/nearfar.v1.MemoryService/Get": Scope.MEMORY,
    "/nearfar.v1.MemoryService/Search": Scope.MEMORY,
    "/nearfar.v1.MemoryService/Delete": Scope.MEMORY,
    "/nearfar.v1.MemoryService/Erase": Scope.MEMORY,
    "/nearfar.v1.MemoryService/Greet": Scope.MEMORY,
    "/nearfar.v1.MemoryService/Pull": Scope.MEMORY,
    "/nearfar.v1.MemoryService/Push": Scope.MEMORY,
    "/nearfar.v1.MemoryService/Watch": Scope.MEMORY,
}
"""The scope that each RPC needs. What has none here is answered only where no tokens are demanded: on a socket of this user's own."""

Behaviour: TypeAlias = Callable[[Any, Context], Awaitable[Any]]
"""Answers a call; its first argument is a message or a stream of them. Raises `NearfarError` for what the caller is told."""
Ending: TypeAlias = Callable[[Collection[str], NearfarError], None]
"""Ends what callers have running with the tokens of these ids."""


class Clock:
    """The time by which tokens expire."""

    def now(self) -> datetime:
        """The time of day, with its zone."""
        return system_time()

    async def tick(self) -> None:
        """Wait until it is time to look for expired tokens again: so soon that a clock that was set is noticed, too."""
        await anyio.sleep(1.0)


class Access:
    """Lets the calls of a server in and, where their token is worth nothing any more, out."""

    def __init__(self, tokens: Tokens | None, *, clock: Clock | None = None) -> None:
        """Without any tokens, everybody may call everything. Raises `ConfigError` for unusable ones."""
        self._clock = clock or Clock()
        self.authenticator = Authenticator(tokens, now=self._clock.now)
        self._calls: set[_Call] = set()
        self._endings: list[Ending] = []

    def guarded(self, handlers: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        """The same RPCs for those callers alone that may make them. What their behaviours raise is what the caller gets."""
        return _GuardedHandlers(handlers, self)

    def on_ending(self, ending: Ending) -> None:
        """Call `ending` whenever tokens are worth nothing any more, for what outlives the calls that they were shown in."""
        self._endings.append(ending)

    def replace_tokens(self, tokens: Tokens) -> None:
        """Let in the callers with these tokens and no others, and end what was begun with another one.

        Raises `ConfigError` as `Authenticator.replace` does, and changes nothing then.
        """
        self._end(self.authenticator.replace(tokens), Unauthenticated("the token was revoked", hint=OWNER_HINT))

    async def watch(self) -> None:
        """For ever, end what runs with tokens that have expired."""
        while not self.authenticator.is_open:
            await self._clock.tick()
            self._end(self.authenticator.expired(), Unauthenticated("the token expired", hint=OWNER_HINT))

    async def answer(self, method: str, behaviour: Behaviour, request: object, context: Context) -> object:
        """Let `behaviour` answer a call, if its caller may make it: its token may have been revoked since its request began to come."""
        identity = self.admit(method, credentials_of(context))
        IDENTITY.set(identity)  # gRPC runs every call in a task of its own
        return await self._run(_Call(identity), behaviour(request, context))

    def admit(self, method: str, credentials: Credentials) -> Identity:
        """Who calls. Raises `Unauthenticated` for one who is not known, and `PermissionDenied` for one who may not make this call."""
        identity = self.authenticator.identify(credentials)
        scope = REQUIRED.get(method)
        if scope is not None:
            identity.require(scope)
        elif not self.authenticator.is_open:
            raise PermissionDenied(f"{method} is answered on the server's own machine only", hint="no token has a scope for it")
        return identity

    async def _run(self, call: "_Call", answering: Awaitable[object]) -> object:
        self._calls.add(call)
        try:
            async with call.limit:
                return await answering
        except TimeoutError:
            if call.error is None:
                raise
            raise call.error from None
        finally:
            self._calls.remove(call)

    def _end(self, tokens: Collection[str], error: NearfarError) -> None:
        if not tokens:
            return
        for ending in self._endings:
            ending(tokens, error)
        for call in [call for call in self._calls if call.identity.token in tokens]:
            call.end(error)


class _Call:
    """A call that is being answered."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.limit = asyncio.timeout(None)
        """Without a time, until there is reason to end the call: gRPC makes each a task of asyncio, and anyio's scopes take longer."""
        self.error: NearfarError | None = None
        """What it is ended with."""

    def end(self, error: NearfarError) -> None:
        """Without an effect on a call that has ended by itself in this very moment."""
        if self.error is None:
            self.error = error
            self.limit.reschedule(0)


class _GuardedHandlers(grpc.GenericRpcHandler):
    """Handlers with an `Access` before each."""

    def __init__(self, handlers: grpc.GenericRpcHandler, access: Access) -> None:
        self._handlers = handlers
        self._access = access

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        handler = self._handlers.service(details)
        if handler is None:
            return None
        make, behaviour = _parts(handler)

        async def answer(request: object, context: Context) -> object:
            return await self._access.answer(details.method, behaviour, request, context)

        guarded: grpc.RpcMethodHandler[Any, Any] = make(answer, handler.request_deserializer, handler.response_serializer)
        return guarded


def _parts(handler: "grpc.RpcMethodHandler[Any, Any]") -> tuple[Callable[..., Any], Behaviour]:
    """How a handler of this kind is made, and what it does."""
    kinds: dict[tuple[bool, bool], tuple[Callable[..., Any], Any]] = {
        (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
        (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
        (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
        (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
    }
    return kinds[handler.request_streaming, handler.response_streaming]
