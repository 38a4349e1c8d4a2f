"""Values in the state of a task's graph: written and read without validating them anew."""

import json

import pytest
from langgraph.graph import END, START, StateGraph
from pydantic import ValidationError

from nearfar.orchestrator.strategies.calls import TaskGraphBuilder, TaskRuntime, add_node
from nearfar.orchestrator.strategies.state import TaskContext, TaskState, as_json, value_of
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.labels import OPEN, Integrity, Label
from nearfar.orchestrator.task.policy import Policy
from nearfar.protocols import Message
from nearfar.protocols.items import Tier


def task(**fields: object) -> Task:
    return Task.model_validate({"messages": (Message.user("Who leads Orbix Labs?"),), "policy": Policy(), **fields})


def test_a_value_is_read_back_as_it_was_written() -> None:
    written = Message.user("Who leads Orbix Labs?")
    assert value_of(Message, as_json(written)) is written


def test_a_part_that_came_from_elsewhere_is_validated_and_equal() -> None:
    part = json.loads(json.dumps(as_json(task())))
    read = value_of(Task, part)
    assert read == value_of(Task, as_json(read))
    with pytest.raises(ValidationError):
        value_of(Task, {"messages": "none"})


def test_an_equal_part_of_another_type_is_not_taken_for_the_first_one() -> None:
    part: dict[str, object] = {}
    assert value_of(Label, part) == OPEN
    assert isinstance(value_of(Policy, part), Policy)


def test_what_the_json_leaves_out_is_not_read_back() -> None:
    recalled = {"namespace": ("notes",), "key": "7", "text": "a secret", "tier": Tier.DEVICE}
    remembering = task().model_copy(update={"recalled": (recalled,)})
    assert value_of(Task, as_json(remembering)).recalled == ()


def test_joining_with_a_label_that_adds_nothing_makes_no_new_one() -> None:
    private = Label(tier=Tier.USER, origins=("the task",))
    assert private.joined(OPEN) is private
    assert OPEN.joined(private) is private
    assert private.joined(Label(tier=Tier.USER, integrity=Integrity.UNTRUSTED)).integrity is Integrity.UNTRUSTED


@pytest.mark.anyio
async def test_a_node_decides_by_the_state_that_it_leaves_behind() -> None:
    async def count(state: TaskState, runtime: TaskRuntime) -> TaskState:
        return {"position": state["position"] + 1}

    graph: TaskGraphBuilder = StateGraph(TaskState, TaskContext)
    add_node(graph, "count", count, lambda state: "count" if state["position"] < 3 else END, ["count", END])
    graph.add_edge(START, "count")
    assert (await graph.compile().ainvoke({"position": 0}))["position"] == 3
