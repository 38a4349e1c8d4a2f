"""Write items: embed their texts first, then do all writes at once, or none."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from ...protocols import NearfarError, PermissionDenied, PrivacyViolation, VersionConflict
from ...protocols.items import ItemAddress, Tier, strictest
from . import validation
from .engine import Engine, ItemSelection, Transaction
from .merge import State, heads_of, merge, succeed
from .operation import Dot, Meta, Operation, Principal, seconds
from .provenance import Origin, as_believed, combined, stamp
from .vectors import Embedder, change_of, texts_of, unit_vectors

if TYPE_CHECKING:
    from .engine import Vector

log = logging.getLogger(__name__)


class Unset(Enum):
    """Stands for an argument that the caller leaves open, since None has a meaning of its own."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
ARCHIVE_MARK: Final = "@"
"""Stands between the key of an item and the version in the key of its superseded value."""
ABSENT: Final = "absent"
"""The version of an item that does not exist."""

Value = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A write that is asked for."""

    address: ItemAddress
    value: Callable[[Value | None], Value | None]
    """Return the new value, given the present one or None. It may be called more than once, and an error in it ends the write."""
    is_total: bool = True
    """True: the new value does not depend on the present one."""
    is_patch: bool = False
    """Only the fields that change are written: others may change the rest meanwhile. Any other write is of the whole value."""
    if_version: str | None = None
    """The write is done only if the item is at this version, which may be `ABSENT`."""
    index: tuple[str, ...] | None | Unset = UNSET
    ttl: float | None | Unset = UNSET
    """Seconds."""
    tier: Tier | None = None
    subject: str | None = None
    valid_from: float | None = None
    invalid_from: float | None = None
    told: Meta | None = None
    """A stamp from elsewhere, as an import states it. It is trusted as far as the writer is."""
    parts: tuple[Meta, ...] = ()
    """Metas of the further parts of the new value, apart from the present one."""
    decides: bool = False
    """The write settles the item's conflicts."""
    archives: bool = False
    """The present value is kept as a separate item that is no longer valid."""


_NOTHING: Final = State(heads=(), value=None, meta=Meta(), version=ABSENT, clock=0, device="", siblings=())
"""The state of an item that was never written."""


@dataclass(frozen=True, slots=True)
class ItemWriter:
    """Writes for one origin, as one principal if there is one."""

    engine: Engine
    embedder: Embedder | None
    fields: tuple[str, ...]
    now: Callable[[], float]
    origin: Origin
    principal: Principal | None

    def write(self, edits: Sequence[Edit]) -> list[str]:
        """Do all edits, and return the new versions. Of several to one address the last one counts.

        Raises `VersionConflict` if an item is not at the version that the edit expects, and `PermissionDenied` if it is none of the
        principal's.
        """
        unique = {edit.address: edit for edit in edits}
        vectors = self._vectors(list(unique.values()))
        with self.engine.transaction() as transaction:
            now = self.now()
            present = self._present(transaction, [*unique, *self.origin.lineage], now)
            due = [edit for edit in unique.values() if self._is_due(edit, present[edit.address])]
            archived = sum(edit.archives and present[edit.address].value is not None for edit in due)
            first, clock = transaction.reserve(len(due) + archived, now) if due else (0, 0)
            written = self._written(transaction, due, present, Dot(self.engine.device, first), clock)
            changes = [change_of(address, heads, now=now, fields=self.fields, vectors=vectors) for address, heads in written.items()]
            transaction.apply(changes)
        if vectors is not None and any(change.texts and change.vectors is None for change in changes):
            with _embedding_may_fail():
                self.index_pending(len(changes))  # another process wrote in between, so that the texts changed
        versions = {change.address: ABSENT if change.row is None else change.row.version for change in changes}
        return [versions.get(edit.address, present[edit.address].version) for edit in edits]

    def index_pending(self, limit: int) -> int:
        """Make missing vectors, of at most `limit` items, and return the number of items."""
        if self.embedder is None:
            return 0
        waiting = self.engine.unembedded(limit=limit)
        texts = list(dict.fromkeys(text for one in waiting for text in one.texts))
        vectors = dict(zip(texts, unit_vectors(self.embedder, texts), strict=True))
        self.engine.embed([(one, [vectors[text] for text in one.texts]) for one in waiting])
        return len(waiting)

    def _vectors(self, edits: Sequence[Edit]) -> "dict[str, Vector] | None":
        """Embed the texts that the edits will write, as far as can be foreseen: another process may change an item first."""
        if self.embedder is None:
            return None
        texts = list(dict.fromkeys(text for edit in edits for text in self._foreseen_texts(edit)))
        with _embedding_may_fail():
            return dict(zip(texts, unit_vectors(self.embedder, texts), strict=True))
        return None

    def _foreseen_texts(self, edit: Edit) -> tuple[str, ...]:
        before, index = None, edit.index
        if not edit.is_total:
            row = self.engine.rows([edit.address], ItemSelection(now=self.now())).get(edit.address)
            before = None if row is None else row.value
            index = row.meta.index if row is not None and isinstance(index, Unset) else index
        value = edit.value(before)
        paths = self.fields if index is None or isinstance(index, Unset) else index
        return () if value is None else texts_of(value, paths)

    def _present(self, transaction: Transaction, addresses: Sequence[ItemAddress], now: float) -> dict[ItemAddress, State]:
        """Return the items as a write finds them. One that is deleted or has expired has no value, and the version `ABSENT`."""
        states = {address: merge(found) for address, found in transaction.heads(addresses).items()}
        mortal = [address for address, state in states.items() if state.meta.ttl is not None]
        living = self.engine.rows(mortal, ItemSelection(now=now)) if mortal else {}

        def found(address: ItemAddress) -> State:
            state = states.get(address, _NOTHING)
            is_over = state.value is None or (state.meta.ttl is not None and address not in living)
            return state._replace(value=None, version=ABSENT) if is_over else state

        return {address: found(address) for address in addresses}

    def _is_due(self, edit: Edit, present: State) -> bool:
        """Return whether there is anything to write."""
        self._check_permission(edit, present)
        if edit.if_version is not None and edit.if_version != present.version:
            raise VersionConflict(
                f"{_named(edit.address)} is at version {present.version}, not at {edit.if_version}",
                hint="read it again, and apply the change to its present value",
            )
        return edit.decides or present.value is not None or edit.value(None) is not None

    def _check_permission(self, edit: Edit, present: State) -> None:
        self._check_owner(edit, present)
        if self.principal is None:
            return
        if not any(edit.address.namespace[: len(prefix)] == prefix for prefix in self.principal.prefixes):
            raise PermissionDenied(f"{_named(edit.address)} is outside of the namespaces that {self.principal.user!r} may see")
        if present.value is not None and not self.principal.sees(edit.address, present.meta, present.device):
            raise PermissionDenied(f"{_named(edit.address)} is taken", hint="use another key")

    def _check_owner(self, edit: Edit, present: State) -> None:
        """Check that only the user who shared an item overwrites it; the app itself, which has no user, may."""
        user = self.origin.user or ""
        if not user and self.principal is None:
            return
        for head in present.heads:
            if head.meta.user != user and Tier.SHARED in (head.meta.tier, head.reach):
                whose = f"user {head.meta.user!r}" if head.meta.user else "the app itself"
                message = f"{_named(edit.address)} was shared by {whose}, who alone may change it"
                raise PermissionDenied(message, hint="use another key, below a namespace that begins with your user's name")

    def _written(
        self, transaction: Transaction, due: Sequence[Edit], present: Mapping[ItemAddress, State], dot: Dot, clock: int
    ) -> dict[ItemAddress, tuple[Operation, ...]]:
        """Return the new heads of the items."""
        user = self.origin.user or ""
        states = [present[address] for address in self.origin.lineage]
        sources = [None if state.value is None else as_believed(state.meta, user) for state in states]
        written: dict[ItemAddress, tuple[Operation, ...]] = {}
        for edit in due:
            before = present[edit.address]
            if edit.archives and before.value is not None:
                archive = archive_of(edit.address, before.version)
                meta = before.meta._replace(invalid_from=edit.valid_from)
                heads = transaction.heads([archive]).get(archive, ())
                operation = succeed(heads, dot=dot, clock=clock, address=archive, value=dict(before.value), meta=meta)
                written[archive] = heads_of((*heads, operation))
                dot, clock = Dot(dot.device, dot.sequence + 1), clock + 1
            value = edit.value(None if before.value is None else dict(before.value))
            meta = self._meta(edit, before, sources, clock, is_deleted=value is None)
            validation.check_meta(meta)
            operation = succeed(
                before.heads,
                dot=dot,
                clock=clock,
                address=edit.address,
                value=value,
                meta=meta,
                is_total=not edit.is_patch,
                decides=edit.decides,
            )
            written[edit.address] = heads_of((*before.heads, operation))
            dot, clock = Dot(dot.device, dot.sequence + 1), clock + 1
        return written

    def _meta(self, edit: Edit, present: State, sources: Sequence[Meta | None], clock: int, *, is_deleted: bool) -> Meta:
        meta = stamp(self.origin, sources, tier=_tier_of(edit, present, is_deleted), subject=edit.subject)
        self._check_tier(meta)
        if edit.told is not None:
            return edit.told._replace(user=meta.user, tier=meta.tier, trust=min(edit.told.trust, meta.trust))
        index = None if isinstance(edit.index, Unset) else edit.index
        ttl = None if isinstance(edit.ttl, Unset) else edit.ttl
        meta = meta._replace(index=index, ttl=ttl, valid_from=edit.valid_from, invalid_from=edit.invalid_from, created_at=seconds(clock))
        if present.value is None:
            return combined(meta, edit.parts, raises=edit.tier is not None)
        before = present.meta
        # The subjects of an item stay: erasing too much about a person is better than too little.
        about = meta if meta.subject else before
        meta = meta._replace(created_at=before.created_at, subject=about.subject, others=about.others)
        if edit.is_total:
            return meta
        meta = combined(meta, [before, *edit.parts], raises=edit.tier is not None)
        kept_index = before.index if isinstance(edit.index, Unset) else meta.index
        kept_ttl = before.ttl if isinstance(edit.ttl, Unset) else meta.ttl
        lineage = tuple(dict.fromkeys((*before.lineage, *meta.lineage)))
        return meta._replace(
            index=kept_index, ttl=kept_ttl, lineage=lineage, valid_from=before.valid_from, invalid_from=before.invalid_from
        )

    def _check_tier(self, meta: Meta) -> None:
        if self.principal is not None and self.principal.device != self.engine.device and meta.tier is Tier.DEVICE:
            raise PrivacyViolation(
                f"items of tier {Tier.DEVICE} must not leave the device of {self.principal.user!r}, but this store is on another one",
                hint=f"write it to that device's own store, or with tier={Tier.USER.value!r}",
            )


def _tier_of(edit: Edit, present: State, is_deleted: bool) -> Tier | None:
    """Return the tier that a write asks for; None: it leaves the tier to its origin."""
    if edit.told is not None:
        return edit.told.tier
    if edit.tier is None and edit.decides:
        # A decision says nothing new. With the tier of new items, deciding would take the item away from the other devices.
        decided = (*edit.parts, *(() if present.value is None else (present.meta,)))
        return strictest(meta.tier for meta in decided)
    if is_deleted and present.value is not None:
        return present.meta.tier  # all replicas with the item must be told
    return edit.tier


@contextmanager
def _embedding_may_fail() -> Iterator[None]:
    try:
        yield
    except NearfarError:
        raise
    except Exception as error:  # the user's own code: what it cannot embed now is still worth keeping
        # Its message may quote private text.
        log.warning("embedding failed with %s; items are found by their words alone until index_pending()", type(error).__name__)


def archive_of(address: ItemAddress, version: str) -> ItemAddress:
    """Return the address at which an item's superseded value at a version is kept."""
    return ItemAddress(address.namespace, f"{address.key}{ARCHIVE_MARK}{version}")


def _named(address: ItemAddress) -> str:
    return f"item {address.key!r} in {'/'.join(address.namespace)}"
