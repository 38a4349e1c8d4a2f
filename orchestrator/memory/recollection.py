"""What a running task has recalled: whatever it writes down is derived from that, and what may not leave the device it is not told."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pydantic import JsonValue

from ...protocols import Sensitivity
from ...protocols.namespaces import ItemAddress
from ...protocols.tiers import LEAST_TRUST, TRUST, Source, Tier
from ..task.labels import Integrity, Label, joined
from ..task.sections.memory import RecallConfig
from ..task.task import RecalledItem, Task
from .provenance import Origin, writing_as

if TYPE_CHECKING:
    from .memory_item import MemoryItem

_running: ContextVar["Recollection | None"] = ContextVar("nearfar_recollection", default=None)


class Recollection:
    """Of one task. Its tools add to it."""

    def __init__(self, sensitivity: Sensitivity, recalled: Sequence[RecalledItem], *, stays_here: bool, user: str = "") -> None:
        self.is_private = sensitivity is Sensitivity.PRIVATE
        """No far agent sees what the task is told."""
        self._stays_here = self.is_private and stays_here
        self.user = user
        """On whose behalf the task runs."""
        self.items = list(recalled)

    @classmethod
    def of(cls, task: Task, *, stays_here: bool = False) -> "Recollection":
        """`stays_here`: all near agents are on this very device, so that a private task never leaves it."""
        return cls(task.policy.sensitivity, task.recalled, stays_here=stays_here, user=task.user)

    def may_hear(self, tier: Tier, recall: RecallConfig) -> bool:
        """Whether an item of this tier may be told to the task."""
        if tier is Tier.DEVICE:
            return self._stays_here
        return self.is_private or recall.may_go(tier)

    def add(self, recalled: Sequence[RecalledItem]) -> None:
        self.items += [item for item in recalled if item not in self.items]

    def restore(self, kept: Sequence[Mapping[str, JsonValue]]) -> None:
        """Add what another process was told, as the state of the task has it."""
        self.add([RecalledItem.model_validate(item) for item in kept])

    @property
    def addresses(self) -> tuple[ItemAddress, ...]:
        """The items, as the lineage of what is written."""
        return tuple(dict.fromkeys(ItemAddress(item.namespace, item.key) for item in self.items))

    @property
    def label(self) -> Label:
        """Of the items."""
        return joined(label_of_recalled(item, is_private=self.is_private) for item in self.items)

    @contextmanager
    def in_use(self, agent: str, label: Label) -> Iterator[None]:
        """What tools write within this block, on behalf of `agent`, goes no further and is believed no more than what the task knows.

        `label`: of all that the task has been told."""
        token = _running.set(self)
        try:
            with writing_as(origin_of(label, agent=agent, lineage=self.addresses)):
                yield
        finally:
            _running.reset(token)


def origin_of(label: Label, *, agent: str, lineage: tuple[ItemAddress, ...]) -> Origin:
    """Who writes what was made of data with this label: private data stay on the device, and what strangers said is little believed."""
    trust = 1.0 if label.integrity is Integrity.TRUSTED else LEAST_TRUST
    return Origin(agent=agent, tier=None if label.tier is Tier.SHARED else Tier.DEVICE, lineage=lineage, trust=trust)


def running() -> Recollection | None:
    """That of the task whose tool runs now; None outside of any task."""
    return _running.get()


def recalled_item(item: "MemoryItem") -> RecalledItem:
    """What a result tells of an item."""
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
"""From this trust on, what an item of the memory says may be acted upon."""


def label_of_recalled(item: RecalledItem, *, is_private: bool) -> Label:
    """Of an item of the memory. A task that is public is told only what may leave the device, whatever its tier."""
    is_believed = item.trust >= _BELIEVED
    tier = item.tier if is_private else Tier.SHARED
    whose = f" of user {item.user}" if item.user else ""
    is_plain = is_believed and tier is Tier.SHARED
    return Label(
        tier=tier,
        integrity=Integrity.TRUSTED if is_believed else Integrity.UNTRUSTED,
        origins=() if is_plain else (f"memory {'/'.join((*item.namespace, item.key))}{whose}",),
    )
