"""A few replicas with clocks that disagree and links that fail, on which random schedules are run, and what must hold afterwards."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from in_memory_engine import InMemoryEngine
from merge_history import lost_tokens

from nearfar.orchestrator.memory.engine import Engine
from nearfar.orchestrator.memory.merge import heads_of, merge
from nearfar.orchestrator.memory.operation import Dot, Operation, encode
from nearfar.orchestrator.memory.sqlite import SqliteEngine
from nearfar.orchestrator.memory.store import MemoryStore
from nearfar.orchestrator.memory.sync import Replica, wire
from nearfar.orchestrator.memory.sync.exchange import batches, receive
from nearfar.orchestrator.memory.sync.keys import SubjectKeys
from nearfar.orchestrator.memory.sync.messages import Batch, Disclosure, Hello, Peer, Received, SharedFacts, for_peer
from nearfar.protocols import PermissionDenied, SyncRefused, VersionConflict
from nearfar.protocols.items import ItemAddress, Tier
from nearfar.protocols.v1 import memory_pb2 as pb

DAY = 86_400.0
PRIVATE = "canary-device"
"""In every text that must not leave its device."""


_OPEN = 0.3
"""Of so many worlds, nothing is private to a device: all that was written arrives everywhere it may."""


class Node:
    """A device with its store."""

    def __init__(self, name: str, user: str | None, clock: Callable[[], float], folder: Path | None = None) -> None:
        self.name = name
        self.user = user
        self.clock = clock
        self._folder = folder
        self.keys = SubjectKeys(None if folder is None else folder / f"{name}.keys")
        self.engine: Engine = InMemoryEngine(device=name) if folder is None else self._sqlite()
        self._attach()

    @property
    def device(self) -> str:
        return self.engine.device

    def restart(self) -> None:
        """As after a crash: nothing but the files is left."""
        if self._folder is not None:
            self.close()
            self.keys = SubjectKeys(self._folder / f"{self.name}.keys")
            self.engine = self._sqlite()
            self._attach()

    def peer(self) -> Peer:
        """As others know it."""
        return Peer(self.name, self.user or "", is_relay=self.user is None)

    def heads(self, address: ItemAddress) -> tuple[Operation, ...]:
        with self.engine.transaction() as transaction:
            return transaction.heads([address]).get(address, ())

    def all_heads(self) -> dict[ItemAddress, tuple[Operation, ...]]:
        found: dict[ItemAddress, list[Operation]] = {}
        for _, operation, _ in self.engine.operations(0, limit=100_000):
            found.setdefault(operation.address, []).append(operation)
        return {address: tuple(heads) for address, heads in found.items()}

    def close(self) -> None:
        self.engine.close()
        self.keys.close()

    def _sqlite(self) -> SqliteEngine:
        assert self._folder is not None
        return SqliteEngine(self._folder / f"{self.name}.db", sealer=self.keys)

    def _attach(self) -> None:
        self.replica = Replica(engine=self.engine, keys=self.keys, user=self.user, now=self.clock)
        self.store = MemoryStore(self.engine, embedder=None, user=self.user or "", now=self.clock, keys=self.keys)


def greet(caller: Node, callee: Node) -> None:
    """Both tell each other what they know beside the items, as `MemoryService.Greet` does."""
    callee.replica.meet(caller.peer(), through_wire(caller.replica.hello()), is_caller=True)
    caller.replica.meet(callee.peer(), through_wire(callee.replica.hello()), is_caller=False)


def through_wire(hello: Hello) -> Hello:
    return wire.hello_from_proto(pb.Hello.FromString(wire.hello_to_proto(hello).SerializeToString()))


def send(sender: Node, receiver: Node, *, batch_bytes: int = 400, capture: list[bytes] | None = None) -> Iterable[Batch]:
    """The batches that go from one to the other, as they arrive."""
    request = receiver.replica.request(sender.peer(), sender.replica.hello().log)
    for batch in batches(sender.replica, receiver.peer(), request, batch_bytes=batch_bytes):
        sent = wire.batch_to_proto(batch).SerializeToString()
        if capture is not None:
            capture.append(sent)
        yield wire.batch_from_proto(pb.Batch.FromString(sent))


def take(receiver: Node, sender: Node, batch: Batch) -> Received:
    return receive(receiver.replica, sender.peer(), sender.device, batch)


def synchronise(one: Node, other: Node, capture: list[bytes] | None = None) -> None:
    """In both directions as `sync_once` does, without faults."""
    greet(one, other)
    for sender, receiver in ((one, other), (other, one)):
        for batch in send(sender, receiver, capture=capture):
            take(receiver, sender, batch)


@dataclass(frozen=True)
class Write:
    """A write that was acknowledged."""

    operation: Operation
    ancestors: frozenset[Dot]
    """Writes that it was made in knowledge of."""
    text: str
    """Of which every token begins."""
    tokens: Mapping[str, str]
    """By field."""
    is_total: bool
    lost: frozenset[str]
    """Tokens that the writer was told of as lost, and did not delete."""
    erasures_heard: frozenset[str]


@dataclass
class World:
    """Replicas, and all that was ever acknowledged by any of them."""

    random: Random
    folder: Path | None = None
    nodes: list[Node] = field(default_factory=list)
    writes: dict[Dot, Write] = field(default_factory=dict)
    erased: dict[str, str] = field(default_factory=dict)
    """By erasure, whom it was about."""
    revoked: set[str] = field(default_factory=set)
    cut: set[frozenset[str]] = field(default_factory=set)
    """Pairs of replicas that do not reach each other now."""
    wire: list[bytes] = field(default_factory=list)
    time: float = 1_700_000_000.0
    texts: int = 0

    def __post_init__(self) -> None:
        self.is_open = self.random.random() < _OPEN
        users: list[str | None] = ["anna", "anna", self.random.choice(["anna", "ben", None]), self.random.choice(["anna", "ben", None])]
        if users[2] is None and users[3] is None:
            users[3] = "anna"
        for number, user in enumerate(users[: self.random.randint(2, 4)]):
            skew = self.random.choice([0, 0, 0, 30, -3600, 400 * DAY])
            self.nodes.append(Node(f"device{number}", user, lambda skew=skew: self.time + skew, self.folder))  # type: ignore[misc]  # bound now

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.time += self.random.choice([0, 0.001, 1, 100])
            step = self.random.choices(
                [self.write, self.write_if_version, self.delete, self.trespass, self.exchange, self.restart, self.switch_link]
                + [self.erase, self.revoke],
                [30, 5, 5, 3, 30, 3, 8, 2, 0.5],
            )[0]
            step()

    def heal(self) -> None:
        """All links work again, until nobody has anything new."""
        for _ in range(len(self.live) + 1):
            for one in self.live:
                for other in self.live:
                    if one is not other:
                        synchronise(one, other, self.wire)

    @property
    def live(self) -> list[Node]:
        return [node for node in self.nodes if node.device not in self.revoked]

    def write(self) -> None:
        node = self.random.choice([node for node in self.nodes if node.user is not None])
        address = self._address(node)
        heads = node.heads(address)
        before = merge(heads) if heads else None
        tier = Tier.SHARED if address.namespace == ("shared",) and before is None else self.random.choice(list(Tier)[self.is_open :])
        subject = self.random.choice([None, None, None, "carl", "dora"])
        is_total = before is None or before.value is None or self.random.random() < 0.6
        if is_total:
            text, tokens = self._tokens(tier)
            fields = {**tokens, **({"list": [1]} if self.random.random() < 0.3 else {})}
            self._note(node, address, text, tokens, lambda: node.store.put(*address, fields, tier=tier, subject=subject))
        else:
            assert before is not None
            text, tokens = self._tokens(before.meta.tier)
            patch = partial(node.store.patch, *address, tokens, tier=before.meta.tier if self.is_open else None)
            self._note(node, address, text, tokens, patch, is_total=False)

    def write_if_version(self) -> None:
        node = self.random.choice([node for node in self.nodes if node.user is not None])
        address = self._address(node)
        item = node.store.get(*address)
        version = "absent" if item is None else item.version
        tier = Tier.USER if self.is_open else Tier.DEVICE
        text, tokens = self._tokens(tier)
        if address.namespace == ("shared",) and item is None:
            return
        if self.random.random() < 0.2:
            try:
                node.store.put(*address, tokens, if_version="1@nobody")
            except VersionConflict:
                return
            raise AssertionError("a write for another version was done")
        self._note(node, address, text, tokens, lambda: node.store.put(*address, tokens, if_version=version, tier=tier))

    def delete(self) -> None:
        node = self.random.choice([node for node in self.nodes if node.user is not None])
        address = self._address(node)
        if node.store.get(*address) is not None:
            self._note(node, address, "", {}, lambda: node.store.delete(*address))

    def trespass(self) -> None:
        """What another user shared can be neither replaced nor deleted."""
        node = self.random.choice([node for node in self.nodes if node.user is not None])
        others = sorted(address for address, heads in node.all_heads().items() if any(head.meta.user != node.user for head in heads))
        if others:
            address = self.random.choice(others)
            try:
                if self.random.random() < 0.5:
                    node.store.put(*address, {"a": "mine"})
                else:
                    node.store.delete(*address)
            except PermissionDenied:
                return
            raise AssertionError(f"{node.name} wrote over another user's {address}")

    def exchange(self) -> None:
        """One direction, perhaps broken off, and with batches that come twice or in a wrong order."""
        one, other = self.random.sample(self.nodes, 2)
        if frozenset((one.name, other.name)) in self.cut:
            return
        try:
            greet(one, other)
            self._send(*self.random.sample([one, other], 2))
        except SyncRefused:
            assert self.revoked & {one.device, other.device}

    def restart(self) -> None:
        self.random.choice(self.nodes).restart()

    def switch_link(self) -> None:
        self.cut ^= {frozenset(node.name for node in self.random.sample(self.nodes, 2))}

    def erase(self) -> None:
        node = self.random.choice([node for node in self.live if node.user is not None])
        subject = self.random.choice(["carl", "dora"])
        before = set(node.replica.facts().erasures)
        node.replica.erase(subject=subject, on_behalf_of=node.user)
        (id,) = set(node.replica.facts().erasures) - before
        self.erased[id] = subject

    def revoke(self) -> None:
        # With several users, what one device has of a revoked one of another user would never come to the others: it has no say in it.
        if len(self.live) > 2 and len({node.user for node in self.nodes} - {None}) == 1:
            node, revoked = self.random.sample(self.live, 2)
            if revoked.user is not None:
                node.replica.revoke(revoked.device)
                self.revoked.add(revoked.device)

    def _send(self, sender: Node, receiver: Node) -> None:
        arrived: list[Batch] = []
        for batch in send(sender, receiver, capture=self.wire):
            take(receiver, sender, batch)
            arrived.append(batch)
            match self.random.random():
                case chance if chance < 0.1:
                    return
                case chance if chance < 0.2:
                    take(receiver, sender, self.random.choice(arrived))
                case chance if chance < 0.3:
                    self._send_with_gap(sender, receiver, batch)

    def _send_with_gap(self, sender: Node, receiver: Node, batch: Batch) -> None:
        known = receiver.replica.hello().known
        gap = Batch(batch.log, batch.end + 1, batch.end + 2, batch.operations, known={sender.device: 1 << 30})
        try:
            take(receiver, sender, gap)
        except SyncRefused:
            assert receiver.replica.hello().known == known
        else:
            raise AssertionError("a batch behind a gap was taken")

    def _address(self, node: Node) -> ItemAddress:
        namespace, key = self.random.choice([(node.user or "",), ("shared",)]), self.random.choice("xyz")
        return ItemAddress(namespace, f"{node.user} {key}" if namespace == ("shared",) else key)

    def _tokens(self, tier: Tier) -> tuple[str, dict[str, str]]:
        """A new text, and one to three fields with a token each that begins so."""
        self.texts += 1
        text = f"{PRIVATE if tier is Tier.DEVICE else 'open'}-{self.texts}."
        return text, {name: text + name for name in self.random.sample("abc", self.random.randint(1, 3))}

    def _note(
        self, node: Node, address: ItemAddress, text: str, tokens: Mapping[str, str], write: Callable[[], object], *, is_total: bool = True
    ) -> None:
        before = node.heads(address)
        heard = frozenset(node.replica.facts().erasures)
        write()
        dot = Dot(node.device, node.replica.hello().known[node.device])
        made = next(head for head in node.heads(address) if head.dot == dot)
        # The notice of a write that deletes says all that the write does; any notice shows the siblings that may be known.
        parents = {head.dot for head in before if not head.is_withdrawn or self.writes[head.dot].operation.value is None}
        parents |= {sibling.dot for head in before if head.is_withdrawn for sibling in head.siblings}
        ancestors = frozenset(parents).union(*(self.writes[parent].ancestors for parent in parents))
        lost = lost_tokens(merge(before)) if before and text else frozenset()
        self.writes[dot] = Write(made, ancestors, text, tokens, is_total, lost, heard)


def is_doomed(world: World, write: Write, known: Iterable[str] | None = None) -> bool:
    """Whether an erasure, of those that are `known`, was to reach it."""
    meta = write.operation.meta
    return any(
        subject in meta.subjects and (known is None or id in known) and id not in write.erasures_heard and meta.user == _eraser(world, id)
        for id, subject in world.erased.items()
    )


def _eraser(world: World, id: str) -> str | None:
    facts: SharedFacts = next(node.replica.facts() for node in world.nodes if id in node.replica.facts().erasures)
    return facts.erasures[id].user


def check_convergence(one: Node, other: Node) -> None:
    """What either would show the other is the same."""
    there, here = one.all_heads(), other.all_heads()
    for address in there.keys() | here.keys():
        shown = [_shown(heads.get(address, ()), peer) for heads, peer in ((there, other.peer()), (here, one.peer()))]
        assert shown[0] == shown[1], f"{one.name} and {other.name} differ at {address}"


def _shown(heads: Iterable[Operation], peer: Peer) -> tuple[object, ...]:
    parts = [for_peer(head, peer) for head in heads]
    shown = heads_of(shown for part, shown in parts if part is not Disclosure.NUMBER)
    if not shown:
        return None, ()
    state = merge(shown)
    return state.value, tuple((one.dot, one.value) for one in state.siblings)


def check_nothing_lost(world: World, node: Node) -> None:
    """Every acknowledged write that may be here is here, or was written over by somebody who knew it, or is shown as a conflict."""
    heads = node.all_heads()
    doomed = [write for write in world.writes.values() if is_doomed(world, write)]
    gone = {
        dot
        for write in doomed
        for known in (write.operation.dot, *write.operation.unseen)
        for dot in (known, *world.writes[known].ancestors)
    }
    for dot, write in world.writes.items():
        if dot in gone or dot.device in world.revoked or not _may_be_at(node, write):
            continue
        present = heads.get(write.operation.address, ())
        kept = {sibling.dot for head in present for sibling in head.siblings} | {head.dot for head in present}
        known = {head.dot for head in present}.union(*(head.unseen for head in present))
        assert dot in kept or any(dot in world.writes[one].ancestors for one in known), f"{write.text} of {dot} is lost at {node.name}"
        if not any(dot in one.ancestors for one in world.writes.values() if not _may_be_at(node, one)):
            told = _told(present)
            for name, token in write.tokens.items():
                assert token in told or _is_overwritten(world, dot, name, token), f"{token} is lost at {node.name}"


def _told(heads: Sequence[Operation]) -> set[str]:
    """What an item says, and what its siblings do. They may say more than what is told as lost, where parts were withheld from a writer."""
    state = merge(heads)
    return {str(one) for value in (state.value or {}, *(sibling.value for sibling in state.siblings)) for one in value.values()}


def _is_overwritten(world: World, dot: Dot, name: str, token: str) -> bool:
    """Whether somebody who saw the token in the item wrote the field too, or replaced the whole value."""
    later = (one for one in world.writes.values() if dot in one.ancestors and token not in one.lost)
    return any(one.is_total or name in one.tokens for one in later)


def check_not_mixed(world: World, node: Node) -> None:
    """An item says what one put said, and what was written by those who knew it."""
    for address, heads in node.all_heads().items():
        shown = {str(one) for one in (merge(heads).value or {}).values()}
        writes = [one for one in world.writes.values() if not shown.isdisjoint(one.tokens.values())]
        puts = [one for one in writes if one.is_total]
        assert len(puts) <= 1, f"{address} at {node.name} mixes {puts}"
        assert all(one is put or put.operation.dot in one.ancestors for put in puts for one in writes)


def _may_be_at(node: Node, write: Write) -> bool:
    return write.operation.dot.device == node.device or node.peer().may_have(write.operation.meta.user, write.operation.meta.tier)


def check_erased(world: World, node: Node) -> None:
    kept = b"".join(encode(head) for heads in node.all_heads().values() for head in heads)
    rows = repr(node.store.search((), limit=1000)).encode()
    known = node.replica.facts().erasures  # a device that was shut out may have erased what nobody heard of
    # What somebody else has taken over into a value of theirs is theirs to erase.
    others = "".join(str(write.operation.value) for write in world.writes.values() if not is_doomed(world, write))
    for write in world.writes.values():
        if write.text and is_doomed(world, write, known) and write.text not in others:
            assert write.text.encode() not in kept + rows, f"{write.text} is still at {node.name}"


def check_wire(world: World) -> None:
    """Nothing that is private to a device was ever sent."""
    assert not any(PRIVATE.encode() in message for message in world.wire)
