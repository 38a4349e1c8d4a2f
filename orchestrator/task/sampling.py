"""How the agent that answers samples its tokens."""

from typing import Annotated

from pydantic import Field

from ...protocols.steps import Value


class Sampling(Value):
    """Sampling of the steps of the agent that answers; planners, supervisors and second opinions keep to the policy.

    None: the policy decides, and else the agent's own default.
    """

    temperature: float | None = Field(default=None, ge=0, le=2)
    """From 0, the likeliest token every time, to 2."""
    max_output_tokens: int | None = Field(default=None, gt=0)
    """Most tokens of each step's output; a lower limit of the policy holds, too."""
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    """Makes sampling repeatable, where the agent can."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(default=(), max_length=8)
    """Texts that end the output, and are left out of it."""
