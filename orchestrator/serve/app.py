"""The ASGI app: which path is served by what."""

from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...protocols import ConfigError, NotFound
from ...protocols.access import Access
from ...protocols.address import parse_address
from ...protocols.security import Scope
from ..compose.hub import ServeConfig
from ..hybrid.hybrid import Hybrid
from ..runs.sessions import KeptResponses
from ..runs.store import RunStore
from ..tracing.observing import CONTENT_TYPE
from .agui import answer_agui
from .callers import Callers, OriginCheck
from .chat import Chat
from .endpoint import Endpoint, Exchange, Face, turn_endpoint
from .mcp_http import PATH, McpMount, TokenGate
from .messages import Messages
from .models import decide, embed, list_models, tell_model
from .requests import anthropic_error
from .responses import Responses

_TOLD: Final = (
    *("x-nearfar-run", "x-nearfar-side", "x-nearfar-agent", "x-nearfar-model", "x-nearfar-cost"),
    *("x-request-id", "retry-after", "mcp-session-id"),
)
"""Headers that pages of allowed origins may read."""


def make_app(hybrid: Hybrid, config: ServeConfig, access: Access, mcp: McpMount | None) -> Starlette:
    """Return the app that has a `hybrid` serve the callers whom `access` lets in. The `hybrid` stays open, and is closed by its owner.

    `mcp`: the MCP server; None: its package is not installed.
    """
    face = Face(hybrid, config, Callers(access))
    hosts = (*config.hosts, parse_address(config.address).host or "")
    guards = [Middleware(OriginCheck, hosts=hosts, origins=config.origins)]
    if config.origins:
        anything = ["*"]
        pages = Middleware(
            CORSMiddleware, allow_origins=config.origins, allow_methods=anything, allow_headers=anything, expose_headers=_TOLD
        )
        guards.append(pages)
    mounted = Endpoint(face, _no_mcp, methods=_ANY) if mcp is None else TokenGate(mcp, face.callers)
    others = [Route(PATH, mounted), Route("/{path:path}", Endpoint(face, _unknown, methods=_ANY))]
    return Starlette(routes=[*_routes(face), *others], middleware=guards)


_ANY: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def _routes(face: Face) -> list[BaseRoute]:
    _ = face.hybrid.metrics  # tasks are counted from here on
    messages = Messages()
    return [
        Route("/", _alive, methods=["GET", "HEAD"]),
        Route("/health", _alive, methods=["GET", "HEAD"]),
        Route("/metrics", Endpoint(face, _metrics, methods=("GET",), needed=Scope.METRICS)),
        Route("/v1/models", Endpoint(face, list_models, methods=("GET",))),
        Route("/v1/models/{model:path}", Endpoint(face, tell_model, methods=("GET",))),
        Route("/v1/chat/completions", turn_endpoint(face, Chat())),
        Route("/v1/embeddings", Endpoint(face, embed)),
        Route("/v1/systemone", Endpoint(face, decide)),
        *_responses(face),
        Route("/v1/messages", turn_endpoint(face, messages)),
        Route("/v1/messages/count_tokens", Endpoint(face, messages.count, error_body=anthropic_error)),
        Route("/agui", Endpoint(face, answer_agui)),
    ]


def _responses(face: Face) -> list[BaseRoute]:
    responses = Responses(KeptResponses(_run_store(face.hybrid)))
    one = "/v1/responses/{response}"
    return [
        Route("/v1/responses", turn_endpoint(face, responses)),
        Route("/v1/responses/input_tokens", Endpoint(face, responses.count)),
        Route(one, Endpoint(face, responses.show, methods=("GET", "DELETE"))),
        Route(f"{one}/cancel", Endpoint(face, responses.cancel)),
        Route(f"{one}/input_items", Endpoint(face, responses.items, methods=("GET",))),
    ]


def _run_store(hybrid: Hybrid) -> RunStore | None:
    """Return the store of the runs; None where none are kept."""
    try:
        return hybrid.runs
    except ConfigError:
        return None


async def _alive(_request: Request) -> Response:
    return Response(b'{"status":"ok"}', media_type="application/json")


async def _metrics(exchange: Exchange) -> None:
    text = await exchange.face.hybrid.metrics.text()
    await exchange.reply(text.encode(), headers={"content-type": CONTENT_TYPE})


async def _no_mcp(exchange: Exchange) -> None:
    raise NotFound("MCP is not served here", hint="pip install 'nearfar[mcp]'")


async def _unknown(exchange: Exchange) -> None:
    raise NotFound(f"there is no {exchange.scope['path']}", hint="docs/interoperate.md lists the paths")
