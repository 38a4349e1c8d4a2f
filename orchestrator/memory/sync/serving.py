"""A store behind a gRPC address, for devices that synchronise without a hub."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ....protocols import PermissionDenied
from ....protocols.access import Access, Clock
from ....protocols.channel import ServerTls
from ....protocols.server import listening
from ....protocols.tokens import Tokens
from .. import validation
from .peer import Peer
from .service import SERVICE, Identify, MemoryService

if TYPE_CHECKING:
    from ..store import MemoryStore

_SHUTDOWN_LIMIT: Final = 5.0


@dataclass(frozen=True, slots=True)
class MemoryServer:
    """A store that is being served."""

    address: str
    """Where it really listens."""
    replace_tokens: Callable[[Tokens], None]
    """Let in the callers with these tokens and no others; raises as `protocols.server.Server.replace_tokens`."""


def peers_of(users: Mapping[str, str]) -> Identify:
    """Who calls: `users` tells whose device each caller is. Raises `ConfigError` for a user who cannot be called so."""
    for user in users.values():
        validation.check_user(user)

    def identify(name: str) -> Peer:
        if name not in users:
            hint = f'in nearfar.toml of the hub, then start it again: [hub.workers.{name or "NAME"}] user = "..."'
            raise PermissionDenied(f"the hub does not say whose device {name or 'a caller without a token'} is", hint=hint)
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

    `tokens` maps each caller's name to its bearer token, or is what a token file holds; `users` maps the name to the user whose device it
    is. Tokens expire by `clock`. Raises `ConfigError` as `protocols.serve` does.
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
