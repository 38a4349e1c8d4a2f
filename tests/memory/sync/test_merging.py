"""Writes of devices that did not know of each other come to the same on all of them, in whatever order they arrive, and none is lost."""

from collections.abc import Sequence
from random import Random

from hypothesis import example, given
from hypothesis import strategies as st
from merge_history import ITEM, History, Kind, Step, lost_tokens, steps

from nearfar.orchestrator.memory.merge import heads_of, merge, succeed
from nearfar.orchestrator.memory.operation import COUNTER_BITS, MAXIMUM_SKEW, Dot, Meta, decode, encode, received, tick


def step(device: int, kind: Kind, names: str = "", *, removed: str = "", heard: Sequence[int] = ()) -> Step:
    return Step(device, kind, frozenset(names), frozenset(removed), frozenset(heard))


@given(steps, st.randoms(use_true_random=False))
def test_the_order_and_the_grouping_in_which_writes_arrive_change_nothing(made: list[Step], random: Random) -> None:
    operations = History(made).operations
    whole = heads_of(operations)
    arriving = [*operations, *random.choices(operations, k=3)]
    random.shuffle(arriving)
    heads = heads_of([])
    while arriving:
        count = random.randint(1, len(arriving))
        heads = heads_of((*heads, *arriving[:count]))
        arriving = arriving[count:]
    assert heads == whole
    assert merge(heads) == merge(whole) == merge(random.sample(heads, len(heads)))


PUT, PATCH, DELETE, KEEP_PRESENT = Kind
BASE = [step(0, PUT, "ab"), step(1, PATCH, heard=[0])]


@example([*BASE, step(0, PATCH, "ab"), step(1, PATCH, "b")])  # the item has a of one, and b of the other
@example([step(0, PUT, "ab"), step(1, PUT, "b")])
@example(
    [*BASE, step(0, PATCH, "b"), step(0, PATCH, "a"), step(1, PATCH, "b")]
)  # what lost was written before the last write of its device
@example([*BASE, step(0, PATCH, "b"), step(1, PATCH, "b"), step(2, PATCH, "a", heard=[0]), step(1, PATCH, "c", heard=[0])])
@example([*BASE, step(0, PATCH, removed="b"), step(1, PATCH, "b")])
@example([*BASE, step(0, DELETE), step(1, PATCH, "b"), step(0, PUT, "c", heard=[1])])
@given(steps)
def test_what_was_written_into_a_field_is_there_or_in_a_sibling_or_was_overwritten_by_somebody_who_knew_it(made: list[Step]) -> None:
    history = History(made)
    state = merge(heads_of(history.operations))
    told = {*(state.value or {}).values(), *lost_tokens(state)}
    for dot, one in history.made.items():
        for name, token in one.tokens.items():
            assert token in told or history.overwritten(dot, name), f"{token} is lost"


@given(steps)
def test_what_is_told_as_lost_is_not_in_the_item_and_was_not_overwritten_by_anybody_who_saw_it_there(made: list[Step]) -> None:
    history = History(made)
    state = merge(heads_of(history.operations))
    for sibling in state.siblings:
        assert sibling.lost
        for name in sibling.lost.keys() & sibling.value.keys():
            assert sibling.value[name] not in (state.value or {}).values()
            assert not history.overwritten(sibling.lost[name].dot, name)


@given(steps)
def test_an_item_has_parts_of_one_put_and_of_what_was_written_by_those_who_knew_it(made: list[Step]) -> None:
    history = History(made)
    state = merge(heads_of(history.operations))
    shown = [one for one in history.made.values() if not set(one.tokens.values()).isdisjoint((state.value or {}).values())]
    puts = [one for one in shown if one.is_total]
    assert len(puts) <= 1
    for put in puts:
        assert all(one is put or put.operation.dot in one.ancestors for one in shown)


def test_two_puts_never_make_a_sentence_that_nobody_wrote() -> None:
    history = History([step(0, PUT, "ab"), step(1, PUT, "bc")])
    state = merge(heads_of(history.operations))
    assert state.value == {"b": "b-device1-1", "c": "c-device1-1"}
    assert [dict(sibling.value) for sibling in state.siblings] == [{"a": "a-device0-1", "b": "b-device0-1"}]
    assert set(state.siblings[0].lost) == {"a", "b"}


def test_of_a_patch_the_field_that_lost_is_told_and_the_other_one_is_in_the_item() -> None:
    history = History([*BASE, step(0, PATCH, "ab"), step(1, PATCH, "b")])
    state = merge(heads_of(history.operations))
    assert state.value == {"a": "a-device0-2", "b": "b-device1-2"}
    (sibling,) = state.siblings
    assert (sibling.value["b"], set(sibling.lost)) == ("b-device0-2", {"b"})


def test_patches_of_different_fields_and_equal_puts_are_no_conflict() -> None:
    patched = merge(heads_of(History([*BASE, step(0, PATCH, "a"), step(1, PATCH, "b"), step(2, PATCH, "c", heard=[0])]).operations))
    assert not patched.siblings
    puts = [
        succeed((), dot=Dot(device, 1), clock=clock, address=ITEM, value={"a": 1, "b": [2]}, meta=Meta())
        for clock, device in enumerate("xyz")
    ]
    assert not merge(heads_of(puts)).siblings


@given(steps)
def test_a_write_that_knew_of_all_others_is_what_the_item_says_whatever_the_clocks_are(made: list[Step]) -> None:
    heads = heads_of(History(made).operations)
    last = succeed(heads, dot=Dot("last", 1), clock=1, address=ITEM, value={"a": "last"}, meta=Meta())
    state = merge(heads_of((*heads, last)))
    assert (state.value, state.device) == ({"a": "last"}, "last")


@given(steps)
def test_siblings_stay_through_later_writes_until_one_decides(made: list[Step]) -> None:
    heads = heads_of(History(made).operations)
    before = merge(heads).siblings
    written = succeed(heads, dot=Dot("last", 1), clock=1, address=ITEM, value={"a": 1}, meta=Meta())
    decided = succeed(heads, dot=Dot("last", 1), clock=1, address=ITEM, value={"a": 1}, meta=Meta(), decides=True)
    assert merge(heads_of((*heads, written))).siblings == before
    assert merge(heads_of((*heads, decided))).siblings == ()


@given(steps)
def test_operations_are_the_same_after_they_were_written_and_read(made: list[Step]) -> None:
    for operation in History(made).operations:
        assert decode(operation.dot, encode(operation)) == operation


@given(st.integers(0, 1 << 60), st.integers(0, 1 << 60), st.floats(0, 4e9))
def test_a_clock_follows_what_it_has_seen_but_no_one_far_ahead(last: int, remote: int, now: float) -> None:
    after = received(last, remote, now)
    limit = (int(now * 1000) + MAXIMUM_SKEW) << COUNTER_BITS
    assert after >= last
    assert after == last or after <= limit
    assert tick(after, now) > after
