"""What holds for both worlds, and for any that a user plugs in."""

from collections.abc import Callable

import pytest

from nearfar.orchestrator.lab.worlds import (
    SPLITS,
    Episode,
    OracleAgent,
    Program,
    Solution,
    SolvableWorld,
    Split,
    World,
    WorldTask,
    names,
    parse_work,
    split_of,
    verdict_on_plan,
    verdict_on_progress,
)
from nearfar.orchestrator.lab.worlds.apps import AppsWorld
from nearfar.orchestrator.lab.worlds.loading import SearchWorld
from nearfar.orchestrator.strategies.prompts import plan_request, verify_plan_request, verify_progress_request
from nearfar.orchestrator.task import transcript
from nearfar.protocols import InvalidRequest, Message, StepRequest, ToolCall, ToolResult, complete

KINDS = ("person", "company", "city", "country", "thing", "event", "note")

Make = Callable[[Split], SearchWorld | AppsWorld]


@pytest.fixture(params=[SearchWorld, AppsWorld], ids=["search", "apps"])
def make(request: pytest.FixtureRequest) -> Make:
    return request.param  # type: ignore[no-any-return]  # the classes above


def program_of(world: SearchWorld | AppsWorld, task: WorldTask) -> Program:
    return world.question(task).program if isinstance(world, SearchWorld) else world.assignment(task).program


async def run(episode: Episode, call: ToolCall) -> ToolResult:
    tools = {tool.spec.name: tool for tool in episode.tools}
    return await tools[call.name].run(call)


async def carry_out(episode: Episode, program: Program) -> list[Message]:
    """The program's calls, as an executor would make them."""
    messages = []
    for index, step in enumerate(program.steps):
        call = step.call(f"call{index}")
        result = await run(episode, call)
        assert not result.is_error, (call, result.content)
        messages += [Message.assistant(tool_calls=(call,)), Message.tool(result)]
    return messages


def test_the_shipped_worlds_keep_the_public_interface(make: Make) -> None:
    world = make("test")
    assert isinstance(world, World)
    assert isinstance(world, SolvableWorld)
    assert isinstance(world.reset(world.tasks(1, seed=1)[0]), Episode)


def test_the_same_seed_gives_the_same_tasks(make: Make) -> None:
    assert make("test").tasks(60, seed=5) == make("test").tasks(60, seed=5)
    assert make("test").tasks(60, seed=5) != make("test").tasks(60, seed=6)


def test_fewer_tasks_are_the_first_of_more(make: Make) -> None:
    assert list(make("test").tasks(30, seed=5)) == list(make("test").tasks(60, seed=5))[:30]


@pytest.mark.parametrize("kind", KINDS)
def test_no_name_occurs_in_both_splits(kind: str) -> None:
    train, test = (set(names(kind, split)) for split in SPLITS)
    assert train
    assert test
    assert not train & test
    assert all(split_of(name) == "test" for name in test)


def test_a_test_task_names_nothing_that_training_has_met(make: Make) -> None:
    trained = {name for kind in KINDS for name in names(kind, "train")}
    for task in make("test").tasks(100, seed=9):
        assert not any(name in task.prompt for name in trained), task.prompt


@pytest.mark.anyio
async def test_the_solution_of_every_task_earns_full_marks(make: Make) -> None:
    world = make("test")
    for task in world.tasks(150, seed=3):
        episode = world.reset(task)
        program = program_of(world, task)
        await carry_out(episode, program)
        grade = episode.grade(program.ending.answer)
        assert grade.success, task
        assert grade.score == 1
        episode.close()


@pytest.mark.anyio
async def test_doing_nothing_earns_no_success(make: Make) -> None:
    world = make("test")
    for task in world.tasks(80, seed=4):
        episode = world.reset(task)
        assert not episode.grade("").success
        episode.close()


@pytest.mark.anyio
async def test_a_reset_starts_from_the_same_state(make: Make) -> None:
    world = make("test")
    for task in world.tasks(20, seed=4):
        first, second = world.reset(task), world.reset(task)
        program = program_of(world, task)
        assert await carry_out(first, program) == await carry_out(second, program)


def test_a_task_of_another_world_is_refused(make: Make) -> None:
    other = AppsWorld() if make is SearchWorld else SearchWorld()
    with pytest.raises(InvalidRequest):
        make("test").reset(other.tasks(1, seed=1)[0])
    with pytest.raises(InvalidRequest):
        make("test").reset(make("train").tasks(1, seed=1)[0])
    task = make("test").tasks(1, seed=1)[0]
    with pytest.raises(InvalidRequest):
        make("test").reset(task.model_copy(update={"prompt": "something else"}))


@pytest.mark.anyio
async def test_the_oracle_plans_every_task(make: Make) -> None:
    world = make("test")
    oracle = world.oracle()
    for task in world.tasks(20, seed=2):
        reply = await complete(oracle, StepRequest(messages=plan_request(task.prompt)))
        assert reply.text == program_of(world, task).plan()


@pytest.mark.anyio
async def test_the_oracle_lets_good_work_go_on_at_every_point(make: Make) -> None:
    world = make("test")
    oracle = world.oracle()
    for task in world.tasks(20, seed=2):
        program = program_of(world, task)
        messages = await carry_out(world.reset(task), program)
        for end in range(2, len(messages) + 1, 2):
            for request in (
                verify_plan_request(task.prompt, program.plan(), messages[:end]),
                verify_progress_request(task.prompt, "", messages[:end]),
            ):
                assert (await complete(oracle, StepRequest(messages=request))).text == "CONTINUE"


@pytest.mark.anyio
async def test_the_oracle_stops_a_repeated_call_and_plans_only_what_remains(make: Make) -> None:
    world = make("test")
    oracle = world.oracle()
    for task in world.tasks(20, seed=2):
        program = program_of(world, task)
        first = (await carry_out(world.reset(task), program))[:2]
        request = verify_plan_request(task.prompt, program.plan(), [*first, *first])
        verdict, _, plan = (await complete(oracle, StepRequest(messages=request))).text.partition("\n")
        if verdict == "CONTINUE":  # the task needs the same call twice
            assert program.steps[0] in program.steps[1:]
            continue
        assert verdict == "INTERVENE"
        assert plan == program.plan({0})


@pytest.mark.anyio
async def test_what_the_oracle_planned_after_a_reset_leads_to_the_end(make: Make) -> None:
    """The work is forgotten after each step, so the oracle must carry all of it in its plan or summary."""
    world = make("test")
    oracle = world.oracle()
    for task in world.tasks(20, seed=8):
        program = program_of(world, task)
        wrong = ToolCall(id="wrong", name="open", arguments={"title": "Nobody Atall"})
        failed = Message.tool(ToolResult(call_id="wrong", name="open", content="LookupError: no", is_error=True))
        plan, guidance = program.plan(), ""
        messages = await carry_out(world.reset(task), program)
        for index in range(len(program.steps)):
            work = [*messages[2 * index : 2 * index + 2], Message.assistant(tool_calls=(wrong,)), failed]
            by_plan = await complete(oracle, StepRequest(messages=verify_plan_request(task.prompt, plan, work)))
            by_progress = await complete(oracle, StepRequest(messages=verify_progress_request(task.prompt, guidance, work)))
            plan, guidance = (reply.text.partition("\n")[2] for reply in (by_plan, by_progress))
            assert plan == program.plan(range(index + 1))
            assert guidance.startswith("Summary: ")
        assert plan.splitlines() == [f"1. {program.ending.text(range(len(program.steps)))}"]


@pytest.mark.anyio
async def test_the_oracle_refuses_what_is_not_supervision() -> None:
    oracle = SearchWorld().oracle()
    assert isinstance(oracle, OracleAgent)
    with pytest.raises(InvalidRequest):
        await complete(oracle, StepRequest(messages=(Message.user("What is the capital of France?"),)))


@pytest.fixture
def solution(make: Make) -> Solution:
    world = make("test")
    task = next(task for task in world.tasks(50, seed=1) if len(program_of(world, task).steps) > 1)
    return world.question(task) if isinstance(world, SearchWorld) else world.assignment(task)


def work(*calls: tuple[ToolCall, str], answer: str = "") -> str:
    messages = []
    for call, content in calls:
        messages += [Message.assistant(tool_calls=(call,)), Message.tool(ToolResult(call_id=call.id, name=call.name, content=content))]
    return transcript([*messages, Message.assistant(answer)])


WRONG = (ToolCall(id="wrong", name="add_event", arguments={"title": 'The "big" one, (or=not, day="no")', "hour": 9}), "added")


def test_a_verdict_depends_on_what_happened_last(solution: Solution) -> None:
    first, second = ((step.call("call"), "fine") for step in solution.program.steps[:2])
    assert verdict_on_plan(solution, parse_work(solution.program, work(first, WRONG))).startswith("INTERVENE\n1. ")
    assert verdict_on_plan(solution, parse_work(solution.program, work(first, WRONG, second))) == "CONTINUE"
    assert verdict_on_plan(solution, parse_work(solution.program, work((first[0], "LookupError: no")))) != "CONTINUE"


def test_calls_of_one_turn_are_judged_by_their_own_results(solution: Solution) -> None:
    calls = [step.call(f"call{number}") for number, step in enumerate(solution.program.steps[:2])]
    results = [
        Message.tool(ToolResult(call_id=call.id, name=call.name, content=content))
        for call, content in zip(calls, ("fine", "LookupError: no"), strict=True)
    ]
    state = parse_work(solution.program, transcript([Message.assistant(tool_calls=tuple(calls)), *results]))
    assert state.done == {0}
    assert not state.on_track
    assert state.mistake is not None
    assert state.mistake.arguments == calls[1].arguments


def test_words_that_read_like_a_call_are_words(solution: Solution) -> None:
    steps = solution.program.steps[:2]
    words = Message.assistant('open(title="Nobody Atall", section="boss")')
    lines = [transcript([words]), *(work((step.call("call"), "fine")).rstrip() for step in steps)]
    assert parse_work(solution.program, "\n".join(lines)).done == {0, 1}
    state = parse_work(solution.program, "\n".join([*lines[1:], lines[0]]))
    assert state.done == {0, 1}
    assert not state.on_track


def test_advice_names_the_mistake_to_avoid(solution: Solution) -> None:
    state = parse_work(solution.program, work(WRONG))
    assert state.mistake is not None
    assert state.mistake.arguments == WRONG[0].arguments
    assert verdict_on_progress(solution, state).endswith('Avoid add_event(title="The \\"big\\" one, (or=not, day=\\"no\\")", hour=9).')


def test_an_answer_must_be_right_and_not_too_early(solution: Solution) -> None:
    program = solution.program
    everything = [(step.call("call"), "fine") for step in program.steps]
    assert parse_work(program, work(*everything, answer=program.ending.answer)).on_track
    assert not parse_work(program, work(*everything, answer="something else")).on_track
    assert not parse_work(program, work(*everything[:-1], answer=program.ending.answer)).on_track
