"""What a reader of energy is, and what looking for one comes to."""

from dataclasses import dataclass
from typing import Protocol

from ..hardware.components import Presence


class EnergyReader(Protocol):
    """Tells the energy that a part of the machine draws, whoever has it drawn."""

    @property
    def name(self) -> str:
        """`nvml`, `rapl` or `battery`."""

    @property
    def least_seconds(self) -> float:
        """Intervals shorter than this say nothing: its figures are refreshed no more often."""

    def lap(self) -> float | None:
        """Joules since the last call; None at the first one, and where it could not read all the while."""


@dataclass(frozen=True, slots=True)
class ReaderLook:
    """One reader, or why there is none."""

    name: str
    presence: Presence
    reason: str
    """What it reads, or what is missing and how to get it."""
    reader: EnergyReader | None = None
    """Where it is present."""
