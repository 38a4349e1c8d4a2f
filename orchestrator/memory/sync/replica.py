"""One replica as its peers meet it: what it knows, what it is told, and what it forgets."""

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ....protocols import InvalidRequest, PermissionDenied, SyncRefused
from ....protocols.namespaces import ItemAddress, Namespace
from ..clock import MAXIMUM_SKEW
from ..engine import Engine, Transaction
from ..wording import Wording
from . import books, restoring
from .erasing import Forgetting, forget
from .facts import Erasure, Facts, check_share, check_size, is_device, prefix_tag
from .keys import SubjectKeys, tag_of
from .messages import SCHEMA, Hello, Request
from .peer import Peer

logger = logging.getLogger(__name__)

_ID_BYTES: Final = 16
LARGEST_LOSS: Final = 1 << 32
"""So many writes nobody makes between two backups."""


_MOST_INTRODUCED: Final = 100
"""Devices that one credential may have, one after the other: each new store is one."""


def _nobody() -> None:
    """Nobody wants to hear of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A store's engine with what synchronising needs beside it. Its methods block, and may be called from any thread."""

    engine: Engine
    keys: SubjectKeys
    """The same that the engine seals with."""
    user: str | None
    """Whose device it is; None: it is a hub, which writes for several users."""
    fields: Sequence[str] = ()
    """Paths into values that are searched where an item does not say which."""
    now: Callable[[], float] = field(repr=False)
    """The clock, in seconds since the epoch."""
    maximum_bytes: int = 1 << 20
    """Of a value as JSON."""
    erased: Callable[[], None] = field(default=_nobody, repr=False)
    """Called when something has been erased here, whoever asked for it: until it returns, the erasure counts as unfinished."""

    def hello(self) -> Hello:
        """How it introduces itself."""
        with self.engine.transaction() as transaction:
            return Hello(self.engine.device, self.now(), transaction.known(), self.known_facts(transaction), books.log(transaction))

    def meet(self, peer: Peer, hello: Hello, *, is_caller: bool) -> float:
        """Take in how a peer introduced itself, and return by how many seconds its clock is ahead of ours.

        A device that called is bound to the credential which it came with. Raises `SyncRefused` for a peer of another schema, one that is
        this replica itself, and one that is shut out, and `PermissionDenied` for a device that came with another credential before.
        """
        check_schema(hello)
        if hello.device == self.engine.device:
            raise SyncRefused("the peer is this store itself, or a copy of it", hint="give the copy a file of its own, and let it sync")
        with self.engine.transaction() as transaction:
            self._check_device(transaction, peer, hello.device, is_caller=is_caller)
            self._go_on_if_copy(transaction, peer, hello.known.get(self.engine.device, 0), is_copy=False)
        self.absorb(peer, hello.facts)
        skew = hello.now - self.now()
        if abs(skew) * 1000 > MAXIMUM_SKEW:
            logger.info("the clock of device %s is %+.0f s off ours", hello.device, skew)
        return skew

    def absorb(self, peer: Peer, stated: Facts) -> None:
        """Learn what a peer states beside the items, as far as it may, and forget what has been erased."""
        with self.engine.transaction() as transaction:
            known = self.known_facts(transaction)
            believed = stated if peer.is_relay else stated.stated_for(peer.user, known)
            learned = known | (believed if self.user is not None else believed.without_owner_of(self.engine.device))
            if learned != known:
                check_size(learned)  # what is kept is told to others
                if self.user is None and not peer.is_relay:
                    check_share(learned, peer.user)
                self._learn(transaction, known, learned)
        self.finish_erasing()

    def check_not_revoked(self, transaction: Transaction, peer: Peer, device: str) -> None:
        """Raises `SyncRefused` if the device, or another one of its credential, is shut out."""
        if revoked := self.known_facts(transaction).revoked.intersection([device, *books.introduced(transaction, peer.name)]):
            raise SyncRefused(f"device {min(revoked)} is shut out", hint="pair the device anew if it is yours")

    def check_peer(self, peer: Peer, device: str) -> None:
        """Raises `SyncRefused` if the device has been shut out since it was met."""
        with self.engine.transaction() as transaction:
            self.check_not_revoked(transaction, peer, device)

    def erase(self, *, subject: str | None = None, prefix: Namespace | None = None, on_behalf_of: str | None = None) -> list[ItemAddress]:
        """Forget everything about a subject, or in and below a prefix, and have all peers forget it.

        What names the subject in its text is about it, too; peers, who are not told the name, forget of that what this replica has.
        Here all goes, whoever's it is; peers forget what is the replica's user's, and those of a hub what is anybody's. `on_behalf_of` a
        user, only what is theirs goes, everywhere. Returns which items are gone here.
        """
        tags = (None if subject is None else tag_of(subject), None if prefix is None else prefix_tag(prefix))
        with self.engine.transaction() as transaction:
            known = self.known_facts(transaction)
            user = self.user if on_behalf_of is None else on_behalf_of
            erasure = Erasure(secrets.token_hex(_ID_BYTES), *tags, user, {self.engine.device: self._own_number(transaction)})
            local = erasure if on_behalf_of is not None else replace(erasure, user=None)
            gone, grown = forget(Forgetting(self.engine, transaction, self.fields, self.now(), Wording.of(subject)), [local])
            learned = known | Facts({erasure.id: replace(grown[0], user=user)})
            if on_behalf_of is not None:
                check_share(learned, on_behalf_of)
            books.keep_facts(transaction, learned)
            self._retire_keys(transaction, [local])
        self.finish_erasing()
        return gone

    def finish_erasing(self) -> None:
        """Destroy keys and scrub the files where an erasure was interrupted before it had; call it when the store is opened."""
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
        """Shut a device out, here and at every replica that hears of it. What it wrote before stays."""
        if not is_device(device):
            raise InvalidRequest(f"{device!r:.80} is no device", hint="`nearfar memory stats` names them")
        if device == self.engine.device:
            raise PermissionDenied("a device cannot shut itself out", hint="do it on another one")
        with self.engine.transaction() as transaction:
            books.keep_facts(transaction, self.known_facts(transaction) | Facts(revoked=frozenset({device})))

    def request(self, peer: Peer, log: str) -> Request:
        """Where it wants to go on in a peer's log."""
        with self.engine.transaction() as transaction:
            position = books.position(transaction, peer, log)
            return Request(books.had(transaction, self.engine.device), log, position, takes_all=peer.is_relay)

    def notice_copy(self, transaction: Transaction, peer: Peer, request: Request) -> None:
        """Go on under new numbers if the peer has more of this replica's log than it has ever told: another copy of this store told it."""
        is_copy = request.log == books.log(transaction) and request.position > books.told(transaction).position
        if is_copy:
            self._go_on_if_copy(transaction, peer, request.known.get(self.engine.device, 0), is_copy=True)

    def facts(self) -> Facts:
        """What it knows beside the items."""
        with self.engine.transaction() as transaction:
            return self.known_facts(transaction)

    def known_facts(self, transaction: Transaction) -> Facts:
        """The same inside a transaction."""
        facts = books.facts(transaction)
        return facts if self.user is None else facts | Facts(users={self.engine.device: self.user})

    def state(self) -> tuple[int, Facts]:
        """What changes when there is something new for peers: the position of the last change, and what is known beside the items."""
        return self.engine.position(), self.facts()

    def holes(self, device: str) -> list[tuple[int, int]]:
        """First and last number of each run of a device's writes that this replica counts, and whose content was never here."""
        if device == self.engine.device:
            return []
        with self.engine.transaction() as transaction:
            return list(books.holes(transaction, device))

    def _learn(self, transaction: Transaction, known: Facts, learned: Facts) -> None:
        """Keep facts that are new, and forget what they say is to be forgotten."""
        fresh = [
            one for id, one in learned.erasures.items() if id not in known.erasures or known.erasures[id].overwritten != one.overwritten
        ]
        if fresh:
            heard = {self.engine.device: self._own_number(transaction)}
            learned |= Facts({one.id: replace(one, boundaries=heard) for one in fresh})
            erasures = [learned.erasures[one.id] for one in fresh]
            _, grown = forget(Forgetting(self.engine, transaction, self.fields, self.now()), erasures)
            learned |= Facts({one.id: one for one in grown})
            self._retire_keys(transaction, [one for one in fresh if one.id not in known.erasures])
        books.keep_facts(transaction, learned)

    def _retire_keys(self, transaction: Transaction, erasures: Sequence[Erasure]) -> None:
        """Have the keys destroyed, and the files scrubbed, once the transaction is done."""
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
                raise PermissionDenied(f"device {device} came with another credential before", hint="pair the device again")
        self.check_not_revoked(transaction, peer, device)
        facts = self.known_facts(transaction)
        if not peer.is_relay and facts.users.get(device) != peer.user:
            # Its credential says whose it is, whatever was told of it before.
            known = books.facts(transaction)
            books.keep_facts(transaction, replace(known, users={**known.users, device: peer.user}))

    def _introduce(self, transaction: Transaction, peer: Peer, device: str) -> None:
        """Bind a device to the credential that it comes with. One of which its owner's others told is not for another user to take."""
        owner = self.known_facts(transaction).users.get(device, peer.user)
        if not peer.is_relay and owner != peer.user:
            hint = "if it is yours: export its items, and import them into a new store"
            raise PermissionDenied(f"device {device} is known as another user's", hint=hint)
        if len(books.introduced(transaction, peer.name)) >= _MOST_INTRODUCED:
            raise PermissionDenied(f"{_MOST_INTRODUCED} devices came with this credential already", hint="pair the device again")
        books.introduce(transaction, device, peer.name)

    def _go_on_if_copy(self, transaction: Transaction, peer: Peer, remembered: int, *, is_copy: bool) -> None:
        """Notice by what a peer knows that this store is a copy: others have writes under numbers that are not taken here."""
        had = transaction.known().get(self.engine.device, 0)
        may_say_so = peer.is_relay or self.user is None or peer.user == self.user
        if may_say_so and (is_copy or had < remembered) and remembered < had + LARGEST_LOSS:
            restoring.go_on(self.engine, transaction, self.fields, remembered=max(had, remembered), now=self.now())


def check_schema(hello: Hello) -> None:
    """Raises `SyncRefused` for a peer that understands operations in another way."""
    if hello.schema != SCHEMA:
        older = "the peer" if hello.schema < SCHEMA else "this side"
        raise SyncRefused(
            f"the peer synchronises by schema {hello.schema} and this side by {SCHEMA}",
            hint=f"update nearfar on {older}: it is the older one",
        )
