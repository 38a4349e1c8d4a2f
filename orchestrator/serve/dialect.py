"""The part that differs between the APIs: a dialect translates a body into a turn to ask for, and a turn into JSON or events.

All share how a request names its conversation, and the facts about an answer: response headers, and the object `nearfar` in the body.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Final

import orjson

from ...protocols import Message, NearfarError, ToolChoice, ToolSpec
from ..compose.hub import CallerConfig
from ..hybrid import Hybrid
from ..hybrid.arguments import TurnOptions
from ..task.events import Speaker, Turn
from ..task.results import SideUsage
from ..util.text import digest
from .callers import RequestOptions, read_options, turn_options
from .requests import Body

COMMENT: Final = b": wait\n\n"
"""A line of server-sent events that clients skip."""
_LONGEST: Final = 100
"""Characters of a name that is kept as it is; of a longer one, the hash is."""
_HEADERS: Final = ("x-nearfar-session", "session-id", "thread-id", "x-claude-code-session-id")
"""Headers that name a conversation: Nearfar's own, Codex', and Claude Code's."""


def session_of(headers: Mapping[str, str], body: Mapping[str, Any], *, chain: str = "", opening: object = None) -> str:
    """Return the name of a request's conversation.

    Args:
        headers: of the request.
        body: of the request.
        chain: name of the conversation of `previous_response_id`; empty: there is none.
        opening: system message and first message of the user, by whose hash a conversation is known that has no name.
    """
    named = _named(headers, body, chain)
    return f"opening-{digest(opening)[:32]}" if named is None else named if len(named) <= _LONGEST else f"name-{digest(named)[:32]}"


def _named(headers: Mapping[str, str], body: Mapping[str, Any], chain: str) -> str | None:
    keys = [*(headers.get(name) for name in _HEADERS), body.get("prompt_cache_key"), chain, _user_id(body.get("metadata"))]
    return next((key for key in keys if isinstance(key, str) and key), None)


def _user_id(metadata: object) -> object:
    """Return the conversation in Anthropic's `metadata.user_id`: Claude Code writes JSON into it, in which `session_id` names it."""
    user = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    try:
        read = orjson.loads(user) if isinstance(user, str) else None
    except orjson.JSONDecodeError:
        return user
    return read.get("session_id", user) if isinstance(read, dict) else user


SCHEMA: Final = 1
"""Version of the headers and of the object."""
_MOST_WARNINGS: Final = 30


def common_headers(run: str, strategy: str, warnings: Sequence[str]) -> dict[str, str]:
    """Return the headers of every response to a turn, whatever is known of it."""
    told = {"x-nearfar-warnings": ", ".join(dict.fromkeys(warnings[:_MOST_WARNINGS]))} if warnings else {}
    return {"x-nearfar-schema": str(SCHEMA), "x-nearfar-run": run, "x-nearfar-strategy": strategy, "x-request-id": run, **told}


def speaker_headers(speaker: Speaker) -> dict[str, str]:
    """Return the headers about the agent that answers."""
    told = {"side": speaker.side, "agent": speaker.agent, "model": speaker.model}
    return {f"x-nearfar-{name}": _as_header(str(value)) for name, value in told.items()}


def turn_headers(turn: Turn) -> dict[str, str]:
    """Return the headers about a turn that is over. What is not known is left out."""
    told: dict[str, object] = {"fallback": str(turn.result.was_fallback).lower(), "attempts": len(turn.result.attempts)}
    told |= {"confidence": _rounded(turn.confidence), "cost": _plain(turn.dollars)}
    told["saved"] = None if turn.saved is None else f"{_plain(turn.saved)};estimated"
    return {f"x-nearfar-{name}": str(value) for name, value in told.items() if value is not None}


def turn_object(turn: Turn, warnings: Sequence[str], *, debug: bool = False) -> dict[str, Any]:
    """Return the object `nearfar` of a turn. What is not known is null. `debug` adds all attempts, calls and reasons."""
    result = turn.result
    told: dict[str, Any] = {
        "schema": SCHEMA,
        "run": turn.id,
        "strategy": str(result.decision.strategy),
        "side": str(turn.side),
        "agent": turn.agent,
        "model": turn.model,
        "fallback": result.was_fallback,
        "attempts": len(result.attempts),
        "confidence": _rounded(turn.confidence),
        "cost": None if turn.dollars is None else float(turn.dollars),
        "saved_estimated": None if turn.saved is None else float(turn.saved),
        "tokens": {"near": _tokens(result.near), "far": _tokens(result.far)},
        "warnings": list(dict.fromkeys(warnings)),
    }
    return told | _details(turn) if debug else told


def _details(turn: Turn) -> dict[str, Any]:
    result = turn.result
    told = {"attempts": result.attempts, "calls": result.calls}
    details = {name: [each.model_dump(mode="json") for each in values] for name, values in told.items()}
    return {"debug": {**details, "reasons": list(result.reasons)}}


def _tokens(side: SideUsage) -> dict[str, int]:
    return {"input": side.usage.input_tokens, "output": side.usage.output_tokens}


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def _plain(dollars: Decimal | None) -> str | None:
    return None if dollars is None else f"{dollars:f}"


def _as_header(text: str) -> str:
    """Return a text as far as it fits into a header."""
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A request of a caller who is known, read."""

    run: str
    """Id of the run that serves it, of which the ids of responses are made."""
    hybrid: Hybrid
    caller: str
    """Name of the caller."""
    allowed: CallerConfig
    """The caller's rights."""
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: Mapping[str, Any]

    def options(self, *, chain: str = "", opening: object = None) -> tuple[TurnOptions, RequestOptions, list[str]]:
        """Return the options of the turn, those that the request states, and warnings. Raise what `turn_options` raises, and `BadField`.

        Args:
            chain: name of the conversation that it continues by a kept response; empty: it continues none.
            opening: how the conversation begins, by which it is known if it has no name.
        """
        asked, warnings = read_options(self.headers, self.body)
        options = turn_options(self.hybrid, self.caller, self.allowed, self.body.get("model"), asked)
        session = asked.session or session_of(self.headers, self.body, chain=chain, opening=opening)
        return options | {"session": session, "idempotency_key": self.run}, asked, warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedOfTurn:
    """The turn that a request asks for."""

    prompt: Sequence[Message | Mapping[str, Any]]
    options: TurnOptions
    tools: Sequence[ToolSpec | Mapping[str, Any]] = ()
    tool_choice: str = ToolChoice.AUTO
    stream: bool = False
    """Answer with events as they come."""
    debug: bool = False
    """Tell everything in the object `nearfar`."""
    warnings: Sequence[str] = ()
    """The parts of the request that have no effect, as `warning` writes them."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Values that the dialect itself needs again to write the response."""


class Encoder(ABC):
    """Writes one turn as the bytes of server-sent events."""

    sign: ClassVar[bytes] = COMMENT
    """Tells a client that waits that the server is there."""

    @abstractmethod
    def begin(self, speaker: Speaker) -> bytes:
        """Return the events before the first piece of text, or before `finish` if there is none. `speaker` is the agent that answers."""

    @abstractmethod
    def text(self, piece: str) -> bytes:
        """Return the events of a piece of text."""

    @abstractmethod
    def finish(self, turn: Turn) -> bytes:
        """Return the events of the turn's calls, and those at the end."""

    @abstractmethod
    def fail(self, error: NearfarError) -> bytes:
        """Return the events that end a stream with an `error`, before or after `begin`."""


class TurnDialect(ABC):
    """One endpoint that answers with turns."""

    error_body: Body
    """Makes the JSON body of an error."""

    @abstractmethod
    async def read(self, incoming: Incoming) -> AskedOfTurn:
        """Return the turn that a request asks for. Raise `BadField`, or any `NearfarError`, for what cannot be served."""

    @abstractmethod
    def whole(self, incoming: Incoming, asked: AskedOfTurn, turn: Turn) -> Mapping[str, Any]:
        """Return the JSON of a response that is not streamed."""

    @abstractmethod
    def encoder(self, incoming: Incoming, asked: AskedOfTurn) -> Encoder:
        """Return the writer of a response that is streamed."""

    async def keep(  # noqa: B027 - most dialects keep nothing
        self, incoming: Incoming, asked: AskedOfTurn, turn: Turn, written: Encoder | Mapping[str, Any]
    ) -> None:
        """Keep a complete response to a `turn`, in the form in which it was written. Called before its client reads the end of it."""


def event(data: bytes, *, name: str = "") -> bytes:
    """Return one server-sent event with JSON `data`, of a type with this `name` if it has any."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data) if name else b"data: %s\n\n" % data
