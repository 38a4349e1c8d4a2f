"""A process of a local sweep: it opens the study's agents, makes the runs it is given, several at once, and ends with its parent.

Parent and child speak JSON lines: the study goes in, then "ready" or an error comes out; then items go in and records come out.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import anyio

from ....protocols import NearfarError, WorkerCrashed
from ....protocols.errors import travelling_class
from .study import Study
from .workbench import Item, Workbench

logger = logging.getLogger(__name__)

LONGEST_LINE = 1 << 26
"""Bytes of a message between parent and child."""

Json = dict[str, Any]
Send = Callable[[Json], None]


async def work_until_parent_leaves(send: Send) -> None:
    """Serve the parent until standard input closes; what still runs then is stopped."""
    reader = await _standard_input()
    study = Study.model_validate_json(await reader.readline())
    try:
        async with Workbench(study) as workbench:
            send({"ready": True})
            async with anyio.create_task_group() as running:
                async for line in reader:
                    running.start_soon(_run, workbench, json.loads(line), send)
                running.cancel_scope.cancel()
    except NearfarError as error:
        send(error_as_json(error))


async def _run(workbench: Workbench, order: Json, send: Send) -> None:
    send({"number": order["number"], **await answer_of(workbench, order["item"])})


async def answer_of(workbench: Workbench, item: Json) -> Json:
    """Make a run and return its record as JSON, or the error for the parent to handle."""
    try:
        record = await workbench.run(Item.model_validate(item))
    except NearfarError as error:
        return error_as_json(error)
    except Exception as error:  # a task boundary: a failure in the user's world must not end the other runs of the process
        logger.exception("run %s broke", item)
        return error_as_json(WorkerCrashed(f"the run broke: {type(error).__name__}: {error}"))
    return {"record": record.model_dump(mode="json")}


def error_as_json(error: NearfarError) -> Json:
    """Convert an error to JSON for the parent; `pools.as_error` converts it back."""
    return {"error": travelling_class(error).__name__, "message": error.message, "hint": error.hint}


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def _private_output() -> Send:
    """Redirect prints to standard error, and return a function that sends messages to the parent on the old standard output."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(message: Json) -> None:
        answers.write(json.dumps(message).encode() + b"\n")
        answers.flush()

    return send


def main() -> None:
    """Run the child process."""
    logging.basicConfig(level=logging.WARNING, format="nearfar sweep: %(message)s")
    # Ctrl-C reaches the whole terminal; the parent decides when its workers stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(work_until_parent_leaves(_private_output()))


if __name__ == "__main__":
    main()
