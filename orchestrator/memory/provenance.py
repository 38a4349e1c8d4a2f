"""Stamp each write with its provenance: writer, source, trust and tier. No value and no model can change the stamp."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from ...protocols.namespaces import ItemAddress
from ...protocols.tiers import LEAST_TRUST, TRUST, Source, Tier, strictest
from .item import Meta, all_about


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a write. None leaves a field to the next origin outwards: the running task, then the store."""

    user: str | None = None
    agent: str | None = None
    source: Source | None = None
    tier: Tier | None = None
    """The tier of a write that names none."""
    subject: str | None = None
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
    tier = new.tier if raises else strictest(meta.tier for meta in parts)
    subject, others = all_about(parts)
    return new._replace(trust=min(meta.trust for meta in parts), tier=tier, subject=subject, others=others)


def _narrowed(origin: Origin, ceiling: Tier | None) -> Origin:
    return origin if ceiling is None else replace(origin, tier=strictest((ceiling, origin.tier or ceiling)))
