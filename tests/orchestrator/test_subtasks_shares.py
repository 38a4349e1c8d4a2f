"""What the parts of a task may spend: by weight, never more than there is, and nothing is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.orchestrator.strategies.subtasks_plan import SharedAmount, Shares, SubtaskPlan, checked_plan
from nearfar.orchestrator.task.events import Subtask

AMOUNTS = st.floats(1e-3, 1e6)


@st.composite
def relative_weights(draw: st.DrawFn) -> list[float]:
    """Weights whose mean is 1."""
    raw = draw(st.lists(st.floats(0.05, 20), min_size=1, max_size=9))
    return [weight * len(raw) / sum(raw) for weight in raw]


@st.composite
def plans(draw: st.DrawFn) -> SubtaskPlan:
    count = draw(st.integers(1, 8))
    words = st.integers(1, 60).map(lambda number: " ".join(["word"] * number))
    subtasks = [
        Subtask(id=f"s{node}", task=draw(words), needs=tuple(f"s{before}" for before in range(node) if draw(st.booleans())))
        for node in range(count)
    ]
    return checked_plan(draw(st.permutations(subtasks)), maximum_subtasks=count)


@given(AMOUNTS, relative_weights())
def test_shares_are_positive_and_use_the_amount_up(amount: float, weights: list[float]) -> None:
    shared = SharedAmount(amount, len(weights))
    shares = [shared.take(weight) for weight in weights]
    assert all(share > 0 for share in shares)
    assert sum(shares) == pytest.approx(amount)
    assert shares == pytest.approx([amount * weight / len(weights) for weight in weights])


@given(AMOUNTS, relative_weights(), st.data())
def test_no_more_is_ever_spent_than_there_is(amount: float, weights: list[float], data: st.DataObject) -> None:
    shared, spent = SharedAmount(amount, len(weights)), 0.0
    for weight in weights:
        if data.draw(st.booleans(), label="never starts"):
            shared.leave_out(weight)
            continue
        share = shared.take(weight)
        used = share * data.draw(st.floats(0, 1), label="used")
        shared.give_back(share - used)
        spent += used
    assert spent <= amount * (1 + 1e-9)
    assert shared.left == pytest.approx(amount - spent, abs=amount * 1e-9)


@given(AMOUNTS, relative_weights(), st.floats(0, 1))
def test_a_lone_last_part_gets_everything_that_is_left(amount: float, weights: list[float], used: float) -> None:
    *others, last = weights
    shared = SharedAmount(amount, len(weights))
    spent = 0.0
    for weight in others:
        share = shared.take(weight)
        spent += used * share
        shared.give_back((1 - used) * share)
    assert shared.take(last) == pytest.approx(amount - spent, abs=amount * 1e-9)
    assert shared.left == pytest.approx(0, abs=amount * 1e-9)


def test_the_others_have_what_a_part_would_have_had_that_never_starts() -> None:
    shared = SharedAmount(9.0, 3)
    shared.take()
    shared.leave_out()
    assert shared.take() == 6.0


@given(st.integers(1, 60), relative_weights())
def test_each_part_has_a_turn_and_all_turns_are_given(turns: int, weights: list[float]) -> None:
    shares = Shares(turns=turns, seconds=None, subtasks=len(weights))
    taken = [shares.take_turns(weight) for weight in weights]
    assert min(taken) >= 1
    assert sum(taken) == max(turns, len(weights))


def test_a_part_that_takes_more_gets_more_turns() -> None:
    shares = Shares(turns=12, seconds=None, subtasks=3)
    assert [shares.take_turns(weight) for weight in (0.5, 1.5, 1.0)] == [3, 6, 3]


def test_dollars_and_tokens_are_shared_where_the_task_has_limits_on_them() -> None:
    shares = Shares(turns=4, seconds=None, subtasks=2, dollars=0.1, tokens=1000)
    assert shares.take_dollars(1.5) == pytest.approx(0.075)
    assert shares.take_tokens(1.5) == 750
    shares.give_back(0, dollars=0.025, tokens=250)
    assert shares.take_dollars(0.5) == pytest.approx(0.05)
    assert shares.take_tokens(0.5) == 500
    unlimited = Shares(turns=4, seconds=None, subtasks=2)
    assert (unlimited.take_dollars(), unlimited.take_tokens()) == (None, None)


def test_a_part_that_never_starts_leaves_everything_to_the_others() -> None:
    shares = Shares(turns=6, seconds=None, subtasks=2, dollars=1.0)
    shares.leave_out()
    assert (shares.take_turns(), shares.take_dollars(), shares.take_tokens()) == (6, 1.0, None)


@given(plans())
def test_weights_are_positive_and_relative_to_the_average_part(plan: SubtaskPlan) -> None:
    weights = plan.weights()
    assert set(weights) == set(plan.needs)
    assert min(weights.values()) > 0
    assert sum(weights.values()) == pytest.approx(len(weights))


@given(plans(), st.data())
def test_no_chain_of_parts_takes_longer_than_there_is_time(plan: SubtaskPlan, data: st.DataObject) -> None:
    """Each part starts when the one before it has used its share up."""
    weights = plan.weights()
    shares = plan.shares_to_the_end(weights)
    left, identifier = 1.0, data.draw(st.sampled_from(sorted(plan.needs)))
    while True:
        left -= left / shares[identifier]
        if not plan.needed_by[identifier]:
            break
        identifier = data.draw(st.sampled_from(plan.needed_by[identifier]))
    assert left >= -1e-9


def test_a_part_weighs_more_the_more_it_is_asked_the_more_it_reads_and_the_earlier_it_comes() -> None:
    def weights(*subtasks: Subtask) -> dict[str, float]:
        return dict(checked_plan(subtasks, maximum_subtasks=9).weights())

    short, long = Subtask(id="a", task="Who is it?"), Subtask(id="b", task="Who of the people on the list is it, and since when?")
    by_length = weights(short, long)
    assert by_length["b"] > by_length["a"]
    first, second = Subtask(id="c", task="Who is it?", needs=("a",)), Subtask(id="d", task="Who is it?", needs=("a", "b"))
    by_needs = weights(short, long, first, second)
    assert by_needs["d"] > by_needs["c"]
    plan = checked_plan((short, first), maximum_subtasks=9)
    in_a_row = plan.weights(complexity={"a": 1.0, "c": 1.0})
    assert in_a_row["a"] > in_a_row["c"] == pytest.approx(0.9 * in_a_row["a"])


def test_a_complexity_that_was_learned_takes_the_place_of_the_estimate() -> None:
    plan = checked_plan([Subtask(id="a", task="x"), Subtask(id="b", task="x y z")], maximum_subtasks=2)
    assert plan.weights(complexity={"a": 3.0, "b": 1.0}) == {"a": 1.5, "b": 0.5}


def test_what_is_downstream_of_a_part_needs_it_in_some_way() -> None:
    chain = [Subtask(id="a", task="x"), Subtask(id="b", task="x", needs=("a",)), Subtask(id="c", task="x", needs=("b",))]
    plan = checked_plan([*reversed(chain), Subtask(id="d", task="x")], maximum_subtasks=4)
    assert [plan.downstream(identifier) for identifier in "abcd"] == [{"b", "c"}, {"c"}, frozenset(), frozenset()]
