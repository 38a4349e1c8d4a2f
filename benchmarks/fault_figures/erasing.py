"""Look for words that were erased from the memory in every file of the framework: on a device, another one, and a hub."""

import asyncio
import json
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from typer.testing import CliRunner

from benchmarks.fault_figures.canaries import code
from nearfar import Hybrid, MemoryStore, Policy, Records
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.memory.in_tasks import TaskMemory, memory_tools
from nearfar.orchestrator.memory.sync.messages import Peer
from nearfar.orchestrator.memory.sync.service import serve_memory
from nearfar.orchestrator.memory.sync.session import Neighbour, sync_once
from nearfar.orchestrator.task.stores import CacheConfig, RecallConfig, RunsConfig
from nearfar.protocols import ScriptedAgent, StepRequest, ToolCall
from nearfar.protocols.fakes import Reply
from nearfar.protocols.items import Tier

_PRIVATE: Final = Policy.model_validate({"strategy": "device", "sensitivity": "private"})
_CONFIG: Final = '[memory]\nembed = false\nuser = "ana"\n[runs]\nfolder = "device/runs"\n[cache]\npath = "device/answers.db"\n'
_COLOURS: Final = ("red", "green", "blue", "white")


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """`erased_hits`: words found in any file after they were erased. `before_erasing`: the same before. No `data`."""
    before = after = lost = 0
    rounds = 2 if quick else 12
    for seed in range(rounds):
        found, left, missing = asyncio.run(_round(random.Random(seed)))
        before, after, lost = before + found, after + left, lost + missing
    return {"erased_hits": after, "before_erasing": before, "erasing_rounds": rounds, "kept_items_lost": lost}


async def _round(chance: random.Random) -> tuple[int, int, int]:
    """Hits in files before and after an erasure, and items that it took with it and should not have."""
    with tempfile.TemporaryDirectory() as name:
        folder, home, words = Path(name), os.getcwd(), [code(chance) for _ in range(4)]
        os.chdir(folder)
        try:
            (folder / "nearfar.toml").write_text(_CONFIG, encoding="utf-8")
            with (
                MemoryStore.open(folder / "device" / "memory.db", user="ana", embedder=None) as device,
                MemoryStore.open(folder / "hub" / "memory.db", embedder=None) as hub,
                MemoryStore.open(folder / "phone" / "memory.db", user="ana", embedder=None) as phone,
            ):
                await _lived(device, folder, words, chance)
                await _meet(device, hub, phone)
                before = _hits(folder, words)
                _erase(folder, "--subject", words[0])  # it stands in texts, and stamped on an item
                _erase(folder, "--prefix", f"people/{words[1][:4]}")
                await _meet(device, hub, phone)
                kept = device.get(("notes",), "kept", refresh_ttl=False)
                return before, _hits(folder, words), int(kept is None)
        finally:
            os.chdir(home)


async def _lived(store: MemoryStore, folder: Path, words: list[str], chance: random.Random) -> None:
    """Write items and serve tasks that hold the words in all ways in which tasks can."""
    subject, prefix, said, other = words
    store.put(("notes",), "kept", {"text": f"{chance.choice(_COLOURS)} is a colour"}, tier=Tier.USER)
    store.put(("notes",), "stamped", {"text": f"the secret is {said}"}, subject=subject, tier=Tier.USER)
    store.put(("notes",), "named", {"text": f"{subject.title()} likes {other}"}, tier=Tier.USER)
    store.supersede(("notes",), "named", {"text": f"{subject} likes nothing"})
    store.put(("people", prefix[:4]), "number", {"text": f'call "{prefix}" at once'}, tier=Tier.USER)
    store.patch(("notes",), "named", {"more": [{"n": chance.random()}]})
    for number, prompt in enumerate((f"What is the secret of {subject}?", 'Who is to be called "at once"?', f"{subject} likes?")):
        await _serve(store, folder, prompt, key=f"run-{number}", looks_up=False)
        await _serve(store, folder, prompt, key=f"run-{number}-again", looks_up=True)
    await _serve(store, folder, f'Remember: call "{prefix}" at once', key="told", looks_up=False)
    await _serve(store, folder, f"Fail for {subject}", key="failed", looks_up=True)


async def _serve(store: MemoryStore, folder: Path, prompt: str, *, key: str, looks_up: bool) -> None:
    memory = TaskMemory(
        store, recall=None if looks_up else RecallConfig(), tools=memory_tools(store) if looks_up else (), remember=looks_up
    )
    cache = CacheConfig(path=folder / "device" / "answers.db", semantic=False, shadow_share=0)
    near = ScriptedAgent(_repeating, name="near")
    async with Hybrid(
        near=near, policy=_PRIVATE, memory=memory, records=Records(RunsConfig(folder=folder / "device" / "runs"), cache=cache)
    ) as hybrid:
        await hybrid.run(prompt, idempotency_key=key)


def _repeating(request: StepRequest) -> Reply:
    said = " ".join(message.text + (message.tool_result.content if message.tool_result else "") for message in request.messages)
    if request.tools and not any(message.role == "tool" for message in request.messages):
        return ToolCall(id="1", name="recall", arguments={"query": request.messages[-1].text})
    return said


async def _meet(device: MemoryStore, hub: MemoryStore, phone: MemoryStore) -> None:
    """Exchange everything by way of the hub, twice, so that all have heard of all."""
    tokens = {"device": "a-long-random-token", "phone": "another-random-token"}
    async with serve_memory(hub, "localhost:0", tokens=tokens, users=dict.fromkeys(tokens, "ana"), is_hub=True) as server:
        for _ in range(2):
            for name, store in (("device", device), ("phone", phone)):
                await sync_once(store, Neighbour(peer=Peer("hub", "", is_relay=True), address=server.address, token=tokens[name]))


def _erase(folder: Path, *arguments: str) -> None:
    invoked = CliRunner().invoke(app, ["memory", "erase", *arguments, "--yes", "--json", "--store", str(folder / "device" / "memory.db")])
    if "erased" not in json.loads(invoked.stdout):
        raise RuntimeError(invoked.stdout)


def _hits(folder: Path, words: list[str]) -> int:
    """Words in files, in any case and any encoding that the framework writes."""
    contents = [path.read_bytes().lower() for path in folder.rglob("*") if path.is_file()]
    encodings: tuple[Callable[[str], bytes], ...] = (str.encode, lambda word: word.encode("utf-16-le"))
    return sum(encode(word) in content for content in contents for word in words for encode in encodings)
