"""`Tier`, the reach of an item, and `Source`, its origin with the trust in it."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final


class Tier(StrEnum):
    """The reach of an item, in the order of `TIERS`."""

    DEVICE = "device"
    """It never leaves the device that wrote it."""
    USER = "user"
    """Sent to devices of the same user, and to the hub that connects them."""
    SHARED = "shared"
    """Sent to every device that synchronises with the store."""


TIERS: Final = (Tier.DEVICE, Tier.USER, Tier.SHARED)
"""All tiers, from the strictest to the widest."""


class Source(StrEnum):
    """The origin of an item's content."""

    USER = "user"
    INTERNAL_TOOL = "internal_tool"
    """The app's own code and tools."""
    MODEL = "model"
    DOCUMENT = "document"
    EXTERNAL_TOOL = "external_tool"
    """A tool that returns untrusted content: the web, mail."""


TRUST: Final = {Source.USER: 1.0, Source.INTERNAL_TOOL: 0.8, Source.MODEL: 0.6, Source.DOCUMENT: 0.4, Source.EXTERNAL_TOOL: 0.2}
"""Default trust in content from a source, from 0 to 1."""


LEAST_TRUST: Final = min(TRUST.values())
"""Trust in untrusted content, and in items that other users share."""


def strictest(tiers: Iterable[Tier]) -> Tier:
    """Return the strictest of the tiers; `DEVICE` if there are none."""
    return min(tiers, key=TIERS.index, default=Tier.DEVICE)


def widest(tiers: Iterable[Tier]) -> Tier:
    """Return the widest of the tiers; `DEVICE` if there are none."""
    return max(tiers, key=TIERS.index, default=Tier.DEVICE)
