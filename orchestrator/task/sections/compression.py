"""The `[policy.compression]` section."""

from enum import StrEnum

from pydantic import Field

from ....protocols.messages import Value


class CompressionUse(StrEnum):
    """When a conversation that exceeds an agent's context window is compressed for it."""

    NEVER = "never"
    LAST_RESORT = "last_resort"
    """If no other agent could take over: one with a larger window reads all of it."""
    ALWAYS = "always"
    """Before another agent takes over."""


class CompressionConfig(Value):
    """Compression of long conversations: the `[policy.compression]` section of nearfar.toml."""

    use: CompressionUse = CompressionUse.LAST_RESORT
    reserve_tokens: int = Field(default=512, gt=0)
    """Tokens of the context window kept free for the agent's output; at most a quarter of the window, and at most the task's output
    limit."""
    summary_tokens: int = Field(default=0, ge=0)
    """Most tokens of a near agent's summary of the messages that are left out; 0: there is no summary."""
