"""Ask the user at the terminal to approve or deny tool calls."""

import json
import os
import sys
import termios
from collections.abc import Sequence
from functools import partial
from typing import Final

import anyio
from rich.text import Text

from ...protocols import ApprovalRequest
from ..task.tools import Approver
from ..util.escaping import spell_out
from ..util.runtime import run_in_daemon_thread
from .printing import notes

_LINE: Final = 4096
"""Largest number of bytes in a line of a terminal."""


def terminal_approver() -> Approver | None:
    """Return an approver that asks about one call after the other, or None if there is no terminal."""
    return _Terminal().ask if sys.stdin.isatty() and sys.stderr.isatty() else None


class _Terminal:
    def __init__(self) -> None:
        self._turn = anyio.Lock()

    async def ask(self, requests: Sequence[ApprovalRequest]) -> dict[str, bool]:
        async with self._turn:  # parts of a task may ask at the same time
            return {request.id: await run_in_daemon_thread(partial(_ask, request)) is True for request in requests}


def _ask(request: ApprovalRequest) -> bool:
    """Show the call and return True if the user types y or yes. An empty line or the end of input denies it."""
    notes.print(Text(f"\n{spell_out(request.reason)}:", style="bold yellow"), soft_wrap=True)
    shown = call_text(request)
    notes.print(Text(f"  {shown}"), soft_wrap=True)
    terminal = sys.stdin.fileno()
    termios.tcflush(terminal, termios.TCIFLUSH)  # typed before the question: it answers nothing
    # A call that fills the screen could end in text that looks like another call, so its name and length are repeated.
    notes.print(f"run {request.call.name}, the {len(shown):,} characters above? y/N ", end="")
    # Not through `sys.stdin`: a thread waiting in there would keep the program from ending.
    return os.read(terminal, _LINE).decode(errors="replace").strip().lower() in ("y", "yes")


def call_text(request: ApprovalRequest) -> str:
    """Return the whole call in one line, control characters written out: a call that is cut off cannot be judged."""
    arguments = json.dumps(request.call.arguments, ensure_ascii=False)
    return spell_out(f"{request.call.name} {arguments}")
