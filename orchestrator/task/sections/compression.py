"""`CompressionConfig`: what happens to a conversation that is too long for an agent."""

from enum import StrEnum

from pydantic import Field

from ....protocols.messages import Value


class CompressionUse(StrEnum):
    """When a conversation that an agent's context window cannot hold is compressed for it."""

    NEVER = "never"
    LAST_RESORT = "last_resort"
    """Where no other agent could take over: one with a larger window reads all of it."""
    ALWAYS = "always"
    """Before another agent takes over."""


class CompressionConfig(Value):
    """How long conversations are made to fit: the `[policy.compression]` section of nearfar.toml."""

    use: CompressionUse = CompressionUse.LAST_RESORT
    reserve_tokens: int = Field(default=512, gt=0)
    """Of a context window, kept free for what the agent says; never more than a quarter of the window, nor than the task lets it say."""
    summary_tokens: int = Field(default=0, ge=0)
    """Of the compressed conversation at most, for a near agent's summary of what is left out; 0: nobody is asked for one."""
