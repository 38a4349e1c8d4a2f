"""Namespaces of the memory: the address of an item, and its form as text."""

import json
from typing import NamedTuple

from . import InvalidRequest

Namespace = tuple[str, ...]


class ItemAddress(NamedTuple):
    """The address of an item."""

    namespace: Namespace
    key: str


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
