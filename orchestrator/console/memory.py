"""The page of the memory: search it, see where each item comes from and how far it may travel, decide conflicts, and erase."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlencode

from ...protocols import ConfigError, NotFound
from ...protocols.items import ItemAddress, Namespace, namespace_text, parse_namespace
from ..memory.reading import address_text, one_line, origin_text, provenance, value_text
from ..runs.erasing import ErasedLogs, Holding, find_holding
from ..task.stores import RunsConfig
from ..util.runtime import in_thread
from .html import Html, facts, form_field, join, table, tag, text
from .view import ROOT, Page, PageContent, View

if TYPE_CHECKING:
    from ..memory.changes import Conflict, LostValue
    from ..memory.reading import MemoryItem
    from ..memory.store import MemoryStore

_PAGE: Final = 30
_EXAMPLES: Final = 10
_LINE: Final = 300
"""Characters of a value in a list."""


def _store(view: View) -> "MemoryStore | None":
    memory = view.console.hybrid.memory
    return None if memory is None else memory.store


def _required(view: View) -> "MemoryStore":
    store = _store(view)
    if store is None:
        raise ConfigError("tasks have no memory here", hint="add a section [memory] to nearfar.toml")
    return store


async def _show(view: View) -> PageContent:
    store = _store(view)
    if store is None:
        begin = tag("code", "[memory]")
        return PageContent("Memory", tag("p", "Tasks remember nothing. Add a section ", begin, " to nearfar.toml.", class_="empty"))
    return PageContent("Memory", await in_thread(_body, view, store))


def _body(view: View, store: "MemoryStore") -> Html:
    query, prefix = view.query.get("q", ""), parse_namespace(view.query.get("in", ""))
    offset = int(number) if (number := view.query.get("from", "")).isdecimal() and len(number) < 9 else 0
    found = store.search(prefix, query=query or None, limit=_PAGE + 1, offset=offset, refresh_ttl=False)
    caption = f"Items that match “{query[:60]}”, the best first" if query else "Items, the last changed first"
    empty = "Nothing matches." if query or prefix else "Nothing is remembered yet. Add a note by `nearfar memory add`."
    rows = [_row(item) for item in found[:_PAGE]]
    more = {"q": query, "in": namespace_text(prefix), "from": offset + _PAGE}
    following = tag("a", "More", href=f"{ROOT}/memory?{urlencode(more)}") if len(found) > _PAGE else None
    listed = table(text(caption), ("item", "value", "tier", "from", "written", "conflicts"), rows, empty=empty)
    return join(
        [_search_form(query, namespace_text(prefix)), listed, following, _conflicts(view, store.conflicts(limit=_PAGE)), _erase_form()]
    )


def _search_form(query: str, prefix: str) -> Html:
    asked = tag("input", type="search", name="q", value=query)
    inside = tag("input", type="text", name="in", value=prefix, placeholder="notes/ana")
    return tag(
        "form",
        form_field("Words, or a question", asked),
        form_field("In or below the namespace (empty: everywhere)", inside),
        tag("div", tag("button", "Search", type="submit"), class_="actions"),
        action=f"{ROOT}/memory",
        role="search",
    )


def _row(item: "MemoryItem") -> tuple[Html | str, ...]:
    address = item.address
    where = urlencode({"in": namespace_text(address.namespace), "key": address.key})
    link = tag("a", text(address_text(address), 120), href=f"{ROOT}/memory/item?{where}")
    lost = str(item.conflicts) if item.conflicts else ""
    return link, text(one_line(item.value), _LINE), item.tier.value, text(origin_text(item)), _moment(item.updated_at), lost


def _moment(moment: datetime) -> Html:
    return tag("time", f"{moment.astimezone():%Y-%m-%d %H:%M:%S}", datetime=moment.isoformat())


async def _item(view: View) -> PageContent:
    return await in_thread(_item_page, _required(view), _address(view))


def _address(view: View) -> ItemAddress:
    return ItemAddress(parse_namespace(view.asked("in")), view.asked("key"))


def _item_page(store: "MemoryStore", address: ItemAddress) -> PageContent:
    item = store.get(address.namespace, address.key, refresh_ttl=False)
    if item is None:
        raise NotFound(f"there is no item {address_text(address)}", hint="it may have been deleted or erased")
    earlier = [each for each in store.history(address.namespace, address.key) if each.version != item.version]
    told = ((name, _moment(each) if isinstance(each, datetime) else text(each)) for name, each in provenance(item, store.engine.device))
    before = [join([tag("p", _until(each), class_="note"), tag("pre", text(value_text(each.value)))]) for each in earlier]
    history = join([tag("h2", "Earlier values"), *before]) if before else Html()
    parts = [tag("pre", text(value_text(item.value))), tag("h2", "Where it comes from"), facts(told), history]
    return PageContent(f"Memory: {address_text(address)[:120]}", join([*parts, tag("p", tag("a", "All items", href=f"{ROOT}/memory"))]))


def _until(item: "MemoryItem") -> Html:
    ended = [] if item.invalid_from is None else ["until ", _moment(item.invalid_from), ", "]
    return join([*ended, "by ", text(origin_text(item))])


def _conflicts(view: View, found: Sequence["Conflict"]) -> Html:
    if not found:
        return Html()
    note = "Two devices wrote these at the same time. The present value counts until you decide."
    return join([tag("h2", "Conflicts"), tag("p", note, class_="note"), *(_conflict(view, each) for each in found)])


def _conflict(view: View, conflict: "Conflict") -> Html:
    address, present = conflict.address, conflict.item
    value = "(deleted)" if present is None else one_line(present.value)
    choices = [_choice(view, address, "present", value, "the present value"), *(_lost(view, address, each) for each in conflict.lost)]
    return tag("section", tag("h3", text(address_text(address))), choices, class_="card")


def _lost(view: View, address: ItemAddress, lost: "LostValue") -> Html:
    return _choice(view, address, lost.name, one_line(lost.value), f"written on {lost.device}, {lost.written_at:%Y-%m-%d %H:%M}")


def _choice(view: View, address: ItemAddress, keep: str, value: str, told: str) -> Html:
    fields = {"in": namespace_text(address.namespace), "key": address.key, "keep": keep}
    hidden = [tag("input", type="hidden", name=name, value=each) for name, each in fields.items()]
    shown = tag("p", text(value, _LINE), " ", tag("span", text(told), class_="note"))
    return tag("div", shown, view.action("/memory/keep", *hidden, button="Keep this", css="quiet"))


async def _keep(view: View) -> str:
    address = _address(view)
    await in_thread(partial(_required(view).resolve, address.namespace, address.key, view.asked("keep")))
    return "/memory"


def _erase_form() -> Html:
    about = tag("input", type="text", name="subject", placeholder="Ana")
    inside = tag("input", type="text", name="prefix", placeholder="notes/ana")
    note = "Erasing overwrites items, and the runs, traces, logs and cached answers that repeat them, here and on other devices."
    return tag(
        "form",
        tag("h2", "Erase"),
        tag("p", note, class_="note"),
        form_field("Everything about the person", about),
        form_field("or everything in or below the namespace", inside),
        tag("div", tag("button", "Show what would be erased", type="submit"), class_="actions quiet"),
        action=f"{ROOT}/memory/erasure",
    )


class _Erasure(NamedTuple):
    """Everything that an erasure would remove."""

    items: Sequence[ItemAddress]
    examples: Sequence[str]
    held: Holding
    logs: ErasedLogs


def _target(view: View) -> tuple[str | None, Namespace | None]:
    """Return the subject or the prefix to erase. Raises `InvalidRequest` for neither, so that no empty form erases everything."""
    if subject := (view.form.get("subject") or view.query.get("subject") or "").strip():
        return subject, None
    return None, parse_namespace(view.asked("prefix"))


def _found(view: View) -> _Erasure:
    from ..memory.erasing import Erased

    store, (subject, prefix) = _required(view), _target(view)
    items = store.traces(subject=subject, prefix=prefix)
    erased = Erased.of(store.engine, items, subject)
    held = find_holding(view.console.config.runs or RunsConfig(), erased)
    policy = view.console.hybrid.policy
    known = (store.get(each.namespace, each.key, refresh_ttl=False) for each in items[:_EXAMPLES])
    examples = [one_line(item.value) for item in known if item is not None]
    return _Erasure(items, examples, held, ErasedLogs((policy.router.log, policy.auto.reports), erased, held.all))


async def _plan(view: View) -> PageContent:
    found = await in_thread(_found, view)
    subject, prefix = _target(view)
    if not (found.items or found.held.all or found.logs.lines):
        return PageContent("Erase", tag("p", "There is no trace of it. ", tag("a", "All items", href=f"{ROOT}/memory"), class_="empty"))
    counts = (
        ("items", len(found.items)),
        ("runs", len(found.held.runs)),
        ("traces", len(found.held.traces)),
        ("lines of logs", found.logs.lines),
    )
    fields = {"subject": subject or "", "prefix": "" if prefix is None else namespace_text(prefix)}
    hidden = [tag("input", type="hidden", name=name, value=value) for name, value in fields.items()]
    confirm = view.action("/memory/erase", *hidden, button="Erase this for good", confirm="Erase this for good?", css="danger")
    examples = tag("ul", [tag("li", text(each, _LINE)) for each in found.examples])
    back = tag("a", "Keep it", href=f"{ROOT}/memory")
    target = f"about {subject}" if subject else f"in {fields['prefix']}"
    told = tag("p", "This would be erased for good, everything ", text(target), ":")
    return PageContent(
        "Erase", join([told, facts((name, f"{count:,}") for name, count in counts), examples, tag("div", confirm, back, class_="actions")])
    )


async def _erase(view: View) -> PageContent:
    return PageContent("Erase", await in_thread(_erased, view))


def _erased(view: View) -> Html:
    found, (subject, prefix) = _found(view), _target(view)
    found.logs.drop()
    items = _required(view).erase(subject=subject, prefix=prefix)  # the `Hybrid` forgets runs, traces and answers with them
    told = (
        f"{len(items):,} items are erased, with what repeated them. Other devices follow at their next sync; backups keep what they hold."
    )
    return join([tag("p", told, class_="problem fine", role="status"), tag("p", tag("a", "All items", href=f"{ROOT}/memory"))])


MEMORY: Final = Page("/memory", "Memory", _show, {"keep": _keep, "erase": _erase})
ITEM: Final = Page("/memory/item", "", _item)
ERASURE: Final = Page("/memory/erasure", "", _plan)
