"""Results of tasks: the answer, the decisions on the way to it, the attempts, the calls, and their cost."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, field_serializer

from ...protocols import (
    AgentCard,
    BudgetExceeded,
    Effort,
    EnergySource,
    FinishReason,
    Message,
    Performance,
    Side,
    TokenLogprob,
    ToolCall,
    Usage,
)
from ...protocols.steps import Value
from .decisions import ActLook, Arbitration, ExtractedAnswer, RouteDecision, SelectionDecision, VerifiedDraft, WeighedDraft
from .labels import Label, RecalledItem
from .policy import Cause, Verdict
from .tools import Effect

Dollars = Annotated[Decimal | None, Field(description="US dollars; None where a price is unknown, which is not free")]


class Energy(Value):
    """Energy drawn by the devices that computed calls. No calls are 0 joules, measured."""

    joules: float | None = 0.0
    """None: unknown, which is not zero."""
    source: EnergySource = EnergySource.MEASURED
    """How well the sum is known: as well as its least known part."""

    def __add__(self, other: "Energy") -> "Energy":
        if self.joules is None or other.joules is None:
            return UNKNOWN_ENERGY
        both = self.source is EnergySource.MEASURED and other.source is EnergySource.MEASURED
        return Energy(joules=self.joules + other.joules, source=EnergySource.MEASURED if both else EnergySource.ESTIMATED)


UNKNOWN_ENERGY: Final = Energy(joules=None, source=EnergySource.UNAVAILABLE)


class Attempt(Value):
    """One agent's attempt at the task."""

    agent: str
    """Name of the agent."""
    side: Side
    """Its side."""
    model: str | None
    """None: the agent could not be opened."""
    outcome: Literal["running", "accepted", "rejected", "failed"]
    """`rejected` by the evidence, or `failed` with an error."""
    reason: str
    """Reason for the outcome, as a sentence."""
    error: str | None = None
    """Class name of the error that ended it, if one did."""
    steps: int
    """Turns that the agent took."""
    usage: Usage
    """Tokens of all its steps."""
    dollars: Dollars = None
    """US dollars; None: its price is unknown."""
    energy: Energy = UNKNOWN_ENERGY
    """Energy of this device."""
    seconds: float
    """Seconds from its start to its end."""
    confidence: float | None = None
    """The lowest of its steps' confidences; None: unknown."""
    answer: str | None = None
    """The answer, or the JSON list of tool calls that were not to run; None: there was none."""
    is_grounded: bool | None = None
    """Tool results support the answer; None: it was not checked."""
    opinions: Mapping[str, str] = {}
    """Second opinions: the answers of other agents, by their names."""
    p_right: float | None = None
    """Probability that the answer is right, by the evidence; None: it was not weighed."""
    p_far: float | None = None
    """Probability that the far agent that would take over is right, by the evidence."""
    weighed: WeighedDraft | None = None
    """The card's own probabilities; None: no card has weighed it."""
    arbitration: Arbitration | None = None
    """The far agent's verdict on it; None: it was not escalated, or no card has weighed it."""
    verified: Mapping[str, VerifiedDraft] = {}
    """Verdicts of judges on it, by the verifier: `outcome`, `prior_first`, `rubric`."""
    acts: tuple[ActLook, ...] = ()
    """Looks at calls of tools that change something, before they ran."""
    extracted: ExtractedAnswer | None = None
    """The part of the answer that was compared; None: nothing was."""
    extracted_opinions: Mapping[str, ExtractedAnswer] = {}
    """The parts of the second opinions that it was compared with."""
    cluster_share: float | None = None
    """Share of the draft and the second opinions that say the same as the draft; None: there were no opinions."""


class AskedReasoning(Value):
    """How long a step was asked to reason, by a policy whose effort is a share of what is usual."""

    tokens: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Tokens that the share comes to; None: what is usual was not known yet."""
    most: int | None = Field(default=None, gt=0)
    """Tokens after which it had to answer; None: no limit."""
    level: Effort | None = None
    """Level of effort in place of the agent's own; None: that one."""


STEP: Final = "execute"
"""Role of an agent that answers."""


class Call(Value):
    """One step of one agent, in whatever role it was asked."""

    role: str
    """`execute`; `plan` and `verify` of a supervisor; `speculate` of a near agent that runs ahead, and `verify` of the far agent that was
    asked ahead; other strategies name theirs."""
    agent: str
    """Name of the agent."""
    side: Side
    """Its side."""
    model: str
    """Name of its model."""
    turn: int
    """Number of the executor's turns before the call."""
    usage: Usage
    """Tokens of the step."""
    dollars: Dollars = None
    """US dollars; None: its price is unknown."""
    seconds: float
    """Seconds from the request to the last token."""
    first_token_seconds: float | None = None
    """Seconds until the first text or tool call; None: there was none."""
    performance: Performance | None = None
    """Measurements of the machine that computed it; None: it does not report them, as a provider's, or the call failed."""
    confidence: float | None = None
    """Confidence that the model stated, 0 to 1; None: none."""
    saved: Usage | None = None
    """Tokens that computing the answer had taken, if it was read from a cache of answers; None: it was computed."""
    saved_dollars: Dollars = Decimal(0)
    """US dollars that computing it had cost."""
    trigger: Cause | None = None
    """Cause of a check; None for other calls."""
    verdict: Verdict | None = None
    """Verdict of the check; None for other calls, and if it failed."""
    shadow: bool = False
    """Its verdict was only recorded, or far was asked ahead in vain."""
    error: str | None = None
    """Class name of the error, if the call failed."""
    finish_reason: FinishReason | None = None
    """Why the model stopped; None: the call failed."""
    stop: str | None = None
    """The stop sequence that ended the text; None: none did, or the agent does not tell."""
    reasoning: AskedReasoning | None = None
    """How long it was asked to reason; None: as the agent usually does."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Tokens of the text with their log-probabilities, if the task's sampling set `top_logprobs`."""
    is_cut_short: bool = False
    """It wrote as much as its budget paid for, and was not done."""

    @property
    def took_step(self) -> bool:
        """Return whether it is a step of the agent that answers, be it one that far was asked for ahead, and has confirmed."""
        is_early = self.role == "verify" and self.verdict is None and self.error is None and not self.shadow
        return self.role == STEP or is_early

    @property
    def energy(self) -> Energy:
        """Return the energy that it drew from the device that computed it."""
        known = self.performance
        return UNKNOWN_ENERGY if known is None else Energy(joules=known.joules, source=known.joules_source)

    @property
    def queued_seconds(self) -> float:
        """Return the seconds in which nothing was computed for it; 0 where the machine does not tell how long it computed."""
        known = self.performance
        if known is None or known.first_token_seconds is None or not known.decode_tokens_per_second:
            return 0.0
        return max(self.seconds - known.first_token_seconds - self.usage.output_tokens / known.decode_tokens_per_second, 0.0)


class ToolOutcome(Value):
    """A tool call and its outcome."""

    agent: str
    """Name of the agent that made the call."""
    call: ToolCall
    """The call."""
    effect: Effect | None
    """Declared effect of the tool; None: there is no such tool."""
    outcome: Literal["done", "failed", "not_run", "unknown"]
    """`failed`: the tool returned an error. `not_run`: the tool was not started. `unknown`: it is not known whether the call took
    effect."""
    result: str
    """Text that the tool returned, or the reason why there is none."""

    @property
    def may_have_acted(self) -> bool:
        """Return whether the tool was started and is not declared to read only."""
        return self.effect not in (None, Effect.READ) and self.outcome != "not_run"


class JudgedProposal(Value):
    """A step that the near agent has proposed in the strategy `speculate`, and whether far has taken it, too. It has no words of either."""

    task_class: str = ""
    """Class of the task."""
    confidence: float | None = Field(default=None, ge=0, le=1)
    """Near's confidence in the step, 0 to 1; None: it states none."""
    is_instead: bool = False
    """Near would have answered, and was made to propose a call instead."""
    answer_confidence: float | None = Field(default=None, ge=0, le=1)
    """Its confidence in that answer, 0 to 1; None: it states none, or proposed the call by itself."""
    confirmed: bool = False
    """Far has taken the same step."""


class Speculation(Value):
    """How far the near agent ran ahead of far in the strategy `speculate`, and with what success."""

    cycles: int = 0
    """Times that near began to run ahead: at the start, after each mismatch, and where it had stopped."""
    proposed: int = 0
    """Steps that near has proposed."""
    judged: tuple[JudgedProposal, ...] = ()
    """The proposals that far has judged: it took the same step, or another one. The rest led on from one that it did not take."""
    wasted_dollars: Dollars = Decimal(0)
    """US dollars of far calls that led nowhere; None: a provider does not say what a cancelled call costs."""
    saved_seconds: float = 0.0
    """Seconds by which far calls had begun early."""

    @property
    def confirmed(self) -> int:
        """Return the number of proposals that far has made as well."""
        return sum(proposal.confirmed for proposal in self.judged)

    def plus_waste(self, calls: Sequence[Call]) -> "Speculation":
        """Return the figures with the dollars of `calls` that led nowhere."""
        dollars = [self.wasted_dollars, *(call.dollars for call in calls)]
        total = None if None in dollars else sum((each for each in dollars if each is not None), Decimal(0))
        return self.model_copy(update={"wasted_dollars": total})


class SideUsage(Value):
    """Usage of one side over all calls of the task."""

    usage: Usage = Usage()
    """Tokens of all steps."""
    dollars: Dollars = Decimal(0)
    """US dollars; None: the price of a step is unknown."""
    energy: Energy = Energy()
    """Energy of this device."""
    steps: int = 0
    """Calls of its agents, failed ones included."""

    def plus(self, call: Call) -> "SideUsage":
        """Return the usage with that of one `call` added."""
        unknown = self.dollars is None or call.dollars is None
        return SideUsage(
            usage=self.usage + call.usage,
            dollars=None if unknown else (self.dollars or Decimal(0)) + (call.dollars or Decimal(0)),
            energy=self.energy + call.energy,
            steps=self.steps + 1,
        )

    def __add__(self, other: "SideUsage") -> "SideUsage":
        unknown = self.dollars is None or other.dollars is None
        return SideUsage(
            usage=self.usage + other.usage,
            dollars=None if unknown else (self.dollars or Decimal(0)) + (other.dollars or Decimal(0)),
            energy=self.energy + other.energy,
            steps=self.steps + other.steps,
        )


class RoleWork(Value):
    """The work of one role on the task, from its start to its answer, or to the hand-off to the next role."""

    role: str
    """Name of the role."""
    task: str
    """The work that the role before it asked for; empty for the first role, whose work is the task itself."""
    agent: str
    """Name of the agent that did it."""
    side: Side
    """The agent's side."""
    model: str
    """Name of its model."""
    attempts: tuple[Attempt, ...]
    """The attempts at the work; the accepted one is that of `agent`."""


class Result(Value):
    """The outcome of a task."""

    id: str
    """The task's idempotency key."""
    user: str = ""
    """The user for whom the task was served."""
    text: str
    """The answer."""
    output: Any = None
    """The answer of a task with `output`: an object of its pydantic model, or the JSON value that its schema describes."""
    messages: tuple[Message, ...] = ()
    """The conversation from the prompt to the answer, with the tool calls and results of the agent that answered; it may be the beginning
    of the next prompt. Untrusted results stand between marks, as agents see them. A rejected draft is not part of it, nor are the earlier
    turns of a session, which keeps them itself."""
    agent: str
    """Name of the agent that gave it."""
    side: Side
    """The agent's side."""
    model: str
    """Name of its model."""
    served_on_device: bool
    """The answer, whatever was tried before it, was computed on this device."""
    was_fallback: bool
    """The answer came from another agent than the one tried first: that one failed or was too slow, or the evidence spoke against it."""
    attempts: tuple[Attempt, ...]
    """Attempts in order; the last one gave the answer."""
    calls: tuple[Call, ...]
    """Every step of every agent, in order; `near` and `far` are their sums."""
    tool_calls: tuple[ToolOutcome, ...] = ()
    """Every tool call, in order, including those of agents that failed or whose answer was rejected. Their effects stay."""
    budget_exceeded: str | None = None
    """Reason why the budget ended the work before it was done: the answer is the best until then. None: it did not."""
    interventions: int
    """Number of verdicts of a supervisor that changed the course of the work."""
    reasons: tuple[str, ...]
    """Every decision on the way, in order."""
    decision: RouteDecision
    """The router's choice of the agent, and what it expected of each."""
    selection: SelectionDecision | None = None
    """The strategy that `auto` chose; None: another strategy was asked for."""
    speculation: Speculation | None = None
    """How far near ran ahead of far; None: in another strategy than `speculate`."""
    roles: tuple[RoleWork, ...] = ()
    """The roles that worked on the task, in order; the last one answered, and `attempts` and `decision` are those of its work. Empty: the
    task was given to no role.
    """
    recalled: tuple[RecalledItem, ...] = ()
    """The items of the memory that were put before the task. If one of them may not leave the device, the task did not either."""
    label: Label = Label()
    """Label of all that any agent was told: how far the answer may go, and whether untrusted content influenced it."""
    confidence: float | None
    """Confidence of the answer, 0 to 1; None: the model states none."""
    low_confidence: bool = False
    """The answer of a cascade stands although its confidence is below the policy's `minimum_confidence`: no other agent may be asked, or
    none could do better. `reasons` says so.
    """
    near: SideUsage
    """Usage of the near side."""
    far: SideUsage
    """Usage of the far side."""
    seconds: float
    """Seconds from the task's begin to its end."""

    @field_serializer("output", when_used="json")
    def _as_the_schema_names_it(self, output: object) -> object:
        return output.model_dump(mode="json", by_alias=True) if isinstance(output, BaseModel) else output

    @property
    def dollars(self) -> Decimal | None:
        """Return the US dollars of both sides; None if a price is unknown."""
        if self.near.dollars is None or self.far.dollars is None:
            return None
        return self.near.dollars + self.far.dollars

    @property
    def has_reasoned(self) -> bool:
        """Return whether an agent says that it has reasoned."""
        return bool(self.near.usage.reasoning_tokens or self.far.usage.reasoning_tokens)

    @property
    def saved_dollars(self) -> Decimal | None:
        """Return the US dollars that answers from a cache had cost; None if a price is unknown."""
        saved = [call.saved_dollars for call in self.calls]
        return None if None in saved else sum((each for each in saved if each is not None), Decimal(0))

    @property
    def energy(self) -> Energy:
        """Return the energy of this device, the near side's. The far side's is in `far` if its server reports it."""
        return self.near.energy


def budget_exceeded(attempts: Sequence[Attempt], calls: Sequence[Call]) -> str | None:
    """Return the reason why the budget prevented a better answer: a draft stands because none could be paid for, or it is cut short."""
    place = next(number for number, attempt in enumerate(attempts) if attempt.outcome == "accepted")
    refused = next((attempt.reason for attempt in attempts[place:] if attempt.error == BudgetExceeded.__name__), None)
    if refused is not None:
        return refused
    own = [call for call in calls if call.agent == attempts[place].agent and call.error is None and call.verdict is None]
    return f"{own[-1].agent} wrote as much as its limit paid for, and was not done" if own and own[-1].is_cut_short else None


def told_of_effort(effort: Effort | float | None, calls: Sequence[Call]) -> list[str]:
    """Return for each agent how far it has kept to an effort that is a share of what is usual."""
    if not isinstance(effort, float):
        return []
    asked = [(call, call.reasoning) for call in calls if call.reasoning is not None and call.error is None]
    return [f"effort {effort:g}: {name} {_kept_to(asked, name)}" for name in dict.fromkeys(call.agent for call, _ in asked)]


def _kept_to(asked: Sequence[tuple[Call, AskedReasoning]], agent: str) -> str:
    own = [(call.usage.reasoning_tokens, reasoning) for call, reasoning in asked if call.agent == agent]
    if not any(tokens for tokens, _ in own):
        return "reports no reasoning"
    known = [(tokens, reasoning.tokens) for tokens, reasoning in own if reasoning.tokens is not None]
    if not known:
        return "reasoned as usual: it is not known yet how much that is"
    return f"reasoned for {sum(tokens for tokens, _ in known)} tokens, and {sum(meant for _, meant in known):.0f} were meant"


def price(card: AgentCard, usage: Usage) -> Decimal | None:
    """Return the dollars for `usage`; None if the agent's price is unknown. No usage is always free."""
    if usage.total_tokens == 0:
        return Decimal(0)
    return card.prices.dollars(usage) if card.prices is not None else None


def usage_of_side(calls: Iterable[Call], side: Side) -> SideUsage:
    """Return the usage of one side over these calls."""
    total = SideUsage()
    for call in calls:
        if call.side is side:
            total = total.plus(call)
    return total
