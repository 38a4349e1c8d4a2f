"""The path of a prompt stays short enough for a newcomer to read it."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from source_tree import ROOT

from nearfar import Hybrid, ScriptedAgent, ToolCall, tool

pytestmark = pytest.mark.anyio

MOST_FILES = 35


@tool(effect="read")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@contextmanager
def files_passed() -> Iterator[set[str]]:
    """Note the installed files that functions run from within the block, in all threads that begin in it."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(before)
        threading.setprofile(before)


async def test_a_prompt_with_a_tool_call_passes_through_few_files() -> None:
    call = ToolCall(id="1", name="add", arguments={"a": 1, "b": 2})
    async with Hybrid(near=ScriptedAgent([call, "3"] * 2), tools=[add]) as hybrid:
        await hybrid.run("How much is 1 + 2?")  # loads modules, whose classes are made in frames, too
        with files_passed() as seen:
            assert (await hybrid.run("How much is 1 + 2?")).text == "3"
    rooms = [ROOT / room for room in ("orchestrator", "protocols", "device", "cloud", "public")]
    installed = {name for name in seen if any(Path(name).is_relative_to(room) for room in rooms)}
    passed = sorted(name for name in installed if not Path(name).is_relative_to(ROOT / "protocols" / "testing"))  # the loop of the tests
    assert 0 < len(passed) <= MOST_FILES, "\n".join(passed)
