"""Refuse requests that a web page made a browser send: by the names in `Host` (DNS rebinding) and `Origin`."""

import ipaddress
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

import orjson
from starlette.datastructures import Headers
from starlette.types import ASGIApp

from ...protocols import PermissionDenied
from .errors import anthropic_error, openai_error
from .requests import Receive, Scope, Send
from .sse import encoded

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (problem := self._problem(Headers(scope=scope), scope["scheme"])):
            await _refuse(scope, send, PermissionDenied(problem, hint="[serve] hosts and origins of nearfar.toml name those that may call"))
        else:
            await self._app(scope, receive, send)

    def _problem(self, headers: Headers, scheme: str) -> str:
        host = headers.get("host", "")
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


async def _refuse(scope: Scope, send: Send, error: PermissionDenied) -> None:
    body = orjson.dumps(anthropic_error(error, "") if scope["path"].startswith(_ANTHROPIC) else openai_error(error))
    headers = encoded({"content-type": "application/json", "content-length": str(len(body)), "connection": "close"})
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
