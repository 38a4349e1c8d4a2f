"""What a task came to: the answer, who gave it, what was tried, what it cost."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue

from ...protocols import AgentCard, BudgetExceeded, EnergySource, Performance, Side, ToolCall, Usage
from ...protocols.messages import Value
from .auto_decision import SelectionDecision
from .labels import Label
from .route_decision import RouteDecision
from .sections.supervision import Cause, Verdict
from .task import RecalledItem
from .tool_outcomes import Effect

Dollars = Annotated[Decimal | None, Field(description="US dollars; None where a price is unknown, which is not free")]


class Energy(Value):
    """What calls have drawn from the devices that computed them. None drawn is 0, measured: nothing was asked of them."""

    joules: float | None = 0.0
    """None: unknown, which is not nothing."""
    source: EnergySource = EnergySource.MEASURED
    """How well the sum is known: as its least well known part."""

    def __add__(self, other: "Energy") -> "Energy":
        if self.joules is None or other.joules is None:
            return UNKNOWN_ENERGY
        both = self.source is EnergySource.MEASURED and other.source is EnergySource.MEASURED
        return Energy(joules=self.joules + other.joules, source=EnergySource.MEASURED if both else EnergySource.ESTIMATED)


UNKNOWN_ENERGY: Final = Energy(joules=None, source=EnergySource.UNAVAILABLE)


class Attempt(Value):
    """One agent's try at the task."""

    agent: str
    side: Side
    model: str | None
    """None where the agent could not even be opened."""
    outcome: Literal["running", "accepted", "rejected", "failed"]
    """`rejected` by the evidence, or `failed` with an error."""
    reason: str
    """Why it ended so, as a sentence."""
    error: str | None = None
    """Name of the class of the error that ended it, where one did."""
    steps: int
    """Turns that the agent took."""
    usage: Usage
    dollars: Dollars = None
    energy: Energy = UNKNOWN_ENERGY
    seconds: float
    confidence: float | None = None
    """The lowest of its steps' confidences; None where it is unknown."""
    answer: str | None = None
    """What it came to; None where it came to nothing."""
    is_grounded: bool | None = None
    """Tool results support the answer; None: nobody looked."""
    opinions: Mapping[str, str] = {}
    """What other agents answered that were asked for a second opinion, by name."""


class Call(Value):
    """One step of one agent, in whatever role it was asked."""

    role: str
    """`execute`; `plan` and `verify` of a supervisor; other strategies name theirs."""
    agent: str
    side: Side
    model: str
    turn: int
    """Turns of the executor that had acted when the call was made."""
    usage: Usage
    dollars: Dollars = None
    seconds: float
    first_token_seconds: float | None = None
    """Until the first text or tool call; None where there was none."""
    performance: Performance | None = None
    """As the machine that computed it measured it; None where it does not, as a provider's, and where the call failed."""
    confidence: float | None = None
    saved: Usage | None = None
    """The answer was read from a cache of answers: what computing it had taken; None: it was computed."""
    saved_dollars: Dollars = Decimal(0)
    """What that had cost."""
    trigger: Cause | None = None
    """What asked for a check; None for other calls."""
    verdict: Verdict | None = None
    """What the check came to; None for other calls, and where it failed."""
    shadow: bool = False
    """The verdict was only recorded."""
    error: str | None = None
    """Name of the error's class, where the call failed."""
    is_cut_short: bool = False
    """It wrote as much as its budget paid for, and would have gone on."""

    @property
    def energy(self) -> Energy:
        """What it drew from the device that computed it."""
        known = self.performance
        return UNKNOWN_ENERGY if known is None else Energy(joules=known.joules, source=known.joules_source)


class ToolOutcome(Value):
    """A call of a tool, and what came of it."""

    agent: str
    """Name of the agent that made the call."""
    call: ToolCall
    effect: Effect | None
    """Of the tool, as it is declared; None: there is no such tool."""
    outcome: Literal["done", "failed", "not_run", "unknown"]
    """`failed`: the tool returned an error. `not_run`: the tool was not started. `unknown`: nobody knows whether the call went through."""
    result: str
    """Text that the tool returned, or the reason why there is none."""

    @property
    def may_have_acted(self) -> bool:
        """The tool was started, and is not declared to read only."""
        return self.effect not in (None, Effect.READ) and self.outcome != "not_run"


class SideUsage(Value):
    """What one side spent on the task, over all calls."""

    usage: Usage = Usage()
    dollars: Dollars = Decimal(0)
    energy: Energy = Energy()
    steps: int = 0
    """Calls of its agents, failed ones included."""

    def plus(self, call: Call) -> "SideUsage":
        unknown = self.dollars is None or call.dollars is None
        return SideUsage(
            usage=self.usage + call.usage,
            dollars=None if unknown else (self.dollars or Decimal(0)) + (call.dollars or Decimal(0)),
            energy=self.energy + call.energy,
            steps=self.steps + 1,
        )


class Result(Value):
    """The outcome of a task."""

    id: str
    """The task's idempotency key."""
    text: str
    output: JsonValue = None
    """The parsed answer, where the task gave an `output_schema`."""
    agent: str
    side: Side
    model: str
    served_on_device: bool
    """The answer, whatever was tried before it, was computed on this device."""
    was_fallback: bool
    """The answer came from another agent than the one tried first: that one failed or was too slow, or the evidence spoke against it."""
    attempts: tuple[Attempt, ...]
    calls: tuple[Call, ...]
    """Every step of every agent, in order; `near` and `far` are their sums."""
    tool_calls: tuple[ToolOutcome, ...] = ()
    """Every call of a tool, in order: those of agents too whose answer was rejected, or that failed. What they did stays done."""
    budget_exceeded: str | None = None
    """Why the budget ended the work before it was done: the answer is the best that there was by then. None: it did not."""
    interventions: int
    """Times that a supervisor's verdict changed the course of the work."""
    reasons: tuple[str, ...]
    """Every decision on the way, in order."""
    decision: RouteDecision
    """How the router came to the agent, and what it expected of each."""
    selection: SelectionDecision | None = None
    """How `auto` came to the strategy; None where another strategy was asked for."""
    recalled: tuple[RecalledItem, ...] = ()
    """The items of the memory that were put before the task. Where one of them may not leave the device, the task did not either."""
    label: Label = Label()
    """Of all that any agent was told: how far the answer may go, and whether strangers had a hand in it."""
    confidence: float | None
    low_confidence: bool = False
    """The answer of a cascade stands although its confidence is below the policy's `minimum_confidence`: no other agent may be asked, or
    none could do better. `reasons` says so."""
    near: SideUsage
    far: SideUsage
    seconds: float

    @property
    def dollars(self) -> Decimal | None:
        """Both sides together; None where a price is unknown."""
        if self.near.dollars is None or self.far.dollars is None:
            return None
        return self.near.dollars + self.far.dollars

    @property
    def saved_dollars(self) -> Decimal | None:
        """What the answers had cost that came from a cache; None where a price is unknown."""
        saved = [call.saved_dollars for call in self.calls]
        return None if None in saved else sum((each for each in saved if each is not None), Decimal(0))

    @property
    def energy(self) -> Energy:
        """This device's: the near side's. What the far side draws is somebody else's, and in `far` where its server tells."""
        return self.near.energy


def budget_exceeded(attempts: Sequence[Attempt], calls: Sequence[Call]) -> str | None:
    """What the budget kept an answer from: a draft stands because nobody could be paid to do better, or it ends in the middle."""
    place = next(number for number, attempt in enumerate(attempts) if attempt.outcome == "accepted")
    refused = next((attempt.reason for attempt in attempts[place:] if attempt.error == BudgetExceeded.__name__), None)
    if refused is not None:
        return refused
    own = [call for call in calls if call.agent == attempts[place].agent and call.error is None and call.verdict is None]
    return f"{own[-1].agent} wrote as much as its limit paid for, and was not done" if own and own[-1].is_cut_short else None


def price(card: AgentCard, usage: Usage) -> Decimal | None:
    """The dollars for `usage`; None where the agent's price is unknown. Nothing used is always free."""
    if usage.total_tokens == 0:
        return Decimal(0)
    return card.prices.dollars(usage) if card.prices is not None else None


def spent(calls: Iterable[Call], side: Side) -> SideUsage:
    """What the calls of one side spent."""
    total = SideUsage()
    for call in calls:
        if call.side is side:
            total = total.plus(call)
    return total
