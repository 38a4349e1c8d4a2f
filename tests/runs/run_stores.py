"""What the tests of runs share."""

from collections.abc import Callable

from nearfar.orchestrator.runs.store import RunStore

Opener = Callable[[], RunStore]
"""Opens the same store as one more process would."""
