"""Names of a package that are imported when they are first used (PEP 562), and what differs between systems: locks and folders.

With the first, a module deep in a package can be imported without the needs of the package's other modules: a phone has only grpcio and
protobuf.
"""

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

from .errors import ConfigError

CLOSED_ON_EXEC: Final[int] = getattr(os, "O_CLOEXEC", 0)
"""Flag of a file that no child process inherits; 0 on Windows, where none does."""


def lazy_names(package: str, module_of: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of `package`; `module_of` maps each public name to the module that defines it, relative to the package."""

    def __getattr__(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(f".{module_of[name]}", package), name)
        setattr(sys.modules[package], name, value)  # the next access finds it without coming here
        return value

    return __getattr__


def file_locks(what: str) -> ModuleType:
    """Return the module `fcntl`. Raise `ConfigError` on Windows, which has none: `what` names the thing that needs it."""
    try:
        import fcntl
    except ModuleNotFoundError:
        raise ConfigError(f"{what} needs file locks, which this system does not have", hint="use Linux, macOS or WSL for it") from None
    return fcntl


def data_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's folder for models, prices, memory and runs: `NEARFAR_HOME`, else as the XDG base directory specification says."""
    return _own_folder(environment, "XDG_DATA_HOME", ".local/share")


def state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's folder for what was measured on this machine, below `NEARFAR_HOME` too if that is set."""
    return _own_folder(environment, "XDG_STATE_HOME", ".local/state")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's folder for what can be computed again, `cache` in `NEARFAR_HOME` if that is set."""
    return _own_folder(environment, "XDG_CACHE_HOME", ".cache", inside="cache")


def _own_folder(environment: Mapping[str, str], variable: str, usual: str, *, inside: str = "") -> Path:
    """Return `inside` of `NEARFAR_HOME`, else `nearfar` in the folder that `variable` names, or in the `usual` one."""
    if home := environment.get("NEARFAR_HOME"):
        return Path(home).expanduser() / inside
    return Path(environment.get(variable) or Path.home() / usual) / "nearfar"
