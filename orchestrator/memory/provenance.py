"""The origin of writes, and of what a running task has recalled."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import JsonValue

from ...protocols import Sensitivity
from ...protocols.items import LEAST_TRUST, TRUST, ItemAddress, Source, Tier, strictest
from ..task import Task
from ..task.labels import Integrity, Label, RecalledItem, join_labels
from ..task.stores import RecallConfig
from .operation import Meta, all_about

if TYPE_CHECKING:
    from .reading import MemoryItem


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a write. None leaves a field to the next origin outwards: the running task, then the store."""

    user: str | None = None
    """User on whose behalf is written; None: the store's."""
    agent: str | None = None
    """Agent that writes; None: the store's."""
    source: Source | None = None
    """Source of the words; None: the store's."""
    tier: Tier | None = None
    """The tier of a write that names none."""
    subject: str | None = None
    """The person that the items are about; None: as the write says."""
    lineage: tuple[ItemAddress, ...] = ()
    """The items that the written value was derived from."""
    trust: float = 1.0
    """The most trust that the write may get."""

    def within(self, outer: "Origin") -> "Origin":
        """Return this origin, with its open fields taken from `outer`; the lineage of both counts."""
        return Origin(
            user=outer.user if self.user is None else self.user,
            agent=outer.agent if self.agent is None else self.agent,
            source=outer.source if self.source is None else self.source,
            tier=outer.tier if self.tier is None else self.tier,
            subject=outer.subject if self.subject is None else self.subject,
            lineage=tuple(dict.fromkeys((*self.lineage, *outer.lineage))),
            trust=min(self.trust, outer.trust),
        )


STORE = Origin(user="", agent="", source=Source.INTERNAL_TOOL, tier=Tier.DEVICE, subject="")
"""The default stamp: private to the device."""

_task: ContextVar[Origin | None] = ContextVar("nearfar_memory_origin", default=None)


@contextmanager
def writing_as(origin: Origin) -> Iterator[None]:
    """Stamp the writes of a running task within this block, on any store, with `origin`. Its tier is a ceiling: no write goes further."""
    outer = _task.get()
    token = _task.set(origin if outer is None else _narrowed(origin.within(outer), outer.tier))
    try:
        yield
    finally:
        _task.reset(token)


def current(bound: Origin) -> Origin:
    """Return the origin of a write now, through a store that is bound to `bound`."""
    task = _task.get()
    return (bound if task is None else bound.within(task)).within(STORE)


def stamp(origin: Origin, sources: Sequence[Meta | None], *, tier: Tier | None = None, subject: str | None = None) -> Meta:
    """Return the meta of a new write by `origin`. `sources` are the metas of the items it was derived from; an unreadable one (None)
    counts as the most private and least trusted."""
    chosen = tier or origin.tier or Tier.DEVICE
    task = _task.get()
    ceiling = (task.tier,) if task is not None and task.tier is not None else ()
    source = origin.source or Source.INTERNAL_TOOL
    return Meta(
        user=origin.user or "",
        agent=origin.agent or "",
        source=source,
        trust=min((TRUST[source], origin.trust, *(LEAST_TRUST if meta is None else meta.trust for meta in sources))),
        tier=strictest((chosen, *ceiling, *(Tier.DEVICE if meta is None else meta.tier for meta in sources))),
        subject=origin.subject or "" if subject is None else subject,
        lineage=origin.lineage,
    )


def as_believed(meta: Meta, user: str) -> Meta:
    """Return the meta of an item with the trust that `user` has in it."""
    return meta._replace(trust=meta.trust_of(user)) if meta.is_anothers(user) else meta


def combined(new: Meta, kept: Iterable[Meta], *, raises: bool) -> Meta:
    """Return the meta of a value that keeps parts of earlier ones: about all their subjects, no more trusted than any part, and as
    private as the most private one, unless the tier is raised on purpose (`raises`)."""
    parts = (new, *kept)
    if len(parts) == 1:
        return new
    tier = new.tier if raises else strictest(meta.tier for meta in parts)
    subject, others = all_about(parts)
    return new._replace(trust=min(meta.trust for meta in parts), tier=tier, subject=subject, others=others)


def _narrowed(origin: Origin, ceiling: Tier | None) -> Origin:
    return origin if ceiling is None else replace(origin, tier=strictest((ceiling, origin.tier or ceiling)))


_running: ContextVar["Recollection | None"] = ContextVar("nearfar_recollection", default=None)


class Recollection:
    """The items that one task has recalled. Its tools add to them."""

    def __init__(self, sensitivity: Sensitivity, recalled: Sequence[RecalledItem], *, stays_here: bool, user: str = "") -> None:
        self.is_private = sensitivity is Sensitivity.PRIVATE
        """True: no far agent sees what the task is told."""
        self._stays_here = self.is_private and stays_here
        self.user = user
        """The user on whose behalf the task runs."""
        self.items = list(recalled)

    @classmethod
    def of(cls, task: Task, *, stays_here: bool = False) -> "Recollection":
        """Return the recollection of a task. `stays_here`: all near agents are on this very device, so that a private task never leaves
        it."""
        return cls(task.policy.sensitivity, task.recalled, stays_here=stays_here, user=task.user)

    def may_read(self, tier: Tier, recall: RecallConfig) -> bool:
        """Return whether an item of this tier may be told to the task."""
        if tier is Tier.DEVICE:
            return self._stays_here
        return self.is_private or recall.may_go(tier)

    def add(self, recalled: Sequence[RecalledItem]) -> None:
        self.items += [item for item in recalled if item not in self.items]

    def restore(self, kept: Sequence[Mapping[str, JsonValue]]) -> None:
        """Add the items that another process recalled for the task, from the task's saved state."""
        self.add([RecalledItem.model_validate(item) for item in kept])

    @property
    def addresses(self) -> tuple[ItemAddress, ...]:
        """The addresses of the items, as the lineage of writes."""
        return tuple(dict.fromkeys(ItemAddress(item.namespace, item.key) for item in self.items))

    @property
    def label(self) -> Label:
        """The joined label of the items."""
        return join_labels(label_of_recalled(item, is_private=self.is_private) for item in self.items)

    @contextmanager
    def in_use(self, agent: str, label: Label) -> Iterator[None]:
        """Limit the writes of tools within this block, on behalf of `agent`, to the tier and trust of what the task knows.

        `label` is that of all that the task has been told.
        """
        token = _running.set(self)
        try:
            with writing_as(origin_of(label, agent=agent, lineage=self.addresses)):
                yield
        finally:
            _running.reset(token)


def origin_of(label: Label, *, agent: str, lineage: tuple[ItemAddress, ...]) -> Origin:
    """Return the origin of writes that were made from data with this label: private data stay on the device, untrusted data get little
    trust."""
    trust = 1.0 if label.integrity is Integrity.TRUSTED else LEAST_TRUST
    return Origin(agent=agent, tier=None if label.tier is Tier.SHARED else Tier.DEVICE, lineage=lineage, trust=trust)


def running() -> Recollection | None:
    """Return the recollection of the task whose tool runs now; None outside of any task."""
    return _running.get()


def recalled_item(item: "MemoryItem") -> RecalledItem:
    """Return the record of an item for a task's result."""
    return RecalledItem(
        namespace=item.namespace,
        key=item.key,
        version=item.version,
        tier=item.tier,
        source=item.source,
        trust=item.trust,
        user=item.user if item.is_anothers else "",
    )


_BELIEVED = TRUST[Source.MODEL]
"""The least trust with which an item of the memory counts as trusted."""


def label_of_recalled(item: RecalledItem, *, is_private: bool) -> Label:
    """Return the label of an item of the memory. A public task is told only items that may leave the device, whatever their tier."""
    is_believed = item.trust >= _BELIEVED
    tier = item.tier if is_private else Tier.SHARED
    whose = f" of user {item.user}" if item.user else ""
    is_plain = is_believed and tier is Tier.SHARED
    return Label(
        tier=tier,
        integrity=Integrity.TRUSTED if is_believed else Integrity.UNTRUSTED,
        origins=() if is_plain else (f"memory {'/'.join((*item.namespace, item.key))}{whose}",),
    )
