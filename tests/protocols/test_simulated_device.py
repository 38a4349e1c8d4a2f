"""The simulated device behaves as devices do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nearfar.protocols import PowerSource, SimulatedDevice, Thermal


def test_it_starts_charged_cool_and_online() -> None:
    state = SimulatedDevice()()
    assert (state.battery, state.power_source, state.thermal, state.is_offline) == (1.0, PowerSource.BATTERY, Thermal.NOMINAL, False)


def test_work_drains_the_battery_down_to_nothing() -> None:
    device = SimulatedDevice(battery_joules=1000)
    device.run(10, watts=40)
    assert device().battery == pytest.approx(0.6)
    device.run(1000, watts=40)
    assert device().battery == 0.0


def test_on_the_mains_the_battery_stays_as_it_is() -> None:
    device = SimulatedDevice()
    device.set(battery=0.3, power_source=PowerSource.MAINS)
    device.run(10_000, watts=40)
    assert device().battery == 0.3


def test_load_heats_it_through_every_level_and_rest_cools_it() -> None:
    device = SimulatedDevice()
    seen = []
    for _ in range(60):
        device.run(5, watts=30)
        seen.append(device().thermal)
    assert list(dict.fromkeys(seen)) == list(Thermal)
    device.run(600, watts=1)
    assert device().thermal is Thermal.NOMINAL


def test_what_is_set_stays_until_time_passes() -> None:
    device = SimulatedDevice()
    device.set(thermal=Thermal.CRITICAL, is_offline=True)
    assert (device().thermal, device().is_offline) == (Thermal.CRITICAL, True)
    device.run(30, watts=1)
    assert device().thermal is not Thermal.CRITICAL
    assert device().is_offline is True


def test_what_is_unknown_stays_unknown() -> None:
    device = SimulatedDevice()
    device.set(battery=None, thermal=None)
    device.run(1000, watts=50)
    assert (device().battery, device().thermal) == (None, None)


@pytest.mark.parametrize("changes", [{"battery": 1.5}, {"thermal": "boiling"}, {"colour": "red"}])
def test_a_state_that_no_device_has_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SimulatedDevice().set(**changes)


@given(seconds=st.floats(0, 1000), watts=st.floats(0, 100), parts=st.integers(1, 20))
def test_a_period_in_parts_is_the_same_period(seconds: float, watts: float, parts: int) -> None:
    whole, cut = SimulatedDevice(), SimulatedDevice()
    whole.run(seconds, watts=watts)
    for _ in range(parts):
        cut.run(seconds / parts, watts=watts)
    assert cut.celsius == pytest.approx(whole.celsius)
    assert cut().battery == pytest.approx(whole().battery)
