"""The ledger of a run in a real store, and processes that own the run one after another."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

from nearfar.orchestrator.runs import KeptTask, Lease, digest
from nearfar.orchestrator.runs.ledger import EffectLedger, open_ledger
from nearfar.orchestrator.runs.store import RunStore
from nearfar.orchestrator.runs.tool_calls import Occurrences
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.tools import Approver, Tool
from nearfar.protocols import Message, ToolCall, ToolResult

RUN = "run-1"


class Run:
    """One run; each `owner` takes it over from the one before. `open_store` opens the store as one more process would."""

    def __init__(self, open_store: Callable[[], RunStore]) -> None:
        self._open_store = open_store
        self._lease: Lease | None = None

    @asynccontextmanager
    async def owner(self, approver: Approver | None = None) -> AsyncIterator[EffectLedger]:
        """The ledger of a new owner, which ends without a word, as a process that is killed does."""
        with closing(self._open_store()) as store:
            if self._lease is None:
                task = Task(messages=(Message.user("Pay Ann"),), idempotency_key=RUN)
                self._lease = await store.begin(KeptTask.of(task, tools=(), agents=()), digest(task))
            else:
                await store.release(self._lease)
                self._lease = await store.claim(RUN)
            yield open_ledger(store, self._lease, approver)


async def made(ledger: EffectLedger, tool: Tool, *, turn: int = 0, times: int = 1, **arguments: object) -> ToolResult:
    """The result of the last of so many equal calls that a conversation makes."""
    before = Occurrences({}, turn=turn)
    calls = [ToolCall.model_validate({"id": f"{turn}-{number}", "name": tool.name, "arguments": arguments}) for number in range(times)]
    return [await ledger.run(call, tool, before.next(call, tool)) for call in calls][-1]
