"""The outbound filter: check one request on its way to an agent, log it, and check the reply."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import takewhile
from typing import Final

from ...protocols import Message, PrivacyViolation, Side, StepReply, StepRequest, StoreError
from ...protocols.redact import inspected_by
from ...protocols.wire import request_to_proto
from ..agents.pool import AgentHandle
from ..task.labels import Label
from ..task.scope import current_scope, scope
from ..util.threads import in_thread
from .known_secrets import Needles
from .placeholders import Placeholders, texts_in, texts_of
from .privacy_records import Departure, Outcome, RunRecords

_EXECUTOR: Final = "execute"


class OwnWords:
    """Messages that the far agents of one run have written.

    Args:
        begun: number of messages of the task, which the conversation begins with.
    """

    def __init__(self, begun: int) -> None:
        self._begun = begun
        self._written: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
        """Texts of each message, by agent."""

    def add(self, member: AgentHandle, reply: StepReply) -> None:
        """Record a reply."""
        if member.side is Side.FAR:
            self._written[member.name].add(tuple(texts_of([reply.message])))

    def positions(self, member: AgentHandle, messages: Sequence[Message], role: str) -> frozenset[int]:
        """Return the positions of the agent's own messages in a conversation.

        An executor has written all since the user's last message, even if that was in another process.
        """
        since = len(messages) - len(list(takewhile(lambda message: message.role != "user", reversed(messages))))
        begin = max(since, self._begun) if role == _EXECUTOR else len(messages)
        written = self._written[member.name]
        said = ((position, message) for position, message in enumerate(messages) if message.role == "assistant")
        return frozenset(position for position, message in said if position >= begin or tuple(texts_of([message])) in written)


Listener = Callable[[str], None]
"""Takes each piece of an agent's text as it streams."""
_LONGEST_PLACEHOLDER: Final = 64
"""Characters of a placeholder; what is longer is none."""


class OpenedText:
    """Passes pieces of text on up to the first placeholder. The rest waits for the end of the text.

    Later words decide what earlier ones are: `[x]: https://...` at the end makes an address of a label at the beginning.

    Args:
        before: returns what was displayed in front of this text.
        in_json: the text is JSON, whose strings cannot be told apart before it ends.
    """

    def __init__(self, placeholders: Placeholders, listener: Listener, *, before: Callable[[], str] = str, in_json: bool = False) -> None:
        self._placeholders = placeholders
        self._listener = listener
        self._before = before
        self._in_json = in_json
        self._passed = ""
        self._held = ""
        self._is_holding = False
        """A placeholder has come."""

    def __call__(self, piece: str) -> None:
        if not len(self._placeholders):
            self._passed += piece
            self._listener(piece)
            return
        text = self._held + piece
        cut = 0 if self._is_holding or self._in_json else self._plain(text)
        self._held = text[cut:]
        if cut:
            self._passed += text[:cut]
            self._listener(text[:cut])

    def close(self) -> None:
        """End the text: pass the rest on, with placeholders filled in."""
        if self._held:
            before = self._before() + self._passed
            self._listener(self._placeholders.shown(self._held, in_json=self._in_json, before=before))
        self._held = ""

    def _plain(self, text: str) -> int:
        """Return how much of the text can be passed on: up to a placeholder, or what may become one."""
        first = self._placeholders.first_in(text)
        if first is not None:
            self._is_holding = True
            return first
        begin = text.rfind("<")
        is_open = begin >= 0 and ">" not in text[begin:] and len(text) - begin < _LONGEST_PLACEHOLDER
        return begin if is_open else len(text)


logger = logging.getLogger(__name__)


def unrecorded(member: AgentHandle, error: StoreError) -> PrivacyViolation:
    """Return the error for a message that cannot be logged, and so is not sent."""
    return PrivacyViolation(f"the message to {member.name} could not be recorded: {error.message}", hint=error.hint)


class Departing:
    """A request as an agent gets it, with the checks of the request and its reply."""

    def __init__(
        self,
        request: StepRequest,
        member: AgentHandle,
        label: Label,
        role: str,
        *,
        needles: Needles,
        placeholders: Placeholders,
        records: RunRecords | None,
        own: OwnWords,
    ) -> None:
        self.request = request
        self._member = member
        self._label = label
        self._role = role
        self._needles = needles
        self._placeholders = placeholders
        self._records = records
        self._own = own
        self._number: int | None = None
        """Number of the message in the outbound log."""

    async def leave(self, reason: str, findings: Mapping[str, int]) -> None:
        """Check the final message for known secrets, and log that it leaves.

        Raises `PrivacyViolation` if it holds one, or if the log cannot be written.
        """
        message = request_to_proto(self.request).SerializeToString()
        try:
            self._inspect(message)
            self._inspect("".join(texts_of(self.request.messages)).encode(errors="ignore"))  # what is cut up between messages, too
        except PrivacyViolation as error:
            await self.hold(error.message, findings)
            raise
        await self.record(reason, findings)

    async def record(self, reason: str, findings: Mapping[str, int]) -> None:
        """Log that the message leaves. Raises `PrivacyViolation` if the log cannot be written."""
        try:
            self._number = await self._note("left", reason, findings)
        except StoreError as error:
            raise unrecorded(self._member, error) from error

    async def hold(self, reason: str, findings: Mapping[str, int]) -> None:
        """Log that the message is held back."""
        try:
            await self._note("held", reason, findings)
        except StoreError as error:  # it does not leave, whether that is on record or not
            logger.warning("a held back message could not be logged: %s", error)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Check the bytes that go to another process within the block, and keep a request with placeholders out of caches: placeholders
        mean
        something in this run only.
        """
        known = current_scope()
        with scope(replace(known, caching="no-store") if self._names else known):
            if self._member.side is Side.NEAR:
                yield
            else:
                with inspected_by(self._inspect):
                    yield

    def listener(self, listener: Listener) -> OpenedText:
        """Return a listener that passes the streamed reply on with placeholders filled in."""
        in_json = self.request.output_schema is not None
        before: Callable[[], str] = str if in_json else partial(_said_before, self.request)
        return OpenedText(self._placeholders, listener, before=before, in_json=in_json)

    async def accepted(self, reply: StepReply) -> StepReply:
        """Return the reply. Raises `InvalidOutput` if it holds an unknown placeholder."""
        self._own.add(self._member, reply)
        for text in (reply.text, *(text for call in reply.tool_calls for text in texts_in(call.arguments))):
            self._placeholders.check(text)
        if reply.finished.saved is not None and self._number is not None and self._records is not None:
            await in_thread(self._records.was_cached, self._number)
        return reply

    @property
    def _names(self) -> tuple[str, ...]:
        """Names of the placeholders in the request."""
        if not len(self._placeholders):
            return ()
        return tuple(sorted({each.name for text in texts_of(self.request.messages) for each in self._placeholders.named_in(text)}))

    def _inspect(self, message: bytes) -> None:
        if self._needles.found_in(message):
            because = f"the message to {self._member.name} holds private data of this run"
            raise PrivacyViolation(because, hint="let a near agent continue; `nearfar privacy audit` shows what was held back")

    async def _note(self, outcome: Outcome, reason: str, findings: Mapping[str, int]) -> int | None:
        if self._records is None:
            return None
        message = request_to_proto(self.request).SerializeToString()
        departure = Departure(
            at=time.time(),
            agent=self._member.name,
            role=self._role,
            outcome=outcome,
            reason=reason,
            bytes=len(message),
            digest=sha256(message).hexdigest(),
            tier=self._label.tier,
            origins=self._label.told_origins,
            placeholders=self._names,
            findings=dict(findings),
        )
        return await in_thread(self._records.note, departure)


def _said_before(request: StepRequest) -> str:
    """Return the agent's text since the user's last message: a display of the stream may show the reply right behind it."""
    spoken = takewhile(lambda message: message.role != "user", reversed(request.messages))
    return "".join(reversed([message.text for message in spoken if message.role == "assistant"]))
