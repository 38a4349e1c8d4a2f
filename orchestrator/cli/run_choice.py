"""The run that a command is about: named by its id or the beginning of it, or the newest one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ...protocols import ConfigError, InvalidRequest
from ..util.escaping import spelled_out

_SHOWN: Final = 5
"""Ids that an error lists."""


class KnowsRuns(Protocol):
    """A store that has something of runs."""

    def ids(self, prefix: str = "", *, limit: int = 10_000) -> Sequence[str]:
        """Return the ids that begin with `prefix`, the newest first."""
        ...


@dataclass(frozen=True, slots=True)
class RunChoice:
    """What was said on the command line."""

    run: str | None
    """An id or the beginning of one; None with `is_last`."""
    is_last: bool

    def of(self, store: KnowsRuns) -> str:
        """Return the id of the run. Raises `ConfigError` where none or two are named, `InvalidRequest` where the beginning fits several.

        Where nothing begins like that it is returned as it is: the store knows best what to say about it.
        """
        if self.is_last:
            if self.run is not None:
                raise ConfigError("a run is named, and --last is given", hint="say one of them")
            return _newest(store)
        if not self.run:
            raise ConfigError("no run is named", hint="give the beginning of its id, or --last for the newest one")
        return full_id(self.run, store)


def full_id(given: str, store: KnowsRuns) -> str:
    """Return the only id that begins with `given`, or is it. Raises `InvalidRequest` where there are several."""
    found = store.ids(given)
    if given in found or not found:
        return given
    if len(found) > 1:
        listed = ", ".join(map(spelled_out, found[:_SHOWN])) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
        raise InvalidRequest(f"{len(found)} runs begin with {given!r}: {listed}", hint="give more of the id")
    return found[0]


def _newest(store: KnowsRuns) -> str:
    newest = store.ids(limit=1)
    if not newest:
        raise ConfigError("there is no run yet", hint="with [runs] in nearfar.toml, every task is one")
    return newest[0]
