"""The measured speed of a model on this device."""

from collections.abc import Callable
from typing import Protocol


class Pace(Protocol):
    """What was measured of an agent's model on this device, once and for prompts of all sizes."""

    @property
    def watts(self) -> float | None:
        """Power of the device while it computes; None: nobody knows it."""

    def first_token_seconds(self, prompt_tokens: int) -> float:
        """Until the first token of the output."""

    def seconds(self, prompt_tokens: int, output_tokens: float) -> float:
        """Of a whole step."""


PaceSource = Callable[[str], Pace | None]
"""Finds the pace of an agent by its name; None: there is none."""


def no_pace(_agent: str) -> Pace | None:
    """Nothing was measured of any agent."""
    return None
