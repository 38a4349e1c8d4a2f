"""How much a gateway's callers may ask of it."""

from pydantic import Field

from ...protocols.messages import Value


class GatewayLimits(Value):
    """What each caller may ask: the `[gateway]` section. Callers are told apart by their tokens."""

    requests_per_second: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Steps that a caller may begin, of which those of one second may come at once; None: as many as it likes."""
    tokens_per_minute: int | None = Field(default=None, gt=0)
    """Read and written. A prompt counts when it comes, the rest when it is known: what went beyond has to be made up for before more."""
    concurrent: int | None = Field(default=None, gt=0)
    """Steps of one caller at the same time; further ones wait. None: as many as the agent takes."""
    waiting: int = Field(default=1024, ge=0)
    """Steps of one caller that may wait for their turn; further ones are refused."""
    longest_wait: float = Field(default=20.0, gt=0, allow_inf_nan=False)
    """Seconds that a step waits for its turn before it is refused."""
