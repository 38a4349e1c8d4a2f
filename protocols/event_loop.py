"""Objects that belong to one event loop, and a clear error where another one uses them."""

import asyncio

from .errors import ConfigError

_HINT = "use it in one event loop (call asyncio.run once), or make one per loop"


class LoopBound:
    """The event loop in which connections were first opened; in another loop they would wait for ever."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def require(self, name: str) -> None:
        """Bind to the running loop. Raise `ConfigError` if another loop was bound before; `name` names the object in the message."""
        running = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            raise other_loop(name)


def other_loop(name: str) -> ConfigError:
    """Return the error for an object that is used in two event loops."""
    return ConfigError(f"{name} belongs to another event loop", hint=_HINT)
