"""Keep pages of runs open, as a browser does, until standard input says so; then print when each run was seen first.

python -m benchmarks.console_figures.viewers HOST:PORT COOKIE COUNT
"""

import asyncio
import json
import re
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Final

_BEGAN: Final = re.compile(r"at (\d+\.\d+) of")


@dataclass(slots=True)
class Seen:
    """What the pages have shown."""

    delays: list[float] = field(default_factory=list)
    """Seconds from the moment in a run's prompt to that at which a page had it; those that were there at first are left out."""
    first_bytes: int = 0
    last_bytes: int = 0
    """Length of the list of runs at first and at last, on the first page."""


async def _page(address: str, cookie: str, seen: Seen, opened: asyncio.Event) -> None:
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**24)
    head = f"GET /console/live/runs HTTP/1.1\r\nhost: {address}\r\ncookie: nearfar_console={cookie}\r\naccept: text/event-stream\r\n\r\n"
    writer.write(head.encode())
    known: set[str] | None = None
    lines: list[str] = []
    while data := await reader.readline():
        if not data.startswith(b"data: "):
            continue
        now = time.monotonic()
        parts = json.loads(data.removeprefix(b"data: "))["runs"]
        lines = [line for part in parts for line in ([part] if isinstance(part, str) else lines[slice(*part)])]
        shown = "\n".join(lines)
        began = set(_BEGAN.findall(shown))
        if known is None:
            seen.first_bytes = seen.first_bytes or len(shown)
            known = began
            opened.set()
        seen.delays += [now - float(moment) for moment in began - known]
        seen.last_bytes = len(shown)
        known |= began


async def main(address: str, cookie: str, count: int) -> None:
    """Open the pages, tell that they are, and print what was seen when a line comes."""
    seen = Seen()
    opened = [asyncio.Event() for _ in range(count)]
    pages = [asyncio.create_task(_page(address, cookie, seen, each)) for each in opened]
    await asyncio.wait_for(asyncio.gather(*(each.wait() for each in opened)), 30)
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for page in pages:
        page.cancel()
    await asyncio.wait(pages)
    print(json.dumps(asdict(seen)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
