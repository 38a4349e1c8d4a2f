"""The order in which waiting steps get a sequence of the cache: a follow-up turn whose prefix is still cached goes before a new task.

After SearchAgent-X (arXiv 2505.12065): the others go by levels, the highest that the results of tools in the conversation, the time waited
or the length of the prompt reach. A sequence whose step called tools is kept free for its next turn, at most as long as reading its cells
again would take, so that waiting in vain costs no more than it could have saved. A step that others have overtaken too often goes first.

Only the worker process imports this module.
"""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ...protocols import FinishReason, Message
from .engine import Sequence, Sequences

if TYPE_CHECKING:
    from .scheduler import StepState

_LEVELS: Final = 4
_MOST_OVERTAKINGS: Final = 8
"""Steps that may go before one that came earlier."""


@dataclass(frozen=True, slots=True)
class _Conversation:
    """A conversation whose last step left its cells in a sequence."""

    messages: tuple[Message, ...]
    kept_until: float

    def goes_on_with(self, step: "StepState") -> bool:
        """Return True for a next turn of it."""
        messages = step.request.messages
        return len(messages) > len(self.messages) and messages[: len(self.messages)] == self.messages


class Admission:
    """The steps that wait for a sequence."""

    def __init__(self, sequences: Sequences, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._sequences = sequences
        self._clock = clock
        self._waiting: list[StepState] = []
        self._left: dict[int, _Conversation] = {}
        """By the identifier of the idle sequence."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> "Iterator[StepState]":
        return iter(tuple(self._waiting))

    def add(self, step: "StepState") -> None:
        """Let a step wait."""
        step.since = self._clock()
        self._waiting.append(step)

    def remove(self, step: "StepState") -> None:
        """Let a step wait no longer: it was cancelled, or its time is over."""
        self._waiting.remove(step)

    def next(self, *, engine_is_idle: bool) -> "StepState | None":
        """Give the step whose turn it is a sequence; None if none can have one now. No sequence is kept free for an engine without work."""
        if not self._waiting or not self._sequences.has_idle:
            return None
        step = self._first()
        kept = () if engine_is_idle or step.overtaken >= _MOST_OVERTAKINGS else self._kept_from(step)
        step.sequence = self._sequences.claim(step.prompt, reserve=step.prompt_size + step.most_tokens, kept=kept)
        if step.sequence is None:
            return None
        self._left.pop(step.sequence.identifier, None)
        for other in self._waiting[: self._waiting.index(step)]:
            other.overtaken += 1
        self._waiting.remove(step)
        return step

    def leave(self, step: "StepState", sequence: Sequence, *, seconds_per_token: float) -> None:
        """Take note of the conversation of a step that has just given its sequence back."""
        called = step.generation.finished is FinishReason.TOOL_CALLS
        seconds = len(sequence.cells) * seconds_per_token if called else 0.0
        self._left[sequence.identifier] = _Conversation(step.request.messages, self._clock() + seconds)

    def _kept_from(self, step: "StepState") -> Collection[int]:
        now = self._clock()
        return {place for place, left in self._left.items() if left.kept_until > now and not left.goes_on_with(step)}

    def _first(self) -> "StepState":
        """Return the step whose turn it is; `_waiting` is in the order of arrival."""
        levels = self._levels()
        return max(self._waiting, key=lambda step: (step.overtaken >= _MOST_OVERTAKINGS, self._is_cached(step), levels[step.identifier]))

    def _is_cached(self, step: "StepState") -> bool:
        return any(left.goes_on_with(step) for left in self._left.values())

    def _levels(self) -> dict[int, int]:
        now = self._clock()
        steps = self._waiting
        quantities = (
            [sum(message.role == "tool" for message in step.request.messages) for step in steps],
            [now - step.since for step in steps],
            [step.prompt_size for step in steps],
        )
        return {step.identifier: max(levels) for step, *levels in zip(steps, *map(_cut, quantities), strict=True)}


def _cut(values: Collection[float]) -> list[int]:
    """Return the level of each value, of as many equal parts between the least and the most."""
    least, most = min(values), max(values)
    width = (most - least) / _LEVELS
    return [min(int((value - least) / width), _LEVELS - 1) if width else 0 for value in values]
