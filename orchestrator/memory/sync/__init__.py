"""A replica as its peers see it: its state, what it learns, and what it erases, so that no data of it is left in the database."""

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ....protocols import InvalidRequest, PermissionDenied, SyncRefused
from ....protocols.items import ItemAddress, Namespace, Tier
from ..engine import Change, Engine, Transaction
from ..erasing import Wording, operations_of
from ..operation import MAXIMUM_SKEW, Dot, Operation, Sibling, Stamp, address_tag
from ..vectors import change_of
from . import books
from .keys import SubjectKeys, tag_of
from .messages import (
    SCHEMA,
    Erasure,
    Erasures,
    Hello,
    Peer,
    Request,
    SharedFacts,
    check_share,
    check_size,
    is_device,
    prefix_tag,
    without_siblings,
)


@dataclass(frozen=True, slots=True)
class Forgetting:
    """A transaction in which items are erased."""

    engine: Engine
    transaction: Transaction
    fields: Sequence[str]
    now: float
    wording: Wording = field(default_factory=Wording)
    """The name of the erasures' subject, if it is known here: items with the name in their text are erased, too."""

    def named(self) -> Iterator[Dot]:
        """Yield the writes whose text has the name."""
        if self.wording.name is None:
            return
        for operation in operations_of(self.engine):
            yield from (write.dot for write in operation.writes if self.wording.is_named_in(write.value))


def forget(forgetting: Forgetting, erasures: Sequence[Erasure]) -> tuple[list[ItemAddress], list[Erasure]]:
    """Drop the operations that the erasures cover, and those derived from them.

    Returns the items that are gone completely, and the erasures with what the dropped writes had overwritten.
    """
    reached = _reached(forgetting, erasures)
    changes: list[Change] = []
    for address, heads in forgetting.transaction.heads(sorted({one.operation.address for one in reached.values()})).items():
        left = [reached[head.dot].left if head.dot in reached else head for head in heads]
        kept = [head for head in left if head is not None]
        changes.append(change_of(address, kept, now=forgetting.now, fields=forgetting.fields) if kept else Change(address, (), None))
    # The engine removes all data of an item only if the whole item is forgotten.
    forgetting.transaction.apply([Change(change.address, (), None) for change in changes])
    forgetting.transaction.apply([change for change in changes if change.heads])
    grown = {erasure.id: erasure for erasure in erasures}
    for one in reached.values():
        grown |= {erasure.id: grown[erasure.id] | _overwritten(erasure, one.operation) for erasure in one.by}
    return [change.address for change in changes if not change.heads], list(grown.values())


def _overwritten(erasure: Erasure, dropped: Operation) -> Erasure:
    """Return the erasure with the dropped write and those that it overwrote, if other replicas may have these and would not find them."""
    needs_no_mention = dropped.meta.tier is Tier.DEVICE or erasure.names(dropped.address, dropped.meta)
    if dropped.reach is Tier.DEVICE and needs_no_mention:
        return erasure
    device, sequence = dropped.dot
    return replace(erasure, overwritten={address_tag(dropped.address): {**dropped.context, device: sequence}})


@dataclass(frozen=True, slots=True)
class _Reached:
    """A write that erasures reach."""

    operation: Operation
    by: list[Erasure]
    """The erasures by which the whole write is dropped."""
    left: Operation | None


@dataclass(frozen=True, slots=True)
class _Reach:
    """The writes that erasures reach, apart from those that they cover by themselves."""

    named: frozenset[Dot]
    """Writes whose text names the subject of the erasures."""
    sources: dict[ItemAddress, set[str]] = field(default_factory=dict)
    """Items with dropped writes, and the erasures that dropped them."""

    def has(self, write: Operation | Sibling, erasure: Erasure) -> bool:
        """Return whether a value has the name, or was derived from an erased item before its writer heard of the erasure.

        A value that another user derived is that user's own.
        """
        if not erasure.precedes(write.dot) or erasure.user not in (None, write.meta.user):
            return False
        return write.dot in self.named or any(erasure.id in self.sources.get(address, ()) for address in write.meta.lineage)


def _reached(forgetting: Forgetting, erasures: Sequence[Erasure]) -> dict[Dot, _Reached]:
    """Return the writes that erasures reach."""
    reached: dict[Dot, _Reached] = {}
    index, by_id = Erasures(erasures), {erasure.id: erasure for erasure in erasures}
    reach = _Reach(frozenset(forgetting.named()))
    is_growing = True
    while is_growing:
        is_growing = False
        for operation in operations_of(forgetting.engine):
            lineage = {address for write in operation.writes for address in write.meta.lineage}
            derived = {id for address in lineage for id in reach.sources.get(address, ())}
            others = by_id if any(write.dot in reach.named for write in operation.writes) else derived
            near = {erasure.id: erasure for erasure in (*index.near(operation), *(by_id[id] for id in sorted(others)))}
            one = _left(operation, list(near.values()), reach) if near else None
            if one is not None and one != reached.get(operation.dot):
                reached[operation.dot] = one
                reach.sources.setdefault(operation.address, set()).update(erasure.id for erasure in one.by)
                is_growing = True
    return reached


def _left(operation: Operation, erasures: Sequence[Erasure], reach: _Reach) -> _Reached | None:
    by = [one for one in erasures if one.covers(operation) or reach.has(operation, one)]
    if by:
        return _Reached(operation, by, None)
    left = without_siblings(
        operation,
        lambda sibling: any(one.covers_sibling(operation.address, sibling) or reach.has(sibling, one) for one in erasures),
    )
    return None if left is operation else _Reached(operation, [], left)


logger = logging.getLogger(__name__)


def renumber_copy(engine: Engine, transaction: Transaction, fields: Sequence[str], *, remembered: int, now: float) -> None:
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
    own_writes = (one for one in operations_of(engine) if one.dot.device == own and one.dot.sequence > shared)
    for operation in own_writes:
        sequence, clock = transaction.reserve(1, now)
        rewritten = _renumbered(operation, Dot(own, sequence), max(clock, operation.clock + 1), shared)
        changed.setdefault(operation.address, {})[operation.dot] = rewritten
    present = transaction.heads(list(changed))
    renumbered = {address: [rewritten.get(head.dot, head) for head in present[address]] for address, rewritten in changed.items()}
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


_ID_BYTES: Final = 16
LARGEST_LOSS: Final = 1 << 32
"""More writes than are ever made between two backups."""
_MOST_INTRODUCED: Final = 100
"""The most devices of one credential, one after the other: each new store is one."""


def _ignore() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A store's engine with the state of its synchronisation. Its methods block, and may be called from any thread."""

    engine: Engine
    keys: SubjectKeys
    """The keys with which the engine seals."""
    user: str | None
    """The user of the device; None: it is a hub, which writes for several users."""
    fields: Sequence[str] = ()
    """Paths into values that are searched if an item names none."""
    now: Callable[[], float] = field(repr=False)
    """The clock, in seconds since the epoch."""
    maximum_bytes: int = 1 << 20
    """The most bytes of a value as JSON."""
    erased: Callable[[], None] = field(default=_ignore, repr=False)
    """Called after each erasure here, also those of peers: until it returns, the erasure counts as unfinished."""

    def hello(self) -> Hello:
        """Return the introduction of this replica."""
        with self.engine.transaction() as transaction:
            return Hello(self.engine.device, self.now(), transaction.known(), self.known_facts(transaction), books.log(transaction))

    def meet(self, peer: Peer, hello: Hello, *, is_caller: bool) -> float:
        """Check and learn the introduction of a peer, and return by how many seconds its clock is ahead of ours.

        A calling device is bound to the credential that it came with. Raises `SyncRefused` for a peer of another schema, for this
        replica itself and for a revoked peer, and `PermissionDenied` for a device that used another credential before.
        """
        check_schema(hello)
        if hello.device == self.engine.device:
            raise SyncRefused("the peer is this store itself, or a copy of it", hint="give the copy a file of its own, and let it sync")
        with self.engine.transaction() as transaction:
            self._check_device(transaction, peer, hello.device, is_caller=is_caller)
            self._renumber_if_copy(transaction, peer, hello.known.get(self.engine.device, 0), is_copy=False)
        self.absorb(peer, hello.facts)
        skew = hello.now - self.now()
        if abs(skew) * 1000 > MAXIMUM_SKEW:
            logger.info("the clock of device %s differs from ours by %+.0f s", hello.device, skew)
        return skew

    def absorb(self, peer: Peer, stated: SharedFacts) -> None:
        """Learn the facts that a peer states, as far as it may state them, and erase what they say."""
        with self.engine.transaction() as transaction:
            known = self.known_facts(transaction)
            believed = stated if peer.is_relay else stated.stated_for(peer.user, known)
            learned = known | (believed if self.user is not None else believed.without_owner_of(self.engine.device))
            if learned != known:
                check_size(learned)  # stored facts are sent to others
                if self.user is None and not peer.is_relay:
                    check_share(learned, peer.user)
                self._learn(transaction, known, learned)
        self.finish_erasing()

    def check_not_revoked(self, transaction: Transaction, peer: Peer, device: str) -> None:
        """Raise `SyncRefused` if the device, or another one of its credential, is revoked."""
        if revoked := self.known_facts(transaction).revoked.intersection([device, *books.introduced(transaction, peer.name)]):
            raise SyncRefused(f"device {min(revoked)} is revoked", hint="pair the device again if it is yours")

    def check_peer(self, peer: Peer, device: str) -> None:
        """Raise `SyncRefused` if the device has been revoked since it was met."""
        with self.engine.transaction() as transaction:
            self.check_not_revoked(transaction, peer, device)

    def erase(self, *, subject: str | None = None, prefix: Namespace | None = None, on_behalf_of: str | None = None) -> list[ItemAddress]:
        """Erase everything about a subject, or in and below a prefix, here and at all peers.

        Items with the subject's name in their text are about it, too; peers, who are not told the name, erase those of them that this
        replica has. Here the items of all users are erased; peers erase those of the replica's user, or of all users if the replica is a
        hub. `on_behalf_of` a user, only that user's items are erased, everywhere. Returns the items that are gone here.
        """
        tags = (None if subject is None else tag_of(subject), None if prefix is None else prefix_tag(prefix))
        with self.engine.transaction() as transaction:
            known = self.known_facts(transaction)
            user = self.user if on_behalf_of is None else on_behalf_of
            erasure = Erasure(secrets.token_hex(_ID_BYTES), *tags, user, {self.engine.device: self._own_number(transaction)})
            local = erasure if on_behalf_of is not None else replace(erasure, user=None)
            gone, grown = forget(Forgetting(self.engine, transaction, self.fields, self.now(), Wording.of(subject)), [local])
            learned = known | SharedFacts({erasure.id: replace(grown[0], user=user)})
            if on_behalf_of is not None:
                check_share(learned, on_behalf_of)
            books.keep_facts(transaction, learned)
            self._retire_keys(transaction, [local])
        self.finish_erasing()
        return gone

    def finish_erasing(self) -> None:
        """Destroy keys and scrub the files, if an erasure was interrupted before it had; call it when the store is opened."""
        with self.engine.transaction() as transaction:
            pending = books.pending_keys(transaction)
        if pending is None:
            return
        self.keys.destroy(pending)
        self.engine.scrub()
        self.erased()
        with self.engine.transaction() as transaction:
            if books.pending_keys(transaction) == pending:
                books.keep_pending_keys(transaction, None)

    def revoke(self, device: str) -> None:
        """Revoke a device, here and at every replica that hears of it. Its earlier writes stay."""
        if not is_device(device):
            raise InvalidRequest(f"{device!r:.80} is no device", hint="`nearfar memory stats` lists the devices")
        if device == self.engine.device:
            raise PermissionDenied("a device cannot revoke itself", hint="revoke it on another device")
        with self.engine.transaction() as transaction:
            books.keep_facts(transaction, self.known_facts(transaction) | SharedFacts(revoked=frozenset({device})))

    def request(self, peer: Peer, log: str) -> Request:
        """Return the position from which to continue in a peer's log."""
        with self.engine.transaction() as transaction:
            position = books.position(transaction, peer, log)
            return Request(books.had(transaction, self.engine.device), log, position, takes_all=peer.is_relay)

    def notice_copy(self, transaction: Transaction, peer: Peer, request: Request) -> None:
        """Continue under new numbers if the peer has more of this replica's log than it has ever sent: another copy of this store sent
        it."""
        is_copy = request.log == books.log(transaction) and request.position > books.told(transaction).position
        if is_copy:
            self._renumber_if_copy(transaction, peer, request.known.get(self.engine.device, 0), is_copy=True)

    def facts(self) -> SharedFacts:
        """Return the facts of this replica."""
        with self.engine.transaction() as transaction:
            return self.known_facts(transaction)

    def known_facts(self, transaction: Transaction) -> SharedFacts:
        """Return the facts of this replica within a transaction."""
        facts = books.facts(transaction)
        return facts if self.user is None else facts | SharedFacts(users={self.engine.device: self.user})

    def state(self) -> tuple[int, SharedFacts]:
        """Return a state that changes when there is news for peers: the position of the last change, and the facts."""
        return self.engine.position(), self.facts()

    def holes(self, device: str) -> list[tuple[int, int]]:
        """Return the first and last number of each run of a device's writes that this replica counts and that never arrived."""
        if device == self.engine.device:
            return []
        with self.engine.transaction() as transaction:
            return list(books.holes(transaction, device))

    def _learn(self, transaction: Transaction, known: SharedFacts, learned: SharedFacts) -> None:
        """Store new facts, and erase what they say."""
        fresh = [
            one for id, one in learned.erasures.items() if id not in known.erasures or known.erasures[id].overwritten != one.overwritten
        ]
        if fresh:
            boundaries = {self.engine.device: self._own_number(transaction)}
            learned |= SharedFacts({one.id: replace(one, boundaries=boundaries) for one in fresh})
            erasures = [learned.erasures[one.id] for one in fresh]
            _, grown = forget(Forgetting(self.engine, transaction, self.fields, self.now()), erasures)
            learned |= SharedFacts({one.id: one for one in grown})
            self._retire_keys(transaction, [one for one in fresh if one.id not in known.erasures])
        books.keep_facts(transaction, learned)

    def _retire_keys(self, transaction: Transaction, erasures: Sequence[Erasure]) -> None:
        """Mark keys to be destroyed, and files to be scrubbed, after the transaction."""
        ids = [id for erasure in erasures if erasure.subject is not None for id in self.keys.retire(erasure.subject, erasure.user)]
        books.keep_pending_keys(transaction, [*(books.pending_keys(transaction) or ()), *ids])

    def _own_number(self, transaction: Transaction) -> int:
        return transaction.known().get(self.engine.device, 0)

    def _check_device(self, transaction: Transaction, peer: Peer, device: str, *, is_caller: bool) -> None:
        if is_caller and peer.name:
            introducer = books.introducer(transaction, device)
            if introducer is None:
                self._introduce(transaction, peer, device)
            elif introducer != peer.name:
                raise PermissionDenied(f"device {device} used another credential before", hint="pair the device again")
        self.check_not_revoked(transaction, peer, device)
        facts = self.known_facts(transaction)
        if not peer.is_relay and facts.users.get(device) != peer.user:
            # Its credential decides its user, whatever peers stated before.
            known = books.facts(transaction)
            books.keep_facts(transaction, replace(known, users={**known.users, device: peer.user}))

    def _introduce(self, transaction: Transaction, peer: Peer, device: str) -> None:
        """Bind a device to the credential that it comes with. A device that belongs to another user is refused."""
        owner = self.known_facts(transaction).users.get(device, peer.user)
        if not peer.is_relay and owner != peer.user:
            hint = "if it is yours: export its items, and import them into a new store"
            raise PermissionDenied(f"device {device} belongs to another user", hint=hint)
        if len(books.introduced(transaction, peer.name)) >= _MOST_INTRODUCED:
            raise PermissionDenied(f"{_MOST_INTRODUCED} devices have used this credential already", hint="pair the device again")
        books.introduce(transaction, device, peer.name)

    def _renumber_if_copy(self, transaction: Transaction, peer: Peer, remembered: int, *, is_copy: bool) -> None:
        """Continue under new numbers if a peer knows more writes of this device than there are: this store is a copy."""
        had = transaction.known().get(self.engine.device, 0)
        may_say_so = peer.is_relay or self.user is None or peer.user == self.user
        if may_say_so and (is_copy or had < remembered) and remembered < had + LARGEST_LOSS:
            renumber_copy(self.engine, transaction, self.fields, remembered=max(had, remembered), now=self.now())


def check_schema(hello: Hello) -> None:
    """Raise `SyncRefused` for a peer with another version of operations."""
    if hello.schema != SCHEMA:
        older = "the peer" if hello.schema < SCHEMA else "this side"
        raise SyncRefused(
            f"the peer uses sync schema {hello.schema}, and this side schema {SCHEMA}",
            hint=f"update nearfar on {older}, which is older",
        )
