"""`/v1/models`, `/v1/embeddings` and `/v1/systemone`: the models that a caller may ask for, vectors of texts, and typed questions."""

import time
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from ...protocols import ModelNotFound, Unavailable, Usage
from ..agents import AgentHandle
from ..agents.breaker import BreakerState
from ..compose.hub import list_workers
from ..hybrid.arguments import TaskOptions, TurnOptions
from ..hybrid.hybrid import Hybrid
from ..task.events import Turn
from ..util.embedding import MAXIMUM_TOKENS, NAME, WIDTH, MiniLmEmbedder
from ..util.runtime import in_thread
from .callers import BY_POLICY, PREFIX, model_names
from .endpoint import Exchange
from .requests import BadField, UnsupportedField, field, ignored, warning

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


_MOST_QUESTIONS: Final = 32
_YES: Final = "yes"
_ROUTER: Final = "nearfar/router"
"""The model that has answered where only the router did."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One question, whatever its type, as a choice among labels."""

    kind: str
    instructions: str
    labels: Mapping[str, object]
    """The labels, with their meanings."""

    @property
    def prompt(self) -> str:
        meanings = [f"- {label}" + (f": {_text(meaning)}" if meaning is not None else "") for label, meaning in self.labels.items()]
        return "\n".join([self.instructions, "Answer with one of:", *meanings])

    @property
    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"answer": {"enum": list(self.labels)}},
            "required": ["answer"],
            "additionalProperties": False,
        }

    def answer(self, shares: Mapping[str, float]) -> dict[str, Any]:
        """Return the answer that the probabilities of the labels stand for."""
        best = max(shares, key=lambda label: shares[label])
        if self.kind == "noul":
            return {"type": "noul", "noul": shares[_YES]}
        if self.kind == "choice":
            return {"type": "choice", "choice": best, "probabilities": dict(shares), "confidence": shares[best]}
        score = sum(int(label) * share for label, share in shares.items())
        return {"type": "score", "score": score, "legend": self.labels, "probabilities": dict(shares), "confidence": shares[best]}


async def decide(exchange: Exchange) -> None:
    """Answer all questions of a request."""
    body = {"model": BY_POLICY, **exchange.body}
    exchange.body = body
    state = body.get("state")
    if not state:
        raise BadField("state is the text, object or list that the questions are about", param="state")
    questions = {name: _question(name, asked) for name, asked in field(body, "questions", dict, "an object", {}).items()}
    if not 0 < len(questions) <= _MOST_QUESTIONS:
        raise BadField(f"questions has 1 to {_MOST_QUESTIONS} entries", param="questions")
    options, _, _ = exchange.incoming.options(opening=_text(state))
    await exchange.reply(await exchange.while_connected(_answers(exchange, _text(state), questions, options)))


async def _answers(exchange: Exchange, state: str, questions: Mapping[str, _Asked], options: TurnOptions) -> dict[str, Any]:
    hybrid, usage, answers = exchange.face.hybrid, Usage(), dict[str, Any]()
    models: set[str] = set()
    agents = {handle.name for handle in hybrid.pool}
    for number, (name, asked) in enumerate(questions.items()):
        if asked.kind == "choice" and asked.labels.keys() <= agents:
            answers[name] = asked.answer(_routed(hybrid, state, list(asked.labels), options))
            continue
        own = options | {"output": asked.schema, "idempotency_key": f"{exchange.run}-{number}"}
        turn = await hybrid.turn(f"{state}\n\n{asked.prompt}", **own)
        answers[name] = asked.answer(_shares(name, asked, turn))
        usage, models = usage + turn.usage, models | {turn.model}
    tokens = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, "total_tokens": usage.total_tokens}
    return {"model": ", ".join(sorted(models)) or _ROUTER, "answers": answers, "usage": tokens, "request_id": exchange.run}


def _routed(hybrid: Hybrid, state: str, labels: Sequence[str], options: TurnOptions) -> dict[str, float]:
    """Return how likely each agent is the one to take, by the router's estimates of their success; 0 for those that may not have it."""
    decision = hybrid.explain_route(state, **cast(TaskOptions, options))
    likely = dict.fromkeys(labels, 0.0)
    for name in decision.candidates:
        estimate = decision.estimate_of(name)
        if name in likely:
            likely[name] = 1.0 if estimate is None else estimate.success.value
    total = sum(likely.values())
    if not total:
        raise BadField("none of these agents may have the task", param="questions", hint="; ".join(decision.reasons)[:500])
    return {name: share / total for name, share in likely.items()}


def _shares(name: str, asked: _Asked, turn: Turn) -> dict[str, float]:
    if turn.confidence is None:
        raise UnsupportedField(f"agent {turn.agent!r} does not say how sure it is", param=f"questions.{name}", hint="ask another model")
    chosen, others = turn.output["answer"], len(asked.labels) - 1
    rest = 0.0 if not others else (1 - turn.confidence) / others
    return {label: (turn.confidence if others else 1.0) if label == chosen else rest for label in asked.labels}


def _question(name: str, given: object) -> _Asked:
    where = f"questions.{name}"
    if not isinstance(given, dict) or given.get("type") not in ("choice", "score", "noul") or not given.get("instructions"):
        raise BadField("a question has instructions and a type: choice, score or noul", param=where)
    kind, criteria = given["type"], given.get("criteria")
    labels: Mapping[str, object] | None = None
    if kind == "noul":
        meanings = criteria if isinstance(criteria, dict) else {}
        labels = {_YES: meanings.get("true"), "no": meanings.get("false")}
    elif kind == "choice" and isinstance(criteria, dict):
        labels = criteria
    elif kind == "score" and isinstance(criteria, list) and len(criteria) > 1:
        labels = {str(level): meaning for level, meaning in enumerate(criteria)}
    if not labels:
        raise BadField("criteria are the labels of a choice, or the levels of a score", param=f"{where}.criteria")
    return _Asked(kind, _text(given["instructions"]), labels)


def _text(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
