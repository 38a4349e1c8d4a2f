"""Whatever is called, and wherever and how often the process dies: nothing is lost without a word, and nothing is repeated."""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers import Run

from nearfar import effect_key, effect_transaction, tool
from nearfar.orchestrator.runs.ledger import EffectLedger
from nearfar.orchestrator.runs.store import RunStore
from nearfar.orchestrator.runs.tool_calls import ActionCount, Occurrences
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import ToolCall, ToolResult

Action = tuple[str, str]
ACTIONS = st.tuples(st.sampled_from(["pay", "deliver", "book"]), st.sampled_from("ab"))
CONVERSATIONS = st.lists(st.lists(ACTIONS, min_size=1, max_size=3), max_size=4)
LIVES = st.lists(st.integers(1, 8), max_size=4)
"""Steps of tools that each process takes before it dies; whoever comes after them lives on."""


class Died(BaseException):
    """The end of the process."""


class World:
    """What the tools have done, which outlives every process."""

    def __init__(self, folder: Path) -> None:
        self.steps_left: int | None = None
        self.paid: list[Action] = []
        self.delivered: dict[str, Action] = {}
        self._file = folder / "app.db"
        self.tools = {
            "pay": tool(self.pay),
            "deliver": tool(effect="idempotent")(self.deliver),
            "book": tool(effect="transactional")(self.book),
        }

    def pay(self, what: str) -> str:
        """What cannot be looked up."""
        self._step()
        self.paid.append(("pay", what))
        self._step()
        return "paid"

    def deliver(self, what: str) -> str:
        """What is looked up by its key."""
        self._step()
        self.delivered.setdefault(effect_key(), ("deliver", what))
        self._step()
        return "delivered"

    def book(self, what: str) -> str:
        """What is kept with its result."""
        self._step()
        effect_transaction(self._file).execute("CREATE TABLE IF NOT EXISTS booked (what TEXT)")
        effect_transaction(self._file).execute("INSERT INTO booked VALUES (?)", (what,))
        self._step()
        return "booked"

    @property
    def done(self) -> Counter[Action]:
        return Counter([*self.paid, *self.delivered.values(), *self._booked()])

    def _booked(self) -> list[Action]:
        with closing(sqlite3.connect(self._file)) as connection:
            if not connection.execute("SELECT * FROM sqlite_master WHERE name = 'booked'").fetchone():
                return []
            return [("book", what) for (what,) in connection.execute("SELECT what FROM booked")]

    def _step(self) -> None:
        if self.steps_left is None:
            return
        if self.steps_left == 0:
            raise Died
        self.steps_left -= 1


class Conversation:
    """What is kept of it is kept behind each message, as by a checkpointer."""

    def __init__(self, messages: list[list[Action]], world: World) -> None:
        self._messages = messages
        self._world = world
        self._made: dict[str, ActionCount] = {}
        self._turn = 0
        self.results: list[ToolResult] = []

    async def go_on(self, ledger: EffectLedger) -> None:
        while self._turn < len(self._messages):
            counted = Occurrences(self._made, turn=self._turn)
            results = []
            for name, what in self._messages[self._turn]:
                call = ToolCall(id="call", name=name, arguments={"what": what})
                called = self._world.tools[name]
                results.append(await ledger.run(call, called, counted.next(call, called)))
            self.results += results
            self._made, self._turn = counted.made, self._turn + 1


async def lived_through(messages: list[list[Action]], lives: list[int], folder: Path) -> tuple[Counter[Action], list[ToolResult]]:
    run = Run(lambda: RunStore.open(RunsConfig(folder=folder / "runs")))
    world = World(folder)
    conversation = Conversation(messages, world)
    for steps in [*lives, None]:
        world.steps_left = steps
        async with run.owner() as ledger:
            try:
                await conversation.go_on(ledger)
            except Died:
                continue
    return world.done, conversation.results


@given(CONVERSATIONS, LIVES)
@settings(max_examples=12, deadline=None)
def test_nothing_is_repeated_and_nothing_is_lost_without_a_word(messages: list[list[Action]], lives: list[int]) -> None:
    with TemporaryDirectory() as folder:
        done, results = anyio.run(lived_through, messages, lives, Path(folder))
    meant = Counter(action for message in messages for action in message)
    unknown = sum("it is not known" in result.content for result in results)
    assert len(results) == meant.total()
    assert not done - meant, "nothing is there more often than it was meant"
    missing = meant - done
    assert all(name == "pay" for name, _ in missing)
    assert missing.total() <= unknown <= sum(name == "pay" for name, _ in meant.elements())
