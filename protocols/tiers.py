"""How far an item may go (`Tier`), who said it (`Source`), and how far that is believed."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final


class Tier(StrEnum):
    """How far an item may go. The order is that of `TIERS`."""

    DEVICE = "device"
    """It never leaves the device that wrote it."""
    USER = "user"
    """To devices of the same user, and to the hub that connects them."""
    SHARED = "shared"
    """To whoever synchronises with the store."""


TIERS: Final = (Tier.DEVICE, Tier.USER, Tier.SHARED)
"""From the strictest on."""


class Source(StrEnum):
    """Who said what an item says."""

    USER = "user"
    INTERNAL_TOOL = "internal_tool"
    """The app's own code and tools."""
    MODEL = "model"
    DOCUMENT = "document"
    EXTERNAL_TOOL = "external_tool"
    """A tool that brings in what strangers wrote: the web, mail."""


TRUST: Final = {Source.USER: 1.0, Source.INTERNAL_TOOL: 0.8, Source.MODEL: 0.6, Source.DOCUMENT: 0.4, Source.EXTERNAL_TOOL: 0.2}
"""How far what comes from a source is believed, from 0 to 1, where nothing else is known."""


LEAST_TRUST: Final = min(TRUST.values())
"""How far strangers are believed, and what other users share."""


def strictest(tiers: Iterable[Tier]) -> Tier:
    """The tier that goes least far; of none, the strictest of all."""
    return min(tiers, key=TIERS.index, default=Tier.DEVICE)


def widest(tiers: Iterable[Tier]) -> Tier:
    """The tier that goes furthest; of none, the strictest of all."""
    return max(tiers, key=TIERS.index, default=Tier.DEVICE)
