"""Arguments of a wrong type: each is refused by an error of the tree that names the parameter, and what a user would try works."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel

from nearfar import Config, Hybrid, MemoryStore, Policy, Records, Strategy, TaskMemory, load_config, tool
from nearfar.orchestrator.cache import AnswerCache
from nearfar.orchestrator.hybrid.arguments import HybridArguments, TaskOptions
from nearfar.orchestrator.task import Prompt
from nearfar.orchestrator.task.stores import CacheConfig
from nearfar.orchestrator.task.tools import ToolOptions
from nearfar.protocols import ConfigError, DeviceState, DeviceStateSource, InvalidRequest, Message, ScriptedAgent

WRONG = (5, 1.5, b"x", object(), [1], {"no such key": 1}, True)
"""Values that no parameter takes, but for those below."""
TAKES: dict[str, tuple[object, ...]] = {
    "timeout": (5, 1.5),
    "unstick": (True,),
    "approval": (True,),
    "time_limit": (5, 1.5),
    "effort": (1.5,),
    "result_limit": (5,),
    "remember": (True,),
    "maximum_bytes": (5,),
    "dependencies": WRONG,  # any object of the app's
    "output": ({"no such key": 1},),  # a JSON Schema may have further keys
    "index": ({"no such key": 1},),  # LangGraph's own mappings are open
    "ttl": ({"no such key": 1},),
}


def wrong(*names: str) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}={type(value).__name__}")
        for name in names
        for value in WRONG
        if not any(type(value) is type(taken) for taken in TAKES.get(name, ()))
    ]


def refused(name: str, value: object, call: Callable[..., object]) -> None:
    with pytest.raises((ConfigError, InvalidRequest)) as caught:
        call(**{name: value})
    assert name in f"{caught.value}" or "is not a tool" in f"{caught.value}"


def agent(*texts: str) -> ScriptedAgent:
    return ScriptedAgent([*(texts or ("hi",))])


PARTS = ("near", "far", "agents", "instructions", "tools", "policy", "memory", "records")
KEPT = ("where", "runs", "budgets", "privacy", "traces", "cache", "checkpointer")


def test_a_hybrid_takes_no_other_arguments() -> None:
    assert [*inspect.signature(Hybrid).parameters] == [*PARTS]
    assert sorted(PARTS) == sorted(HybridArguments.__optional_keys__)


@pytest.mark.parametrize(("name", "value"), wrong(*PARTS))
def test_a_hybrid_refuses_an_argument_of_a_wrong_type_by_its_name(name: str, value: object) -> None:
    refused(name, value, lambda **given: Hybrid(**({"near": agent()} | given)))


@pytest.mark.parametrize(("name", "value"), wrong(*KEPT))
def test_records_refuse_an_argument_of_a_wrong_type_by_its_name(name: str, value: object) -> None:
    make: Any = Records
    refused(name.replace("where", "records"), value, lambda **_: make(**{name: value}))


def test_a_device_state_that_cannot_be_read_is_refused() -> None:
    hybrid, state = Hybrid(near=agent()), cast(DeviceStateSource, DeviceState())
    with pytest.raises(ConfigError, match="device_state must be a function"):
        hybrid.device_state = state


@pytest.mark.anyio
@pytest.mark.parametrize("state", [None, {"battery": 0.5}])
async def test_a_device_state_of_another_type_fails_the_task_that_needs_it(state: object) -> None:
    policy = {"rules": [{"name": "low", "when": {"battery": {"below": 0.5}}, "strategy": "device"}]}
    async with Hybrid(near=agent(), policy=policy) as hybrid:
        hybrid.device_state = cast(DeviceStateSource, lambda: state)
        with pytest.raises(ConfigError, match="what device_state returns must be a DeviceState"):
            await hybrid.run("Greet me.")
        hybrid.device_state = DeviceState
        assert (await hybrid.run("Greet me.")).text == "hi"


@pytest.mark.parametrize(("name", "value"), wrong("config", *PARTS))
def test_from_config_refuses_an_argument_of_a_wrong_type_by_its_name(name: str, value: object) -> None:
    config = Config.model_validate({"near": {"model": "near"}})
    refused(name, value, lambda **given: Hybrid.from_config(**({"config": config} | given)))


@pytest.mark.anyio
@pytest.mark.parametrize(("name", "value"), wrong(*sorted(TaskOptions.__optional_keys__)))
async def test_a_task_refuses_an_option_of_a_wrong_type_by_its_name(name: str, value: object) -> None:
    given: Any = {name: value}
    async with Hybrid(near=agent()) as hybrid:
        with pytest.raises((ConfigError, InvalidRequest)) as caught:
            await hybrid.run("Hello?", **given)
    assert name in f"{caught.value}" or "is not a tool" in f"{caught.value}"


@pytest.mark.parametrize(("name", "value"), wrong(*sorted(ToolOptions.__optional_keys__)))
def test_a_tool_refuses_an_option_of_a_wrong_type_by_its_name(name: str, value: object) -> None:
    def look(place: str) -> str:
        return place

    refused(name, value, lambda **given: tool(**given)(look))


@pytest.mark.parametrize("value", WRONG)
def test_what_is_no_function_is_no_tool(value: object) -> None:
    make: Any = tool
    with pytest.raises(ConfigError, match="tool must be a function"):
        make(value)


STORE = ("where", "user", "embedder", "index", "ttl", "tier", "maximum_bytes", "mode", "key")


@pytest.mark.parametrize(("name", "value"), wrong(*STORE))
def test_a_memory_store_refuses_an_argument_of_a_wrong_type_by_its_name(name: str, value: object) -> None:
    refused(name, value, MemoryStore.open)


@pytest.mark.parametrize(("name", "value"), wrong("settings", "embedder", "embedder_name", "now", "chance"))
def test_a_cache_refuses_an_argument_of_a_wrong_type_by_its_name(name: str, value: object, tmp_path: Path) -> None:
    settings = CacheConfig(path=tmp_path / "answers.db")
    refused(name, value, lambda **given: AnswerCache(**({"settings": settings} | given)))


@pytest.mark.parametrize(("name", "value"), wrong("store", "recall", "remember", "tools", "sleep"))
def test_a_task_memory_refuses_an_argument_of_a_wrong_type_by_its_name(name: str, value: object) -> None:
    with MemoryStore.open() as store:
        refused(name, value, lambda **given: TaskMemory(**({"store": store} | given)))


@pytest.mark.parametrize("value", WRONG)
def test_load_config_refuses_what_is_no_path(value: object) -> None:
    load: Any = load_config
    with pytest.raises(ConfigError, match="path must be a path"):
        load(value)


@pytest.mark.parametrize("name", ["near", "far", "memory", "records"])
def test_an_empty_text_names_no_model_and_no_file(name: str) -> None:
    refused(name, "", lambda **given: Hybrid(**({"near": agent()} | given)))


@pytest.mark.parametrize("name", ["memory", "records", "config"])
@pytest.mark.parametrize("path", ["~no-such-user/file", "a\0b"])
def test_a_path_that_can_be_none_is_refused_by_the_name_of_its_argument(name: str, path: str) -> None:
    usual: dict[str, Any] = {"config": Config(), "near": agent()}
    refused(name, path, lambda **given: Hybrid.from_config(**(usual | given)))


def test_a_class_in_place_of_its_object_is_called_a_class() -> None:
    memory: Any = InMemoryStore
    with pytest.raises(ConfigError, match="not the class InMemoryStore"):
        Hybrid(near=agent(), memory=memory)


def test_load_config_takes_a_text_and_a_path(tmp_path: Path) -> None:
    file = tmp_path / "nearfar.toml"
    file.write_text('[policy]\nstrategy = "route"\n', encoding="utf-8")
    assert load_config(str(file)) == load_config(file)
    assert load_config(str(file)).policy.strategy is Strategy.ROUTE


def test_a_mapping_is_a_policy_as_in_the_file() -> None:
    assert Hybrid(near=agent(), policy={"strategy": "device"}).policy == Policy(strategy=Strategy.DEVICE)
    with pytest.raises(ConfigError, match=r"policy\.stategy"):
        Hybrid(near=agent(), policy={"stategy": "device"})


@pytest.mark.anyio
async def test_a_task_takes_a_mapping_as_its_policy() -> None:
    async with Hybrid(near=agent()) as hybrid:
        assert (await hybrid.run("Hello?", policy={"strategy": "device"})).text == "hi"


@pytest.mark.anyio
async def test_a_path_opens_the_memory_the_runs_and_the_cache_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    near = agent("One.", "Two.")
    async with Hybrid(near=near, memory="x.db", records=Records("runs", cache=Path("answers.db"))) as hybrid:
        result = await hybrid.run("Hello?")
        assert hybrid.runs.show(result.id).state == "done"
        assert len(hybrid.traces.entries(result.id)) > 0
    for file in ("x.db", "answers.db", "runs/runs.db", "runs/traces.db"):
        assert (tmp_path / file).is_file(), file
    async with Hybrid(near=near, records={"folder": "runs"}) as hybrid:
        assert hybrid.runs.show(result.id).state == "done"


@pytest.mark.anyio
async def test_a_memory_that_is_opened_from_a_path_is_recalled(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    with MemoryStore.open(file) as store:
        store.put(("facts",), "colour", {"text": "Ana's favourite colour is green."})
    async with Hybrid(near=agent(), memory=str(file)) as hybrid:
        assert [item.key for item in (await hybrid.run("What is Ana's favourite colour?")).recalled] == ["colour"]


class Place(BaseModel):
    """A town."""

    name: str
    people: int


@pytest.mark.anyio
async def test_a_pydantic_model_is_an_output() -> None:
    async with Hybrid(near=agent('{"name": "Aldara", "people": 7}')) as hybrid:
        result = await hybrid.run("Which town?", output=Place)
    assert result.output == Place(name="Aldara", people=7)


@pytest.mark.anyio
async def test_resume_refuses_what_names_no_run() -> None:
    async with Hybrid(near=agent()) as hybrid:
        wrong_ones: list[Any] = [{"x": 1}, [1], 5, ""]
        for run in wrong_ones:
            with pytest.raises(InvalidRequest, match="run must be"):
                await hybrid.resume(run)


def test_one_message_is_no_list_of_them() -> None:
    single: Any = Message.user("Hello?")
    with pytest.raises(InvalidRequest, match="a string or a list of messages"):
        Hybrid(near=agent()).explain_route(single)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ("half\ud800", {}),
        ([{"role": "user", "content": "half\udc80"}], {}),
        ("whole", {"context": "half\udfff"}),
        ("whole", {"tags": ["half\ud800"]}),
        ("whole", {"output": {"type": "object", "properties": {"half\ud800": {}}}}),
    ],
)
async def test_text_with_half_of_a_character_is_refused_before_an_agent_is_asked(prompt: Prompt, options: TaskOptions) -> None:
    async with Hybrid(near=ScriptedAgent([])) as hybrid:
        with pytest.raises(InvalidRequest, match="not text in UTF-8"):
            await hybrid.run(prompt, **options)
