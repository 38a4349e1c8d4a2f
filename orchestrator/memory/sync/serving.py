"""A store behind a gRPC address, for devices that synchronise without a hub."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from ....protocols import PermissionDenied
from ....protocols.channel import ServerTls
from ....protocols.credentials import Credentials
from ....protocols.security import Authenticator
from ....protocols.server import listening
from .peer import Peer
from .service import SERVICE, Identify, MemoryService

if TYPE_CHECKING:
    from ..store import MemoryStore

_SHUTDOWN_LIMIT: Final = 5.0


def identified(caller: Callable[[Credentials], str], users: Mapping[str, str]) -> Identify:
    """Who calls: `caller` tells the name that a call's token belongs to, `users` whose device that is."""

    def identify(credentials: Credentials) -> Peer:
        name = caller(credentials)
        if name not in users:
            raise PermissionDenied(f"{name or 'a caller without a token'} has no part in this memory", hint="say whose device it is")
        return Peer(name, users[name])

    return identify


@asynccontextmanager
async def serve_memory(
    store: "MemoryStore",
    address: str,
    *,
    tokens: Mapping[str, str],
    users: Mapping[str, str],
    tls: ServerTls | None = None,
    insecure: bool = False,
    is_hub: bool = False,
) -> AsyncIterator[str]:
    """Serve a store until the context ends; yields where it really listens.

    `tokens` maps each caller's name to its bearer token and `users` to the user whose device it is. Raises `ConfigError` as
    `protocols.serve` does.
    """
    authenticator = Authenticator(tokens)
    service = MemoryService(store, identified(authenticator.caller, users), is_hub=is_hub)
    serving = listening(
        {SERVICE: service.handlers()},
        address,
        authenticator=authenticator,
        tls=tls,
        insecure=insecure,
        closing=service.close,
        time_limit=_SHUTDOWN_LIMIT,
    )
    async with serving as bound:
        yield str(bound)
