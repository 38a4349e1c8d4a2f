"""The `[policy.guard]` section: what becomes of calls that strangers may have brought about."""

from enum import StrEnum

from ....protocols.messages import Value


class OnDoubt(StrEnum):
    """What is done about a call."""

    ALLOW = "allow"
    """It runs."""
    ASK = "ask"
    """Somebody has to say yes to it; where nobody can be asked, it does not run."""
    REFUSE = "refuse"
    """It does not run."""


class GuardConfig(Value):
    """What a model may do once the run has read what strangers wrote."""

    tools: OnDoubt = OnDoubt.ASK
    """Of a call to a tool that neither the task lists nor the model had chosen before it read any of that."""
    arguments: OnDoubt = OnDoubt.ASK
    """Of a call with an argument that comes neither from the user's words nor from trusted data, or that would show private data to
    more people than may see them."""
