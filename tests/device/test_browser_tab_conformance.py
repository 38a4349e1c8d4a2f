"""A browser tab with the shipped near model keeps the contract of agents, through the hub."""

from collections.abc import AsyncIterator
from unittest import SkipTest

import anyio
import pytest
from browser_tab import Tab, attached_tab, long_prompt, require_tab, served
from chromium import opened
from near_model import OPEN, QUESTION

from nearfar.protocols import Agent
from nearfar.protocols.testing import EventLoop
from nearfar.protocols.testing.agent_conformance import CHECKS, Check, Subject, ToolUse, run_check

require_tab()
pytestmark = pytest.mark.anyio

NOT_CLAIMED = {
    "stop_sequence_ends_the_text": "no seeds",
    "broken_output_schema_is_refused": "no json_schema",
    "characters_split_across_tokens_arrive_whole": "the model writes no emoji",
    "same_seed_gives_the_same_text": "no seeds",
    "far_agent_refuses_private_text": "the tab is near",
}
"""Checks that do not apply, and why."""


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """One event loop for the module, so that its tests share a tab."""
    return "asyncio", {"loop_factory": EventLoop}


@pytest.fixture(scope="module")
async def subject() -> AsyncIterator[Subject]:
    async with served() as hub, opened() as browser:
        with anyio.fail_after(60):
            tab = await attached_tab(hub, browser)
            tested = await _subject(tab)
        yield tested
        assert (tab.watched.errors, tab.watched.elsewhere) == ([], [])


async def _subject(tab: Tab) -> Subject:
    async def create() -> Agent:
        return tab.served.hub.agent("phone")

    return Subject(
        create=create,
        prompt=QUESTION,
        long_prompt=await long_prompt(tab),
        tool_use=ToolUse(prompt=QUESTION, tools=(OPEN,), result="Vera Falk"),
        live_steps=lambda _: tab.live_steps,
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_a_tab_keeps_the_contract(check: Check, subject: Subject) -> None:
    applies = check.__name__ not in NOT_CLAIMED
    try:
        await run_check(check, subject)
    except SkipTest:
        assert not applies
    else:
        assert applies
