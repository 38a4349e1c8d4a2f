"""The outbound filter: check each request to an agent, and the reply; keep the outbound log and the placeholders of a run."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Final, Literal

from ...protocols import Message, PrivacyViolation, Side, StepReply, StepRequest, StoreError
from ...protocols.items import Tier
from ...protocols.secrets import inspected_by
from ...protocols.steps import Value
from ..agents import AgentHandle
from ..memory.operation import Dot, OwnedSubject
from ..memory.sync.keys import SubjectKeys, tag_of
from ..storage import Tables
from ..storage.sqlite import SqliteDatabase
from ..storage.sqlite_files import Naming
from ..task import current_scope, within_scope
from ..task.labels import Label
from ..util.runtime import in_thread
from .placeholders import Placeholder, Placeholders, texts_in, texts_of
from .scanner import KnownSecrets

Outcome = Literal["left", "held", "cached"]
"""`left`: sent. `held`: held back. `cached`: not sent, since a cache had the answer."""
logger = logging.getLogger(__name__)

Listener = Callable[[str], None]
"""Takes each piece of an agent's text as it streams."""


class OutboundRecord(Value):
    """A message that was about to leave: to a far agent, or to a near agent in another process, perhaps on another device."""

    at: float
    """Seconds since the epoch, by this device's clock; the order is that of the records."""
    agent: str
    role: str
    """The role in which the agent was asked."""
    outcome: Outcome
    reason: str
    """The reason why it was allowed, or not."""
    bytes: int
    """Size of the message on the wire, in bytes."""
    digest: str
    """SHA-256 of these bytes, by which it can be told from others."""
    tier: Tier
    """Privacy tier of the content; `shared` for a message that left for a far agent."""
    origins: tuple[str, ...]
    """Origins that made the content more private or less trusted."""
    placeholders: tuple[str, ...] = ()
    """Names of the placeholders in the message."""
    findings: Mapping[str, int] = {}
    """Number of findings of each type before placeholders replaced them."""


_NAMING: Final = Naming("privacy record", recovery="remove the file: runs that use placeholders then cannot be resumed")
_TABLES: Final = Tables(
    "privacy",
    1,
    "CREATE TABLE departures (number INTEGER PRIMARY KEY, run TEXT NOT NULL, departure TEXT NOT NULL);\n"
    "CREATE INDEX departures_of_run ON departures (run, number);\n"
    "CREATE TABLE spills (run TEXT PRIMARY KEY, label TEXT NOT NULL) WITHOUT ROWID;\n"
    "CREATE TABLE placeholders (run TEXT NOT NULL, number INTEGER NOT NULL, sealed BLOB NOT NULL, PRIMARY KEY (run, number)) WITHOUT ROWID",
)


class PrivacyRecords:
    """The privacy records in a folder. Any thread and several processes may use it. Raises `StoreUnavailable` and `StoreCorrupt`."""

    def __init__(self, folder: Path, *, keep: int = 10_000) -> None:
        """Open the records in `folder`. Only the newest `keep` runs are kept."""
        with ExitStack() as failing:
            self.database = failing.enter_context(closing(SqliteDatabase(folder / "privacy.db", _NAMING)))
            self.database.require(_TABLES)
            self.keys = failing.enter_context(closing(SubjectKeys(folder / "privacy.keys")))
            for run in self._older_than(keep):
                self.forget(run)
            failing.pop_all()

    def of(self, run: str) -> "RunRecords":
        """Return the records of one `run`."""
        return RunRecords(self, run)

    def ids(self, prefix: str = "", *, limit: int = 10_000) -> list[str]:
        """Return the ids of runs that begin with `prefix`, the newest first, `limit` at most."""
        query = "SELECT run FROM departures WHERE substr(run, 1, ?) = ? GROUP BY run ORDER BY max(number) DESC LIMIT ?"
        with self.database.reading() as connection:
            return [run for (run,) in connection.execute(query, (len(prefix), prefix, limit)).fetchall()]

    def outbound_log(self, run: str) -> list[OutboundRecord]:
        """Return the outbound log of a `run`: messages sent and held back, in order."""
        with self.database.reading() as connection:
            rows = connection.execute("SELECT departure FROM departures WHERE run = ? ORDER BY number", (run,)).fetchall()
        return [OutboundRecord.model_validate_json(row) for (row,) in rows]

    def forget(self, run: str) -> None:
        """Remove all that is kept of a `run`."""
        self.of(run).end()
        with self.database.writing() as connection:
            connection.execute("DELETE FROM departures WHERE run = ?", (run,))

    def _older_than(self, keep: int) -> list[str]:
        with self.database.reading() as connection:
            newest_first = "SELECT run FROM departures GROUP BY run ORDER BY max(number) DESC LIMIT -1 OFFSET ?"
            return [run for (run,) in connection.execute(newest_first, (keep,))]

    def close(self) -> None:
        self.database.close()
        self.keys.close()


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The privacy records of one run."""

    kept: PrivacyRecords
    run: str

    def log(self, record: OutboundRecord) -> int:
        """Log a message before it is sent; return its number."""
        with self.kept.database.writing() as connection:
            row = (self.run, record.model_dump_json())
            number = connection.execute("INSERT INTO departures (run, departure) VALUES (?, ?)", row).lastrowid
        assert number is not None, "a row was inserted"
        return number

    def has_held_findings(self) -> bool:
        """Return whether a message was held back because of a detector's finding."""
        return any(record.outcome == "held" and record.findings for record in self.kept.outbound_log(self.run))

    def log_cached(self, number: int) -> None:
        """Log that a message was not sent, because a cache had the answer."""
        with self.kept.database.writing() as connection:
            (text,) = connection.execute("SELECT departure FROM departures WHERE number = ?", (number,)).fetchone()
            record = OutboundRecord.model_validate_json(text).model_copy(update={"outcome": "cached"})
            connection.execute("UPDATE departures SET departure = ? WHERE number = ?", (record.model_dump_json(), number))

    def spill(self, label: Label) -> None:
        """Record that private data with this label have gone into a tool that changes something."""
        with self.kept.database.writing() as connection:
            row = (self.run, label.model_dump_json())
            connection.execute("INSERT INTO spills VALUES (?, ?) ON CONFLICT (run) DO UPDATE SET label = excluded.label", row)

    def spilled(self) -> Label:
        """Return the label of all private data that went into such tools."""
        with self.kept.database.reading() as connection:
            row = connection.execute("SELECT label FROM spills WHERE run = ?", (self.run,)).fetchone()
        return Label() if row is None else Label.model_validate_json(row[0])

    def keep(self, placeholders: Sequence[Placeholder]) -> None:
        """Keep placeholders, encrypted."""
        with self.kept.database.writing() as connection:
            (last,) = connection.execute("SELECT coalesce(max(number), 0) FROM placeholders WHERE run = ?", (self.run,)).fetchone()
            rows = ((self.run, number, self._seal(placeholder, number)) for number, placeholder in enumerate(placeholders, last + 1))
            connection.executemany("INSERT INTO placeholders VALUES (?, ?, ?)", rows)

    def _seal(self, placeholder: Placeholder, number: int) -> bytes:
        return self.kept.keys.seal(_dot(self.run, number), {_subject(self.run)}, placeholder.model_dump_json().encode())

    def end(self) -> None:
        """End the run: remove all but its outbound log, and destroy its key, without which no copy of a placeholder can be read."""
        with self.kept.database.writing() as connection:
            for table in ("placeholders", "spills"):
                connection.execute(f"DELETE FROM {table} WHERE run = ?", (self.run,))
        self.kept.keys.destroy(self.kept.keys.retire(tag_of(_subject(self.run).name), None))

    def placeholders(self) -> list[Placeholder]:
        """Return the placeholders of the run so far. One whose key is gone is left out, and so refused as unknown."""
        with self.kept.database.reading() as connection:
            rows = connection.execute("SELECT number, sealed FROM placeholders WHERE run = ? ORDER BY number", (self.run,)).fetchall()
        opened = (self.kept.keys.unseal(_dot(self.run, number), sealed) for number, sealed in rows)
        return [Placeholder.model_validate_json(payload) for payload in opened if payload is not None]


def _subject(run: str) -> OwnedSubject:
    return OwnedSubject(user="", name=f"run {run}")


def _dot(run: str, number: int) -> Dot:
    """Return the position that a sealed placeholder is bound to: it cannot be read in the place of another one."""
    return Dot(f"run {run}", number)


def not_logged(member: AgentHandle, error: StoreError) -> PrivacyViolation:
    """Return the error for a message that cannot be logged, and so is not sent."""
    return PrivacyViolation(f"the message to {member.name} could not be recorded: {error.message}", hint=error.hint)


@dataclass(frozen=True)
class OutboundFilter:
    """The state of one run that its outbound messages are checked and logged with."""

    known_secrets: Callable[[], KnownSecrets]
    placeholders: Placeholders
    records: RunRecords | None
    """None: messages are not logged."""
    own_messages: "OwnMessages"
    records_held: bool = True
    """Messages that are held back are logged, too."""


class OutboundRequest:
    """A request as an agent gets it, with the checks of the request and its reply. `label`: of the request's content."""

    def __init__(self, outbound: OutboundFilter, request: StepRequest, member: AgentHandle, label: Label, role: str) -> None:
        self.request = request
        self._filter = outbound
        self.member = member
        self._label = label
        self._role = role
        self._number: int | None = None
        """Number of the message in the outbound log."""

    async def check_and_log(self, reason: str, findings: Mapping[str, int]) -> None:
        """Check the final message for known secrets, and log that it leaves.

        Raises `PrivacyViolation` if it holds one, or if the log cannot be written.
        """
        message = _as_sent(self.request)
        try:
            self._inspect(message)
            self._inspect("".join(texts_of(self.request.messages)).encode(errors="ignore"))  # what is cut up between messages, too
        except PrivacyViolation as error:
            await self.log_held(error.message, findings)
            raise
        await self.log_sent(reason, findings)

    async def log_sent(self, reason: str, findings: Mapping[str, int]) -> None:
        """Log that the message leaves. Raises `PrivacyViolation` if the log cannot be written."""
        try:
            self._number = await self._log("left", reason, findings)
        except StoreError as error:
            raise not_logged(self.member, error) from error

    async def log_held(self, reason: str, findings: Mapping[str, int]) -> None:
        """Log that the message is held back, unless it is no part of the run's conversation."""
        if not self._filter.records_held:
            return
        try:
            await self._log("held", reason, findings)
        except StoreError as error:  # it does not leave, whether that is on record or not
            logger.warning("a held back message could not be logged: %s", error)

    @contextmanager
    def inspect_bytes(self) -> Iterator[None]:
        """Check the bytes that go to another process within the block, and keep a request with placeholders out of caches.

        Placeholders mean something in this run only.
        """
        known = current_scope()
        with within_scope(replace(known, caching="no-store") if self._placeholder_names else known):
            if self.member.side is Side.NEAR:
                yield
            else:
                with inspected_by(self._inspect):
                    yield

    def listener(self, listener: Listener) -> "PlaceholderStream":
        """Return a listener that passes the streamed reply on with placeholders filled in."""
        in_json = self.request.output_schema is not None
        before: Callable[[], str] = str if in_json else partial(_said_before, self.request)
        return PlaceholderStream(self._filter.placeholders, listener, before=before, in_json=in_json)

    async def check_reply(self, reply: StepReply) -> StepReply:
        """Return the reply. Raises `InvalidOutput` if it holds an unknown placeholder."""
        self._filter.own_messages.add(self.member, reply)
        for text in (reply.text, *(text for call in reply.tool_calls for text in texts_in(call.arguments))):
            self._filter.placeholders.check(text)
        if reply.finished.saved is not None and self._number is not None and self._filter.records is not None:
            await in_thread(self._filter.records.log_cached, self._number)
        return reply

    @cached_property
    def _attached(self) -> list[bytes]:
        """The bytes of the request's attachments, in the forms in which they are sent."""
        attachments = [attachment for message in self.request.messages for attachment in message.attachments]
        return [data for attachment in attachments for data in (attachment.data, attachment.base64.encode())]

    @property
    def _placeholder_names(self) -> tuple[str, ...]:
        """Names of the placeholders in the request."""
        placeholders = self._filter.placeholders
        if not len(placeholders):
            return ()
        return tuple(sorted({each.name for text in texts_of(self.request.messages) for each in placeholders.find_in(text)}))

    def _inspect(self, message: bytes) -> None:
        for data in self._attached:  # nothing can be read in it, and looking through it takes a second for each megabyte
            message = message.replace(data, b"")
        if self._filter.known_secrets().is_in(message):
            because = f"the message to {self.member.name} holds private data of this run"
            raise PrivacyViolation(because, hint="let a near agent continue; `nearfar privacy audit` shows what was held back")

    async def _log(self, outcome: Outcome, reason: str, findings: Mapping[str, int]) -> int | None:
        if self._filter.records is None:
            return None
        message = _as_sent(self.request)
        record = OutboundRecord(
            at=time.time(),
            agent=self.member.name,
            role=self._role,
            outcome=outcome,
            reason=reason,
            bytes=len(message),
            digest=sha256(message).hexdigest(),
            tier=self._label.tier,
            origins=self._label.told_origins,
            placeholders=self._placeholder_names,
            findings=dict(findings),
        )
        return await in_thread(self._filter.records.log, record)


def _as_sent(request: StepRequest) -> bytes:
    from ...protocols.wire import request_to_proto  # it loads protobuf, which a task that stays in this process does without

    return request_to_proto(request).SerializeToString()


def _said_before(request: StepRequest) -> str:
    """Return the agent's text since the user's last message: a display of the stream may show the reply right behind it."""
    spoken = takewhile(lambda message: message.role != "user", reversed(request.messages))
    return "".join(reversed([message.text for message in spoken if message.role == "assistant"]))


_EXECUTOR: Final = "execute"


class OwnMessages:
    """Messages that the far agents of one run have written: nothing in them is redacted when the conversation goes back to them.

    An agent learns nothing from its own words. If a private value among them were replaced, it would learn which of its guesses is right.

    Args:
        begun: number of messages of the task, which the conversation begins with; a system message at its beginning is not counted.
    """

    def __init__(self, begun: int) -> None:
        self.begun = begun
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
        begun = self.begun + (messages[0].role == "system")  # an agent's own instructions may have put it there
        begin = max(since, begun) if role == _EXECUTOR else len(messages)
        written = self._written[member.name]
        said = ((position, message) for position, message in enumerate(messages) if message.role == "assistant")
        return frozenset(position for position, message in said if position >= begin or tuple(texts_of([message])) in written)


_LONGEST_PLACEHOLDER: Final = 64
"""Characters of a placeholder; what is longer is none."""


class PlaceholderStream:
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
            self._listener(self._placeholders.fill_for_display(self._held, in_json=self._in_json, before=before))
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
