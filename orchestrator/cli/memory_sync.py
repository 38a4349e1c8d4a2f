"""`nearfar memory sync | revoke`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from ...protocols import ConfigError, InvalidRequest, NotFound, Unsupported
from ...protocols.address import parse_address
from ...protocols.channel import client_tls
from ...protocols.namespaces import Namespace, namespace_text
from ...protocols.pairing import read_pairing
from ...protocols.pinning import pinned_tls
from ...protocols.tiers import Tier
from ..memory.sync.messages import Peer
from ..memory.sync.session import Neighbour, Synchronised, plan, sync_once
from ..task.sections.memory import MemoryConfig, PeerConfig
from ..util.escaping import spelled_out
from ..util.secrets import find_secret, secret
from .cache_file import forget_answers
from .console import agreed, execute, notes, output, print_json, reported, warn
from .memory_store import chosen_memory, items_of, opened
from .memory_text import counted, one_line, size_text
from .options import StoreChoice

if TYPE_CHECKING:
    from ..memory.store import MemoryStore
    from ..memory.sync.sending import Leaving
    from ..memory.sync.session import Progress as Exchanged

_AGREED = "agreed to synchronise with {}"
"""The setting of a store that says that its user has seen what would leave for a peer."""
_OTHER_USER = "of another user than"
"""How a hub begins to refuse items that were written under another name than it knows the device by."""
_LARGE_SKEW = 60.0
"""Seconds between two clocks that are worth a word."""


@dataclass(frozen=True, slots=True)
class Way:
    """Which peer is meant, and how it is reached; what is empty stands in the configuration."""

    peer: str
    token: str
    certificate: Path | None
    pairing_file: str
    client_certificate: Path | None = None
    client_key: Path | None = None


def sync_with(way: Way, choice: StoreChoice, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Exchange what is new on either side; before the first time, say what would leave, and ask."""

    async def work() -> None:
        config = chosen_memory(choice)
        neighbour = await _neighbour(way, config)
        with opened(choice, creates=True) as store, _forgetting_answers(choice.config, store), _in_our_words(neighbour, config.user):
            leaving = None
            if dry_run or not _has_agreed(store, neighbour):
                leaving = await plan(store, neighbour)
                _show_plan(store, leaving, neighbour, as_json=as_json, is_all=dry_run)
                if dry_run:
                    return
                question = f"Send this to {neighbour.address}, and take what is there for you?"
                if not yes and not await anyio.to_thread.run_sync(lambda: agreed(question, as_json=as_json)):
                    notes.print("nothing was sent", style="dim")
                    return
                _agree(store, neighbour)
            total = None if leaving is None else sum(each.items + each.withdrawn for each in leaving.values())
            with _progress(total, shown=not as_json) as report:
                done = await sync_once(store, neighbour, report=report)
            await store.aindex_pending()  # what came from elsewhere has no vectors yet
            staying = sum(1 for _ in items_of(store, (), Tier.DEVICE))
        _tell(done, staying, as_json=as_json)

    execute(work(), as_json=as_json)


def revoke_device(device: str, choice: StoreChoice, *, yes: bool, as_json: bool) -> None:
    """Shut a device out, here and, from device to device, everywhere."""
    with reported(as_json=as_json), opened(choice) as store:
        replica = store.replica()
        known = set(replica.facts().users)
        with store.engine.transaction() as transaction:
            known |= transaction.known().keys()
        if device not in known:
            raise NotFound(f"this store has never met a device {device!r}", hint="nearfar memory stats lists the devices")
        if not yes and not agreed(f"Shut {device} out for good? What it wrote stays.", as_json=as_json):
            return
        replica.revoke(device)
    if as_json:
        print_json({"revoked": device})
    else:
        output.print(f"{device} is shut out; other devices hear of it when they synchronise")


async def _neighbour(way: Way, config: MemoryConfig) -> Neighbour:
    """The hub that is meant: it may speak for all devices of the user, since they meet there."""
    name, peer, token = _named(way, config)
    tls = client_tls(peer.certificate, way.client_certificate or peer.client_certificate, way.client_key or peer.client_key)
    if peer.fingerprint is not None:
        tls = await anyio.to_thread.run_sync(pinned_tls, parse_address(peer.address), peer.fingerprint, tls)
    return Neighbour(peer=Peer(name, config.user, is_relay=True), address=peer.address, token=token, tls=tls)


def _named(way: Way, config: MemoryConfig) -> tuple[str, PeerConfig, str | None]:
    """The peer's name, where it is, and the token to show it; a certificate may be enough."""
    if way.pairing_file:
        pairing = read_pairing(way.pairing_file)
        return way.peer or pairing.address, PeerConfig(address=pairing.address, fingerprint=pairing.fingerprint), pairing.token
    if not way.peer and len(config.peers) == 1:
        ((name, peer),) = config.peers.items()
    elif way.peer in config.peers:
        name, peer = way.peer, config.peers[way.peer]
    elif ":" in way.peer:
        name, peer = way.peer, PeerConfig(address=way.peer)
    else:
        known = ", ".join(config.peers) or "none"
        problem = f"there is no peer {way.peer!r}" if way.peer else "it is not said with which peer to synchronise"
        raise ConfigError(problem, hint=f"name one of [memory.peers] ({known}), or give HOST:PORT or --pairing-file FILE")
    if way.certificate is not None:
        peer = peer.model_copy(update={"certificate": way.certificate, "fingerprint": None})
    read = find_secret if way.client_certificate or peer.client_certificate else secret
    return name, peer, way.token or read(peer.token_variable)


@contextmanager
def _forgetting_answers(config: Path | None, store: "MemoryStore") -> Iterator[None]:
    """What is exchanged within the block may bring erasures, also where it fails."""
    try:
        yield
    finally:
        forget_answers(config, store)


@contextmanager
def _in_our_words(neighbour: Neighbour, user: str) -> Iterator[None]:
    """Say of a refusal that comes from the two configurations what to change in which."""
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


def _show_plan(store: "MemoryStore", leaving: "Mapping[Namespace, Leaving]", neighbour: Neighbour, *, as_json: bool, is_all: bool) -> None:
    """What would leave this device, by namespace, and what stays."""
    if as_json:
        if is_all:
            print_json({"would_leave": [{"namespace": namespace, **asdict(each)} for namespace, each in sorted(leaving.items())]})
        return
    going = {namespace: each for namespace, each in sorted(leaving.items()) if each.items or each.withdrawn}
    if going:
        notes.print(Text.assemble("would leave this device for ", (neighbour.address, "bold"), ":"), soft_wrap=True)
        table = Table("namespace", "items", "size", "for example", box=SIMPLE_HEAD, pad_edge=False)
        for namespace, each in going.items():
            table.add_row(*_row(store, namespace, each))
        notes.print(table)
    staying = sum(each.held_back for each in leaving.values())
    notes.print(
        f"stays here: {counted(staying, 'item')} of tier device; of these, the other side learns only that there are so many writes"
    )
    if not going:
        notes.print("nothing would leave this device")


def _row(store: "MemoryStore", namespace: Namespace, leaving: "Leaving") -> tuple[Text, str, str, Text]:
    found = [store.get(address.namespace, address.key, refresh_ttl=False) for address in leaving.examples]
    examples = "\n".join(one_line(item.value) for item in found if item is not None) or "(deleted: that they are gone)"
    withdrawn = f", {leaving.withdrawn:,} withdrawn" if leaving.withdrawn else ""
    shown = Text(examples, no_wrap=True, overflow="ellipsis")
    return Text(spelled_out(namespace_text(namespace))), f"{leaving.items:,}{withdrawn}", size_text(leaving.bytes), shown


@contextmanager
def _progress(total: int | None, *, shown: bool) -> "Iterator[Callable[[Exchanged], None]]":
    """Bars that follow an exchange."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=notes, transient=True, disable=not shown) as bars:
        receiving, sending = bars.add_task("received", total=None), bars.add_task("sent", total=total)

        def report(exchanged: "Exchanged") -> None:
            bars.update(receiving, completed=exchanged.received.operations)
            bars.update(sending, completed=exchanged.sent.operations)

        yield report


def _tell(done: Synchronised, staying: int, *, as_json: bool) -> None:
    if as_json:
        sides = {"received": done.received._asdict(), "sent": done.sent._asdict()}
        print_json({"device": done.device, **sides, "stay_here": staying, "skew_seconds": done.skew})
        return
    output.print(f"sent {counted(done.sent.operations, 'item')}, received {counted(done.received.operations, 'item')}: in step")
    if staying:
        notes.print(f'{counted(staying, "item")} of tier device stay here: [memory] tier = "user" lets what is written later travel')
    if done.received.conflicts:
        notes.print(f"{counted(done.received.conflicts, 'conflict')} to decide on: nearfar memory conflicts", style="yellow")
    if done.received.refused:
        warn(f"{counted(done.received.refused, 'item')} of others were left out, since something private to you has the same name")
    if abs(done.skew) > _LARGE_SKEW:
        warn(f"the other clock is {abs(done.skew):.0f} s {'ahead of' if done.skew > 0 else 'behind'} this one")
