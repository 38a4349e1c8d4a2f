"""The order in which waiting steps get a sequence of the cache: a follow-up turn whose prefix is still cached goes before a new task.

A sequence whose step called tools is kept free for its next turn, at most as long as reading its cells again would take, so that waiting
in vain costs no more than it could have saved, and while others leave the engine enough to do. All others go in the order of arrival, and a
step that later ones have overtaken too often goes first. After SearchAgent-X (arXiv 2505.12065), without its levels: they brought nothing.

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

_MOST_OVERTAKINGS: Final = 2
"""Steps, for each sequence, that may go before one that came earlier: more let single turns wait longer than in the order of arrival."""


@dataclass(frozen=True, slots=True)
class _LeftConversation:
    """A conversation whose last step left its cells in a sequence."""

    messages: tuple[Message, ...]
    kept_until: float

    def goes_on_with(self, step: "StepState") -> bool:
        """Return True for a next turn of it."""
        messages = step.request.messages
        return len(messages) > len(self.messages) and messages[: len(self.messages)] == self.messages


class StepAdmission:
    """The steps that wait for a sequence."""

    def __init__(self, sequences: Sequences, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._sequences = sequences
        self._clock = clock
        self._waiting: list[StepState] = []
        self._left: dict[int, _LeftConversation] = {}
        """By the identifier of the idle sequence."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> "Iterator[StepState]":
        return iter(tuple(self._waiting))

    def add(self, step: "StepState") -> None:
        """Let a step wait."""
        self._waiting.append(step)

    def remove(self, step: "StepState") -> None:
        """Let a step wait no longer: it was cancelled, or its time is over."""
        self._waiting.remove(step)

    def next(self, *, engine_is_idle: bool) -> "StepState | None":
        """Give the step whose turn it is a sequence; None if none can have one now. No sequence is kept free for an engine without work."""
        if not self._waiting or not self._sequences.has_idle:
            return None
        step = self._first()
        kept = () if engine_is_idle or self._is_due(step) else self._kept_from(step)
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
        self._left[sequence.identifier] = _LeftConversation(step.request.messages, self._clock() + seconds)

    def _kept_from(self, step: "StepState") -> Collection[int]:
        """Return the sequences that are kept for other conversations: half of all at most, since no next turn may ever come."""
        now = self._clock()
        kept = [place for place, left in self._left.items() if left.kept_until > now and not left.goes_on_with(step)]
        return sorted(kept, key=lambda place: self._left[place].kept_until)[-(self._sequences.count // 2) :]

    def _first(self) -> "StepState":
        """Return the step whose turn it is; `_waiting` is in the order of arrival."""
        return max(self._waiting, key=lambda step: (self._is_due(step), self._is_cached(step)))

    def _is_due(self, step: "StepState") -> bool:
        return step.overtaken >= _MOST_OVERTAKINGS * self._sequences.count

    def _is_cached(self, step: "StepState") -> bool:
        return any(left.goes_on_with(step) for left in self._left.values())
