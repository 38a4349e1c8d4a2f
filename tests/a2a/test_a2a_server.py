"""A `Hybrid` as an A2A agent, called with the package's own client on all transports."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

pytest.importorskip("a2a", reason="A2A is an extra: pip install 'nearfar[a2a]'")
from a2a.types import Message, Part, Role, TaskState
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    InvalidRequestError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a_face import TRANSPORTS, answer, both, calling, facts, said, served, until

from nearfar import Hybrid, ScriptedAgent, Sensitivity, Side, ToolCall, tool
from nearfar.orchestrator.a2a.tasks import A2aTasks
from nearfar.orchestrator.compose.hub import CallerConfig, ServeConfig

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("transport", TRANSPORTS)]
PAID: list[int] = []


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    PAID.append(amount)
    return "paid"


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    PAID.clear()


def paying() -> ScriptedAgent:
    return ScriptedAgent([ToolCall(id="c1", name="pay", arguments={"amount": 5}), "It is settled."])


async def test_a_message_is_answered_by_an_artifact_of_its_task(transport: str, tmp_path: Path) -> None:
    agent = ScriptedAgent(["It is small."])
    async with Hybrid(near=agent, records=tmp_path) as hybrid, served(hybrid) as server, calling(server, transport) as ana:
        task = await ana.send("How is it?")
        assert (task.status.state, answer(task)) == (TaskState.TASK_STATE_COMPLETED, "It is small.")
        assert await ana.get(task.id) == task
        assert [part.text for message in task.history for part in message.parts] == ["How is it?"]
        assert hybrid.runs.show(task.id).user == "ana"


async def test_a_stream_tells_attempts_and_gives_a_long_answer_in_pieces(transport: str, tmp_path: Path) -> None:
    text = "small " * 1000
    near = ScriptedAgent(["a bad draft"], name="little", confidence=0.01)
    far = ScriptedAgent([text], name="large", side=Side.FAR, model="deep")
    config = ServeConfig(callers={"ana": CallerConfig(sensitivity=Sensitivity.PUBLIC)})
    async with Hybrid(near=near, far=far, records=tmp_path) as hybrid, served(hybrid, config) as server, calling(server, transport) as ana:
        events = [event async for event in ana.stream("How is it?")]
    assert events[0].task.status.state == TaskState.TASK_STATE_SUBMITTED
    told = [facts(event.status_update.metadata) for event in events if event.HasField("status_update")]
    ended = [(each["agent"], each["outcome"]) for each in told if each.get("event") == "attempt_ended"]
    assert ended == [("little", "rejected"), ("large", "accepted")]
    assert [each["model"] for each in told if each.get("event") == "attempt_started"] == ["scripted", "deep"]
    pieces = [event.artifact_update for event in events if event.HasField("artifact_update")]
    assert "".join(part.text for piece in pieces for part in piece.artifact.parts) == text
    assert [(piece.append, piece.last_chunk) for piece in pieces] == [(False, False), (True, False), (True, True)]
    assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED


async def test_the_same_message_twice_at_once_is_one_run(transport: str, tmp_path: Path) -> None:
    gate = anyio.Event()
    agent = ScriptedAgent([[gate, "Once."]])
    async with Hybrid(near=agent, records=tmp_path) as hybrid, served(hybrid) as server, calling(server, transport) as ana:
        first = await ana.send(message=said("Hello.", message="m1"), wait=False)
        sending = [asyncio.create_task(ana.send(message=said("Hello.", message="m1"))) for _ in range(3)]
        assert (await ana.send(message=said("Hello.", message="m1"), wait=False)).id == first.id
        gate.set()
        tasks = await asyncio.gather(*sending)
    assert {(task.id, answer(task)) for task in tasks} == {(first.id, "Once.")}
    assert len(agent.requests) == 1


async def test_a_message_id_stands_for_one_message(transport: str, tmp_path: Path) -> None:
    agent = ScriptedAgent(["One."])
    async with Hybrid(near=agent, records=tmp_path) as hybrid, served(hybrid) as server, calling(server, transport) as ana:
        await ana.send(message=said("Hello.", message="m1"))
        with pytest.raises(InvalidParamsError, match="another message"):
            await ana.send(message=said("Something else.", message="m1"))
    assert len(agent.requests) == 1


async def test_tasks_outlive_the_server(transport: str, tmp_path: Path) -> None:
    async with (
        Hybrid(near=ScriptedAgent(["Kept."]), records=tmp_path) as hybrid,
        served(hybrid) as server,
        calling(server, transport) as ana,
    ):
        before = await ana.send(message=said("Hello.", message="m1"))
    agent = ScriptedAgent([])
    async with Hybrid(near=agent, records=tmp_path) as hybrid, served(hybrid) as server, calling(server, transport) as ana:
        assert await ana.get(before.id) == before
        assert [task.id for task in (await ana.list()).tasks] == [before.id]
        assert await ana.send(message=said("Hello.", message="m1")) == before
    assert not agent.requests


async def test_a_task_that_is_under_way_goes_on_in_the_next_server(transport: str, tmp_path: Path) -> None:
    agent = ScriptedAgent([[anyio.Event(), "never"]])
    async with Hybrid(near=agent, records=tmp_path) as hybrid, served(hybrid) as server, calling(server, transport) as ana:
        begun = await ana.send(message=said("Hello.", message="m1", context="talk"), wait=False)
        await until(lambda: bool(agent.requests))
    async with (
        Hybrid(near=ScriptedAgent(["Done now."]), records=tmp_path) as hybrid,
        served(hybrid) as server,
        calling(server, transport) as ana,
    ):
        task = await ana.send(message=said("Hello.", message="m1", context="talk"))
    assert (task.id, answer(task), task.context_id) == (begun.id, "Done now.", "talk")


@pytest.mark.parametrize(("word", "paid"), [("Yes.", [5]), ("no", [])])
async def test_an_approval_is_asked_and_the_next_message_decides(transport: str, word: str, paid: list[int], tmp_path: Path) -> None:
    async with Hybrid(near=paying(), tools=[pay], records=tmp_path) as hybrid, served(hybrid) as server, calling(server, transport) as ana:
        asked = await ana.send("Pay it.")
        assert (asked.status.state, PAID) == (TaskState.TASK_STATE_INPUT_REQUIRED, [])
        assert 'pay {"amount": 5}' in asked.status.message.parts[0].text
        unclear = await ana.send(message=said("What is it for?", task=asked.id))
        assert (unclear.status, PAID) == (asked.status, [])
        task = await ana.send(message=said(word, task=asked.id, message="m2"))
        assert (task.status.state, answer(task), PAID) == (TaskState.TASK_STATE_COMPLETED, "It is settled.", paid)
        again = await ana.send(message=said(word, task=asked.id, message="m2"))
        assert (again.status.state, PAID) == (TaskState.TASK_STATE_COMPLETED, paid)
        assert [message.parts[0].text for message in again.history] == ["Pay it.", "What is it for?", word]


@pytest.mark.parametrize(("words", "paid"), [(("yes", "no"), [5]), (("no", "yes"), [])])
async def test_of_two_answers_at_the_same_time_the_first_one_counts(
    transport: str, words: tuple[str, str], paid: list[int], tmp_path: Path
) -> None:
    async with Hybrid(near=paying(), tools=[pay], records=tmp_path) as hybrid, A2aTasks(hybrid, ServeConfig()) as tasks:
        live = await tasks.send(said("Pay it."), "ana")
        asked = await tasks.settled(live)
        sent = (tasks.send(said(word, task=asked.id), "ana") for word in words)
        first, second = await asyncio.gather(*sent, return_exceptions=True)
        assert (first, type(second)) == (live, UnsupportedOperationError)
        task = await tasks.settled(live)
    assert (task.status.state, answer(task), PAID) == (TaskState.TASK_STATE_COMPLETED, "It is settled.", paid)
    assert [message.parts[0].text for message in task.history] == ["Pay it.", words[0]]


async def test_an_approval_is_given_after_a_restart(transport: str, tmp_path: Path) -> None:
    call = ToolCall(id="c1", name="pay", arguments={"amount": 5})
    async with (
        Hybrid(near=ScriptedAgent([call]), tools=[pay], records=tmp_path) as hybrid,
        served(hybrid) as server,
        calling(server, transport) as ana,
    ):
        asked = await ana.send("Pay it.")
    async with (
        Hybrid(near=ScriptedAgent(["It is settled."]), tools=[pay], records=tmp_path) as hybrid,
        served(hybrid) as server,
        calling(server, transport) as ana,
    ):
        assert await ana.get(asked.id) == asked
        task = await ana.send(message=said("yes", task=asked.id))
    assert (answer(task), PAID) == ("It is settled.", [5])


async def test_cancelling_a_task_stops_its_agent(transport: str, tmp_path: Path) -> None:
    agent = ScriptedAgent([[anyio.Event(), "never"]])
    async with Hybrid(near=agent, records=tmp_path) as hybrid, served(hybrid) as server, calling(server, transport) as ana:
        task = await ana.send(wait=False)
        await until(lambda: bool(agent.live_steps))
        assert (await ana.cancel(task.id)).status.state == TaskState.TASK_STATE_CANCELED
        assert (agent.live_steps, agent.cancelled_steps) == (0, 1)
        with pytest.raises(TaskNotCancelableError):
            await ana.cancel(task.id)


async def test_a_task_that_waits_for_its_turn_can_be_cancelled(transport: str, tmp_path: Path) -> None:
    agent = ScriptedAgent([[anyio.Event(), "never"]])
    async with Hybrid(near=agent, records=tmp_path) as hybrid, served(hybrid) as server, calling(server, transport) as ana:
        await ana.send(message=said("First.", context="talk"), wait=False)
        await until(lambda: bool(agent.live_steps))
        second = await ana.send(message=said("Second.", context="talk"), wait=False)
        assert (await ana.cancel(second.id)).status.state == TaskState.TASK_STATE_CANCELED
    assert len(agent.requests) == 1


async def test_a_stranger_finds_no_task_of_others(transport: str, tmp_path: Path) -> None:
    async with (
        Hybrid(near=paying(), tools=[pay], records=tmp_path) as hybrid,
        served(hybrid) as server,
        both(server, transport) as (ana, bob),
    ):
        task = await ana.send(message=said("Pay it.", message="m1"))
        for call in (bob.get(task.id), bob.cancel(task.id), bob.send(message=said("yes", task=task.id)), anext(bob.subscribe(task.id))):
            with pytest.raises(TaskNotFoundError):
                await call
        assert not (await bob.list()).tasks
        assert (await ana.get(task.id)).status.state == TaskState.TASK_STATE_INPUT_REQUIRED
    assert not PAID


async def test_the_same_message_id_of_another_caller_is_another_task(transport: str, tmp_path: Path) -> None:
    async with (
        Hybrid(near=ScriptedAgent(["For Ana.", "For Bob."]), records=tmp_path) as hybrid,
        served(hybrid) as server,
        both(server, transport) as (ana, bob),
    ):
        assert answer(await ana.send(message=said("Hello.", message="m1"))) == "For Ana."
        assert answer(await bob.send(message=said("Hello.", message="m1"))) == "For Bob."


async def test_a_context_is_a_conversation(transport: str, tmp_path: Path) -> None:
    agent = ScriptedAgent(["Hello Ana.", "Ana."])
    async with Hybrid(near=agent, records=tmp_path) as hybrid, served(hybrid) as server, calling(server, transport) as ana:
        first = await ana.send("I am Ana.")
        second = await ana.send(message=said("Who am I?", context=first.context_id))
        assert second.context_id == first.context_id
        assert [task.id for task in (await ana.list(context_id=first.context_id)).tasks] == [second.id, first.id]
        with pytest.raises(InvalidParamsError, match="another context"):
            await ana.send(message=said("yes", task=first.id, context="elsewhere"))
    assert [message.text for message in agent.requests[1].messages] == ["I am Ana.", "Hello Ana.", "Who am I?"]


async def test_listeners_come_and_go_while_a_task_is_worked_on(transport: str, tmp_path: Path) -> None:
    gate = anyio.Event()
    agent = ScriptedAgent([[gate, "Heard."]])
    async with Hybrid(near=agent, records=tmp_path) as hybrid, served(hybrid) as server, calling(server, transport) as ana:
        task = await ana.send(wait=False)
        async with aclosing(ana.subscribe(task.id)) as left, aclosing(ana.subscribe(task.id)) as staying:
            assert (await anext(left)).task.id == (await anext(staying)).task.id == task.id
            await left.aclose()
            gate.set()
            rest = [event async for event in staying]
        assert rest[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
        with pytest.raises(UnsupportedOperationError):
            await anext(ana.subscribe(task.id))
        with pytest.raises(UnsupportedOperationError):
            await ana.send(message=said("And now?", task=task.id))


async def test_a_listener_of_a_waiting_task_hears_the_decision(transport: str, tmp_path: Path) -> None:
    async with Hybrid(near=paying(), tools=[pay], records=tmp_path) as hybrid, served(hybrid) as server, calling(server, transport) as ana:
        task = await ana.send("Pay it.")
        async with aclosing(ana.subscribe(task.id)) as listening:
            assert (await anext(listening)).task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
            await ana.send(message=said("yes", task=task.id))
            states = [event.status_update.status.state async for event in listening if event.HasField("status_update")]
    assert (states[0], states[-1]) == (TaskState.TASK_STATE_WORKING, TaskState.TASK_STATE_COMPLETED)


async def test_a_list_is_given_in_pages_and_by_state(transport: str, tmp_path: Path) -> None:
    agent = ScriptedAgent(["One.", "Two.", "Three.", ToolCall(id="c1", name="pay", arguments={"amount": 5})])
    async with Hybrid(near=agent, tools=[pay], records=tmp_path) as hybrid, served(hybrid) as server, calling(server, transport) as ana:
        sent = [(await ana.send(f"Task {number}")).id for number in range(4)]
        first = await ana.list(page_size=3)
        last = await ana.list(page_size=3, page_token=first.next_page_token)
        assert [task.id for task in (*first.tasks, *last.tasks)] == sent[::-1]
        assert (first.total_size, len(first.tasks), last.next_page_token) == (4, 3, "")
        waiting = await ana.list(status=TaskState.TASK_STATE_INPUT_REQUIRED)
        assert [task.id for task in waiting.tasks] == sent[3:]
        assert not any(task.artifacts for task in first.tasks)
        assert [answer(task) for task in (await ana.list(include_artifacts=True)).tasks] == ["", "Three.", "Two.", "One."]


async def test_a_caller_asks_for_no_more_than_its_token_allows(transport: str, tmp_path: Path) -> None:
    near, far = ScriptedAgent(["Here."], name="near"), ScriptedAgent(["There."], name="far", side=Side.FAR)
    public = said("Hello.")
    public.metadata.update({"nearfar": {"sensitivity": "public", "mode": "only_in_cloud"}})
    config = ServeConfig(callers={"bob": CallerConfig(sensitivity=Sensitivity.PUBLIC)})
    async with (
        Hybrid(near=near, far=far, records=tmp_path) as hybrid,
        served(hybrid, config) as server,
        both(server, transport) as (ana, bob),
    ):
        with pytest.raises(InvalidRequestError, match="private"):
            await ana.send(message=public)
        assert answer(await ana.send()) == "Here."
        assert answer(await bob.send(message=public)) == "There."


async def test_an_unknown_model_is_no_missing_task(transport: str, tmp_path: Path) -> None:
    message = said("Hello.")
    message.metadata.update({"nearfar": {"model": "gpt"}})
    async with Hybrid(near=ScriptedAgent([]), records=tmp_path) as hybrid, served(hybrid) as server, calling(server, transport) as ana:
        with pytest.raises(InvalidParamsError, match="there is no model 'gpt'"):
            await ana.send(message=message)


async def test_a_file_is_refused(transport: str, tmp_path: Path) -> None:
    message = Message(message_id="m1", role=Role.ROLE_USER, parts=[Part(raw=b"%PDF-", media_type="application/pdf")])
    async with Hybrid(near=ScriptedAgent([]), records=tmp_path) as hybrid, served(hybrid) as server, calling(server, transport) as ana:
        with pytest.raises(ContentTypeNotSupportedError):
            await ana.send(message=message)


async def test_a_task_that_fails_says_why(transport: str, tmp_path: Path) -> None:
    async with Hybrid(near=ScriptedAgent([]), records=tmp_path) as hybrid, served(hybrid) as server, calling(server, transport) as ana:
        task = await ana.send()
        assert task.status.state == TaskState.TASK_STATE_FAILED
        assert "no reply left" in task.status.message.parts[0].text
        assert await ana.get(task.id) == task


async def test_only_callers_with_a_token_see_models(transport: str, tmp_path: Path) -> None:
    agent = ScriptedAgent([], name="little", model="secret-model")
    async with Hybrid(near=agent, records=tmp_path) as hybrid, served(hybrid) as server, calling(server, transport) as ana:
        assert "secret-model" not in str(ana.card)
        assert "little" not in str(ana.card)
        extended = await ana.extended_card()
    assert "secret-model" in str(extended)
    assert [skill.id for skill in extended.skills] == ["task"]
