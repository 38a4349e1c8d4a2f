"""`nearfar memory sync | conflicts | revoke`: synchronise with a hub, decide between values, and shut a device out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import anyio.to_thread
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from ...protocols import ConfigError, InvalidRequest, NotFound, Unsupported
from ...protocols.address import parse_address, read_pairing
from ...protocols.items import ItemAddress, Namespace, Tier, namespace_text, parse_namespace
from ...protocols.secrets import StoredKey, secret
from ...protocols.tls import client_tls, pinned_tls
from ..memory.reading import address_text, one_line, origin_text, value_text
from ..memory.sync.messages import Peer
from ..memory.sync.session import Neighbour, Synchronised, plan, sync_once
from ..task.stores import MemoryConfig, PeerConfig
from ..util.text import spell_out
from . import options
from .cache import forget_answers
from .memory_store import Limit, Offset, Store, StoreChoice, chosen_memory, items_of, open_store
from .running import (
    Line,
    Note,
    asynchronous,
    confirm,
    count_text,
    moment_text,
    notes,
    print_lines,
    report_errors,
    show,
    size_text,
    style_cells,
    table,
    warn,
)

if TYPE_CHECKING:
    from ..memory.changes import Conflict, LostValue
    from ..memory.store import MemoryStore
    from ..memory.sync.exchange import Leaving
    from ..memory.sync.session import SyncProgress as Exchanged

_AGREED: Final = "agreed to synchronise with {}"
"""Key of the setting in a store that records the address of a peer whose first sync the user has agreed to."""
_OTHER_USER: Final = "of another user than"
"""Part of a hub's error if items were written under another user than the hub knows the device by."""
_LARGE_SKEW: Final = 60.0
"""Seconds between two clocks from which on the difference is reported."""
_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class Route:
    """The peer to synchronise with and how to reach it, as named by the options. An empty field is read from the configuration."""

    peer: str
    token: str
    certificate: Path | None
    pairing_file: str
    client_certificate: Path | None = None
    client_key: Path | None = None


@asynchronous
async def sync(
    peer: Annotated[str, typer.Argument(help="Name of a [memory.peers] section, or HOST:PORT. Not needed if there is only one.")] = "",
    token: Annotated[str, typer.Option(envvar="NEARFAR_TOKEN", help="Token of this device at the peer. Prefer $NEARFAR_TOKEN.")] = "",
    certificate: options.ServerCertificate = None,
    client_certificate: options.ClientCertificate = None,
    client_key: options.ClientKey = None,
    pairing_file: Annotated[str, typer.Option(help="File with the line that `worker pair` shows, or - to paste it.")] = "",
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Synchronise this memory with another one. Before the first time, show what would leave this device, and ask."""
    route = Route(peer, token, certificate, pairing_file, client_certificate, client_key)
    choice = StoreChoice(store, config)
    chosen = chosen_memory(choice)
    neighbour = await _neighbour(route, chosen)
    with open_store(choice, creates=True) as opened, _forget_answers(config, opened), _explain_refusals(neighbour, chosen.user):
        leaving = None
        if dry_run or not _has_agreed(opened, neighbour):
            leaving = await plan(opened, neighbour)
            if dry_run or not as_json:
                described = [{"namespace": namespace, **asdict(each)} for namespace, each in sorted(leaving.items())]
                show({"would_leave": described}, _plan_lines(opened, leaving, neighbour), as_json=as_json)
            if dry_run:
                return
            question = f"Send this to {neighbour.address}, and receive the items that are there for you?"
            if not yes and not await anyio.to_thread.run_sync(lambda: confirm(question, as_json=as_json)):
                print_lines([Note("nothing was sent")])
                return
            _agree(opened, neighbour)
        total = None if leaving is None else sum(each.items + each.withdrawn for each in leaving.values())
        with _show_progress(total, shown=not as_json) as report:
            done = await sync_once(opened, neighbour, report=report)
        await opened.aindex_pending()  # received items have no vectors yet
        staying = sum(1 for _ in items_of(opened, (), Tier.DEVICE))
    sides = {"received": done.received._asdict(), "sent": done.sent._asdict()}
    data = {"device": done.device, **sides, "stay_here": staying, "skew_seconds": done.skew}
    show(data, _end_lines(done, staying), as_json=as_json)
    if not as_json:
        _warn_about(done)


def revoke_device(
    device: Annotated[str, typer.Argument(help="Name of the device, as `stats` shows it.")],
    yes: options.Yes = False,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Shut a lost device out: every device that learns of it stops synchronising with it. Items that it wrote stay."""
    with report_errors(as_json=as_json), open_store(StoreChoice(store, config)) as opened:
        replica = opened.replica()
        known = set(replica.facts().users)
        with opened.engine.transaction() as transaction:
            known |= transaction.known().keys()
        if device not in known:
            raise NotFound(f"this store has never met a device {device!r}", hint="nearfar memory stats lists the devices")
        if not yes and not confirm(f"Shut {device} out for good? Items that it wrote stay.", as_json=as_json):
            return
        replica.revoke(device)
    show({"revoked": device}, [f"{device} is shut out; other devices learn of it when they synchronise"], as_json=as_json)


def show_conflicts(
    namespace: Annotated[str, typer.Argument(help="Namespace of an item. Default: list all items with conflicts.")] = "",
    key: Annotated[str, typer.Argument(help="Key of the item.")] = "",
    keep: Annotated[str | None, typer.Option(help="The value to keep: `present`, or the number of a value that lost.")] = None,
    limit: Limit = 20,
    offset: Offset = 0,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Show values that lost against a change made at the same time on another device, side by side, and decide between them."""
    with report_errors(as_json=as_json), open_store(StoreChoice(store, config)) as opened:
        if not (namespace or key or keep is not None):
            found = opened.conflicts(limit=limit, offset=offset)
            show({"conflicts": [_describe(conflict) for conflict in found]}, _conflict_list(found), as_json=as_json)
            return
        if not namespace or not key:
            raise InvalidRequest("the item is not named in full", hint="nearfar memory conflicts NAMESPACE KEY")
        conflict = _conflict_at(opened, ItemAddress(parse_namespace(namespace), key))
        if keep is None:
            show(_describe(conflict), _conflict_lines(conflict), as_json=as_json)
            return
        version = opened.resolve(conflict.address.namespace, key, _chosen_value(conflict, keep))
    data = {"namespace": conflict.address.namespace, "key": key, "version": version}
    show(data, [f"{address_text(conflict.address)} is decided"], as_json=as_json)


async def _neighbour(route: Route, config: MemoryConfig) -> Neighbour:
    """Return the hub to synchronise with. It may send items of all devices of the user, since they meet there."""
    name, peer, token = _named_peer(route, config)
    tls = client_tls(peer.certificate, route.client_certificate or peer.client_certificate, route.client_key or peer.client_key)
    if peer.fingerprint is not None:
        tls = await anyio.to_thread.run_sync(pinned_tls, parse_address(peer.address), peer.fingerprint, tls)
    return Neighbour(peer=Peer(name, config.user, is_relay=True), address=peer.address, token=token, tls=tls)


def _named_peer(route: Route, config: MemoryConfig) -> tuple[str, PeerConfig, str | None]:
    """Return the peer's name, its address, and the token to show it; None if a client certificate is enough."""
    if route.pairing_file:
        pairing = read_pairing(route.pairing_file)
        return route.peer or pairing.address, PeerConfig(address=pairing.address, fingerprint=pairing.fingerprint), pairing.token
    if not route.peer and len(config.peers) == 1:
        ((name, peer),) = config.peers.items()
    elif route.peer in config.peers:
        name, peer = route.peer, config.peers[route.peer]
    elif ":" in route.peer:
        name, peer = route.peer, PeerConfig(address=route.peer)
    else:
        known = ", ".join(config.peers) or "none"
        problem = f"there is no peer {route.peer!r}" if route.peer else "no peer to synchronise with is named"
        raise ConfigError(problem, hint=f"name one of [memory.peers] ({known}), or give HOST:PORT or --pairing-file FILE")
    if route.certificate is not None:
        peer = peer.model_copy(update={"certificate": route.certificate, "fingerprint": None})
    if route.token:
        return name, peer, route.token
    has_certificate = route.client_certificate or peer.client_certificate
    return name, peer, StoredKey(peer.token_variable).find() if has_certificate else secret(peer.token_variable)


@contextmanager
def _forget_answers(config: Path | None, store: "MemoryStore") -> Iterator[None]:
    """Empty the cache of answers after the block if it has brought erasures, also if it fails."""
    try:
        yield
    finally:
        forget_answers(config, store)


@contextmanager
def _explain_refusals(neighbour: Neighbour, user: str) -> Iterator[None]:
    """Turn a refusal that comes from the two configurations into an error that names the setting to change."""
    try:
        yield
    except Unsupported as error:
        raise Unsupported(f"the hub at {neighbour.address} keeps no memory", hint="in its nearfar.toml: [hub] memory = true") from error
    except InvalidRequest as error:
        if _OTHER_USER not in error.message:
            raise
        known = f"as {user!r}" if user else "without a user"
        hint = "in nearfar.toml of this device: [memory] user as [hub.workers] has it on the hub; then export, and import into a new store"
        raise ConfigError(f"items were written here {known}, and the hub knows this device as another user's", hint=hint) from error


def _has_agreed(store: "MemoryStore", neighbour: Neighbour) -> bool:
    with store.engine.transaction() as transaction:
        return transaction.setting(_AGREED.format(neighbour.peer.name)) == neighbour.address


def _agree(store: "MemoryStore", neighbour: Neighbour) -> None:
    with store.engine.transaction() as transaction:
        transaction.set(_AGREED.format(neighbour.peer.name), neighbour.address)


def _plan_lines(store: "MemoryStore", leaving: "Mapping[Namespace, Leaving]", neighbour: Neighbour) -> Iterator[Line]:
    """Yield the items that would leave this device, by namespace, and the number of those that stay."""
    going = {namespace: each for namespace, each in sorted(leaving.items()) if each.items or each.withdrawn}
    if going:
        yield Note(Text.assemble("would leave this device for ", (neighbour.address, "bold"), ":"), "")
        rows = [_row(store, namespace, each) for namespace, each in going.items()]
        yield Note(table(("namespace", "items", "size", "for example"), rows), "")
    staying = sum(each.held_back for each in leaving.values())
    yield Note(f"stays here: {count_text(staying, 'item')} of tier device; of these, the other side learns only the number of writes", "")
    if not going:
        yield Note("nothing would leave this device", "")


def _row(store: "MemoryStore", namespace: Namespace, leaving: "Leaving") -> tuple[str | Text, ...]:
    found = [store.get(address.namespace, address.key, refresh_ttl=False) for address in leaving.examples]
    examples = "\n".join(one_line(item.value) for item in found if item is not None) or "(deleted: only that they are gone)"
    withdrawn = f", {leaving.withdrawn:,} withdrawn" if leaving.withdrawn else ""
    shown = Text(examples, no_wrap=True, overflow="ellipsis")
    return spell_out(namespace_text(namespace)), f"{leaving.items:,}{withdrawn}", size_text(leaving.bytes), shown


@contextmanager
def _show_progress(total: int | None, *, shown: bool) -> "Iterator[Callable[[Exchanged], None]]":
    """Yield a function that shows the progress of an exchange as bars."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=notes, transient=True, disable=not shown) as bars:
        receiving, sending = bars.add_task("received", total=None), bars.add_task("sent", total=total)

        def report(exchanged: "Exchanged") -> None:
            bars.update(receiving, completed=exchanged.received.operations)
            bars.update(sending, completed=exchanged.sent.operations)

        yield report


def _end_lines(done: Synchronised, staying: int) -> Iterator[Line]:
    yield f"sent {count_text(done.sent.operations, 'item')}, received {count_text(done.received.operations, 'item')}: in sync"
    if staying:
        yield Note(f'{count_text(staying, "item")} of tier device stay here; with [memory] tier = "user", items written later are sent', "")
    if done.received.conflicts:
        yield Note(f"{count_text(done.received.conflicts, 'conflict')} to decide on: nearfar memory conflicts", "yellow")


def _warn_about(done: Synchronised) -> None:
    if done.received.refused:
        warn(f"{count_text(done.received.refused, 'item')} of others were left out: items of yours that are private have the same names")
    if abs(done.skew) > _LARGE_SKEW:
        warn(f"the other clock is {abs(done.skew):.0f} s {'ahead of' if done.skew > 0 else 'behind'} this one")


def _conflict_at(store: "MemoryStore", address: ItemAddress) -> "Conflict":
    offset = 0
    while page := store.conflicts(limit=_PAGE, offset=offset):
        for conflict in page:
            if conflict.address == address:
                return conflict
        offset += len(page)
    raise NotFound(f"{address_text(address)} has no conflicts", hint="nearfar memory conflicts lists the items that have some")


def _chosen_value(conflict: "Conflict", keep: str) -> str:
    """Return the name of the value to keep. A number counts the lost values in the order in which they are shown."""
    if keep.isdigit() and 1 <= int(keep) <= len(conflict.lost):
        return conflict.lost[int(keep) - 1].name
    if keep in ("present", *(lost.name for lost in conflict.lost)):
        return keep
    raise InvalidRequest(f"there is no value {keep!r} to keep", hint=f"present, or 1 to {len(conflict.lost)}")


def _conflict_list(found: Sequence["Conflict"]) -> Iterator[Line]:
    if not found:
        yield Note("no conflicts")
        return
    rows = []
    for conflict in found:
        present = "(deleted)" if conflict.item is None else one_line(conflict.item.value)
        rows.append((address_text(conflict.address), present, "\n".join(one_line(lost.value) for lost in conflict.lost)))
    yield table(("item", "present", "lost"), rows)
    yield Note("nearfar memory conflicts NAMESPACE KEY shows the values of one item; --keep decides between them")


def _conflict_lines(conflict: "Conflict") -> Iterator[Line]:
    yield Text(f"{address_text(conflict.address)}: {count_text(len(conflict.lost), 'value')} to decide on", style="bold")
    present = conflict.item
    values = ["(deleted)" if present is None else value_text(present.value), *(value_text(lost.value) for lost in conflict.lost)]
    told = "" if present is None else f"{moment_text(present.updated_at)}\n{origin_text(present)}\n{present.tier}"
    names = ["present", *map(str, range(1, len(conflict.lost) + 1))]
    yield table(names, [values, style_cells((told, *map(_lost_origin, conflict.lost)), "dim")])
    yield Note(f"nearfar memory conflicts {address_text(conflict.address)} --keep {'|'.join(names)}")


def _lost_origin(lost: "LostValue") -> str:
    agent = f" {lost.agent}" if lost.agent else ""
    return f"{moment_text(lost.written_at)}\n{lost.source.value.replace('_', ' ')}{agent}\n{lost.tier}"


def _describe(conflict: "Conflict") -> dict[str, object]:
    present = None if conflict.item is None else conflict.item.dict()
    lost = [{**asdict(each), "written_at": each.written_at.isoformat()} for each in conflict.lost]
    return {"namespace": conflict.address.namespace, "key": conflict.address.key, "present": present, "lost": lost}
