"""llama.cpp as a part that may be absent: without a compiler it cannot be installed. Tests that need it are skipped then, and say so."""

from importlib.util import find_spec
from typing import Final

import pytest

HAS_LLAMA: Final = find_spec("llama_cpp") is not None
_REASON: Final = "llama.cpp is not installed: install a C++ compiler and run make again, or pip install 'nearfar[llama]'"
needs_llama: Final = pytest.mark.skipif(not HAS_LLAMA, reason=_REASON)
"""Marks a test, or a set of its parameters."""


def require_llama() -> None:
    """Skip the rest of the module that is being imported where llama.cpp is absent."""
    if not HAS_LLAMA:
        pytest.skip(_REASON, allow_module_level=True)
