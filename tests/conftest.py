"""Fixtures for all tests."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """grpc.aio runs on asyncio only, so all async tests do."""
    return "asyncio"
