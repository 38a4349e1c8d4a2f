"""Asking whoever sits at the terminal whether a tool may be called."""

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
from ..task.approvals import Approver
from ..util.escaping import spelled_out
from ..util.threads import run_in_daemon_thread
from .console import notes

_LINE: Final = 4096
"""Bytes that a terminal's line has at most."""


def terminal_approver() -> Approver | None:
    """Asks about one call after the other; None where nobody sits there."""
    return _Terminal().ask if sys.stdin.isatty() and sys.stderr.isatty() else None


class _Terminal:
    def __init__(self) -> None:
        self._turn = anyio.Lock()

    async def ask(self, requests: Sequence[ApprovalRequest]) -> dict[str, bool]:
        async with self._turn:  # parts of a task may ask side by side
            return {request.id: await run_in_daemon_thread(partial(_asked, request)) is True for request in requests}


def _asked(request: ApprovalRequest) -> bool:
    """Whether the answer is yes. Nothing, or the end of input, is a no."""
    notes.print(Text(f"\n{spelled_out(request.reason)}:", style="bold yellow"), soft_wrap=True)
    shown = shown_call(request)
    notes.print(Text(f"  {shown}"), soft_wrap=True)
    terminal = sys.stdin.fileno()
    termios.tcflush(terminal, termios.TCIFLUSH)  # what was typed before the question is no answer to it
    # Where the call fills the screen, its end could pass for another one.
    notes.print(f"run {request.call.name}, the {len(shown):,} characters above? y/N ", end="")
    # Not through `sys.stdin`: a thread that waits in there would be in the way of the program's end.
    return os.read(terminal, _LINE).decode(errors="replace").strip().lower() in ("y", "yes")


def shown_call(request: ApprovalRequest) -> str:
    """The whole call in one line: what is cut off, or moves the cursor, could not be judged."""
    arguments = json.dumps(request.call.arguments, ensure_ascii=False)
    return spelled_out(f"{request.call.name} {arguments}")
