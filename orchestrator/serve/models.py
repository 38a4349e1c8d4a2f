"""`/v1/models` and `/v1/embeddings`: the models that a caller may ask for and that are there now, and the device's own embedding model."""

import time
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...protocols import ModelNotFound, Unavailable
from ..agents.breaker import BreakerState
from ..agents.pool import AgentHandle
from ..compose.hub import list_workers
from ..hybrid.hybrid import Hybrid
from ..util.embedding import MAXIMUM_TOKENS, NAME, WIDTH, MiniLmEmbedder
from ..util.runtime import in_thread
from .endpoint import Exchange
from .errors import BadField
from .options import PREFIX, model_names
from .requests import field, ignored, warning

if TYPE_CHECKING:
    from ..util.embedding import Vector

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


_MODELS: Final = (f"{PREFIX}embedding", NAME)
_READ: Final = frozenset({"model", "input", "dimensions", "encoding_format"})
_MOST_TEXTS: Final = 2048


async def embed(exchange: Exchange) -> None:
    """Answer with a vector for each text."""
    body = exchange.body
    if body.get("model") not in _MODELS:
        raise ModelNotFound(f"there is no model {body.get('model')!r} for embeddings", hint=f"use {_MODELS[0]}")
    texts = _texts(body)
    width = field(body, "dimensions", int, "a number", WIDTH)
    if not 1 <= width <= WIDTH:
        raise BadField(f"dimensions is 1 to {WIDTH}", param="dimensions")
    form = field(body, "encoding_format", str, "float or base64", "float")
    if form not in ("float", "base64"):
        raise BadField("encoding_format is float or base64", param="encoding_format")
    vectors, tokens = await exchange.while_connected(in_thread(_embedded, texts))
    data = [{"object": "embedding", "index": index, "embedding": _written(vector, width, form)} for index, vector in enumerate(vectors)]
    warnings = [*ignored(body, _READ), *([warning("shortened", "dimensions")] if width < WIDTH else [])]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    headers = {"x-nearfar-warnings": ", ".join(warnings)} if warnings else {}
    await exchange.reply({"object": "list", "data": data, "model": NAME, "usage": usage}, headers=headers)


def _texts(body: Mapping[str, Any]) -> list[str]:
    given = body.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise BadField("input is a text or a list of texts, none of them empty", param="input", hint="tokens are not read")
    if not 0 < len(texts) <= _MOST_TEXTS:
        raise BadField(f"input has 1 to {_MOST_TEXTS} texts", param="input")
    return texts


@cache
def _embedder() -> MiniLmEmbedder:
    return MiniLmEmbedder()


def _embedded(texts: Sequence[str]) -> "tuple[list[Vector], int]":
    """Return the vectors, and the number of tokens that were read for them."""
    embedder = _embedder()
    return [embedder.embed(text) for text in texts], sum(len(embedder.tokens(text, MAXIMUM_TOKENS)) for text in texts)


def _written(vector: "Vector", width: int, form: str) -> list[float] | str:
    """Return the first components of a vector, made a unit vector again."""
    import numpy

    short = vector[:width] / numpy.linalg.norm(vector[:width])
    return b64encode(short.astype("<f4").tobytes()).decode() if form == "base64" else [float(value) for value in short]
