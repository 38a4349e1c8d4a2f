"""The measured speed of a model on this device."""

from collections.abc import Callable
from typing import Protocol


class Pace(Protocol):
    """The measured speed of an agent's model on this device, for prompts of all sizes."""

    @property
    def watts(self) -> float | None:
        """Power of the device while it computes; None if unknown."""

    def first_token_seconds(self, prompt_tokens: int) -> float:
        """Return the seconds until the first token of the output."""

    def seconds(self, prompt_tokens: int, output_tokens: float) -> float:
        """Return the seconds of a whole step."""


PaceSource = Callable[[str], Pace | None]
"""Finds the pace of an agent by its name; None: there is none."""


def no_pace(_agent: str) -> Pace | None:
    """Return None: no agent was measured."""
    return None
