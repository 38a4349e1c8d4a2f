"""The parts of `subtasks` that call nobody: plans and their order."""

import json

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.orchestrator.strategies.subtasks_plan import Shares, SubtaskPlan, checked_plan, read_plan, run_as_ready
from nearfar.orchestrator.task.events import Subtask, SubtaskOutcome
from nearfar.protocols import InvalidOutput, InvalidRequest

pytestmark = pytest.mark.anyio

Needs = dict[str, tuple[str, ...]]


def plan(needs: dict[str, str]) -> SubtaskPlan:
    """A plan from `{"c": "ab"}`: c needs a and b."""
    return checked_plan([Subtask(id=name, task=f"do {name}", needs=tuple(before)) for name, before in needs.items()], maximum_subtasks=99)


@st.composite
def graphs(draw: st.DrawFn) -> Needs:
    """Dependencies without a cycle, listed in any order."""
    count = draw(st.integers(1, 9))
    needs = {f"s{node}": tuple(f"s{before}" for before in range(node) if draw(st.booleans())) for node in range(count)}
    return {name: needs[name] for name in draw(st.permutations(sorted(needs)))}


def reply(*subtasks: dict[str, object]) -> str:
    return json.dumps({"subtasks": subtasks})


def part(name: str, *needs: str, task: str = "do it") -> dict[str, object]:
    return {"id": name, "task": task, "needs": list(needs)}


def test_a_plan_is_read_with_its_dependencies() -> None:
    read = read_plan("```json\n" + reply(part("a"), part("b"), part("c", "a", "b")) + "\n```", maximum_subtasks=3)
    assert read.needs == {"a": (), "b": (), "c": ("a", "b")}
    assert read.sinks == ("c",)
    assert read.summary == "cut into 3 subtasks: a, b, c after a and b"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("First I would look.", "not JSON"),
        ('{"steps": []}', "does not fit"),
        ('{"subtasks": [{"id": "a", "task": "x"}]}', "'needs' is a required property"),
        (reply(), "no subtasks"),
        (reply(part("")), "at least 1 character"),
        (reply(part("a", task=" ")), "'a' asks nothing"),
        (reply(part("a"), part("a")), "two subtasks have the id 'a'"),
        (reply(part("a"), part("b", "z")), "'b' needs 'z', which is not among"),
        (reply(part("a", "a")), "a <- a wait for each other in a circle"),
        (reply(part("a", "c"), part("b", "a"), part("c", "b")), "wait for each other in a circle"),
        (reply(part("a"), part("b"), part("c"), part("d")), "4 subtasks; at most 3"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_invalid_and_says_why(text: str, problem: str) -> None:
    with pytest.raises(InvalidOutput, match=problem):
        read_plan(text, maximum_subtasks=3)


def test_a_need_that_is_named_twice_counts_once() -> None:
    assert read_plan(reply(part("a"), part("b", "a", "a")), maximum_subtasks=2)["b"].needs == ("a",)


def test_a_circle_is_named_by_its_members_alone() -> None:
    with pytest.raises(InvalidOutput) as caught:
        read_plan(reply(part("start"), part("a", "start", "b"), part("b", "a"), part("end", "b")), maximum_subtasks=9)
    assert "start" not in caught.value.message
    assert "end" not in caught.value.message


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_whatever_has_no_circle_is_a_plan(needs: Needs) -> None:
    read = read_plan(reply(*(part(name, *before) for name, before in needs.items())), maximum_subtasks=9)
    assert read.needs == needs
    needed = {need for before in needs.values() for need in before}
    assert set(read.sinks) == set(needs) - needed


@settings(max_examples=40, deadline=None)
@given(graphs(), st.data())
def test_closing_a_circle_is_always_noticed(needs: Needs, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(needs)))
    upstream, queue = {name}, [name]
    while queue:
        fresh = [need for need in needs[queue.pop()] if need not in upstream]
        upstream.update(fresh)
        queue.extend(fresh)
    last = data.draw(st.sampled_from(sorted(upstream)))
    closed = {**needs, last: (*needs[last], name)}
    with pytest.raises(InvalidOutput, match="circle"):
        checked_plan([Subtask(id=each, task="x", needs=before) for each, before in closed.items()], maximum_subtasks=9)


def test_the_steps_to_the_end_count_the_longest_chain() -> None:
    found = plan({"a": "", "b": "a", "c": "ab", "d": ""}).shares_to_the_end(dict.fromkeys("abcd", 1))
    assert found == {"a": 3, "b": 2, "c": 1, "d": 1}


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_a_subtask_has_more_steps_to_the_end_than_any_that_needs_it(needs: Needs) -> None:
    subtasks = [Subtask(id=each, task="x", needs=before) for each, before in needs.items()]
    steps = checked_plan(subtasks, maximum_subtasks=9).shares_to_the_end(dict.fromkeys(needs, 1))
    for name, before in needs.items():
        assert all(steps[need] > steps[name] for need in before)


@settings(deadline=None, max_examples=40)
@given(graphs(), st.integers(1, 4), st.data())
def test_each_subtask_runs_once_after_its_needs_and_no_more_than_allowed_at_a_time(
    needs: Needs, parallel: int, data: st.DataObject
) -> None:
    failing = data.draw(st.sets(st.sampled_from(sorted(needs)), max_size=2))
    log: list[tuple[str, str]] = []

    async def work(name: str) -> bool:
        log.append(("start", name))
        for _ in range(int(name[1:]) % 3):
            await anyio.lowlevel.checkpoint()
        log.append(("end", name))
        return name not in failing

    outcomes = anyio.run(lambda: run_as_ready(needs, work, parallel=parallel))
    started = [name for kind, name in log if kind == "start"]
    assert len(set(started)) == len(started)
    for name in started:
        assert all(log.index(("end", need)) < log.index(("start", name)) for need in needs[name])
    for end in range(len(log)):
        kinds = [kind for kind, _ in log[: end + 1]]
        assert kinds.count("start") - kinds.count("end") <= parallel
    assert outcomes == expected(needs, failing)
    assert set(started) == {name for name, outcome in outcomes.items() if outcome is not SubtaskOutcome.SKIPPED}


def expected(needs: Needs, failing: set[str]) -> dict[str, SubtaskOutcome]:
    """What becomes of each, by the definition."""

    def outcome(name: str) -> SubtaskOutcome:
        if any(outcome(need) is not SubtaskOutcome.DONE for need in needs[name]):
            return SubtaskOutcome.SKIPPED
        return SubtaskOutcome.FAILED if name in failing else SubtaskOutcome.DONE

    return {name: outcome(name) for name in needs}


async def test_a_subtask_starts_as_soon_as_its_own_needs_are_met() -> None:
    """b is still running when c, which needs only a, starts: the levels of the graph are not waited for."""
    c_started = anyio.Event()

    async def work(name: str) -> bool:
        if name == "b":
            await c_started.wait()
        if name == "c":
            c_started.set()
        return True

    with anyio.fail_after(30):
        outcomes = await run_as_ready({"a": (), "b": (), "c": ("a",)}, work, parallel=2)
    assert set(outcomes.values()) == {SubtaskOutcome.DONE}


async def test_an_error_for_the_user_cancels_the_others_and_comes_out_unwrapped() -> None:
    cancelled = []

    async def work(name: str) -> bool:
        if name == "a":
            raise InvalidRequest("mend me")
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.append(name)
            raise
        return True

    with anyio.fail_after(30), pytest.raises(InvalidRequest):
        await run_as_ready({"b": (), "a": (), "c": ("a",)}, work, parallel=3)
    assert cancelled == ["b"]


@given(st.integers(1, 40), st.integers(1, 12))
def test_turns_are_shared_evenly_and_nothing_is_lost(turns: int, subtasks: int) -> None:
    shares = Shares(turns=turns, seconds=None, subtasks=subtasks)
    taken = [shares.take_turns() for _ in range(subtasks)]
    assert sum(taken) == max(turns, subtasks)
    assert max(taken) - min(taken) <= 1


def test_turns_that_one_leaves_over_are_there_for_the_next() -> None:
    shares = Shares(turns=10, seconds=None, subtasks=2)
    shares.give_back(shares.take_turns() - 1)
    assert shares.take_turns() == 9


def test_time_is_divided_along_the_longest_chain() -> None:
    shares = Shares(turns=1, seconds=900.0, subtasks=3)
    third, whole = shares.seconds(steps_to_the_end=3), shares.seconds(steps_to_the_end=1)
    assert third is not None
    assert whole is not None
    assert third * 2 < whole <= 900
    assert Shares(turns=1, seconds=None, subtasks=3).seconds(steps_to_the_end=3) is None
