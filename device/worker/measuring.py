"""Measure each step: when its first token came, how fast its tokens went, its share of the energy, its part of the cache.

Energy is read between passes through the model, whenever the steps that are under way change and every now and then in between. The
joules
drawn since the last look are shared out in proportion to the tokens that each step has put through the model since then. The energy of a
step that is shorter than the reader can resolve, or that no reader sees, is estimated from the model's profile on this device, if there
is one.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...protocols import EnergySource, Execution, Performance
from ..energy import Meter, open_reader
from ..profiles import profile_of

_LOOK_SECONDS: Final = 0.2
"""Between two looks at the meter while the same steps are under way."""

Estimate = Callable[[int, int], "float | None"]
"""Joules for a number of prompt tokens and one of generated tokens; None if the device's power is unknown."""


@dataclass(slots=True, eq=False)
class Measures:
    """Measures of one step, from its first pass through the model on."""

    began: float = 0.0
    ended: float = 0.0
    first_token: float | None = None
    """When it came."""
    tokens: int = 0
    """Put through the model."""
    prefill_tokens: int = 0
    """Tokens put through the model before the first token was chosen."""
    first_tokens: int = 0
    """Output once the first token was chosen: the syntax that begins a tool call comes before it, and may follow at once."""
    cells: int = 0
    """Cells of the key-value cache that it held at its end, which is the most that it held."""
    unpaid_tokens: int = 0
    """Put through the model since the last look at the meter."""
    joules: float | None = 0.0

    def fed(self, tokens: int) -> None:
        """Count tokens that go through the model with the next pass."""
        self.tokens += tokens
        self.unpaid_tokens += tokens

    def chosen(self, output_tokens: int) -> None:
        """Take note that a token was chosen, after which the output has `output_tokens` tokens."""
        if self.first_token is None:
            self.first_token = time.monotonic()
            self.prefill_tokens = self.tokens
            self.first_tokens = output_tokens

    def charge(self, joules: float | None) -> None:
        """Add a share of the energy; None: unknown."""
        self.unpaid_tokens = 0
        self.joules = None if self.joules is None or joules is None else self.joules + joules


class Measuring:
    """Measures the steps of one scheduler.

    Args:
        kv_bytes_per_token: of the model's cache; None: unknown.
        meter: sees what computes; None: nothing does.
        estimate: joules by the model's profile; None: there is none.
    """

    def __init__(self, *, kv_bytes_per_token: int | None = None, meter: Meter | None = None, estimate: Estimate | None = None) -> None:
        self._kv_bytes_per_token = kv_bytes_per_token
        self._meter = meter
        self._estimate = estimate
        self._steps: list[Measures] = []
        self._looked = 0.0

    def begin(self, step: Measures) -> None:
        """Begin a step that is about to go through the model."""
        self._look()
        self._steps.append(step)
        step.began = time.monotonic()

    def passed(self) -> None:
        """Read the energy after a pass through the model, unless the last look was just before."""
        if self._meter is not None and time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._look()

    def end(self, step: Measures, *, cells: int) -> None:
        """End a step, however it ended; it held so many cells of the cache."""
        step.ended, step.cells = time.monotonic(), cells
        self._look()
        self._steps.remove(step)

    def performance(self, step: Measures, output_tokens: int) -> Performance:
        """Return the measures of a step that is over."""
        joules, source = self._energy(step, output_tokens)
        first = step.ended if step.first_token is None else step.first_token
        return Performance(
            first_token_seconds=None if step.first_token is None else first - step.began,
            prefill_tokens_per_second=_rate(step.prefill_tokens, first - step.began),
            decode_tokens_per_second=_rate(output_tokens - step.first_tokens, step.ended - first),
            joules=joules,
            joules_source=source,
            kv_bytes=None if self._kv_bytes_per_token is None else step.cells * self._kv_bytes_per_token,
        )

    def _energy(self, step: Measures, output_tokens: int) -> tuple[float | None, EnergySource]:
        if self._meter is not None and step.joules and step.ended - step.began >= self._meter.least_seconds:
            return step.joules, EnergySource.MEASURED
        joules = None if self._estimate is None else self._estimate(step.prefill_tokens, output_tokens)
        return joules, EnergySource.UNAVAILABLE if joules is None else EnergySource.ESTIMATED

    def _look(self) -> None:
        """Share out the energy drawn since the last look. Energy drawn while no step was under way is charged to none."""
        if self._meter is None:
            return
        self._looked = time.monotonic()
        if not self._steps:
            self._meter.start()
            return
        drawn = self._meter.stop().joules
        tokens = sum(step.unpaid_tokens for step in self._steps)
        for step in self._steps:
            share = step.unpaid_tokens / tokens if tokens else 1 / len(self._steps)
            step.charge(None if drawn is None else drawn * share)


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens > 0 and seconds > 0 else None


def measuring_of(path: Path, execution: Execution | None, *, kv_bytes_per_token: int | None) -> Measuring:
    """Return the measuring for the model at `path`, with the reader and the profile for this execution."""
    reader, profile = open_reader(execution), profile_of(path, execution)
    return Measuring(
        kv_bytes_per_token=kv_bytes_per_token,
        meter=None if reader is None else Meter(reader),
        estimate=None if profile is None else profile.joules,
    )
