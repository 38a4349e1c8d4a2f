"""A process that consolidates a store, and hangs in the second summary until somebody kills it."""

import sys
from pathlib import Path

import anyio
from nights import Clock, Night

from nearfar.orchestrator.memory.sqlite import SqliteEngine
from nearfar.orchestrator.memory.store import MemoryStore
from nearfar.protocols import ScriptedAgent


async def main(path: Path, seconds: float) -> None:
    hang = anyio.Event()

    async def pace() -> None:
        if near.tokens_decoded:
            sys.stdout.write("hanging\n")
            sys.stdout.flush()
            await hang.wait()

    near = ScriptedAgent(["Ann was in Rome.", "Ann has cats."], pace=pace)
    clock = Clock(seconds)
    with MemoryStore(SqliteEngine(path), user="ann", now=clock) as store:
        await Night(store, clock).sleeper(near).run()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), float(sys.argv[2]))
