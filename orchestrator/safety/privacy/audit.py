"""What left the device for a run, and what was held back: without a word of it."""

from collections.abc import Mapping
from typing import Literal

from ....protocols.messages import Value
from ....protocols.tiers import Tier

Outcome = Literal["left", "held", "cached"]
"""It left; it was held back; or it was about to leave, and a cache had the answer."""


class Departure(Value):
    """A message as it was about to leave: to an agent far away, or to one of the user's in another process, maybe on another device."""

    at: float
    """Seconds since the epoch, by this device's clock; the order is that of the records."""
    agent: str
    role: str
    """What it was asked for."""
    outcome: Outcome
    reason: str
    """Why it was allowed, or not."""
    bytes: int
    """Of the message as it goes over the wire."""
    digest: str
    """SHA-256 of these bytes, by which it can be told from others."""
    tier: Tier
    """Of what the message was made of; `shared` for one that left for an agent far away."""
    origins: tuple[str, ...]
    """What made that more private or less trusted."""
    placeholders: tuple[str, ...] = ()
    """Their names, as far as the message holds any."""
    findings: Mapping[str, int] = {}
    """How many of each type the detectors found before placeholders stood there."""
