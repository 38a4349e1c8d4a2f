"""What a device says of itself."""

import sys

import pytest

from nearfar.device.state import read_device_state
from nearfar.protocols import DeviceState


def test_this_machine_can_be_read() -> None:
    pytest.importorskip("psutil")
    state = read_device_state()
    assert state.free_memory_bytes is not None
    assert state.free_memory_bytes > 0
    assert state.is_offline is not None
    assert state.thermal is None  # nobody reads it yet


def test_without_psutil_everything_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert read_device_state() == DeviceState()
