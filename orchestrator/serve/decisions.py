"""`POST /v1/systemone`: typed questions about a state, answered with probabilities.

A choice among agents is the router's own, which asks no model. Any other question goes to an agent as a turn whose output is one of the
labels, and the agent's confidence is the probability of that label.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson

from ...protocols import Usage
from ..hybrid.arguments import TaskOptions, TurnOptions
from ..hybrid.hybrid import Hybrid
from ..task.turns import Turn
from .endpoint import Exchange
from .errors import BadField, UnsupportedField
from .options import BY_POLICY
from .requests import field

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
