"""Addresses of the memory's items, their reach (`Tier`) and their origin with the trust in it (`Source`)."""

import json
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from .errors import InvalidRequest

Namespace = tuple[str, ...]


class ItemAddress(NamedTuple):
    """The address of an item."""

    namespace: Namespace
    """Labels from the outermost to the innermost."""
    key: str
    """The item's name in its namespace."""


def within(namespace: Namespace, prefix: Namespace) -> bool:
    """Return whether `namespace` is `prefix` or lies below it."""
    return namespace[: len(prefix)] == prefix


def parse_namespace(text: str) -> Namespace:
    """Parse a namespace such as `notes/ana`; an empty text is the empty namespace. Labels with a slash are written as JSON:
    `["and/or"]`.

    Raise `InvalidRequest` for any other text.
    """
    if not text:
        return ()
    if not text.startswith("["):
        return _checked(text.strip("/").split("/"), text)
    try:
        labels = json.loads(text)
    except ValueError:
        labels = None
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise InvalidRequest(f"{text!r} is no namespace", hint='write labels with / between them, or as JSON: ["notes", "and/or"]')
    return _checked(labels, text)


def namespace_text(namespace: Namespace) -> str:
    """Return the text of a namespace, which `parse_namespace` reads."""
    if any("/" in label for label in namespace) or namespace[:1] and namespace[0].startswith("["):
        return json.dumps(namespace, ensure_ascii=False)
    return "/".join(namespace)


def _checked(labels: list[str], text: str) -> Namespace:
    if not all(labels):
        raise InvalidRequest(
            f"{text!r} is no namespace: a label in it is empty", hint="write labels with / between them, such as notes/ana"
        )
    return tuple(labels)


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
