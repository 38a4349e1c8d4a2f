"""The judges that the tests of this folder share; without one, its tests are skipped."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from sdk import Sdk, sdk_at_work

from scripts.judges import JudgeMissingError


@pytest.fixture(scope="session")
def sdk() -> Iterator[Callable[[str], Sdk]]:
    """Gives the process that judges by the types of the named SDK."""
    with ExitStack() as stack:
        running: dict[str, Sdk] = {}

        def named(name: str) -> Sdk:
            try:
                if name not in running:
                    running[name] = stack.enter_context(sdk_at_work(name))
            except JudgeMissingError as missing:
                pytest.skip(str(missing))
            return running[name]

        yield named
