"""Continue with a store that is a copy, restored from a backup or cloned: other replicas have writes under the same numbers."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from ....protocols.namespaces import ItemAddress
from ..engine import Engine, Transaction
from ..operation import Dot, Operation, Stamp
from ..projection import change_of
from . import books

logger = logging.getLogger(__name__)

_PAGE: Final = 1000


def go_on(engine: Engine, transaction: Transaction, fields: Sequence[str], *, remembered: int, now: float) -> None:
    """Give new numbers, after all that are known anywhere, to the writes made since the copy, as far as these can be told.

    Therefore no write of either copy is lost; writes that both have may be written twice. `remembered` is the last number of this device
    that peers know.
    """
    own, shared = engine.device, books.told(transaction).sequence
    had = transaction.known().get(own, 0)
    logger.warning(
        "this store is a copy: its last %d writes get new numbers after %d, the last one that peers know", had - shared, remembered
    )
    transaction.learn({own: remembered}, 0)
    changed: dict[ItemAddress, dict[Dot, Operation]] = {}
    for operation in _written_since(engine, shared):
        sequence, clock = transaction.reserve(1, now)
        anew = _renumbered(operation, Dot(own, sequence), max(clock, operation.clock + 1), shared)
        changed.setdefault(operation.address, {})[operation.dot] = anew
    present = transaction.heads(list(changed))
    renumbered = {address: [anew.get(head.dot, head) for head in present[address]] for address, anew in changed.items()}
    transaction.apply([change_of(address, heads, now=now, fields=fields) for address, heads in renumbered.items()])
    books.note_restored(transaction, shared)


def _renumbered(operation: Operation, dot: Dot, clock: int, shared: int) -> Operation:
    """Return the write under another number. It also supersedes earlier ones whose numbers the other copy has used for its own writes."""
    own = Stamp(clock, *dot)

    def is_shared(stamp: Stamp) -> bool:
        return stamp.device != dot.device or stamp.sequence <= shared

    context = {device: min(known, shared) if device == dot.device else known for device, known in operation.context.items()}
    siblings = [
        replace(one, lost={name: stamp if is_shared(stamp) else own for name, stamp in one.lost.items()}) for one in operation.siblings
    ]
    return operation._replace(
        dot=dot,
        clock=clock,
        context=context,
        stamps={name: stamp if is_shared(stamp) else own for name, stamp in operation.stamps.items()},
        siblings=tuple(siblings),
        base=operation.base if is_shared(operation.whole) else None,
    )


def _written_since(engine: Engine, shared: int) -> Iterator[Operation]:
    position = 0
    while page := engine.operations(position, limit=_PAGE):
        own = (logged.operation for logged in page if logged.operation.dot.device == engine.device)
        yield from (operation for operation in own if operation.dot.sequence > shared)
        position = page[-1].position
