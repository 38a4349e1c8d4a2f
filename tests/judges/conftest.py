"""The judges that the tests of this folder share; without one, its tests are skipped."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from sdk import CLIENT, TYPES, Sdk, sdk_at_work

from scripts.judges import JudgeMissingError


@pytest.fixture(scope="session")
def sdk() -> Iterator[Callable[[str], Sdk]]:
    """Gives the process that judges by the types of the named SDK."""
    with running(TYPES) as named:
        yield named


@pytest.fixture(scope="session")
def sdk_client() -> Iterator[Callable[[str], Sdk]]:
    """Gives the process that talks by the named SDK."""
    with running(CLIENT) as named:
        yield named


@contextmanager
def running(program: Path) -> Iterator[Callable[[str], Sdk]]:
    """Start a process per SDK when it is first asked for."""
    with ExitStack() as stack:
        started: dict[str, Sdk] = {}

        def named(name: str) -> Sdk:
            try:
                if name not in started:
                    started[name] = stack.enter_context(sdk_at_work(name, program))
            except JudgeMissingError as missing:
                pytest.skip(str(missing))
            return started[name]

        yield named
