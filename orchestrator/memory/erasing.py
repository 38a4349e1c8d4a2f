"""Forgetting for good: whatever the store holds about somebody, or in a namespace, and what was derived from it."""

from collections.abc import Callable, Sequence

from .engine import Change, Engine, Transaction
from .item import Address, Namespace, Principal, within
from .operation import Operation


def erase(engine: Engine, principal: Principal | None, *, prefix: Namespace | None, subject: str | None) -> list[Address]:
    """Erase the items and all that was derived from them, make them unreadable in every file, and return where they were.

    A principal erases what is their own.
    """
    with engine.transaction() as transaction:
        erased = _with_derived(engine, engine.traces(prefix=prefix, subject=subject), _is_own(transaction, principal))
        transaction.apply([Change(address, (), None) for address in erased])
    engine.scrub()
    return erased


def traces(engine: Engine, *, prefix: Namespace | None, subject: str | None) -> list[Address]:
    """Where the items are that would be erased, deleted ones of which something is still kept among them."""
    return _with_derived(engine, engine.traces(prefix=prefix, subject=subject), list)


def _with_derived(engine: Engine, found: Sequence[Address], may_erase: Callable[[Sequence[Address]], list[Address]]) -> list[Address]:
    reached: dict[Address, None] = {}
    while new := [address for address in may_erase(found) if address not in reached]:
        reached.update(dict.fromkeys(new))
        found = engine.traces(derived_from=new)
    return sorted(reached)


def _is_own(transaction: Transaction, principal: Principal | None) -> Callable[[Sequence[Address]], list[Address]]:
    def own(addresses: Sequence[Address]) -> list[Address]:
        if principal is None:
            return list(addresses)
        heads = transaction.heads(addresses)
        return [address for address in addresses if _belongs(address, heads.get(address, ()), principal)]

    return own


def _belongs(address: Address, heads: Sequence[Operation], principal: Principal) -> bool:
    is_inside = any(within(address.namespace, prefix) for prefix in principal.prefixes)
    return is_inside and all(head.meta.user == principal.user for head in heads)
