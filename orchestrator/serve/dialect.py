"""The part that differs between the APIs: a dialect translates a body into a turn to ask for, and a turn into JSON or events."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...protocols import Message, NearfarError, ToolChoice, ToolSpec
from ..compose.http import CallerConfig
from ..hybrid.arguments import TurnOptions
from ..hybrid.hybrid import Hybrid
from ..task.turns import Speaker, Turn
from .errors import Body
from .options import RequestOptions, read_options, turn_options
from .sessions import session_of
from .sse import COMMENT


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
