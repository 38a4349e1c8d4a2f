"""Writes of devices that did not know of each other come to the same on all of them, in whatever order they arrive, and none is lost."""

from collections.abc import Mapping, Sequence
from random import Random

from hypothesis import example, given
from hypothesis import strategies as st

from nearfar.orchestrator.memory.clock import COUNTER_BITS, MAXIMUM_SKEW, received, tick
from nearfar.orchestrator.memory.encoding import decode, encode
from nearfar.orchestrator.memory.item import Address, Meta, Tier
from nearfar.orchestrator.memory.merge import heads_of, merge, succeed
from nearfar.orchestrator.memory.operation import Dot, Operation

ITEM = Address(("notes",), "item")
YEAR = 365 * 86_400_000 << COUNTER_BITS
DEVICES = 3

writes = st.tuples(
    st.integers(0, DEVICES - 1),
    st.sampled_from([0, 1, YEAR]),
    st.one_of(st.none(), st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), max_size=3)),
    st.sets(st.integers(0, DEVICES - 1)),
)
"""Who writes, by how much their clock is ahead, what, and whom they have heard before."""


class History:
    """What three devices have of one item."""

    def __init__(self, steps: Sequence[tuple[int, int, Mapping[str, int] | None, set[int]]]) -> None:
        self.heads: list[tuple[Operation, ...]] = [()] * DEVICES
        self.operations: list[Operation] = []
        self.ancestors: dict[Dot, set[Dot]] = {}
        counts = [0] * DEVICES
        for time, (device, ahead, value, heard) in enumerate(steps, 1):
            known = heads_of([head for one in (device, *heard) for head in self.heads[one]])
            counts[device] += 1
            dot = Dot(f"device{device}", counts[device])
            written = succeed(known, dot=dot, clock=(time << COUNTER_BITS) + ahead, address=ITEM, value=value, meta=Meta(tier=Tier.USER))
            self.ancestors[dot] = {head.dot for head in known}.union(*(self.ancestors[head.dot] for head in known))
            self.operations.append(written)
            self.heads[device] = heads_of((*known, written))


@given(st.lists(writes, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_order_and_the_grouping_in_which_writes_arrive_change_nothing(
    steps: list[tuple[int, int, Mapping[str, int] | None, set[int]]], random: Random
) -> None:
    operations = History(steps).operations
    whole = heads_of(operations)
    arriving = [*operations, *random.choices(operations, k=3)]
    random.shuffle(arriving)
    heads: tuple[Operation, ...] = ()
    while arriving:
        count = random.randint(1, len(arriving))
        heads = heads_of((*heads, *arriving[:count]))
        arriving = arriving[count:]
    assert heads == whole
    assert merge(heads) == merge(whole)


@example([(0, 0, {"b": 0}, set()), (0, 0, {"a": 1}, set()), (1, 0, {"a": 0}, set())])  # of the second, nothing is left but that b is gone
@given(st.lists(writes, min_size=1, max_size=12))
def test_every_write_is_in_the_item_or_a_sibling_or_was_known_to_a_later_one(
    steps: list[tuple[int, int, Mapping[str, int] | None, set[int]]],
) -> None:
    history = History(steps)
    heads = heads_of(history.operations)
    state = merge(heads)
    overwritten = set().union(*(history.ancestors[head.dot] for head in heads))
    assert {one.dot for one in history.operations} == overwritten | {head.dot for head in heads}
    shown = {sibling.dot for sibling in state.siblings}
    for head in heads:
        own = [name for name in head.value or {} if head.stamp_of(name) == head.stamp]
        is_there = state.value is not None and any(state.value.get(name) == (head.value or {})[name] for name in own)
        assert is_there or head.dot in shown or not own or head.dot.device == state.device


@given(st.lists(writes, min_size=1, max_size=12))
def test_a_write_that_knew_of_all_others_is_what_the_item_says_whatever_the_clocks_are(
    steps: list[tuple[int, int, Mapping[str, int] | None, set[int]]],
) -> None:
    heads = heads_of(History(steps).operations)
    last = succeed(heads, dot=Dot("last", 1), clock=1, address=ITEM, value={"a": "last"}, meta=Meta())
    state = merge(heads_of((*heads, last)))
    assert (state.value, state.device) == ({"a": "last"}, "last")


@given(st.lists(writes, min_size=1, max_size=12))
def test_siblings_stay_through_later_writes_until_one_decides(
    steps: list[tuple[int, int, Mapping[str, int] | None, set[int]]],
) -> None:
    heads = heads_of(History(steps).operations)
    before = merge(heads).siblings
    written = succeed(heads, dot=Dot("last", 1), clock=1, address=ITEM, value={"a": 1}, meta=Meta())
    decided = succeed(heads, dot=Dot("last", 1), clock=1, address=ITEM, value={"a": 1}, meta=Meta(), decides=True)
    assert merge(heads_of((*heads, written))).siblings == before
    assert merge(heads_of((*heads, decided))).siblings == ()


@given(st.lists(writes, min_size=1, max_size=12))
def test_operations_are_the_same_after_they_were_written_and_read(
    steps: list[tuple[int, int, Mapping[str, int] | None, set[int]]],
) -> None:
    for operation in History(steps).operations:
        assert decode(operation.dot, encode(operation)) == operation


@given(st.integers(0, 1 << 60), st.integers(0, 1 << 60), st.floats(0, 4e9))
def test_a_clock_follows_what_it_has_seen_but_no_one_far_ahead(last: int, remote: int, now: float) -> None:
    after = received(last, remote, now)
    limit = (int(now * 1000) + MAXIMUM_SKEW) << COUNTER_BITS
    assert after >= last
    assert after == last or after <= limit
    assert tick(after, now) > after
