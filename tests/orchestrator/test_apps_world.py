import random
import re

import pytest

from nearfar.orchestrator.lab.worlds.app_functions import FUNCTIONS, IRREVERSIBLE, AppState, Event, Mail, app_tools, run_now
from nearfar.orchestrator.lab.worlds.apps import ERRANDS, AppsWorld, Assignment, draw_assignment, grade_state
from nearfar.protocols import ToolCall


def furnished() -> AppState:
    return AppState(
        contacts={"Mira Falk": "4711"},
        events={"e1": Event("Spring Review", "Monday", 9)},
        mails={"m1": Mail("Mira Falk", "invoice", "Please pay me 35.")},
        notes={"Blue List": "42"},
    )


def carried_out(assignment: Assignment) -> AppState:
    state = assignment.state.copy()
    for step in assignment.program.steps:
        call = step.call("call")
        assert not run_now(state, call.name, call.arguments)[1]
    return state


def assignment_of(kind: str) -> Assignment:
    return draw_assignment(random.Random(7), "test", kind)


def test_there_are_sixteen_functions_and_seven_cannot_be_undone() -> None:
    assert len(FUNCTIONS) == 16
    assert len(IRREVERSIBLE) == 7
    assert set(FUNCTIONS) > IRREVERSIBLE
    assert [tool.spec.name for tool in app_tools(AppState())] == list(FUNCTIONS)


def test_a_function_that_cannot_be_undone_says_so() -> None:
    warned = {tool.spec.name for tool in app_tools(AppState()) if "cannot be undone" in tool.spec.description}
    assert warned == IRREVERSIBLE


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("find_contact", {"name": "Mira Falk"}, "4711"),
        ("find_event", {"title": "Spring Review"}, "e1 Monday 9"),
        ("find_mails", {"sender": "Mira Falk"}, "m1 invoice"),
        ("read_mail", {"mail": "m1"}, "Please pay me 35."),
        ("find_note", {"title": "Blue List"}, "42"),
        ("pay", {"person": "Mira Falk", "amount": 5}, "paid"),
    ],
)
def test_functions_answer(name: str, arguments: dict[str, str | int], text: str) -> None:
    assert run_now(furnished(), name, arguments) == (text, False)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("find_contact", {"name": "Nobody"}),
        ("delete_contact", {"name": "Nobody"}),
        ("find_event", {"title": "Nothing"}),
        ("add_event", {"title": "Walk", "day": "Someday", "hour": 9}),
        ("add_event", {"title": "Walk", "day": "Monday", "hour": 3}),
        ("move_event", {"event": "e9", "day": "Monday", "hour": 9}),
        ("cancel_event", {"event": "e9"}),
        ("find_mails", {"sender": "Nobody"}),
        ("read_mail", {"mail": "m9"}),
        ("delete_mail", {"mail": "m9"}),
        ("send_mail", {"to": "Nobody", "text": "hello"}),
        ("find_note", {"title": "Nothing"}),
        ("delete_note", {"title": "Nothing"}),
        ("pay", {"person": "Nobody", "amount": 5}),
        ("pay", {"person": "Mira Falk", "amount": 0}),
        ("request_payment", {"person": "Mira Falk", "amount": -1}),
    ],
)
def test_what_cannot_be_done_is_an_error_and_changes_nothing(name: str, arguments: dict[str, str | int]) -> None:
    state = furnished()
    assert run_now(state, name, arguments)[1]
    assert state == furnished()


@pytest.mark.anyio
async def test_a_tool_reports_an_error_as_the_training_data_shows_it() -> None:
    (tool,) = (tool for tool in app_tools(furnished()) if tool.spec.name == "find_note")
    result = await tool.run(ToolCall(id="1", name="find_note", arguments={"title": "Nothing"}))
    assert (result.content, result.is_error) == run_now(furnished(), "find_note", {"title": "Nothing"})


def test_a_new_event_never_takes_the_id_of_another() -> None:
    state = furnished()
    for _ in range(3):
        run_now(state, "add_event", {"title": "Walk", "day": "Friday", "hour": 10})
    run_now(state, "cancel_event", {"event": "e2"})
    run_now(state, "add_event", {"title": "Call", "day": "Friday", "hour": 11})
    assert sorted(state.events) == ["e1", "e3", "e4", "e5"]


def test_every_errand_is_drawn_and_passes_its_tests_when_it_is_done() -> None:
    drawn = [draw_assignment(random.Random(seed), "test", "1 errand") for seed in range(200)]
    phrases = {re.sub(r"[A-Z]\w+ [A-Z]\w+|[A-Z]\w+day|\d+", "*", assignment.text) for assignment in drawn}
    assert len(phrases) == len(ERRANDS)
    assert all(grade_state(assignment, carried_out(assignment)) == [True, True] for assignment in drawn)


def test_one_test_fails_for_each_errand_left_undone() -> None:
    assignment = assignment_of("3 errands")
    state = assignment.state.copy()
    for step in assignment.program.steps[: assignment.bounds[0]]:
        run_now(state, step.tool, step.call("call").arguments)
    assert grade_state(assignment, state) == [True, False, False, True]


def test_paying_twice_is_not_paying_well() -> None:
    assignment = next(
        drawn for seed in range(500) if (drawn := draw_assignment(random.Random(seed), "test", "1 errand")).program.steps[-1].tool == "pay"
    )
    state = carried_out(assignment)
    pay = assignment.program.steps[-1].call("again")
    run_now(state, pay.name, pay.arguments)
    assert grade_state(assignment, state) == [False, True]


def test_a_side_effect_that_nobody_asked_for_fails_the_last_test() -> None:
    assignment = assignment_of("2 errands")
    state = carried_out(assignment)
    state.notes["Rude Note"] = "hello"
    assert grade_state(assignment, state) == [True, True, False]


def test_the_order_of_errands_does_not_matter() -> None:
    for seed in range(60):
        assignment = draw_assignment(random.Random(seed), "test", "3 errands")
        state = assignment.state.copy()
        starts = (0, *assignment.bounds)
        for start, end in reversed(list(zip(starts, assignment.bounds, strict=False))):
            for step in assignment.program.steps[start:end]:
                run_now(state, step.tool, step.call("call").arguments)
        assert all(grade_state(assignment, state)), assignment.text


def test_difficulty_is_the_number_of_errands() -> None:
    for task in AppsWorld().tasks(60, seed=1):
        assert task.difficulty == int(task.kind.split()[-1] if task.kind.startswith("round") else task.kind[0])
