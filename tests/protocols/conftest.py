"""What the tests of the wire share."""

import datetime
from pathlib import Path

import pytest
from certificates import write_certificate


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Paths of a self-signed certificate for localhost and of its private key."""
    return write_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def other_certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate that nobody has signed either, of somebody else."""
    return write_certificate(tmp_path_factory.mktemp("other_tls"))


@pytest.fixture(scope="session")
def expired_certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate whose time was over a minute ago."""
    return write_certificate(tmp_path_factory.mktemp("old_tls"), lifetime=datetime.timedelta(minutes=-1))
