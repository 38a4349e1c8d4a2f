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
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Sample only from the likeliest tokens that have this probability together. Agents without this or the next four ignore them."""
    top_k: int | None = Field(default=None, gt=0, lt=2**31)
    """Sample only from this many of the likeliest tokens."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Sample only from tokens at least this many times as likely as the likeliest one."""
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Lower the logit of each token that the output holds already."""
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Lower a token's logit for each time that the output holds it."""
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    """Likeliest tokens to report at each place of the text; only agents that report log-probabilities may then answer."""
