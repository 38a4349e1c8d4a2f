"""A selection lets the same items through in SQL as it does by its definition."""

import math
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgres_writes import NOW, put_within

from nearfar.orchestrator.memory.engine import Condition, ItemSelection, Operator, selects
from nearfar.orchestrator.memory.operation import Meta, Principal
from nearfar.orchestrator.memory.postgres import PostgresEngine
from nearfar.protocols.items import ItemAddress, Tier

DEVICE = "the device that looks"
TEXTS = st.text(st.sampled_from("0a.'\"\\%_\x01\x7f\u00e9\uffff\U0001f600"), max_size=2)
NAMES = st.sampled_from(["a", "b", "0", "", "$eq"])
NUMBERS = (
    st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-2, 2) | st.sampled_from([0.5, 1.0, -0.0])
)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)
VALUES = st.dictionaries(NAMES, JSON, max_size=3)
LABELS = st.sampled_from(["a", "a'b", "{", "NULL"])
NAMESPACES = st.lists(LABELS, max_size=2).map(tuple)
MOMENTS = st.none() | st.sampled_from([NOW - 1, NOW, NOW + 1])
METAS = st.builds(
    lambda **given: Meta(**given),  # of a named tuple, hypothesis would make up what is left out
    user=st.sampled_from(["", "ana", "bob"]),
    trust=st.sampled_from([0.2, 0.6, 1.0]),
    tier=st.sampled_from(Tier),
    valid_from=MOMENTS,
    invalid_from=MOMENTS,
    ttl=st.sampled_from([None, 5.0]),
)
PRINCIPALS = st.builds(
    Principal,
    user=st.sampled_from(["", "ana", "bob"]),
    device=st.just(DEVICE) | st.just("another"),
    prefixes=st.lists(NAMESPACES, max_size=2).map(tuple) | st.just(((),)),
    minimum_trust=st.sampled_from([0.0, 0.6]),
)
CONDITIONS = st.builds(
    Condition,
    path=st.lists(NAMES, min_size=1, max_size=2).map(tuple),
    comparison=st.sampled_from(Operator),
    operand=JSON | st.sampled_from([math.inf, -math.inf, [math.inf]]),  # a filter's NaN becomes a condition that nothing meets
)
SELECTIONS = st.builds(
    ItemSelection,
    now=st.sampled_from([NOW, NOW + 5, NOW + 6]),
    prefix=st.just(()) | NAMESPACES,
    key_prefix=st.just("") | st.sampled_from(["1", "%"]),
    conditions=st.just(()) | st.lists(CONDITIONS, max_size=2).map(tuple),
    principal=st.none() | PRINCIPALS,
    valid_at=MOMENTS,
)
"""Half of each is left open, or else hardly any item would be let through."""
ITEMS = st.lists(st.tuples(NAMESPACES, VALUES, METAS), min_size=4, max_size=6)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=ITEMS, selections=st.lists(SELECTIONS, min_size=15, max_size=30))
def test_a_selection_means_what_its_definition_says(
    engine: PostgresEngine, items: list[tuple[tuple[str, ...], dict[str, Any], Meta]], selections: list[ItemSelection]
) -> None:
    addresses = [ItemAddress(namespace, str(number)) for number, (namespace, _, _) in enumerate(items)]
    with engine.transaction() as transaction:
        for address, (_, value, meta) in zip(addresses, items, strict=True):
            put_within(transaction, DEVICE, {address: (value, None)}, meta)
    everything = list(engine.rows(addresses, ItemSelection(now=0)).values())
    assert len(everything) == len(items)
    for selection in selections:
        wanted = {row.address for row in everything if selects(selection, row)}
        assert set(engine.rows(addresses, selection)) == wanted
        assert wanted <= {row.address for row in engine.select(selection, limit=1000, offset=0)}
        assert {address.namespace for address in wanted} <= set(engine.namespaces(selection))
