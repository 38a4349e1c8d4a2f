"""Limits of a gateway's callers."""

from pydantic import Field

from ...protocols.messages import Value


class GatewayLimits(Value):
    """Limits of each caller, the `[gateway]` section. Callers are identified by their tokens."""

    requests_per_second: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Steps that a caller may begin, those of one second at once; None: no limit."""
    tokens_per_minute: int | None = Field(default=None, gt=0)
    """Tokens read and written. A prompt counts when it arrives, the rest when it is known; any excess delays the next steps."""
    concurrent: int | None = Field(default=None, gt=0)
    """Steps of one caller at the same time; further ones wait. None: as many as the agent takes."""
    waiting: int = Field(default=1024, ge=0)
    """Steps of one caller that may wait for their turn; further ones are refused."""
    longest_wait: float = Field(default=20.0, gt=0, allow_inf_nan=False)
    """Seconds that a step waits for its turn before it is refused."""
