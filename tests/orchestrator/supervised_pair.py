"""A scripted executor and a scripted supervisor, and one journal of what each of them was shown, in the order of the calls."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal

from linked import linked

from nearfar import Hybrid, Tool, tool
from nearfar.orchestrator.task.policy import Policy, SupervisionConfig
from nearfar.protocols import Message, Prices, ScriptedAgent, Sensitivity, Side, StepRequest, ToolCall, ToolResult
from nearfar.protocols.fakes import Reply

TASK = "Find the emblem of East Calder."
FREE = Prices(input=Decimal(0), output=Decimal(0), source="test", as_of=date(2026, 11, 20))
PAID = Prices(input=Decimal(2), output=Decimal(10), source="test", as_of=date(2026, 11, 20))


@tool(effect="read")
async def look(page: int) -> str:
    """Read a page."""
    return f"Page {page} says word{page}."


def looks_at(page: int) -> ToolCall:
    """The call that reads a page."""
    return ToolCall(id=f"call-{page}", name="look", arguments={"page": page})


def turn_of(page: int) -> tuple[Message, Message]:
    """What a turn that reads a page leaves in the executor's context."""
    call = looks_at(page)
    seen = ToolResult(call_id=call.id, name=call.name, content=f"Page {page} says word{page}.")
    return Message.assistant(tool_calls=(call,)), Message.tool(seen)


@dataclass
class Pair:
    """Two agents and what they were shown."""

    executor: Sequence[Reply]
    supervisor: Sequence[Reply]
    executor_side: Side = Side.NEAR
    confidence: float | None = None
    journal: list[tuple[str, tuple[Message, ...]]] = field(default_factory=list)
    requests: list[tuple[str, StepRequest]] = field(default_factory=list)

    def agent(self, side: Side) -> ScriptedAgent:
        """The agent of a side, which answers by its role and notes what it was shown."""
        role = "executor" if side is self.executor_side else "supervisor"
        script: Iterator[Reply] = iter(self.executor if role == "executor" else self.supervisor)

        def answer(request: StepRequest) -> Reply:
            self.journal.append((role, request.messages))
            self.requests.append((role, request))
            return next(script)

        prices = FREE if side is Side.NEAR else PAID
        return ScriptedAgent(answer, name=side.value, side=side, prices=prices, confidence=self.confidence)

    @property
    def roles(self) -> list[str]:
        return [role for role, _ in self.journal]


def supervised(strategy: str, *, turns: int = 16, **knobs: object) -> Policy:
    """A policy for a public task under supervision."""
    supervision = SupervisionConfig.model_validate(knobs)
    return Policy.model_validate(
        {"strategy": strategy, "sensitivity": Sensitivity.PUBLIC, "maximum_turns": turns, "supervision": supervision.model_dump()}
    )


@asynccontextmanager
async def working(pair: Pair, policy: Policy, *tools: Tool, link: str = "in process") -> AsyncGenerator[Hybrid]:
    """The pair as a `Hybrid`, its far side met directly or through a server of its own."""
    near, far = pair.agent(Side.NEAR), pair.agent(Side.FAR)
    async with linked(near, far, policy, *(tools or (look,)), link=link) as hybrid:
        yield hybrid
