"""The outbound log: which messages left the device for a run and which were held back, without their content."""

from collections.abc import Mapping
from typing import Literal

from ....protocols.messages import Value
from ....protocols.tiers import Tier

Outcome = Literal["left", "held", "cached"]
"""`left`: sent. `held`: held back. `cached`: not sent, since a cache had the answer."""


class Departure(Value):
    """A message that was about to leave: to a far agent, or to a near agent in another process, perhaps on another device."""

    at: float
    """Seconds since the epoch, by this device's clock; the order is that of the records."""
    agent: str
    role: str
    """The role in which the agent was asked."""
    outcome: Outcome
    reason: str
    """The reason why it was allowed, or not."""
    bytes: int
    """Size of the message on the wire, in bytes."""
    digest: str
    """SHA-256 of these bytes, by which it can be told from others."""
    tier: Tier
    """Privacy tier of the content; `shared` for a message that left for a far agent."""
    origins: tuple[str, ...]
    """Origins that made the content more private or less trusted."""
    placeholders: tuple[str, ...] = ()
    """Names of the placeholders in the message."""
    findings: Mapping[str, int] = {}
    """Number of findings of each type before placeholders replaced them."""
