"""The interface of an energy reader, and the result of looking for one."""

from dataclasses import dataclass
from typing import Protocol

from ..hardware.components import Presence


class EnergyReader(Protocol):
    """A reader of the energy that a part of the machine draws, for all programs together."""

    @property
    def name(self) -> str:
        """The reader's name: `nvml`, `rapl` or `battery`."""

    @property
    def least_seconds(self) -> float:
        """The shortest interval that can be measured: the figures are refreshed no more often."""

    def lap(self) -> float | None:
        """Return the joules since the last call; None at the first call, and if a figure could not be read in between."""


@dataclass(frozen=True, slots=True)
class ReaderLook:
    """One reader, or why there is none."""

    name: str
    presence: Presence
    reason: str
    """The source that it reads; or the missing part, and how to get it."""
    reader: EnergyReader | None = None
    """The reader itself, if it is present."""
