"""The pages of the trade-off, the memory, devices and privacy tell what is kept, and what to do where nothing is."""

import re
from pathlib import Path

import pytest
from busy_console import busy
from console_face import Tags, fields_of, opened

from nearfar import MemoryStore, ScriptedAgent, Tier
from nearfar.orchestrator.memory.sync.exchange import batches, receive
from nearfar.orchestrator.memory.sync.messages import Peer
from nearfar.protocols.address import parse_pairing
from nearfar.protocols.token_file import read_tokens

pytestmark = pytest.mark.anyio
EMPTY = {
    "policy": "was not read from a file",
    "tradeoff": "nearfar sweep",
    "memory": "[memory]",
    "devices": "[hub]",
    "privacy": "Nothing left this device",
    "money": "No task has an answer yet",
}


async def test_an_empty_page_says_what_fills_it(tmp_path: Path) -> None:
    async with opened(tmp_path, ScriptedAgent(lambda _: "Here.", name="near")) as console, console.browser() as browser:
        for page, told in EMPTY.items():
            reply = await browser.get(f"/console/{page}")
            assert (reply.status_code, told in reply.text) == (200, True), page


async def test_the_trade_off_shows_each_configuration_with_intervals_and_where_the_policy_stands(tmp_path: Path) -> None:
    async with busy(tmp_path) as console, console.browser() as browser:
        page = (await browser.get("/console/tradeoff")).text
        assert "You are here: cascade" in page
        for label in ("device", "cloud", "pevr/8", "eva/8"):
            assert re.search(rf"<td[^>]*>{label}</td><td[^>]*>[\d.]+% \[[\d.]+%, [\d.]+%\]</td>", page), label
        assert "seconds per task" in (await browser.get("/console/tradeoff?by=seconds")).text
        assert (await browser.get("/console/tradeoff?by=<script>")).status_code == 200


async def test_a_memory_is_found_and_tells_where_it_comes_from(tmp_path: Path) -> None:
    async with busy(tmp_path) as console, console.browser() as browser:
        found = (await browser.get("/console/memory?q=aisle")).text
        assert "aisle seat" in found
        assert "plumber" not in found
        item = (await browser.get("/console/memory/item?in=notes/ana&key=seat")).text
        assert all(told in item for told in ("it never leaves the device", "internal tool", "window seat", "this one"))
        missing = await browser.get("/console/memory/item?in=notes/ana&key=none")
        assert (missing.status_code, "there is no item" in missing.text) == (404, True)
        assert (await browser.get("/console/memory?in=a//b")).status_code == 400


async def test_a_conflict_is_decided(tmp_path: Path) -> None:
    async with busy(tmp_path) as console, console.browser() as browser:
        memory = console.hybrid.memory
        assert memory is not None
        with MemoryStore.open(tmp_path / "other.db", user="ana", embedder=None) as other:
            memory.store.put(("facts",), "guests", {"text": "They sleep in the hall."}, tier=Tier.USER)
            other.put(("facts",), "guests", {"text": "They sleep in the kitchen."}, tier=Tier.USER)
            exchange(memory.store, other)
        page = (await browser.get("/console/memory")).text
        assert "in the hall" in page
        assert "in the kitchen" in page
        forms = re.findall(r'<form[^>]*action="/console/memory/keep".*?</form>', page, re.DOTALL)
        lost = next(form for form in forms if 'value="present"' not in form)
        await browser.post("/console/memory/keep", data=fields_of(lost, "/console/memory/keep"))
        assert memory.store.conflicts() == []
        kept = memory.store.get(("facts",), "guests")
        assert kept is not None
        assert kept.value["text"] in ("They sleep in the hall.", "They sleep in the kitchen.")


def exchange(one: MemoryStore, other: MemoryStore) -> None:
    """Bring two memories of one user into step."""
    here, there = Peer("one", "ana"), Peer("other", "ana")
    first, second = one.replica(), other.replica()
    second.meet(here, first.hello(), is_caller=True)
    first.meet(there, second.hello(), is_caller=False)
    for sender, receiver, source, target in ((first, second, here, there), (second, first, there, here)):
        for batch in batches(sender, target, receiver.request(source, sender.hello().log)):
            receive(receiver, source, sender.engine.device, batch)


async def test_nothing_is_erased_without_a_target(tmp_path: Path) -> None:
    async with busy(tmp_path) as console, console.browser() as browser:
        page = (await browser.get("/console/memory/erasure?subject=Ana")).text
        fields = fields_of(page, "/console/memory/erase")
        assert (await browser.get("/console/memory/erasure?subject=&prefix=")).status_code == 400
        assert (await browser.post("/console/memory/erase", data={**fields, "subject": " ", "prefix": ""})).status_code == 400
        assert "There is no trace" in (await browser.get("/console/memory/erasure?subject=Nemo")).text
        memory = console.hybrid.memory
        assert memory is not None
        assert len(memory.store.search(("notes",))) == 2


async def test_erasing_a_person_forgets_the_runs_and_log_lines_that_name_them(tmp_path: Path) -> None:
    async with busy(tmp_path) as console, console.browser() as browser:
        await console.hybrid.run("What may Ana not eat?")
        assert any("Ana" in run.title for run in console.hybrid.runs.list())
        page = (await browser.get("/console/memory/erasure?subject=Ana")).text
        done = await browser.post("/console/memory/erase", data=fields_of(page, "/console/memory/erase"))
        assert "are erased" in done.text
        assert not any("Ana" in run.title for run in console.hybrid.runs.list())
        assert "Ana" not in (tmp_path / "router.jsonl").read_text(encoding="utf-8")


async def test_a_pairing_code_holds_a_token_that_the_hub_accepts(tmp_path: Path) -> None:
    async with busy(tmp_path) as console, console.browser() as browser:
        page = (await browser.get("/console/devices")).text
        assert all(told in page for told in ("gemma-3-270m", "74%, on battery", "fair", "3.0 GiB", "attached"))
        fields = fields_of(page, "/console/devices/pair")
        shown = (await browser.post("/console/devices/pair", data={**fields, "name": "tablet"})).text
        line = re.search(r"nearfar://[^<]*", shown)
        assert line is not None
        assert parse_pairing(line[0].replace("&amp;", "&")).name == "tablet"
        assert {record.caller for record in read_tokens(tmp_path / "workers.toml")} == {"phone", "tablet"}
        assert Tags(shown).handlers == []
        for name in ("", "<b>", "a b", "x" * 200):
            assert (await browser.post("/console/devices/pair", data={**fields, "name": name})).status_code == 400


async def test_what_was_held_back_is_shown_with_its_reason_and_without_its_text(tmp_path: Path) -> None:
    async with busy(tmp_path) as console, console.browser() as browser:
        page = (await browser.get("/console/privacy")).text
        assert "What was held back" in page
        assert "1 iban" in page
        assert re.search(r"the message to far looks private", page)
