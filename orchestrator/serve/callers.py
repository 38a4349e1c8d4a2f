"""The callers of the HTTP server: known by their tokens, kept within limits, and never a web page of another site.

Any page can make a browser send a request: one is refused by the names in `Host` (DNS rebinding) and `Origin`.
"""

import ipaddress
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import orjson
from starlette.datastructures import Headers
from starlette.types import ASGIApp

from ...protocols import PermissionDenied
from ...protocols.access import Access, CallerShares, FailedAttempts, Share, home_of
from ...protocols.limits import CALLS_OF_A_CALLER
from ...protocols.security import Identity
from ...protocols.tokens import Credentials, Scope
from .requests import Receive, Send, anthropic_error, openai_error
from .requests import Scope as Asgi
from .sse import encoded

ADMISSION_KEY: Final = "nearfar.admission"
"""Key of an ASGI scope under which the caller's `AdmittedCaller` stands, once its token was checked."""
_KEY: Final = "x-api-key"
"""Header in which Anthropic's clients send their key."""


@dataclass(frozen=True, slots=True)
class AdmittedCaller:
    """A caller, and the rules by which it was let in."""

    identity: Identity
    access: Access
    """Ends what runs with a token that is revoked or expires."""


class Callers:
    """Finds out who calls, by the rules of `access`, and what each has open."""

    def __init__(self, access: Access, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.access = access
        self._attempts = FailedAttempts(monotonic)
        self._shares = CallerShares()

    def identify(self, asgi: Asgi, headers: Mapping[str, str], needed: Scope) -> Identity:
        """Return the caller of a request.

        Raise `Unauthenticated` for a token that is missing, wrong or expired, `PermissionDenied` for one without the `needed` scope,
        `RateLimited` where too many wrong ones came from an address.
        """
        key = headers.get(_KEY)
        shown = headers.get("authorization") or ("" if key is None else f"Bearer {key}")
        home = home_of(_peer(asgi.get("client")))

        def find() -> Identity:
            return self.access.authenticator.identify(Credentials(shown))

        identity = find() if home is None or not shown else self._attempts.identify(home, shown, find)
        identity.require(needed)
        return identity

    def call(self, identity: Identity) -> Share:
        """Return the share of a caller, to count a request while it is served. Raise `RateLimited` if too many are."""
        return self._shares.call(("caller", identity.caller), CALLS_OF_A_CALLER)


def _peer(client: tuple[str, int] | None) -> str:
    """Return the other end as gRPC writes it."""
    if client is None:
        return ""
    host, port = client
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


_LOCAL: Final = "localhost"
_ANTHROPIC: Final = "/v1/messages"


class OriginCheck:
    """Lets requests through that name this server, and come from a program or from a page of an allowed origin.

    Args:
        app: serves what is let through.
        hosts: names of the server. A page that has rebound its own name cannot use them, nor an address.
        origins: origins whose pages may call, in addition to those that this server serves itself.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], origins: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset({_LOCAL, *(host.lower() for host in hosts)})
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    async def __call__(self, scope: Asgi, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (problem := self._problem(Headers(scope=scope), scope["scheme"])):
            await _refuse(scope, send, PermissionDenied(problem, hint="[serve] hosts and origins of nearfar.toml name those that may call"))
        else:
            await self._app(scope, receive, send)

    def _problem(self, headers: Headers, scheme: str) -> str:
        host, *others = headers.getlist("host") or [""]
        if others:
            return "a request must name one host"
        name = _host_name(host)
        if name not in self._hosts and not _is_address(name):
            return f"this server is not called {name[:100]!r}"
        known = (*self._origins, f"{scheme}://{host}".lower())
        strange = next((origin for origin in headers.getlist("origin") if origin.lower() not in known), None)
        return "" if strange is None else f"pages of {strange[:100]!r} may not call this server"


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _refuse(scope: Asgi, send: Send, error: PermissionDenied) -> None:
    body = orjson.dumps(anthropic_error(error, "") if scope["path"].startswith(_ANTHROPIC) else openai_error(error))
    headers = encoded({"content-type": "application/json", "content-length": str(len(body)), "connection": "close"})
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
