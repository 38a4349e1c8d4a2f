"""Serve the MCP server on standard input and output, for a host that starts it as a program."""

import os
import sys
from contextlib import ExitStack, redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server

from ..util.runtime import run_in_daemon_thread

if TYPE_CHECKING:
    import anyio

_PIECE: Final = 65_536
_LONGEST_MESSAGE: Final = 8 * 1024 * 1024
"""Bytes; a host that sends more without an end of line has left."""


async def serve_stdio(server: MCPServer) -> None:
    """Serve the host that has started this program until it closes standard input.

    Nothing but the protocol is written to standard output: what tools and their children print goes to standard error.
    """
    low = server._lowlevel_server  # there is no public way to it
    with ExitStack() as claiming:
        claiming.enter_context(redirect_stdout(sys.__stdout__))
        async with stdio_server(stdin=cast("anyio.AsyncFile[str]", _InputLines())) as (heard, said):
            claiming.close()
            await low.run(heard, said, low.create_initialization_options())


class _InputLines:
    """The lines of standard input, which nothing else in this process can read from now on.

    The package reads it in a thread that is waited for, so that Ctrl-C would have no effect before the next line.
    """

    def __init__(self) -> None:
        self._input = os.dup(0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        self._rest = b""

    def __aiter__(self) -> "_InputLines":
        return self

    async def __anext__(self) -> str:
        while b"\n" not in self._rest:
            # Unbuffered: a thread that waits in a buffered file would hold its lock when the program ends.
            piece = await run_in_daemon_thread(partial(os.read, self._input, _PIECE))
            assert isinstance(piece, bytes), "it reads bytes"
            if not piece or len(self._rest) > _LONGEST_MESSAGE:
                raise StopAsyncIteration
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace")
