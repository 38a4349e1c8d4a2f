"""An answer as it lies in the file, and as it is given again."""

import json
import sqlite3
from dataclasses import dataclass
from decimal import Decimal

from ...protocols import Finished, StepReply, Usage


@dataclass(frozen=True, slots=True)
class Stored:
    """An answer as it was stored."""

    id: int
    question: str | None
    """None where it is found by the same request alone."""
    text: str
    finished: Finished
    """The end of the step that computed it."""
    seconds: float
    """Seconds of the step."""
    dollars: Decimal | None
    """Dollars of the step; None if unknown."""


def read_stored(connection: sqlite3.Connection, condition: str, values: tuple[object, ...]) -> Stored | None:
    """Return the first answer for which an SQL condition holds."""
    query = f"SELECT id, question, reply, seconds, dollars FROM answers WHERE {condition}"
    row = connection.execute(query, values).fetchone()
    if row is None:
        return None
    identifier, question, reply, seconds, dollars = row
    fields = json.loads(reply)
    finished = Finished.model_validate(fields["finished"])
    return Stored(identifier, question, fields["text"], finished, seconds, None if dollars is None else Decimal(str(dollars)))


def reply_json(reply: StepReply) -> str:
    """Return the answer as JSON, without the performance figures and the provider's encrypted state: another run gets it."""
    finished = reply.finished.model_copy(update={"performance": None, "state": None})
    return json.dumps({"text": reply.text, "finished": finished.model_dump(mode="json")})


def replayed(stored: Stored) -> Finished:
    """Return the end of a stored answer's stream, which says that nothing was used, and how much was saved."""
    return stored.finished.model_copy(update={"usage": Usage(), "saved": stored.finished.usage})
