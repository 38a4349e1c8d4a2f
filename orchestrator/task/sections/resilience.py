"""The sections of a policy about agents that fail, or take too long."""

from dataclasses import dataclass
from typing import Self

from pydantic import Field, model_validator

from ....protocols.messages import Value


class BreakerConfig(Value):
    """When an agent that fails is left alone, and for how long: the `[policy.breakers]` section.

    Each agent has a breaker for each kind of error. It is closed while all is well, open while the agent is not asked, and half-open
    while one call at a time finds out whether the agent is back.
    """

    failures_in_a_row: int = Field(default=3, gt=0)
    """Of one kind, after which the breaker opens."""
    costly_seconds: float = Field(default=2.0, gt=0, allow_inf_nan=False)
    """An agent that cannot be reached is left alone at once if it took so long to find that out."""
    window: int = Field(default=20, gt=0, le=1000)
    """Latest calls of which the share of failures is taken."""
    failure_share: float = Field(default=0.5, gt=0, le=1)
    """Of the calls in the window, from which the breaker opens too, once the window is half full."""
    open_seconds: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """Until the agent is tried again, give or take a fifth; twice as long each time that it fails again."""
    longest_open_seconds: float = Field(default=120.0, gt=0, allow_inf_nan=False)
    """The most that this grows to. An agent that says itself when to come back is taken at its word."""
    successes_to_close: int = Field(default=2, gt=0)
    """Calls that have to go well, one after the other, before all may ask again."""

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.longest_open_seconds < self.open_seconds:
            raise ValueError("longest_open_seconds is shorter than open_seconds")
        return self


@dataclass(frozen=True, slots=True)
class IdleTimeouts:
    """Seconds of silence after which a step is given up."""

    first_token: float
    """Before anything was heard."""
    idle: float
    """Between two events."""


class HedgeConfig(Value):
    """Whether a second agent is asked where the first one takes unusually long: the `[policy.hedge]` section."""

    enabled: bool = False
    """Ask the next agent too, if it is of the other side, when the first step of a task takes longer than 95 of 100 did before."""
    observations: int = Field(default=20, gt=0)
    """Steps of the agent that have to have been measured before."""
    least_seconds: float = Field(default=0.5, ge=0, allow_inf_nan=False)
    """That the first agent has for itself in any case."""
