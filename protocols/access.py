"""Access control of a server: each call is admitted by the scope of its token, and ended when the token expires or is revoked."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import anyio

from .errors import NearfarError, PermissionDenied, Unauthenticated
from .security import IDENTITY, OWNER_HINT, Authenticator, Identity, system_time
from .tokens import Credentials, Scope, Tokens, credentials_of

if TYPE_CHECKING:
    import grpc  # which a server of HTTP does without

Answer = TypeVar("Answer")
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

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
    "/lf.a2a.v1.A2AService/SendMessage": Scope.TASKS,
    "/lf.a2a.v1.A2AService/SendStreamingMessage": Scope.TASKS,
    "/lf.a2a.v1.A2AService/GetTask": Scope.TASKS,
    "/lf.a2a.v1.A2AService/ListTasks": Scope.TASKS,
    "/lf.a2a.v1.A2AService/CancelTask": Scope.TASKS,
    "/lf.a2a.v1.A2AService/SubscribeToTask": Scope.TASKS,
    "/lf.a2a.v1.A2AService/CreateTaskPushNotificationConfig": Scope.TASKS,
    "/lf.a2a.v1.A2AService/GetTaskPushNotificationConfig": Scope.TASKS,
    "/lf.a2a.v1.A2AService/ListTaskPushNotificationConfigs": Scope.TASKS,
    "/lf.a2a.v1.A2AService/DeleteTaskPushNotificationConfig": Scope.TASKS,
    "/lf.a2a.v1.A2AService/GetExtendedAgentCard": Scope.TASKS,
}
"""The scope that each RPC needs. An RPC with None is answered only by a server without tokens, such as one on a unix socket."""

Behaviour: TypeAlias = Callable[[Any, Context], Awaitable[Any]]
"""Answers a call; its first argument is a message or a stream of them. Raises `NearfarError` for what the caller is told."""
Ending: TypeAlias = Callable[[Collection[str], NearfarError], None]
"""Ends everything that callers run with the tokens of these ids."""


class Clock:
    """The time by which tokens expire."""

    def now(self) -> datetime:
        """Return the current time with its time zone."""
        return system_time()

    async def tick(self) -> None:
        """Wait until it is time to look for expired tokens again. The wait is short, so that a changed system clock is noticed."""
        await anyio.sleep(1.0)


class Access:
    """Lets the calls of a server in and, where their token is worth nothing any more, out."""

    def __init__(self, tokens: Tokens | None, *, clock: Clock | None = None) -> None:
        """Let every caller make every call if there are no tokens. Raise `ConfigError` for unusable tokens."""
        self._clock = clock or Clock()
        self.authenticator = Authenticator(tokens, now=self._clock.now)
        self._calls: set[_Call] = set()
        self._endings: list[Ending] = []

    def on_ending(self, ending: Ending) -> None:
        """Call `ending` whenever tokens expire or are revoked, to end work that outlives the calls that showed them."""
        self._endings.append(ending)

    def replace_tokens(self, tokens: Tokens) -> None:
        """Admit only callers with these tokens, and end everything that was begun with another token.

        Raise `ConfigError` as `Authenticator.replace` does, and change nothing then.
        """
        self._end(self.authenticator.replace(tokens), Unauthenticated("the token was revoked", hint=OWNER_HINT))

    async def watch(self) -> None:
        """End, for ever, everything that runs with tokens that have expired."""
        while not self.authenticator.is_open:
            await self._clock.tick()
            self._end(self.authenticator.expired(), Unauthenticated("the token expired", hint=OWNER_HINT))

    async def answer(self, method: str, behaviour: Behaviour, request: object, context: Context) -> object:
        """Let `behaviour` answer a call if its caller may make it. The token is checked again: it may have been revoked while the
        request came in."""
        identity = self.admit(method, credentials_of(context))
        IDENTITY.set(identity)  # gRPC runs every call in a task of its own
        return await self.run(identity, behaviour(request, context))

    def admit(self, method: str, credentials: Credentials) -> Identity:
        """Return the caller's identity. Raise `Unauthenticated` for an unknown caller, `PermissionDenied` for one that may not make this
        call."""
        identity = self.authenticator.identify(credentials)
        scope = REQUIRED.get(method)
        if scope is not None:
            identity.require(scope)
        elif not self.authenticator.is_open:
            raise PermissionDenied(f"{method} is answered on the server's own machine only", hint="no token has a scope for it")
        return identity

    async def run(self, identity: Identity, answering: Awaitable[Answer]) -> Answer:
        """Wait for the answer to a caller. Raise `Unauthenticated` when its token expires or is revoked meanwhile, and cancel the work."""
        call = _Call(identity)
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
        """The timeout that ends the call; it has no time until then. `asyncio.timeout` is used because it is faster than a scope of
        anyio's."""
        self.error: NearfarError | None = None
        """The error that the call ends with."""

    def end(self, error: NearfarError) -> None:
        """End the call with `error`, unless it is ending already."""
        if self.error is None:
            self.error = error
            self.limit.reschedule(0)
