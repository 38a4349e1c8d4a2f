"""The outbound filter: check one request on its way to an agent, and log it."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import takewhile

from ....protocols import PrivacyViolation, Side, StepReply, StepRequest, StoreError
from ....protocols.redact import inspected_by
from ....protocols.wire import request_to_proto
from ...agents.pool import AgentHandle
from ...task.labels import Label
from ...task.task import current_scope, within_scope
from ...util.runtime import in_thread
from .audit import Departure, Outcome
from .needles import Needles
from .opened_text import Listener, OpenedText
from .own_words import OwnWords
from .placeholders import Placeholders
from .records import RunRecords
from .texts import texts_in, texts_of

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
        with within_scope(replace(known, caching="no-store") if self._names else known):
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
