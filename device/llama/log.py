"""llama.cpp's log: the reasons of failures, and the device of each layer."""

import ctypes
import re
from collections import deque
from typing import Final

import llama_cpp

_ERROR_LEVEL: Final = 4
_ASSIGNED: Final = re.compile(rb"layer\s+(\d+) assigned to device ([^\s,]+)")

_errors: deque[str] = deque(maxlen=20)
_layers: dict[int, str] = {}


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]  # a ctypes prototype
def _keep(level: int, text: bytes, _data: ctypes.c_void_p) -> None:
    if level == _ERROR_LEVEL:
        _errors.append(text.decode("utf-8", "replace").strip())
    elif (assigned := _ASSIGNED.search(text)) is not None:
        _layers[int(assigned[1])] = assigned[2].decode("utf-8", "replace")


def keep_log() -> None:
    """Take llama.cpp's log from here on; nothing of it is printed."""
    llama_cpp.llama_log_set(_keep, ctypes.c_void_p(0))


def explanation() -> str:
    """Return llama.cpp's own last words, the most telling line first."""
    for line in _errors:
        if "error loading model:" in line:
            return line.split("error loading model:", 1)[1].strip()
    return _errors[-1] if _errors else "llama.cpp gave no reason"


def layer_devices(layers: int) -> list[str] | None:
    """Return the device that llama.cpp put each of a model's `layers` on, when it last loaded one; None if its log does not say."""
    devices = [_layers.get(layer) for layer in range(layers)]
    return None if None in devices else [device for device in devices if device is not None]
