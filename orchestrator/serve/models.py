"""`GET /v1/models`: the models that a caller may ask for and that are there now, in OpenAI's shape or Anthropic's."""

import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ...protocols import ModelNotFound, Unavailable
from ..agents.breaker import BreakerState
from ..agents.pool import AgentHandle
from ..compose.hub import list_workers
from ..hybrid.hybrid import Hybrid
from .endpoint import Exchange
from .options import PREFIX, model_names

_STARTED: Final = int(time.time())
"""Time at which the models were made, as far as clients are told: no later than they ask."""


async def list_models(exchange: Exchange) -> None:
    """Answer with all models."""
    names = await _present(exchange)
    models = [_model(exchange, name) for name in names]
    if _is_anthropic(exchange):
        ends = {"first_id": names[0], "last_id": names[-1]} if names else {"first_id": None, "last_id": None}
        await exchange.reply({"data": models, "has_more": False, **ends})
    else:
        await exchange.reply({"object": "list", "data": models})


async def tell_model(exchange: Exchange) -> None:
    """Answer with one model."""
    name = exchange.scope["path_params"]["model"]
    if name not in await _present(exchange):
        raise ModelNotFound(f"there is no model {name!r}", hint="GET /v1/models lists them")
    await exchange.reply(_model(exchange, name))


def _is_anthropic(exchange: Exchange) -> bool:
    return "anthropic-version" in exchange.headers


async def _present(exchange: Exchange) -> list[str]:
    hybrid, allowed = exchange.face.hybrid, exchange.face.config.caller(exchange.caller)
    absent = await _absent(hybrid)
    return [name for name in model_names(hybrid, allowed) if name not in absent]


async def _absent(hybrid: Hybrid) -> set[str]:
    """Return the agents that cannot be reached now: those with an open circuit breaker, and those whose device is not attached."""
    lost = {handle.name for handle in hybrid.pool if handle.health.state is BreakerState.OPEN}
    there: set[tuple[Path, str]] = set()
    for socket in {agent.socket for agent in hybrid.attached.values()}:
        with suppress(Unavailable):  # then none of its workers is there
            there |= {(socket, worker.name) for worker in await list_workers(socket) if worker.is_attached}
    return lost | {name for name, agent in hybrid.attached.items() if (agent.socket, agent.worker) not in there}


def _model(exchange: Exchange, name: str) -> dict[str, Any]:
    pool = exchange.face.hybrid.pool
    handles = list(pool) if name.startswith(PREFIX) else [pool[name]]
    window = _window(handles)
    if _is_anthropic(exchange):
        made = datetime.fromtimestamp(_STARTED, UTC).isoformat().replace("+00:00", "Z")
        told = {"type": "model", "id": name, "display_name": name, "created_at": made, "lifecycle": "active"}
        return {**told, "max_input_tokens": window}
    return {"id": name, "object": "model", "created": _STARTED, "owned_by": "nearfar", "context_length": window}


def _window(handles: Iterable[AgentHandle]) -> int | None:
    """Return the largest context window among agents that are open; None if none is known."""
    known = [handle.card.limits.context_tokens for handle in handles if handle.card is not None]
    return max((tokens for tokens in known if tokens is not None), default=None)
