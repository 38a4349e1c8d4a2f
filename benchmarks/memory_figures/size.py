"""How many bytes of the store's file a remembered turn takes: its words, its meanings, and what keeps it in step with other devices."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nearfar.orchestrator.memory.agent_memory import AgentMemory
from nearfar.orchestrator.memory.store import MemoryStore

from .locomo import remember
from .locomo_data import conversations


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Measure the first conversation of LoCoMo, `quick` or not: a shorter one would mostly be made of empty tables."""
    del quick
    found = conversations(data)[:1]
    if not found:
        return {"bytes_per_turn": None, "size_missing": f"no memory/locomo*.json.gz in {data}"}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "memory.db"
        with MemoryStore.open(path) as store:
            turns = len(remember(AgentMemory(store), found[0]))
        return {"bytes_per_turn": path.stat().st_size / turns}
