"""How items are written for people. What strangers wrote may be among it, so nothing in it reaches the terminal as a command."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from ...protocols.namespaces import namespace_text
from ...protocols.tiers import Tier
from ..util.escaping import printable, spelled_out

if TYPE_CHECKING:
    from ...protocols.namespaces import ItemAddress
    from ..memory.reading import MemoryItem

TIER_STYLES: Final = {Tier.DEVICE: "green", Tier.USER: "yellow", Tier.SHARED: "red"}
"""The further an item may go, the louder."""
TIER_MEANINGS: Final = {
    Tier.DEVICE: "it never leaves the device that wrote it",
    Tier.USER: "it goes to devices of the same user, and to the hub between them",
    Tier.SHARED: "it goes to whoever synchronises with this memory",
}
_TEXT_FIELDS: Final = ("text", "content", "fact", "value")
"""A value with one of these is best told by it alone."""
_STEPS: Final = ((60, "second", 1), (3600, "minute", 60), (86400, "hour", 3600), (30 * 86400, "day", 86400))


def one_line(value: Mapping[str, Any]) -> str:
    """What a value says, for a line of a table."""
    told = next((value[name] for name in _TEXT_FIELDS if isinstance(value.get(name), str)), None)
    return printable(" ".join((told if told is not None else value_text(value, indent=None)).split()))


def value_text(value: object, *, indent: int | None = 2) -> str:
    """A value as JSON, for a terminal."""
    return printable(json.dumps(value, ensure_ascii=False, indent=indent))


def address_text(address: "ItemAddress") -> str:
    """Where an item is, as the commands take it: namespace and key."""
    return spelled_out(f"{namespace_text(address.namespace)} {address.key}")


def tier_text(tier: Tier) -> Text:
    """A tier in its colour."""
    return Text(tier.value, style=TIER_STYLES[tier])


def origin_text(item: "MemoryItem") -> str:
    """On whose word an item is believed."""
    agent = f" {item.agent}" if item.agent else ""
    return printable(f"{item.source.value.replace('_', ' ')}{agent}")


def ago(moment: datetime, now: datetime | None = None) -> str:
    """How long ago, in one unit; what is longer ago than a month, as its date."""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    for limit, unit, size in _STEPS:
        if 0 <= seconds < limit:
            count = int(seconds // size)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return moment.astimezone().strftime("%Y-%m-%d %H:%M")


def moment_text(moment: datetime) -> str:
    """A moment in local time."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def size_text(count: int) -> str:
    """A number of bytes."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def counted(count: int, noun: str) -> str:
    """`1 item`, `2 items`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
