"""How fast two replicas come into step over gRPC, each in a process of its own with its own SQLite file, and what erasing leaves behind."""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from langgraph.store.base import PutOp

from nearfar.orchestrator.memory.store import MemoryStore
from nearfar.orchestrator.memory.sync.messages import Peer
from nearfar.orchestrator.memory.sync.service import serve_memory
from nearfar.orchestrator.memory.sync.session import Neighbour, sync_once
from nearfar.protocols.items import Tier

_OPERATIONS: Final = 50_000
_QUICK_OPERATIONS: Final = 10_000
_BATCH: Final = 1000
_ROUNDS: Final = 3
_TEXT: Final = "what someone said on some day about something that an agent may want to know again, and so on, " * 2
"""200 bytes, as a remembered sentence has."""
_CANARY: Final = "canary-e5b1"
_DEVICES: Final = ("phone", "laptop", "tablet")
_HUB: Final = Peer("hub", "", is_relay=True)


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """`data` is not needed."""
    count = _QUICK_OPERATIONS if quick else _OPERATIONS
    rounds = [_rates(count) for _ in range(_ROUNDS)]
    pushes, pulls = zip(*rounds, strict=True)
    return {
        "sync_ops_per_s": sorted(min(rates) for rates in rounds)[_ROUNDS // 2],
        "sync_push_ops_per_s": [round(rate) for rate in pushes],
        "sync_pull_ops_per_s": [round(rate) for rate in pulls],
        "sync_erased_canary_hits": asyncio.run(_canary_hits()),
    }


def _rates(count: int) -> tuple[float, float]:
    """Operations per second that a device sends to a fresh hub, and that a fresh device then gets from it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _served(folder / "hub.db", folder / "socket") as address, _opened(folder / "phone.db") as phone:
            for start in range(0, count, _BATCH):
                phone.batch(PutOp(("notes",), str(number), {"text": _TEXT}) for number in range(start, start + _BATCH))
            pushed = _timed(phone, address, sent=count)
            with _opened(folder / "laptop.db") as laptop:
                return pushed, _timed(laptop, address, received=count)


def _timed(store: MemoryStore, address: str, *, sent: int = 0, received: int = 0) -> float:
    started = time.perf_counter()
    result = asyncio.run(sync_once(store, Neighbour(peer=_HUB, address=address)))
    elapsed = time.perf_counter() - started
    assert (result.sent.operations, result.received.operations) == (sent, received)
    return (sent + received) / elapsed


@contextmanager
def _served(store: Path, socket: Path) -> Iterator[str]:
    """A hub in a process of its own."""
    server = subprocess.Popen([sys.executable, __file__, str(store), f"unix:{socket}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().decode().strip()
    finally:
        server.communicate()  # the end of its input is its end


async def _serve(path: str, address: str) -> None:
    with _opened(Path(path)) as store:
        async with serve_memory(store, address, tokens={}, users={"": "anna"}, is_hub=True) as server:
            print(server.address, flush=True)
            await asyncio.to_thread(sys.stdin.read)


def _opened(path: Path) -> MemoryStore:
    return MemoryStore.open(path, user="anna", embedder=None, tier=Tier.USER)


async def _canary_hits() -> int:
    """Files in which something is left of what was erased on one device, when all have synchronised again."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with _devices(folder) as (devices, hub):
            await _round(devices, hub)
            for device, store in devices.items():  # one of them is never sent
                store.put(("notes",), f"offline at {device}", {"text": f"{_CANARY} written late"}, subject="carl")
            devices["phone"].erase(subject="carl")
            await _round(devices, hub)
            await _round(devices, hub)
        return sum(_CANARY.encode() in file.read_bytes() for file in folder.rglob("*") if file.is_file())


@asynccontextmanager
async def _devices(folder: Path) -> AsyncIterator[tuple[dict[str, MemoryStore], str]]:
    stores = {name: _opened(folder / f"{name}.db") for name in (*_DEVICES, "hub")}
    for name in _DEVICES:
        stores[name].put(("notes",), f"from {name}", {"text": f"{_CANARY} written early"}, subject="carl")
    try:
        async with serve_memory(stores["hub"], "localhost:0", tokens={}, users={"": "anna"}, is_hub=True) as server:
            yield {name: stores[name] for name in _DEVICES}, server.address
    finally:
        for store in stores.values():
            store.close()


async def _round(devices: dict[str, MemoryStore], hub: str) -> None:
    for store in devices.values():
        await sync_once(store, Neighbour(peer=_HUB, address=hub))


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
