"""Random histories: every engine comes to the same as the one in plain Python."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from in_memory_engine import InMemoryEngine
from memory_bench import DAY, MINUTE, Clock, LetterEmbedder

from nearfar import ItemAddress, MemoryItem, MemoryStore, Principal, SearchMode, Tier
from nearfar.orchestrator.memory.engine import Engine
from nearfar.protocols import NearfarError

NAMESPACES = [("a",), ("a", "b"), ("ab",), ("é",)]
namespaces = st.sampled_from(NAMESPACES)
prefixes = st.sampled_from([(), *NAMESPACES])
keys = st.sampled_from(["1", "2", "3"])
values = st.dictionaries(
    st.sampled_from(["x", "y"]), st.sampled_from(["tea", "green tea", "milk", 1, True, None, [1], {"z": 2}]), max_size=2
)
tiers = st.sampled_from(Tier)
filters = st.sampled_from([None, {"x": 1}, {"x": "tea"}, {"y": {"$ne": True}}, {"x": {"z": 2}}, {"y": {"$gt": "m"}}])
queries = st.sampled_from([None, "tea", "green milk"])


class Stores(RuleBasedStateMachine):
    """The same calls on two stores; what they answer is compared at once."""

    open_engine: Callable[[str | None], Engine]
    clock: Clock

    @initialize()
    def open(self) -> None:
        self.resources = ExitStack()
        self.clock.advance(DAY)  # the database stays, and its clock does not run backwards
        self.embedder = LetterEmbedder()
        engines = (InMemoryEngine(embedder=self.embedder.name), self.open_engine(self.embedder.name))
        self.stores = [MemoryStore(self.resources.enter_context(closing(one)), embedder=self.embedder, now=self.clock) for one in engines]
        self.stores[1].erase(prefix=())

    def teardown(self) -> None:
        self.resources.close()

    def both(self, call: Callable[[MemoryStore], Any]) -> None:
        expected, found = (self.answer(store, call) for store in self.stores)
        assert found == expected

    def answer(self, store: MemoryStore, call: Callable[[MemoryStore], Any]) -> object:
        try:
            return told(call(store))
        except NearfarError as error:
            return type(error)

    @rule(namespace=namespaces, key=keys, value=values, tier=tiers, ttl=st.sampled_from([None, 1, 3]), index=st.sampled_from([None, False]))
    def put(self, namespace: tuple[str, ...], key: str, value: dict[str, Any], tier: Tier, ttl: int | None, index: bool | None) -> None:
        def call(store: MemoryStore) -> None:
            store.put(namespace, key, value, False if index is False else None, ttl=ttl, tier=tier)

        self.both(call)

    @rule(namespace=namespaces, key=keys)
    def put_if_absent(self, namespace: tuple[str, ...], key: str) -> None:
        self.both(lambda store: store.put(namespace, key, {"x": "tea"}, if_version="absent") and None)

    @rule(namespace=namespaces, key=keys, value=values)
    def patch(self, namespace: tuple[str, ...], key: str, value: dict[str, Any]) -> None:
        self.both(lambda store: store.patch(namespace, key, value, remove=["y"]) and None)

    @rule(namespace=namespaces, key=keys)
    def append(self, namespace: tuple[str, ...], key: str) -> None:
        self.both(lambda store: store.append(namespace, key, "x", ["milk"]) and None)

    @rule(namespace=namespaces, key=keys, value=values)
    def supersede(self, namespace: tuple[str, ...], key: str, value: dict[str, Any]) -> None:
        self.both(lambda store: store.supersede(namespace, key, value) and None)

    @rule(namespace=namespaces, key=keys)
    def delete(self, namespace: tuple[str, ...], key: str) -> None:
        self.both(lambda store: store.delete(namespace, key))

    @rule(prefix=st.sampled_from(NAMESPACES))
    def erase(self, prefix: tuple[str, ...]) -> None:
        self.both(lambda store: len(store.erase(prefix=prefix)))

    @rule(minutes=st.sampled_from([0.5, 1, 2]))
    def let_time_pass(self, minutes: float) -> None:
        self.clock.advance(minutes * MINUTE)

    @rule()
    def sweep(self) -> None:
        self.both(lambda store: store.sweep())

    @rule(namespace=namespaces, key=keys)
    def get(self, namespace: tuple[str, ...], key: str) -> None:
        self.both(lambda store: store.get(namespace, key))
        self.both(lambda store: store.history(namespace, key))

    @rule(prefix=prefixes, wanted=filters, offset=st.integers(0, 2))
    def search(self, prefix: tuple[str, ...], wanted: dict[str, Any] | None, offset: int) -> None:
        self.both(lambda store: store.search(prefix, filter=wanted, limit=3, offset=offset))

    @rule(prefix=prefixes, query=queries, wanted=filters, mode=st.sampled_from([SearchMode.KEYWORD, SearchMode.SEMANTIC]))
    def search_by_query(self, prefix: tuple[str, ...], query: str | None, wanted: dict[str, Any] | None, mode: SearchMode) -> None:
        # Ranks by words are each engine's own; what is found is not.
        self.both(lambda store: {item.address for item in store.search(prefix, query=query, filter=wanted, mode=mode, limit=100)})

    @rule(user=st.sampled_from(["", "bob"]), prefix=prefixes)
    def search_as_somebody(self, user: str, prefix: tuple[str, ...]) -> None:
        self.both(lambda store: store.view(Principal(user, "phone", prefixes=(prefix,))).search((), limit=100))

    @rule(prefix=prefixes, depth=st.sampled_from([None, 1]))
    def list_namespaces(self, prefix: tuple[str, ...], depth: int | None) -> None:
        self.both(lambda store: store.list_namespaces(prefix=prefix, max_depth=depth))

    @rule()
    def look_at_everything(self) -> None:
        # What was forgotten before this history began is told as well.
        self.both(lambda store: [(one.address, one.item) for one in store.changes(limit=10_000)[0] if one.address is not None])
        self.both(lambda store: store.stats()["items"])
        self.both(lambda store: [operation.address for _, operation, _ in store.engine.operations(0, limit=1000)])


def told(answer: object) -> object:
    """What can be compared: each replica has a name of its own."""
    match answer:
        case MemoryItem():
            own = ("key", "version", "device")
            return {**{name: part for name, part in answer.dict().items() if name not in own}, "key": plain(answer.key)}
        case ItemAddress():
            return ItemAddress(answer.namespace, plain(answer.key))
        case list() | tuple():
            return [told(one) for one in answer]
        case set():
            return sorted((told(one) for one in answer), key=repr)
        case _:
            return answer


def plain(key: str) -> str:
    """The key without the device that a superseded item's names."""
    return key.rpartition("@")[0] if "@" in key else key


def test_engines_answer_alike_whatever_is_done(open_engine: Callable[[str | None], Engine], request: pytest.FixtureRequest) -> None:
    if "plain" in request.node.name:
        pytest.skip("it is what the others are compared with")
    machine = type("StoresOfThisEngine", (Stores,), {"open_engine": staticmethod(open_engine), "clock": Clock()})
    # Each transaction of a server takes its time, and it runs the same statements in few histories as in many.
    few = settings(
        max_examples=5 if "postgres" in request.node.name else 20,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=few)
