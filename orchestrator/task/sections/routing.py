"""The sections of a policy that the router reads."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from ....protocols import (
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
from ....protocols.messages import Value
from .resilience import IdleTimeouts

Weight = Annotated[float, Field(ge=0, le=1e9)]
Share = Annotated[float, Field(gt=0, lt=1)]


class ObjectiveConfig(Value):
    """What a task is worth and what it costs, in one unit: the `[policy.objective]` section.

    The agent with the highest utility serves: quality * P(success) - dollars * $ - seconds * s - joules * J.
    """

    quality: Weight = 1.0
    """Of a task done right, against one that failed."""
    dollars: Weight = 1.0
    """Of one US dollar: with 1 for quality too, a task done right is worth a dollar."""
    seconds: Weight = 0.0
    """Of one second of waiting."""
    joules: Weight = 0.0
    """Of one joule of the device's energy."""

    @model_validator(mode="after")
    def _wants_something(self) -> Self:
        if not any(self.model_dump().values()):
            raise ValueError("all weights are zero, so that every agent would be as good as any other")
        return self


class AmountsConfig(Value):
    """What may be spent at most; None: as much as it takes."""

    dollars: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    tokens: int | None = Field(default=None, gt=0)
    """Read and written, on both sides."""
    seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Of agents at work."""
    joules: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Of the device's energy, where it is measured or estimated."""


class LimitsConfig(Value):
    """What may be spent: the `[policy.limits]` section. What would go beyond is left to another agent, and refused where there is none."""

    call: AmountsConfig = AmountsConfig()
    """One step of an agent."""
    task: AmountsConfig = AmountsConfig()
    session: AmountsConfig = AmountsConfig()
    """All tasks of one `session`, as the app names it."""
    user: AmountsConfig = AmountsConfig()
    """All tasks on behalf of one `user`, as the app names them."""
    day: AmountsConfig = AmountsConfig()
    """All tasks since midnight, local time."""
    unknown_price: Literal["refuse", "allow"] = "refuse"
    """Whether calls whose price nobody knows are made where dollars are limited; those of agents on this device always are."""


class FallbackTrigger(StrEnum):
    """What lets the next agent take over."""

    UNAVAILABLE = "unavailable"
    """It cannot be reached, or its process died."""
    ERROR = "error"
    """Any failure that no other trigger names."""
    TIMEOUT = "timeout"
    STALL = "stall"
    INVALID_OUTPUT = "invalid_output"
    """Its output does not keep to the schema."""
    LOW_CONFIDENCE = "low_confidence"
    """The evidence speaks against its draft, in a cascade; or, on this device, against a step that would change something."""
    CONTEXT_OVERFLOW = "context_overflow"
    QUOTA = "quota"
    """The provider's account or rate is used up, or a limit of the policy."""


class FallbackConfig(Value):
    """Who takes over from an agent that failed, and when: the `[policy.fallback]` section."""

    order: tuple[str, ...] = ()
    """Names of agents, in the order in which they take over; those not named follow in the router's order."""
    triggers: tuple[FallbackTrigger, ...] = tuple(FallbackTrigger)
    first_token_timeout: float = Field(default=30, gt=0)
    """Seconds that an agent in the cloud may be silent at first, where another one could take over."""
    stall_timeout: float = Field(default=30, gt=0)
    """Seconds that it may be silent later on: a tool call is heard of when it is complete."""
    after_first_token: Literal["never", "restart"] = "never"
    """Whether another agent may take over, from the start, from one that fails when some of its text was shown to the user. What `run`
    returns was not shown before; what `stream` yields was."""

    def hands_over(self, *, was_shown: bool) -> bool:
        """Whether another agent may start over, by what the user has seen of the one that failed."""
        return not was_shown or self.after_first_token == "restart"

    @property
    def patience(self) -> IdleTimeouts:
        return IdleTimeouts(first_token=self.first_token_timeout, idle=self.stall_timeout)

    def follows(self, error: NearfarError) -> bool:
        """Whether another agent may try after this error. An agent that lacks a capability, or must not be told, is always passed over."""
        return isinstance(error, (PrivacyViolation, Unsupported)) or trigger_of(error) in self.triggers


class StickinessConfig(Value):
    """What keeps a conversation with the agent that it began with: the `[policy.stickiness]` section."""

    follow_ups: bool = True
    """A task of a session that was served before goes to the agent that answered last, where the rules allow it."""
    seconds: float = Field(default=3600, gt=0)
    """Of silence after which a session is forgotten."""


class EvidenceConfig(Value):
    """What a cascade looks at before it accepts a draft: the `[policy.evidence]` section.

    Free looks are always taken: is the draft there, is it valid, do tool results support it, was the agent sure?
    """

    second_opinion: str | None = None
    """Name of an agent on this device that is asked too, and has to agree with the draft; that of the draft's own agent asks it a second
    time, with some chance. None: nobody is asked."""
    escalation: Path | None = None
    """File that `nearfar router train` wrote: by it a cascade weighs what the looks find, and whether a further one, or the next agent,
    is worth its price. None: each look can reject the draft by itself."""
    stop_below: float = Field(default=0.0, ge=0, le=1)
    """Confidence of a step below which a draft is given up at once, in the middle of its work; 0: none is. The draft then does not stand
    where later agents fail."""


class RouterConfig(Value):
    """How the router predicts, learns and holds its budget: the `[policy.router]` section."""

    head: Path | None = None
    """Folder that `nearfar router train` wrote; None: nothing is predicted from the prompt's words."""
    threshold: float = Field(default=0.0, allow_inf_nan=False)
    """Utility by which a far agent has to be ahead of the near ones; `nearfar policy calibrate` finds it."""
    far_share: Share | None = None
    """Share of the tasks that the router is free to place, which goes far: the threshold follows it. None: the threshold stands."""
    dollars_per_hour: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The same for what is billed in any 60 minutes."""
    explore_share: float = Field(default=0.0, ge=0, le=1)
    """Largest share of tasks that may go to another agent than the best known one, to learn about it."""
    learn: bool = True
    """Correct the predictions by what is reported of tasks."""
    shadow: bool = False
    """Decide and log, and change nothing: tasks are served in the order of the mode."""
    log: Path | None = None
    """File to which each decision is appended, and later what came of it; without the words of private tasks."""

    @model_validator(mode="after")
    def _holds_one_budget(self) -> Self:
        if self.far_share is not None and self.dollars_per_hour is not None:
            raise ValueError("far_share and dollars_per_hour would both set the threshold: give one of them")
        return self


SHOWN: Final = 'some of the answer was shown, so no other agent starts over; after_first_token = "restart" in [policy.fallback] lets one'
"""Why nobody takes over from an agent that failed in the middle of what it said."""
FALLBACK_ERRORS: Final = (AgentError, ContextOverflow, PrivacyViolation, Unsupported)
"""Failures after which another agent may do better; any other error is for the user to mend."""


def trigger_of(error: NearfarError) -> FallbackTrigger | None:
    """The trigger that an error is; None for those that no other agent would be spared."""
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
