"""Conversations that are kept with the runs of their turns: sessions, and responses of the Responses API.

A turn is a run, so whatever is kept of it lives and ends with the run: another process resumes it, and forgetting the run forgets the turn.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pydantic import ConfigDict, TypeAdapter

from ...protocols import Message, NotFound
from ...protocols.items import ItemAddress
from ...protocols.steps import Value
from ..storage import Tables
from ..task.labels import Label, join_labels
from ..task.results import Result, SideUsage
from ..util.runtime import in_thread
from . import RunState, damaged_run

if TYPE_CHECKING:
    from .store import RunStore

SESSIONS: Final = Tables(
    "sessions",
    1,
    "CREATE TABLE turns (run TEXT PRIMARY KEY, user_name TEXT NOT NULL, session TEXT NOT NULL, label TEXT, stopped TEXT);\n"
    "CREATE INDEX turns_of_session ON turns (user_name, session);\n",
)
"""`label` is that of all that the agents of a turn were told, once it has ended; NULL: nothing that counts for later turns.

`stopped` is the conversation that is kept of a turn which ended without an answer, after it had changed something; NULL: none is.
"""

_LATER: Final = (
    "SELECT later.run FROM turns AS held JOIN runs AS held_run ON held_run.run = held.run "
    "JOIN turns AS later ON later.user_name = held.user_name AND later.session = held.session "
    "JOIN runs AS later_run ON later_run.run = later.run "
    "WHERE held.run = ? AND later_run.number > held_run.number ORDER BY later_run.number"
)


_CONVERSATION: Final = TypeAdapter(tuple[Message, ...], config=ConfigDict(defer_build=True))


class SessionTurn(Value):
    """One turn of a session."""

    run: str
    """Id of the turn's run."""
    messages: tuple[Message, ...]
    """The prompt, the tool calls with their results, and the answer."""
    near: SideUsage = SideUsage()
    far: SideUsage = SideUsage()
    recalled: frozenset[ItemAddress] = frozenset()
    """The items of the memory that the turn was told; empty for a turn on record, which is forgotten with its run."""


class SessionSummary(Value):
    """A line of the list of sessions."""

    name: str
    user: str
    turns: int
    """Number of answered turns."""
    title: str
    """Beginning of the last prompt, as much as fits a line."""
    last: datetime
    """When its last turn began, by the clock of the process that began it."""


class SessionStore:
    """The sessions in a store of runs. Calls wait for the database; they may come from any thread.

    Raises `StoreUnavailable` if the database cannot be used now, and `StoreCorrupt` if it, or the record of a turn, is damaged.
    """

    def __init__(self, runs: "RunStore") -> None:
        self._runs = runs

    def ended(self, session: str, user: str) -> list[str]:
        """Return the runs of the turns that are part of the conversation, in the order in which they ended."""
        query = (
            "SELECT turns.run FROM turns JOIN runs ON runs.run = turns.run WHERE turns.user_name = ? AND turns.session = ? "
            "AND (runs.state = ? OR runs.state IN (?, ?) AND turns.stopped IS NOT NULL) ORDER BY runs.ended"
        )
        with self._runs.database.reading() as reading:
            states = (RunState.DONE, RunState.FAILED, RunState.CANCELLED)
            return [run for (run,) in reading.execute(query, (user, session, *states)).fetchall()]

    def interrupted(self, session: str, user: str) -> list[str]:
        """Return the runs of turns whose process has died, the oldest first."""
        query = (
            "SELECT turns.run FROM turns JOIN runs ON runs.run = turns.run "
            "WHERE turns.user_name = ? AND turns.session = ? AND runs.state = ? ORDER BY runs.number"
        )
        with self._runs.database.reading() as reading:
            running = [run for (run,) in reading.execute(query, (user, session, RunState.RUNNING)).fetchall()]
        return [run for run in running if self._runs.show(run, user=user).is_orphaned]

    def turn(self, run: str) -> SessionTurn | None:
        """Return a turn that has ended; None: it was forgotten meanwhile."""
        result = self.result(run)
        if result is not None:
            return SessionTurn(run=run, messages=result.messages, near=result.near, far=result.far)
        with self._runs.database.reading() as reading:
            found = reading.execute("SELECT stopped FROM turns WHERE run = ? AND stopped IS NOT NULL", (run,)).fetchone()
        try:
            return None if found is None else SessionTurn(run=run, messages=_CONVERSATION.validate_json(found[0]))
        except ValueError as error:
            raise damaged_run(run) from error

    def result(self, run: str) -> Result | None:
        """Return the result of a turn; None: it was not answered."""
        found = self._runs.outcome(run)
        try:
            return Result.model_validate_json(found) if isinstance(found, str) else None
        except ValueError as error:
            raise damaged_run(run) from error

    def stop(self, run: str, messages: Sequence[Message]) -> None:
        """Record the conversation to keep of a turn that ends without an answer. It counts once its run has failed or was cancelled."""
        content = _CONVERSATION.dump_json(tuple(messages)).decode()
        statement = "UPDATE turns SET stopped = ? WHERE run = ?"
        self._runs.writer.submit(lambda writing: writing.execute(statement, (content, run))).result()

    def note(self, run: str, label: Label) -> None:
        """Record the label with which a turn ended; a run that is no turn is left alone."""
        statement = "UPDATE turns SET label = ? WHERE run = ?"
        self._runs.writer.submit(lambda writing: writing.execute(statement, (label.model_dump_json(), run))).result()

    def label(self, session: str, user: str) -> Label:
        """Return the label of all that the turns of a session were told."""
        query = "SELECT DISTINCT label FROM turns WHERE user_name = ? AND session = ? AND label IS NOT NULL"
        with self._runs.database.reading() as reading:
            found = reading.execute(query, (user, session)).fetchall()
        return join_labels(Label.model_validate_json(label) for (label,) in found)

    def begin_again(self, session: str, user: str) -> None:
        """Empty a session. The runs of its turns stay on record, and are no turns any more."""
        statement = "DELETE FROM turns WHERE user_name = ? AND session = ?"
        self._runs.writer.submit(lambda writing: writing.execute(statement, (user, session))).result()

    def forget(self, session: str, user: str) -> int:
        """Forget a session with the runs of all its turns, and return their number. Raises what `RunStore.forget_all` raises."""
        query = "SELECT run FROM turns WHERE user_name = ? AND session = ?"
        with self._runs.database.reading() as reading:
            turns = [run for (run,) in reading.execute(query, (user, session)).fetchall()]
        self._runs.forget_all(turns)
        return len(turns)

    def list(self, *, user: str | None = None) -> list[SessionSummary]:
        """Return the sessions that have turns, the one used last first; `user` None: those of all users."""
        query = (
            "SELECT turns.user_name, turns.session, runs.state, runs.title, runs.began FROM turns JOIN runs ON runs.run = turns.run "
            "ORDER BY runs.number DESC"
        )
        with self._runs.database.reading() as reading:
            rows = reading.execute(query).fetchall()
        found: dict[tuple[str, str], SessionSummary] = {}
        for owner, name, state, title, began in rows:
            if user not in (None, owner):
                continue
            known = found.get((owner, name)) or SessionSummary(
                name=name, user=owner, turns=0, title=title, last=datetime.fromtimestamp(began, UTC)
            )
            found[owner, name] = known.model_copy(update={"turns": known.turns + (state == RunState.DONE)})
        return [*found.values()]


def with_later_turns(store: "RunStore", runs: Sequence[str]) -> "Sequence[str]":
    """Return the runs, and with those that are turns of a session its later turns, whose agents were told them."""
    with store.database.reading() as reading:
        later = [run for held in runs for (run,) in reading.execute(_LATER, (held,)).fetchall()]
    return [*dict.fromkeys((*runs, *later))]


RESPONSES: Final = Tables(
    "responses",
    1,
    "CREATE TABLE responses (response TEXT PRIMARY KEY, run TEXT NOT NULL, user_name TEXT NOT NULL, content TEXT NOT NULL);\n"
    "CREATE INDEX responses_by_run ON responses (run);\n",
)
_PREFIX: Final = "resp_"
_MOST: Final = 1_000
"""Responses that are kept in memory; the oldest go first."""
_MOST_BYTES: Final = 64_000_000
"""Bytes of these responses together."""
_NOT_FOUND: Final = "it was not stored, was deleted, or belongs to another caller"


class KeptResponse(Value):
    """A response with the items that it answers."""

    run: str
    """Id of its run, with which it is forgotten."""
    session: str
    """Name of its conversation, which goes on in those that continue it."""
    input: tuple[dict[str, Any], ...]
    """Items of the request, without those of the responses before it."""
    response: dict[str, Any]
    """The response object."""
    is_private: bool = True
    """It was made of a private task, or of private results of tools: whatever continues it is private, too."""

    @property
    def items(self) -> Sequence[Mapping[str, Any]]:
        """Return input and output in their order, as a later response continues them."""
        return [*self.input, *self.response["output"]]


def item_id(kind: str, response: str, place: int) -> str:
    """Return the id of the item at a `place` of a response's output, by which the response is found again."""
    return f"{kind}_{response.removeprefix(_PREFIX)}_{place}"


@dataclass(frozen=True)
class Chain:
    """A response and all that it continues, the oldest first."""

    links: Sequence[KeptResponse] = ()

    @property
    def session(self) -> str:
        """Return the name of its conversation; an empty text if it has no responses."""
        return self.links[-1].session if self.links else ""

    @property
    def items(self) -> Sequence[Mapping[str, Any]]:
        """Return input and output of all responses, in their order."""
        return [item for kept in self.links for item in kept.items]

    @property
    def is_private(self) -> bool:
        """Return whether one of the responses is private."""
        return any(kept.is_private for kept in self.links)


class KeptResponses:
    """Keeps responses, each for the user who asked for it. Raises `NotFound` for any other user, and what the store raises."""

    def __init__(self, runs: "RunStore | None") -> None:
        """Keep responses with these `runs`, so that they end with them; None: in memory, the last thousand."""
        self._runs = runs
        self._memory: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._bytes = 0

    async def keep(self, kept: KeptResponse, user: str) -> None:
        """Keep a response."""
        if self._runs is None:
            self._memory[user, kept.response["id"]] = content = kept.model_dump_json().encode()
            self._bytes += len(content)
            while len(self._memory) > _MOST or self._bytes > _MOST_BYTES:
                self._bytes -= len(self._memory.popitem(last=False)[1])
            return
        row = (kept.response["id"], kept.run, user, kept.model_dump_json())
        await self._write("INSERT INTO responses (response, run, user_name, content) VALUES (?, ?, ?, ?)", row)

    async def get(self, response: str, user: str) -> KeptResponse:
        """Return a response."""
        found = await self._find(response, user)
        if found is None:
            raise NotFound(f"there is no response {response!r}", hint=_NOT_FOUND)
        return found

    async def item(self, name: str, user: str) -> tuple[Mapping[str, Any], KeptResponse]:
        """Return an item of a response's output by its id, and the response."""
        found = await self._find(_PREFIX + "".join(name.split("_")[1:2]), user)
        items = [item for item in (found.response["output"] if found is not None else ()) if item["id"] == name]
        if found is None or not items:
            raise NotFound(f"there is no item {name!r}", hint=f"send the item itself: {_NOT_FOUND}")
        return items[0], found

    async def delete(self, response: str, user: str) -> None:
        """Forget a response. The record of its run stays until the run is forgotten."""
        await self.get(response, user)
        if self._runs is None:
            self._bytes -= len(self._memory.pop((user, response)))
        else:
            await self._write("DELETE FROM responses WHERE response = ? AND user_name = ?", (response, user))

    async def chain(self, response: str, user: str) -> Chain:
        """Return a response with all that it continues."""
        links: list[KeptResponse] = []
        following: object = response
        while isinstance(following, str) and following:
            links.append(await self.get(following, user))
            following = links[-1].response["previous_response_id"]
        return Chain(links[::-1])

    async def _find(self, response: str, user: str) -> KeptResponse | None:
        found = await in_thread(self._row, response, user) if self._runs is not None else self._memory.get((user, response))
        return None if found is None else KeptResponse.model_validate(json.loads(found))

    def _row(self, response: str, user: str) -> str | None:
        assert self._runs is not None
        with self._runs.database.reading() as reading:
            query = "SELECT content FROM responses WHERE response = ? AND user_name = ?"
            found = reading.execute(query, (response, user)).fetchone()
        return None if found is None else str(found[0])

    async def _write(self, statement: str, values: Sequence[str]) -> None:
        runs = self._runs
        assert runs is not None
        await in_thread(lambda: runs.writer.submit(lambda writing: writing.execute(statement, tuple(values))).result())
