"""The ASGI app: which path is served by what."""

from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...protocols import NotFound
from ...protocols.access import Access
from ...protocols.address import parse_address
from ...protocols.tokens import Scope
from ..compose.http import ServeConfig
from ..hybrid.hybrid import Hybrid
from .agui import answer_agui
from .callers import Callers
from .chat import Chat
from .endpoint import Endpoint, Exchange, Face, turn_endpoint
from .models import list_models, tell_model
from .origin import OriginCheck

_METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
_TOLD: Final = ("x-nearfar-run", "x-nearfar-side", "x-nearfar-agent", "x-nearfar-model", "x-nearfar-cost", "x-request-id", "retry-after")
"""Headers that pages of allowed origins may read."""


def make_app(hybrid: Hybrid, config: ServeConfig, access: Access) -> Starlette:
    """Return the app that has a `hybrid` serve the callers whom `access` lets in. The `hybrid` stays open, and is closed by its owner."""
    face = Face(hybrid, config, Callers(access))
    hosts = (*config.hosts, parse_address(config.address).host or "")
    guards = [Middleware(OriginCheck, hosts=hosts, origins=config.origins)]
    if config.origins:
        anything = ["*"]
        pages = Middleware(
            CORSMiddleware, allow_origins=config.origins, allow_methods=anything, allow_headers=anything, expose_headers=_TOLD
        )
        guards.append(pages)
    return Starlette(routes=[*_routes(face), Route("/{path:path}", Endpoint(face, _unknown, methods=_ANY))], middleware=guards)


_ANY: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def _routes(face: Face) -> list[BaseRoute]:
    _ = face.hybrid.metrics  # tasks are counted from here on
    return [
        Route("/", _alive, methods=["GET", "HEAD"]),
        Route("/health", _alive, methods=["GET", "HEAD"]),
        Route("/metrics", Endpoint(face, _metrics, methods=("GET",), needed=Scope.METRICS)),
        Route("/v1/models", Endpoint(face, list_models, methods=("GET",))),
        Route("/v1/models/{model:path}", Endpoint(face, tell_model, methods=("GET",))),
        Route("/v1/chat/completions", turn_endpoint(face, Chat())),
        Route("/agui", Endpoint(face, answer_agui)),
    ]


async def _alive(_request: Request) -> Response:
    return Response(b'{"status":"ok"}', media_type="application/json")


async def _metrics(exchange: Exchange) -> None:
    text = await exchange.face.hybrid.metrics.text()
    await exchange.reply(text.encode(), headers={"content-type": _METRICS})


async def _unknown(exchange: Exchange) -> None:
    raise NotFound(f"there is no {exchange.scope['path']}", hint="see docs/serve.md")
