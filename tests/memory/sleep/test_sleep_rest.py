"""When a device consolidates, and how soon it stops."""

import anyio
import pytest
from nights import CATS, TRAVELS, Night

from nearfar.orchestrator.memory.sleep.policy import SleepPolicy, reason_to_wait
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
    said = reason_to_wait(state, SleepPolicy())
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


async def test_work_stops_a_model_in_mid_sentence(night: Night) -> None:
    night.talk("trip", TRAVELS)
    begun = anyio.Event()

    async def pace() -> None:
        begun.set()
        await anyio.sleep_forever()

    near = ScriptedAgent(["Ann was in Rome."], pace=pace)
    sleeper = night.sleeper(near)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:

            async def work() -> None:
                await begun.wait()
                async with sleeper.awake():
                    pass

            tasks.start_soon(work)
            slept = await sleeper.run()
    assert slept.stopped == "the device is at work"
    assert (near.cancelled_steps, near.live_steps) == (1, 0)
    assert night.summaries() == []


async def test_while_there_is_work_nothing_begins(night: Night) -> None:
    night.talk("trip", TRAVELS)
    near = ScriptedAgent([])
    sleeper = night.sleeper(near)
    async with sleeper.awake():
        assert (await sleeper.run()).stopped == "the device is at work"
    assert near.requests == []


async def test_whoever_cancels_from_outside_is_obeyed(night: Night) -> None:
    night.talk("trip", TRAVELS)

    sleeper = night.sleeper(ScriptedAgent(["x"], pace=anyio.sleep_forever))
    with anyio.move_on_after(0.05) as scope:
        await sleeper.run()
    assert scope.cancelled_caught
    assert (await night.sleeper().run()).summaries == 1
