"""LangGraph's own conformance suite of checkpointers, on the runs' one, in both databases."""

from collections.abc import AsyncGenerator

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import BASE_CAPABILITIES
from run_stores import Opener


@pytest.mark.anyio
async def test_all_base_capabilities_are_there_and_pass(opened: Opener) -> None:
    async def saver() -> AsyncGenerator[BaseCheckpointSaver[int], None]:
        store = opened()
        yield store.checkpointer
        with store.database.writing() as session:  # the next suite wants an empty one
            for table in ("checkpoints", "pending"):
                session.execute(f"DELETE FROM {table}")

    report = await validate(checkpointer_test("runs")(saver))
    assert {name: result.failures for name, result in report.results.items() if result.failures} == {}
    assert {capability.value for capability in BASE_CAPABILITIES} <= {name for name, result in report.results.items() if result.passed}
