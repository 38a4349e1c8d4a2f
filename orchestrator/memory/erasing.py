"""What would be forgotten: whatever the store holds about somebody, or in a namespace, and what was derived from it."""

from .engine import Engine
from .item import Address, Namespace


def traces(engine: Engine, *, prefix: Namespace | None, subject: str | None) -> list[Address]:
    """Where the items are that would be erased, deleted ones of which something is still kept among them."""
    found = engine.traces(prefix=prefix, subject=subject)
    reached: dict[Address, None] = {}
    while new := [address for address in found if address not in reached]:
        reached.update(dict.fromkeys(new))
        found = engine.traces(derived_from=new)
    return sorted(reached)
