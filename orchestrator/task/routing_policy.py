"""Sections of a policy for the choice between agents: what counts, what may be spent, and what happens if one fails or is slow."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from ...protocols import (
    AgentError,
    BudgetExceeded,
    ContextOverflow,
    DeadlineExceeded,
    InvalidOutput,
    NearfarError,
    PrivacyViolation,
    QuotaExceeded,
    RateLimited,
    Stalled,
    Unavailable,
    Unsupported,
)
from ...protocols.steps import Value

Weight = Annotated[float, Field(ge=0, le=1e9)]
Share = Annotated[float, Field(gt=0, lt=1)]
SHOWN: Final = 'some of the answer was shown, so no other agent starts over; after_first_token = "restart" in [policy.fallback] lets one'
"""Reason why no agent takes over from one that failed in the middle of its shown text."""
FALLBACK_ERRORS: Final = (AgentError, ContextOverflow, PrivacyViolation, Unsupported)
"""Failures after which another agent may do better; the user has to fix any other error."""


class BreakerConfig(Value):
    """Circuit breakers for failing agents: the `[policy.breakers]` section.

    Each agent has a circuit breaker for each kind of error. It is closed in normal operation, open while the agent is not asked, and
    half-open while one call at a time finds out whether the agent is back.
    """

    failures_in_a_row: int = Field(default=3, gt=0)
    """Consecutive failures of one kind after which the circuit breaker opens."""
    costly_seconds: float = Field(default=2.0, gt=0, allow_inf_nan=False)
    """Seconds after which a failed attempt to reach an agent opens its circuit breaker at once."""
    window: int = Field(default=20, gt=0, le=1000)
    """Number of latest calls from which the share of failures is computed."""
    failure_share: float = Field(default=0.5, gt=0, le=1)
    """Share of failed calls in the window, 0 to 1, from which the circuit breaker opens, once the window is half full."""
    open_seconds: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """Seconds until the agent is tried again, give or take a fifth; doubled each time that it fails again."""
    longest_open_seconds: float = Field(default=120.0, gt=0, allow_inf_nan=False)
    """Most seconds that this grows to; an agent's own retry time is respected instead."""
    successes_to_close: int = Field(default=2, gt=0)
    """Consecutive successful calls after which the circuit breaker closes."""

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.longest_open_seconds < self.open_seconds:
            raise ValueError("longest_open_seconds is shorter than open_seconds")
        return self


@dataclass(frozen=True, slots=True)
class IdleTimeouts:
    """Idle timeouts of a step, in seconds."""

    first_token: float
    """Before the first event."""
    idle: float
    """Between two events."""


class HedgeConfig(Value):
    """Hedging of unusually slow first steps: the `[policy.hedge]` section."""

    enabled: bool = False
    """Ask the next agent too, if it is of the other side, when a task's first step takes longer than 95 of 100 earlier ones."""
    observations: int = Field(default=20, gt=0)
    """Measured steps of the agent that hedging needs."""
    least_seconds: float = Field(default=0.5, ge=0, allow_inf_nan=False)
    """Least seconds before a second agent is asked."""


class ObjectiveConfig(Value):
    """Weights of quality and costs in one unit: the `[policy.objective]` section.

    The agent with the highest utility serves: quality * P(success) - dollars * $ - seconds * s - joules * J.
    """

    quality: Weight = 1.0
    """Weight of a task done right, against one that failed."""
    dollars: Weight = 1.0
    """Weight of one US dollar; by default a task done right is worth a dollar."""
    seconds: Weight = 0.0
    """Weight of one second of waiting."""
    joules: Weight = 0.0
    """Weight of one joule of the device's energy."""

    @model_validator(mode="after")
    def _wants_something(self) -> Self:
        if not any(self.model_dump().values()):
            raise ValueError("all weights are zero, so that every agent would be as good as any other")
        return self


class AmountsConfig(Value):
    """Amounts that may be spent; None: no limit."""

    dollars: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Most dollars."""
    tokens: int | None = Field(default=None, gt=0)
    """Most tokens, read and written, on both sides."""
    seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Most seconds of agents at work."""
    joules: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Most joules of the device's energy, if it is measured or estimated."""


class LimitsConfig(Value):
    """Limits of spending: the `[policy.limits]` section. A call beyond a limit is left to another agent, or refused if there is none."""

    call: AmountsConfig = AmountsConfig()
    """Limits of one step of an agent."""
    task: AmountsConfig = AmountsConfig()
    """Limits of one task."""
    session: AmountsConfig = AmountsConfig()
    """Limits of all tasks of one `session`, as the app names it."""
    user: AmountsConfig = AmountsConfig()
    """Limits of all tasks for one `user`, as the app names them."""
    day: AmountsConfig = AmountsConfig()
    """Limits of all tasks since midnight, local time."""
    unknown_price: Literal["refuse", "allow"] = "refuse"
    """Refuse or allow calls of unknown price while dollars are limited; those of agents on this device are always allowed."""


class FallbackTrigger(StrEnum):
    """Failures after which the next agent takes over."""

    UNAVAILABLE = "unavailable"
    """The agent cannot be reached, or its process died."""
    ERROR = "error"
    """Any failure that no other trigger names."""
    TIMEOUT = "timeout"
    STALL = "stall"
    INVALID_OUTPUT = "invalid_output"
    """Its output does not match the schema."""
    LOW_CONFIDENCE = "low_confidence"
    """The evidence speaks against its draft, in a cascade; or, on this device, against a step that would change something."""
    CONTEXT_OVERFLOW = "context_overflow"
    QUOTA = "quota"
    """The provider's account or rate, or a limit of the policy, is used up."""


class FallbackConfig(Value):
    """Agents that take over from one that failed: the `[policy.fallback]` section."""

    order: tuple[str, ...] = ()
    """Names of agents, in the order in which they take over; the others follow in the router's order."""
    triggers: tuple[FallbackTrigger, ...] = tuple(FallbackTrigger)
    """Failures after which the next agent takes over; by default all."""
    first_token_timeout: float = Field(default=30, gt=0)
    """Seconds until the first event of a far agent, if another agent could take over."""
    stall_timeout: float = Field(default=30, gt=0)
    """Seconds between two later events of a far agent; a tool call is one event, sent when it is complete."""
    after_first_token: Literal["never", "restart"] = "never"
    """`restart`: another agent may start over if one fails after some of its text was shown to the user; `never`: none may. `stream`
    shows text, `run` does not."""

    def hands_over(self, *, was_shown: bool) -> bool:
        """Return whether another agent may start over. `was_shown`: the user has seen text of the one that failed."""
        return not was_shown or self.after_first_token == "restart"

    @property
    def idle_timeouts(self) -> IdleTimeouts:
        return IdleTimeouts(first_token=self.first_token_timeout, idle=self.stall_timeout)

    def follows(self, error: NearfarError) -> bool:
        """Return whether another agent may try after this `error`. An agent that lacks a capability, or must not be told, is always passed
        over."""
        return isinstance(error, (PrivacyViolation, Unsupported)) or trigger_of(error) in self.triggers


class StickinessConfig(Value):
    """How a session stays with its agent: the `[policy.stickiness]` section."""

    follow_ups: bool = True
    """Send follow-up tasks of a session to the agent that answered last, if the rules allow it."""
    seconds: float = Field(default=3600, gt=0)
    """Seconds without a task after which a session is forgotten."""


class VerifierKind(StrEnum):
    """A verdict that a judge is asked for."""

    OUTCOME = "outcome"
    """Plainly: the judge sees the task, the whole work and the answer."""
    PRIOR_FIRST = "prior_first"
    """By a list of what must be true of a right answer, written from task and tools before the work is seen, and kept by kind of task."""
    RUBRIC = "rubric"
    """By the faults that `hybrid.report(..., because=...)` has named in answers of the class; without any, no judge is asked."""


class EvidenceConfig(Value):
    """Checks of a cascade before it accepts a draft: the `[policy.evidence]` section.

    Free checks are always made: the draft exists, is valid, is supported by tool results, and the agent was confident.
    """

    second_opinion: str | None = None
    """Name of a near agent that has to agree with the draft; the draft's own agent is sampled a second time. None: no second opinion."""
    verifiers: tuple[VerifierKind, ...] = ()
    """Verdicts that a draft needs after the other checks, cheapest first: one below 0.5, corrected by reported outcomes, rejects it."""
    votes: int = Field(default=1, ge=1, le=64)
    """Most samples of a near agent that vote on its answer: sampling stops once further votes would hardly change the answer.

    Answers that have a schema, took more than one step or are streamed are not voted on.
    """
    judge: str | None = None
    """Name of the agent that gives these verdicts, with its adapter named `judge` if it has one. None: the far agent that would take over,
    if it may be told the work."""
    before_acts: bool = True
    """Check a near agent's call of a tool that changes something before it runs, if a far agent could be asked instead."""
    escalation: Path | None = None
    """File written by `nearfar policy train`, with which the evidence and the price of a further check or agent are weighed; None: each
    check can reject the draft by itself.
    """
    stop_below: float = Field(default=0.0, ge=0, le=1)
    """Confidence of a step, 0 to 1, below which a draft is given up at once, and does not stand if later agents fail; 0: never."""


HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
BUDGETS: Final = ("far_share", "dollars_per_hour", "dollars_per_day", "least_quality")
"""Settings of the router to which the threshold adapts; at most one is given."""


class RouterConfig(Value):
    """The router's predictions, learning and budget: the `[policy.router]` section."""

    head: Path | None = None
    """Folder written by `nearfar policy train`; None: the prompt's words are not used for predictions."""
    threshold: float = Field(default=0.0, allow_inf_nan=False)
    """Utility by which a far agent has to exceed the near ones; `nearfar policy calibrate` finds a value."""
    far_share: Share | None = None
    """Share of the freely routed tasks, 0 to 1, in which a far agent answers, plans or checks: the threshold adapts to it. None: the
    threshold is fixed."""
    dollars_per_hour: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """US dollars billed in any 60 minutes, to which the threshold adapts; None: the threshold is fixed."""
    dollars_per_day: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """US dollars billed in any 24 hours, to which the threshold adapts; None: the threshold is fixed."""
    least_quality: Share | None = None
    """Expected share of tasks done right, 0 to 1, that is kept with as few dollars as possible; None: the threshold is fixed."""
    explore_share: float = Field(default=0.0, ge=0, le=1)
    """Largest share of tasks, 0 to 1, that may go to another agent than the best known one, to learn about it."""
    learn: bool = True
    """Correct the predictions by reported outcomes."""
    shadow: bool = False
    """Decide and log only: tasks are served in the order of the mode."""
    log: Path | None = None
    """File to which each decision and its outcome are appended, without the words of private tasks, and which is read at the
    next start; None: no log. A file whose last line is no JSON is never written to."""

    @model_validator(mode="after")
    def _holds_one_budget(self) -> Self:
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} would all set the threshold: give one of them")
        return self

    @property
    def has_budget(self) -> bool:
        """Return whether the threshold adapts to a budget or a quality."""
        return self.far_share is not None or self.least_quality is not None or self.dollar_rate is not None

    @property
    def dollar_rate(self) -> tuple[float, float] | None:
        """Return the dollars that may be billed, and the seconds of the period; None: there is no such budget."""
        if self.dollars_per_hour is not None:
            return self.dollars_per_hour, HOUR
        return None if self.dollars_per_day is None else (self.dollars_per_day, DAY)


def trigger_of(error: NearfarError) -> FallbackTrigger | None:
    """Return the trigger of an error; None if no other agent would avoid it."""
    return next((trigger for classes, trigger in _TRIGGERS if isinstance(error, classes)), None)


_TRIGGERS: tuple[tuple[type[NearfarError] | tuple[type[NearfarError], ...], FallbackTrigger], ...] = (
    (Unavailable, FallbackTrigger.UNAVAILABLE),
    (DeadlineExceeded, FallbackTrigger.TIMEOUT),
    (Stalled, FallbackTrigger.STALL),
    (InvalidOutput, FallbackTrigger.INVALID_OUTPUT),
    (ContextOverflow, FallbackTrigger.CONTEXT_OVERFLOW),
    ((RateLimited, QuotaExceeded, BudgetExceeded), FallbackTrigger.QUOTA),
    (AgentError, FallbackTrigger.ERROR),
)
