"""A sandbox for chat templates, which are untrusted programs: they cannot reach Python, compute without end, or fill the memory with one
operation.

Only the worker process imports this module.
"""

import signal
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, NoReturn

import jinja2
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ...protocols import ModelError
from .memory_limit import limited_memory

_SECONDS: Final = 5.0
"""CPU time; ordinary templates take milliseconds."""
_BYTES: Final = 1 << 30
_LONGEST_PRODUCT: Final = 1 << 20
_MOST_BITS: Final = 1 << 12


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's own sandbox, with bounds on the operations that one expression can make as large as it likes."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401 - Jinja's signature
        """Refuse products and powers that are too large; Jinja calls this for the intercepted operators."""
        too_large = _is_large_product(left, right) if operator == "*" else _is_large_power(left, right)
        if too_large:
            raise jinja2.TemplateError(f"the template computes a value that is too large, with {operator}")
        return super().call_binop(context, operator, left, right)


@contextmanager
def bounded() -> Iterator[None]:
    """Limit the CPU time of what is done inside, by a signal, and the process's further memory: only for the main thread.

    Raises `ModelError` when the time is over, `MemoryError` beyond the memory.
    """
    handler = signal.signal(signal.SIGVTALRM, _give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)
    try:
        with limited_memory(_BYTES):
            yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)


def _give_up(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise ModelError(f"the model's chat template computed for more than {_SECONDS:g} s", hint="use another model file")


def _is_large_product(left: object, right: object) -> bool:
    pairs = ((left, right), (right, left))
    return any(isinstance(one, Sized) and isinstance(other, int) and len(one) * other > _LONGEST_PRODUCT for one, other in pairs)


def _is_large_power(left: object, right: object) -> bool:
    return isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _MOST_BITS
