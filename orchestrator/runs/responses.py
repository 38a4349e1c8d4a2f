"""`KeptResponses`: responses of OpenAI's API that clients continue, read again and delete. They are kept with the runs, else in memory."""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ...protocols import NotFound
from ...protocols.steps import Value
from ..storage import Tables
from ..util.runtime import in_thread

if TYPE_CHECKING:
    from .store import RunStore

TABLES: Final = Tables(
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
