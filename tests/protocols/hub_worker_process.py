"""A worker in a process of its own, for tests that kill it: `python hub_worker_process.py ADDRESS TOKEN LOG`.

Its agent counts, one number every few milliseconds, and writes the key of each step to the log before the first number.
"""

import asyncio
import sys
from pathlib import Path

from nearfar.protocols import ScriptedAgent, StepRequest
from nearfar.protocols.attach import Worker
from nearfar.protocols.fakes import Reply

PIECES = [f"{number} " for number in range(40)]


async def main(address: str, token: str, log: Path) -> None:
    def count(request: StepRequest) -> Reply:
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{request.idempotency_key}\n")
        return PIECES

    await Worker(ScriptedAgent(count, pace=0.01), address, token=token).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
