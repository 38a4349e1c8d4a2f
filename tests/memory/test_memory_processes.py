"""Several processes write to the same items at once, and lose nothing."""

import subprocess
import sys
from pathlib import Path

from nearfar import MemoryStore

PROCESSES = 4
WRITES = 25

WRITE = """
import sys
from nearfar import MemoryStore
from nearfar.protocols import VersionConflict

path, name, writes = sys.argv[1], sys.argv[2], int(sys.argv[3])
with MemoryStore.open(path, embedder=None) as store:
    for number in range(writes):
        store.append(("shared",), "log", "entries", [f"{name}:{number}"])
        store.put(("own", name), str(number), {"n": number})
        while True:
            item = store.get(("shared",), "counter")
            count, version = (0, "absent") if item is None else (item.value["n"], item.version)
            try:
                store.put(("shared",), "counter", {"n": count + 1}, if_version=version)
                break
            except VersionConflict:
                continue
"""


def test_processes_lose_nothing_and_are_never_locked_out(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    arguments = [[sys.executable, "-c", WRITE, str(path), str(number), str(WRITES)] for number in range(PROCESSES)]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in arguments]
    ended = [(writer.communicate(timeout=100)[1], writer.returncode) for writer in writers]
    assert ended == [("", 0)] * PROCESSES
    with MemoryStore.open(path, embedder=None) as store:
        log, counter = store.get(("shared",), "log"), store.get(("shared",), "counter")
        assert log is not None
        assert counter is not None
        assert sorted(log.value["entries"]) == sorted(f"{name}:{number}" for name in range(PROCESSES) for number in range(WRITES))
        assert counter.value == {"n": PROCESSES * WRITES}
        assert len(store.search(("own",), limit=1000)) == PROCESSES * WRITES
