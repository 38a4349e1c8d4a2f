"""The gateway: far agents behind one gRPC address, with the provider keys and a log line for every step."""

import json
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio

from ..protocols import Agent, AgentCard, ConfigError, Finished, InternalError, NearfarError, StepEvent, StepRequest, Usage, stream
from ..protocols.security import IDENTITY
from ..protocols.server import Retention, Server, ServerTls, serve
from ..protocols.token_file import CALLER_NAME
from ..protocols.tokens import Tokens, token_records
from .admission import Admission, GatewayLimits, admissions

_logger = logging.getLogger(__name__)


@asynccontextmanager
async def serve_gateway(
    agents: Mapping[str, Agent],
    address: str = "localhost:0",
    *,
    tokens: Tokens | None = None,
    tls: ServerTls | None = None,
    insecure: bool = False,
    retention: Retention | None = None,
    limits: GatewayLimits | None = None,
) -> AsyncIterator[Server]:
    """Serve `agents` by name, as `protocols.server.serve` does, with one log line per step; see `AccountedAgent`.

    `limits` applies to each caller; every agent's turns are shared equally among the waiting callers, as many at a time as its card
    says. `tokens` maps each caller's name to its bearer token, or holds the records of a token file. The agents stay open: the caller
    closes them.

    Raise `ConfigError` if the address is malformed, taken or too exposed.
    """
    admission = admissions(limits or GatewayLimits(), {name: agent.card.limits.concurrency for name, agent in agents.items()})
    accounted = {name: AccountedAgent(agent, name=name, admission=admission[name]) for name, agent in agents.items()}
    async with serve(accounted, address, tokens=tokens, tls=tls, insecure=insecure, retention=retention) as server:
        yield server


class AccountedAgent:
    """An agent that writes one line of JSON per step to the log `nearfar.cloud.gateway`.

    Fields: caller, agent, model, outcome (a finish reason, an error's class or "cancelled"), input_tokens, output_tokens, cached_tokens,
    cache_write_tokens (null if the step failed, 0 if it was refused or left before its turn), dollars (a decimal string, or "unknown"),
    seconds. Never content, never a key.
    """

    def __init__(self, agent: Agent, *, name: str, admission: Admission) -> None:
        self._agent = agent
        self._name = name
        self._admission = admission

    @property
    def card(self) -> AgentCard:
        return self._agent.card

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        """Run the agent's step; write the log line when it ends, in any way."""
        began, outcome, finished, was_asked = anyio.current_time(), "cancelled", None, False
        try:
            async with self._admission.turn(IDENTITY.get().caller, request) as turn, stream(self._agent, request) as events:
                was_asked = True
                async for event in events:
                    if isinstance(event, Finished):
                        outcome, finished, turn.usage = event.reason.value, event, event.usage
                    yield event
        except NearfarError as error:
            outcome = type(error).__name__
            raise
        except Exception:  # a defect, which the caller of the step logs
            outcome = InternalError.__name__
            raise
        finally:
            self._write(outcome, finished, anyio.current_time() - began, was_asked=was_asked)

    async def aclose(self) -> None:
        await self._agent.aclose()

    def _write(self, outcome: str, finished: Finished | None, seconds: float, *, was_asked: bool) -> None:
        usage = (finished.usage if finished else None) if was_asked else Usage()
        prices = self.card.prices
        line = {
            "caller": IDENTITY.get().caller or "anonymous",
            "agent": self._name,
            "model": finished.model if finished else self.card.model,
            "outcome": outcome,
            "input_tokens": usage.input_tokens if usage else None,
            "output_tokens": usage.output_tokens if usage else None,
            "cached_tokens": usage.cached_tokens if usage else None,
            "cache_write_tokens": usage.cache_write_tokens if usage else None,
            "dollars": "0" if not was_asked else f"{prices.dollars(usage):f}" if prices and usage else "unknown",
            "seconds": round(seconds, 3),
        }
        _logger.info("%s", json.dumps(line))


TOKENS_VARIABLE = "NEARFAR_GATEWAY_TOKENS"
"""Bearer tokens of callers, as a simple alternative to a token file."""
_SHORTEST = 16
"""Minimum length, in characters, of a token chosen by a person."""


def environment_tokens() -> dict[str, str]:
    """Return the tokens in NEARFAR_GATEWAY_TOKENS (`laptop=token,phone=token`), by caller; empty if it is not set.

    Raise `ConfigError`, which names entries by position: a token may stand where the name should be.
    """
    pairs = [pair.partition("=") for pair in os.environ.get(TOKENS_VARIABLE, "").split(",") if pair.strip()]
    tokens = {caller.strip(): token.strip() for caller, _, token in pairs}
    if len(tokens) != len(pairs):
        raise ConfigError(f"{TOKENS_VARIABLE}: a caller is named twice", hint="give each caller one token")
    for position, (caller, token) in enumerate(tokens.items(), 1):
        if not CALLER_NAME.fullmatch(caller):
            raise ConfigError(f"{TOKENS_VARIABLE}: entry {position} does not begin with a caller's name", hint="write caller=token")
        if len(token) < _SHORTEST:
            raise ConfigError(f"{TOKENS_VARIABLE}: the token of entry {position} is too short", hint="use 64 random hex digits")
    token_records(tokens)
    return tokens
