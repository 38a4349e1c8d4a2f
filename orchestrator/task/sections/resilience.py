"""Sections of a policy about agents that fail, or are slow."""

from dataclasses import dataclass
from typing import Self

from pydantic import Field, model_validator

from ....protocols.messages import Value


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
