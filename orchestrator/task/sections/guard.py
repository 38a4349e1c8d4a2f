"""The `[policy.guard]` section: approval of tool calls that untrusted content may have caused."""

from enum import StrEnum

from ....protocols.messages import Value


class OnDoubt(StrEnum):
    """Treatment of a doubtful call."""

    ALLOW = "allow"
    """The call runs."""
    ASK = "ask"
    """The call needs approval; if nothing can approve it, it does not run."""
    REFUSE = "refuse"
    """The call does not run."""


class GuardConfig(Value):
    """Tool calls after a run has read untrusted content: the `[policy.guard]` section."""

    tools: OnDoubt = OnDoubt.ASK
    """Treatment of a call to a tool that the task does not list and the model had not chosen before it read untrusted content; by
    default
    it needs approval.
    """
    arguments: OnDoubt = OnDoubt.ASK
    """Treatment of a call with an argument from neither the user's words nor trusted data, or that would show private data to more
    people
    than may see them; by default it needs approval.
    """
