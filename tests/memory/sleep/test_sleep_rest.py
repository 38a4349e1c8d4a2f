"""When a device consolidates, and how soon it stops."""

import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from nights import CATS, TRAVELS, Clock, Night

from nearfar.orchestrator.memory.sqlite import SqliteEngine
from nearfar.orchestrator.memory.store import MemoryStore
from nearfar.orchestrator.task.stores import ConsolidationConfig, reason_to_wait
from nearfar.protocols import DeviceState, PowerSource, ScriptedAgent, Thermal

pytestmark = pytest.mark.anyio

MAINS = DeviceState(power_source=PowerSource.MAINS)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (MAINS, None),
        (DeviceState(power_source=PowerSource.MAINS, battery=0.1), None),
        (DeviceState(power_source=PowerSource.BATTERY, battery=0.9), None),
        (DeviceState(power_source=PowerSource.BATTERY, battery=0.5), "battery is at 50%"),
        (DeviceState(), "not known"),
        (DeviceState(power_source=PowerSource.MAINS, thermal=Thermal.SERIOUS), "hot"),
    ],
)
def test_a_device_consolidates_when_it_is_charged_and_cool(state: DeviceState, reason: str | None) -> None:
    said = reason_to_wait(state, ConsolidationConfig())
    assert said is None if reason is None else said is not None and reason in said


async def test_nothing_is_done_while_the_device_has_to_wait(night: Night) -> None:
    night.talk("trip", TRAVELS)
    slept = await night.sleeper(device_state=DeviceState).run()
    assert slept.stopped is not None
    assert night.summaries() == []


async def test_unplugging_ends_it_behind_the_step_under_way_and_the_next_run_goes_on(night: Night) -> None:
    night.talk("trip", TRAVELS)
    night.talk("pets", CATS)
    states = [MAINS, DeviceState()]
    first = await night.sleeper(device_state=lambda: states.pop(0)).run()
    assert (first.summaries, len(night.summaries())) == (1, 1)
    assert first.stopped is not None
    second = await night.sleeper().run()
    assert (second.summaries, len(night.summaries())) == (1, 2)


async def test_whoever_cancels_from_outside_is_obeyed(night: Night) -> None:
    night.talk("trip", TRAVELS)

    sleeper = night.sleeper(ScriptedAgent(["x"], pace=anyio.sleep_forever))
    with anyio.move_on_after(0.05) as scope:
        await sleeper.run()
    assert scope.cancelled_caught
    assert (await night.sleeper().run()).summaries == 1


def test_a_killed_process_leaves_what_can_be_gone_on_with_and_taken_back(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "memory.db"
    with MemoryStore(SqliteEngine(path), user="ann", now=clock) as store:
        night = Night(store, clock)
        night.talk("a trip", TRAVELS)
        night.talk("pets", CATS)
        before = night.everything()
    script = Path(__file__).with_name("sleeping_process.py")
    with subprocess.Popen([sys.executable, script, path, str(clock.time)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hanging\n"
        process.kill()
    with MemoryStore(SqliteEngine(path), user="ann", now=clock) as store:
        night = Night(store, clock)
        sleeper = night.sleeper()
        assert [item.value["text"] for item in night.summaries()] == ["Ann was in Rome."]
        anyio.run(sleeper.run)
        assert len(night.summaries()) == 2
        for batch in sleeper.journal.batches():
            sleeper.journal.revert(batch.id)
        assert night.everything() == before
