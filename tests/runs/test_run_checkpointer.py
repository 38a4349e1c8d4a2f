"""What LangGraph asks of a checkpointer, as far as the last checkpoint of each graph goes; older ones are not kept."""

import pickle
from pathlib import Path
from typing import Any, TypedDict
from zlib import crc32

import pytest
from attached import PIXEL
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple, empty_checkpoint
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, interrupt
from run_stores import Opener

from nearfar.orchestrator.runs import EPOCH, KeptTask, digest
from nearfar.orchestrator.runs.checkpointer import RunCheckpointer
from nearfar.orchestrator.runs.store import RunStore
from nearfar.orchestrator.task import Task
from nearfar.protocols import Attachment, Cancelled, Message, RunBusy, StoreCorrupt, StoreUnavailable, Unsupported

pytestmark = pytest.mark.anyio


@pytest.fixture
def saver(store: RunStore) -> RunCheckpointer:
    return store.checkpointer


def place(thread: str = "t", namespace: str = "", **more: Any) -> RunnableConfig:  # noqa: ANN401 - as it is called
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, **more}}


def checkpoint(**values: object) -> Checkpoint:
    return {**empty_checkpoint(), "channel_values": values, "channel_versions": dict.fromkeys(values, 1)}


async def latest(saver: RunCheckpointer, config: RunnableConfig) -> CheckpointTuple:
    found = await saver.aget_tuple(config)
    assert found is not None
    return found


async def test_a_checkpoint_comes_back_with_its_metadata_and_its_parent(saver: RunCheckpointer) -> None:
    first = await saver.aput(place(), checkpoint(word="one"), {"source": "input", "step": -1}, {})
    second = checkpoint(word="two", data=b"\x00\xff", missing=None, number=1.5)
    config = await saver.aput(first, second, {"source": "loop", "step": 0}, {})
    found = await latest(saver, place())
    assert found.checkpoint == second
    assert found.config == config
    assert found.parent_config == first
    assert (found.metadata["source"], found.metadata["step"]) == ("loop", 0)
    assert await saver.aget_tuple(config) == found
    before = await saver.aget_tuple(first)
    assert before is not None
    assert before.checkpoint["channel_values"] == {"word": "one"}
    assert await saver.aget_tuple(place("unknown")) is None


async def test_the_newest_checkpoint_is_the_one_that_was_written_last_whatever_its_id_says(saver: RunCheckpointer) -> None:
    late, early = checkpoint(word="before"), checkpoint(word="after")
    late["id"], early["id"] = "ffffffff-0000-6000-8000-000000000000", "00000000-0000-6000-8000-000000000000"
    await saver.aput(place(), late, {}, {})
    await saver.aput(place(), early, {}, {})
    assert (await latest(saver, place())).checkpoint["channel_values"] == {"word": "after"}


async def test_threads_and_graphs_within_them_are_apart(saver: RunCheckpointer) -> None:
    for thread, namespace in (("t", ""), ("t", "inner:1"), ("u", "")):
        await saver.aput(place(thread, namespace), checkpoint(word=thread + namespace), {}, {})
    for thread, namespace in (("t", ""), ("t", "inner:1"), ("u", "")):
        assert (await latest(saver, place(thread, namespace))).checkpoint["channel_values"] == {"word": thread + namespace}
    assert [found.config["configurable"]["checkpoint_ns"] async for found in saver.alist({"configurable": {"thread_id": "t"}})] == [
        "inner:1",
        "",
    ]
    await saver.adelete_thread("t")
    assert await saver.aget_tuple(place("t")) is None
    assert await saver.aget_tuple(place("u")) is not None


async def test_what_tasks_have_written_is_pending_in_order_until_the_next_checkpoint(saver: RunCheckpointer) -> None:
    config = await saver.aput(place(), checkpoint(), {}, {})
    await saver.aput_writes(config, [("b", 1), ("b", 2)], "task-a", "~2")
    await saver.aput_writes(config, [("a", {"x": [1]})], "task-b", "~1")
    assert (await latest(saver, place())).pending_writes == [("task-b", "a", {"x": [1]}), ("task-a", "b", 1), ("task-a", "b", 2)]
    await saver.aput_writes(config, [("b", 3), ("b", 4)], "task-a", "~2")  # a task writes once
    await saver.aput_writes(config, [("__error__", "first")], "task-a", "~2")
    await saver.aput_writes(config, [("__error__", "second")], "task-a", "~2")
    pending = (await latest(saver, place())).pending_writes or []
    assert ("task-a", "__error__", "second") in pending
    assert ("task-a", "b", 1) in pending
    assert len(pending) == 4
    await saver.aput(config, checkpoint(), {}, {})
    assert (await latest(saver, place())).pending_writes == []


async def test_what_is_listed_is_chosen_by_metadata_and_number(saver: RunCheckpointer) -> None:
    await saver.aput(place("t", "a"), checkpoint(), {"source": "input", "step": 1}, {})
    last = await saver.aput(place("t", "b"), checkpoint(), {"source": "loop", "step": 2}, {})
    of_thread: RunnableConfig = {"configurable": {"thread_id": "t"}}

    async def listed(**options: Any) -> list[str]:  # noqa: ANN401 - those of alist
        return [found.config["configurable"]["checkpoint_ns"] async for found in saver.alist(of_thread, **options)]

    assert await listed() == ["b", "a"]
    assert await listed(filter={"source": "input"}) == ["a"]
    assert await listed(limit=1) == ["b"]
    assert await listed(before=last) == ["a"]
    assert [found.metadata["step"] for found in saver.list(of_thread)] == [2, 1]


def test_it_can_be_used_without_a_loop(saver: RunCheckpointer) -> None:
    config = saver.put(place(), checkpoint(word="one"), {"step": 1}, {})
    saver.put_writes(config, [("word", "two")], "task")
    found = saver.get_tuple(place())
    assert found is not None
    assert found.pending_writes == [("task", "word", "two")]
    saver.delete_thread("t")
    assert saver.get_tuple(place()) is None


async def leased(store: RunStore, run: str = "r1") -> RunnableConfig:
    task = Task(messages=(Message.user("Hello"),), idempotency_key=run)
    lease = await store.begin(KeptTask.of(task, tools=(), agents=()), digest(task))
    return place(run, "", **{EPOCH: lease.epoch})


async def test_who_has_lost_a_run_keeps_no_checkpoint_any_more(opened: Opener) -> None:
    first, second = opened(), opened()
    config = await leased(first)
    await first.checkpointer.aput(config, checkpoint(word="mine"), {}, {})
    first.owners.close()
    await second.claim("r1")
    with pytest.raises(RunBusy):
        await first.checkpointer.aput(config, checkpoint(word="too late"), {}, {})
    with pytest.raises(RunBusy):
        await first.checkpointer.aput_writes(place("r1", "", checkpoint_id="x", **{EPOCH: 1}), [("word", 1)], "task")
    assert (await latest(second.checkpointer, place("r1"))).checkpoint["channel_values"] == {"word": "mine"}
    assert second.show("r1").steps == 1


def shown(data: bytes) -> dict[str, Any]:
    """Return an image as it stands in a run's state."""
    return Attachment(media_type="image/png", data=PIXEL.data + data).model_dump(mode="json")


async def test_an_image_is_stored_once_whatever_steps_come_after_it(store: RunStore) -> None:
    config, saver = await leased(store), store.checkpointer
    one, other = shown(bytes(100_000)), shown(bytes(200_000))
    small = shown(b"")
    kept = config
    for number in range(3):
        kept = await saver.aput(config, checkpoint(task={"messages": [one, small]}, messages=[one, other, number]), {}, {})
    await saver.aput_writes(config | kept, [("messages", [other, "more"])], "task")
    found = await latest(saver, config)
    assert found.checkpoint["channel_values"] == {"task": {"messages": [one, small]}, "messages": [one, other, 2]}
    assert found.pending_writes == [("task", "messages", [other, "more"])]
    with store.database.reading() as session:
        lengths = [row[0] for row in session.execute("SELECT length(content) FROM attachments").fetchall()]
        stored = max(row[0] for row in session.execute("SELECT length(content) FROM checkpoints").fetchall())
    assert sorted(lengths) == [len(one["data"]), len(other["data"])]
    assert stored < 2_000
    await saver.adelete_thread("r1")
    with store.database.reading() as session:
        assert session.execute("SELECT digest FROM attachments").fetchall() == []


@pytest.mark.parametrize("damage", ["DELETE FROM attachments", "UPDATE attachments SET content = 'AAAA'"])
async def test_a_run_whose_image_is_damaged_is_not_resumed_without_it(store: RunStore, damage: str) -> None:
    config, image = await leased(store), shown(bytes(100_000))
    await store.checkpointer.aput(config, checkpoint(messages=[image, shown(bytes(50_000))]), {}, {})
    with store.database.writing() as session:
        session.execute(f"{damage} WHERE length(content) = ?", (len(image["data"]),))
    with pytest.raises(StoreCorrupt):
        await store.checkpointer.aget_tuple(config)


async def test_a_cancelled_run_is_told_when_its_next_step_is_kept(store: RunStore) -> None:
    config = await leased(store)
    store.cancel("r1")
    with pytest.raises(Cancelled):
        await store.checkpointer.aput(config, checkpoint(word="kept all the same"), {}, {})
    assert (await latest(store.checkpointer, place("r1"))).checkpoint["channel_values"] == {"word": "kept all the same"}


class Unpickled:
    """Would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


async def test_a_damaged_checkpoint_is_that_runs_loss_alone(store: RunStore, tmp_path: Path) -> None:
    saver = store.checkpointer
    for thread in ("flipped", "pickled", "other", "newer"):
        await saver.aput(place(thread), checkpoint(word=thread), {}, {})
    evil = pickle.dumps(Unpickled(tmp_path / "evil"))
    with store.database.writing() as session:
        (content,) = session.execute("SELECT content FROM checkpoints WHERE run = 'flipped'").fetchone()
        damaged = bytearray(content)
        damaged[len(damaged) // 2] ^= 1
        session.execute("UPDATE checkpoints SET content = ? WHERE run = 'flipped'", (bytes(damaged),))
        session.execute("UPDATE checkpoints SET kind = 'pickle', content = ?, checksum = ? WHERE run = 'pickled'", (evil, crc32(evil)))
        session.execute("UPDATE checkpoints SET version = 7 WHERE run = 'newer'")
    for thread in ("flipped", "pickled"):
        with pytest.raises(StoreCorrupt, match=thread):
            await saver.aget_tuple(place(thread))
    with pytest.raises(StoreUnavailable, match="version 7"):
        await saver.aget_tuple(place("newer"))
    assert not (tmp_path / "evil").exists()
    assert (await latest(saver, place("other"))).checkpoint["channel_values"] == {"word": "other"}


async def test_channels_of_differences_are_refused(saver: RunCheckpointer) -> None:
    with pytest.raises(Unsupported, match="DeltaChannel"):
        await saver.aput(place(), checkpoint(), {"counters_since_delta_snapshot": {"x": (1, 1)}}, {})


class State(TypedDict):
    words: list[str]


def graph(saver: RunCheckpointer, *, asks: bool = False) -> CompiledStateGraph[State, None, State, State]:
    async def first(state: State) -> State:
        return {"words": [*state["words"], "first"]}

    async def second(state: State) -> State:
        said = interrupt("may I?") if asks else "second"
        return {"words": [*state["words"], said]}

    builder: StateGraph[State, None, State, State] = StateGraph(State)
    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", END)
    return builder.compile(checkpointer=saver)


async def test_a_graph_that_asks_goes_on_in_another_process_with_the_answer(opened: Opener) -> None:
    asked = await graph(opened().checkpointer, asks=True).ainvoke({"words": []}, place())
    assert [each.value for each in asked["__interrupt__"]] == ["may I?"]
    answered = await graph(opened().checkpointer, asks=True).ainvoke(Command(resume="yes"), place())
    assert answered["words"] == ["first", "yes"]


async def test_a_graph_of_the_app_leaves_its_history_and_can_be_run_again_from_within(saver: RunCheckpointer) -> None:
    app = graph(saver)
    await app.ainvoke({"words": []}, place(), durability="sync")
    earlier = [state async for state in app.aget_state_history(place())]
    assert [state.values.get("words") for state in earlier] == [["first", "second"], ["first"], [], None]
    assert (await app.ainvoke(None, earlier[1].config))["words"] == ["first", "second"]


async def test_a_finished_run_leaves_one_checkpoint(store: RunStore) -> None:
    await graph(store.checkpointer).ainvoke({"words": []}, await leased(store), durability="sync")
    assert len([found async for found in store.checkpointer.alist(None)]) == 1
    with store.database.reading() as session:
        assert session.execute("SELECT count(*) FROM pending").fetchone()[0] == 0
