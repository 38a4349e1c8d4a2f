"""`KeptResponses`: responses of OpenAI's API that clients continue, read again and delete. They are kept with the runs, else in memory."""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...protocols import NotFound
from ...protocols.steps import Value
from ..storage.writer import Tables
from ..util.runtime import in_thread

if TYPE_CHECKING:
    from .store import RunStore

TABLES: Final = Tables(
    "responses",
    1,
    "CREATE TABLE responses (response TEXT PRIMARY KEY, run TEXT NOT NULL, user_name TEXT NOT NULL, content TEXT NOT NULL);\n"
    "CREATE INDEX responses_by_run ON responses (run);\n",
)
_MOST: Final = 1_000
"""Responses that are kept in memory; the oldest go first."""
_LONGEST_CHAIN: Final = 1_000
"""Responses that one may continue, one behind the other."""


class KeptResponse(Value):
    """A response with the items that it answers."""

    run: str
    """Id of its run, with which it is forgotten."""
    input: tuple[dict[str, Any], ...]
    """Items of the request, without those of the responses before it."""
    response: dict[str, Any]
    """The response object."""

    @property
    def items(self) -> Sequence[Mapping[str, Any]]:
        """Return input and output in their order, as a later response continues them."""
        return [*self.input, *self.response["output"]]


class KeptResponses:
    """Keeps responses, each for the user who asked for it. Raises `NotFound` for any other user, and what the store raises."""

    def __init__(self, runs: "RunStore | None") -> None:
        """Keep responses with these `runs`, so that they end with them; None: in memory, the last thousand."""
        self._runs = runs
        self._memory: OrderedDict[tuple[str, str], KeptResponse] = OrderedDict()

    async def keep(self, kept: KeptResponse, user: str) -> None:
        """Keep a response."""
        if self._runs is None:
            self._memory[user, kept.response["id"]] = kept
            while len(self._memory) > _MOST:
                self._memory.popitem(last=False)
            return
        row = (kept.response["id"], kept.run, user, kept.model_dump_json())
        await self._write("INSERT INTO responses (response, run, user_name, content) VALUES (?, ?, ?, ?)", row)

    async def get(self, response: str, user: str) -> KeptResponse:
        """Return a response."""
        found = await in_thread(self._row, response, user) if self._runs is not None else self._memory.get((user, response))
        if found is None:
            raise NotFound(f"there is no response {response!r}", hint="it was not stored, was deleted, or belongs to another caller")
        return found

    async def delete(self, response: str, user: str) -> None:
        """Forget a response. The record of its run stays until the run is forgotten."""
        await self.get(response, user)
        if self._runs is None:
            del self._memory[user, response]
        else:
            await self._write("DELETE FROM responses WHERE response = ? AND user_name = ?", (response, user))

    async def chain(self, response: str, user: str) -> Sequence[Mapping[str, Any]]:
        """Return the items of a response and of all that it continues, the oldest first."""
        links: list[KeptResponse] = []
        following: object = response
        while isinstance(following, str) and following and len(links) < _LONGEST_CHAIN:
            links.append(await self.get(following, user))
            following = links[-1].response["previous_response_id"]
        return [item for kept in reversed(links) for item in kept.items]

    async def first(self, response: str, user: str) -> str:
        """Return the id of the response with which the chain of one begins."""
        following = response
        for _ in range(_LONGEST_CHAIN):
            before = (await self.get(following, user)).response["previous_response_id"]
            if not before:
                break
            following = before
        return following

    def _row(self, response: str, user: str) -> KeptResponse | None:
        assert self._runs is not None
        with self._runs.database.reading() as reading:
            query = "SELECT content FROM responses WHERE response = ? AND user_name = ?"
            found = reading.execute(query, (response, user)).fetchone()
        return None if found is None else KeptResponse.model_validate(json.loads(found[0]))

    async def _write(self, statement: str, values: Sequence[str]) -> None:
        runs = self._runs
        assert runs is not None
        await in_thread(lambda: runs.writer.submit(lambda writing: writing.execute(statement, tuple(values))).result())
