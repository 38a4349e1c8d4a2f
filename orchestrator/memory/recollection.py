"""Keep track of the items that a running task has recalled: its writes are derived from them, and items that may not leave the device
are kept from it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pydantic import JsonValue

from ...protocols import Sensitivity
from ...protocols.namespaces import ItemAddress
from ...protocols.tiers import LEAST_TRUST, TRUST, Source, Tier
from ..task.labels import Integrity, Label, RecalledItem, join_labels
from ..task.stores import RecallConfig
from ..task.task import Task
from .provenance import Origin, writing_as

if TYPE_CHECKING:
    from .reading import MemoryItem

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
