"""`A2aMessages`: the messages that callers have sent about tasks, kept with the runs that serve them."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from a2a.types import Message
from google.protobuf.json_format import MessageToJson, Parse

from ..runs.store import RunStore
from ..storage.writer import DatabaseSession, Tables

TABLES: Final = Tables(
    part="a2a",
    version=1,
    sql="""
CREATE TABLE a2a_messages (
    number INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, user_name TEXT NOT NULL, context TEXT NOT NULL, message TEXT NOT NULL,
    content TEXT NOT NULL, UNIQUE (run, message)
);
CREATE INDEX a2a_messages_of_context ON a2a_messages (user_name, context);
""",
)
"""`message` is the id that the caller chose, and `context` that of the conversation."""


class A2aMessages:
    """The messages in a store of runs. Calls that are not awaited wait for the database; they may come from any thread.

    Raises `StoreUnavailable` if the database cannot be used now.
    """

    def __init__(self, runs: RunStore) -> None:
        runs.database.require(TABLES)
        self._runs = runs

    def open(self) -> None:
        """Forget the messages of runs that are forgotten from now on."""
        self._runs.forgetting.append(self._forget)

    def close(self) -> None:
        """Stop listening to the store."""
        self._runs.forgetting.remove(self._forget)

    async def add(self, run: str, user: str, message: Message) -> Message:
        """Keep a message about a run, and return the one that is kept under its id: an earlier one, if it was sent before."""
        kept: str = await self._runs.writer.write(partial(self._add, run=run, user=user, message=message))
        return Parse(kept, Message(), ignore_unknown_fields=True)

    def of(self, run: str) -> Sequence[Message]:
        """Return the messages about a run, in the order in which they came."""
        query = "SELECT content FROM a2a_messages WHERE run = ? ORDER BY number"
        with self._runs.database.reading() as session:
            found = session.execute(query, (run,)).fetchall()
        return [Parse(content, Message(), ignore_unknown_fields=True) for (content,) in found]

    def of_context(self, context: str, user: str) -> set[str]:
        """Return the runs of a user's conversation."""
        query = "SELECT DISTINCT run FROM a2a_messages WHERE user_name = ? AND context = ?"
        with self._runs.database.reading() as session:
            return {run for (run,) in session.execute(query, (user, context)).fetchall()}

    def _add(self, session: DatabaseSession, *, run: str, user: str, message: Message) -> str:
        values = (run, user, message.context_id, message.message_id, MessageToJson(message, indent=None))
        insert = "INSERT INTO a2a_messages (run, user_name, context, message, content) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
        session.execute(insert, values)
        query = "SELECT content FROM a2a_messages WHERE run = ? AND message = ?"
        return str(session.execute(query, (run, message.message_id)).fetchone()[0])

    def _forget(self, runs: Iterable[str]) -> None:
        self._runs.writer.submit(partial(self._drop, runs=tuple(runs))).result()

    def _drop(self, session: DatabaseSession, *, runs: Sequence[str]) -> None:
        for run in runs:
            session.execute("DELETE FROM a2a_messages WHERE run = ?", (run,))
