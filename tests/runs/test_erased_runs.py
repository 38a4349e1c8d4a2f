"""What is erased from the memory is in no run, trace or file that stands beside it."""

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PostgresServer
from pydantic import JsonValue
from run_stores import Opener
from typer.testing import CliRunner

from nearfar import Hybrid, MemoryStore, Policy, Records, tool
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.memory.erasing import Erased, Wording
from nearfar.orchestrator.memory.in_tasks import TaskMemory, memory_tools
from nearfar.orchestrator.memory.provenance import recalled_item
from nearfar.orchestrator.runs import KeptTask, RunFailure, digest
from nearfar.orchestrator.runs.erasing import ErasedRuns, Holding, find_holding, find_runs_holding, forget_holding
from nearfar.orchestrator.runs.store import NAMING, RunStore
from nearfar.orchestrator.storage.postgres import PostgresDatabase
from nearfar.orchestrator.storage.sqlite import SqliteDatabase
from nearfar.orchestrator.storage.sqlite_files import PRAGMAS
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.stores import CacheConfig, RecallConfig, RunsConfig
from nearfar.orchestrator.tracing import open_traces
from nearfar.protocols import Message, NotFound, RunBusy, ScriptedAgent, StepRequest, StoreUnavailable, ToolCall
from nearfar.protocols.fakes import Reply
from nearfar.protocols.items import ItemAddress, Tier

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("wide_terminal")]
CANARY = "canary7f3a"
NOTE = f'Carl\'s "number" is {CANARY}.'
PRIVATE = Policy.model_validate({"strategy": "device", "sensitivity": "private"})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEARFAR_HOME", str(tmp_path / "home"))
    (tmp_path / "nearfar.toml").write_text(
        '[memory]\nembed = false\n[runs]\nfolder = "home/runs"\n[cache]\npath = "home/answers.db"\n', encoding="utf-8"
    )
    return tmp_path / "home"


@pytest.fixture
def store(home: Path) -> Iterator[MemoryStore]:
    with MemoryStore.open(home / "memory" / "memory.db", embedder=None) as opened:
        yield opened


def hits(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.rglob("*") if file.is_file() and CANARY.encode() in file.read_bytes())


def erase(*arguments: str) -> Any:  # noqa: ANN401 - whatever the command prints
    printed = CliRunner().invoke(app, ["memory", "erase", *arguments, "--yes", "--json"])
    return json.loads(printed.stdout)


def repeating(request: StepRequest) -> Reply:
    """Look it up once, then repeat all that was told."""
    if request.tools and not any(message.role == "tool" for message in request.messages):
        return ToolCall(id="1", name="recall", arguments={"query": "number of Carl"})
    return " ".join(message.text + (message.tool_result.content if message.tool_result else "") for message in request.messages)


async def served(store: MemoryStore, home: Path, prompt: str, *, looks_up: bool = False, keeps: bool = True, key: str = "run-1") -> None:
    tools = memory_tools(store) if looks_up else ()
    memory = TaskMemory(store, recall=None if looks_up else RecallConfig(), tools=tools)
    config = RunsConfig(folder=home / "runs")
    cache = CacheConfig(path=home / "answers.db", semantic=False, shadow_share=0)
    near = ScriptedAgent(repeating, name="near")
    with closing(open_traces(config)) as traces:
        records = Records(config if keeps else None, traces=traces, cache=cache)
        async with Hybrid(near=near, policy=PRIVATE, memory=memory, records=records) as hybrid:
            assert (await hybrid.run(prompt, idempotency_key=key)).text


@pytest.mark.parametrize("keeps", [True, False], ids=["with runs", "traces alone"])
@pytest.mark.parametrize("looks_up", [False, True], ids=["put before it", "looked up"])
async def test_runs_and_traces_that_recalled_it_go_with_it(store: MemoryStore, home: Path, looks_up: bool, keeps: bool) -> None:
    store.put(("people",), "carl", {"text": NOTE}, subject="somebody")
    await served(store, home, "What is the number of Carl?", looks_up=looks_up, keeps=keeps)
    await served(store, home, "Name a colour.", keeps=keeps, key="run-2")
    assert len(hits(home)) >= 2
    told = erase("--subject", "somebody")
    assert ("run-1" in told["traces"], "run-1" in told["runs"]) == (True, keeps)
    assert hits(home) == []
    with closing(open_traces(RunsConfig(folder=home / "runs"))) as traces, pytest.raises(NotFound):
        traces.entries("run-1")


async def test_runs_are_found_by_the_name_where_nothing_is_stamped_and_nothing_was_recalled(store: MemoryStore, home: Path) -> None:
    store.put(("people",), "other", {"text": "nothing of it"})
    await served(store, home, f"{CANARY} wants tea; what does {CANARY.upper()} want?")
    await served(store, home, "Name a colour.", key="run-2")
    shown = CliRunner().invoke(app, ["memory", "erase", "--subject", CANARY, "--dry-run"])
    assert "1 run and 1 trace of it: run-1" in shown.stderr
    assert (erase("--subject", CANARY)["runs"], hits(home)) == (["run-1"], [])
    with closing(RunStore.open(RunsConfig(folder=home / "runs"))) as runs:
        assert [run.id for run in runs.list()] == ["run-2"]
    assert erase("--subject", CANARY) == {"erased": [], "runs": [], "traces": [], "log_lines": 0}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (CANARY, {"letter": f"Dear\n{CANARY}"}),
        (CANARY, {"letter": json.dumps({"text": f"Dear\n{CANARY}"})}),
        (f"José {CANARY}", json.dumps({"who": f"José {CANARY}"})),
        (f"{CANARY} O'Brien", f"<b>{CANARY} O&#39;Brien</b>"),
        (f"{CANARY} Lee", f"https://ok.example/?q={CANARY}%20Lee"),
        (f"O'{CANARY}", f"O\u2019{CANARY} called"),
        (f"Ann {CANARY}", f"A\u200bnn {CANARY}"),
    ],
)
async def test_a_name_is_found_in_what_tools_return_as_json_html_or_an_address(
    store: MemoryStore, home: Path, name: str, told: JsonValue
) -> None:
    @tool(returns="device", effect="read")
    def read_letter() -> JsonValue:
        """A letter."""
        return told

    def near(request: StepRequest) -> Reply:
        return "Done." if any(message.tool_result for message in request.messages) else ToolCall(id="1", name="read_letter", arguments={})

    config = RunsConfig(folder=home / "runs")
    async with Hybrid(near=ScriptedAgent(near, name="near"), policy=PRIVATE, tools=[read_letter], records=config) as hybrid:
        await hybrid.run("What does the letter say?", idempotency_key="run-1")
    assert erase("--subject", name)["traces"] == ["run-1"]
    assert hits(home) == []


@pytest.mark.parametrize(
    ("name", "text", "is_named"),
    [
        ("สมชาย", "คุณสมชายมา", True),
        ("Anne-Marie", "ANNE\u2011MARIE", True),
        ("ana", "100%61na", False),
        ("ana", "\\ud83d ana", True),
        ("ana", "banana &amp; \\nbanana", False),
    ],
)
def test_a_name_is_a_whole_word_whatever_is_escaped_around_it(name: str, text: str, is_named: bool) -> None:
    assert Wording.of(name).is_in(text) == is_named


@pytest.mark.parametrize("encode", [str, json.dumps, lambda text: json.dumps([json.dumps({"t": text})])])
def test_a_text_is_found_however_deep_it_is_quoted(encode: Callable[[str], str]) -> None:
    text = 'Ana said "hé\\llo"\nto 100%25 of Bob &amp; all.'
    assert Wording.of(None, [text]).is_in(encode(text))


async def test_a_prefix_takes_the_runs_that_repeat_what_its_items_say(store: MemoryStore, home: Path) -> None:
    store.put(("people", "carl"), "number", {"text": NOTE})
    await served(store, home, f"Please note: {NOTE}")
    erase("--prefix", "people/carl")
    assert hits(home) == []


async def test_lines_of_the_routers_log_go_that_hold_it_or_are_of_runs_that_do(store: MemoryStore, home: Path) -> None:
    store.put(("people",), "carl", {"text": NOTE}, subject="carl", tier=Tier.SHARED)
    log = home / "router.jsonl"
    (home.parent / "nearfar.toml").write_text(
        '[near]\nmodel = "near"\n[memory]\nembed = false\n[runs]\nfolder = "home/runs"\n[policy.router]\nlog = "home/router.jsonl"\n',
        encoding="utf-8",
    )
    policy = Policy.model_validate({"strategy": "device", "sensitivity": "public", "router": {"log": log}})
    memory, config = TaskMemory(store, recall=RecallConfig(), remember=False), RunsConfig(folder=home / "runs")
    near = ScriptedAgent(repeating, name="near")
    async with Hybrid(near=near, policy=policy, memory=memory, records=config) as hybrid:
        for key, prompt in (("recalls", "What is the number of Carl?"), ("names", f"Who is {CANARY}?"), ("stays", "Name a colour.")):
            hybrid.report(await hybrid.run(prompt, idempotency_key=key), score=1.0)
    assert "router.jsonl" in hits(home)
    told = erase("--subject", "Carl")
    assert (sorted(told["runs"]), told["log_lines"]) == (["names", "recalls"], 4), "each has a task and its score"
    assert hits(home) == []
    assert [json.loads(line)["id"] for line in log.read_text(encoding="utf-8").splitlines()] == ["stays", "stays"]


def test_a_line_that_a_dead_process_has_not_finished_goes_too(store: MemoryStore, home: Path) -> None:
    configured = '[memory]\nembed = false\n[runs]\nfolder = "home/runs"\n[policy.router]\nlog = "home/router.jsonl"\n'
    (home.parent / "nearfar.toml").write_text(configured, encoding="utf-8")
    log = home / "router.jsonl"
    log.write_text(f'{{"id": "stays"}}\n{{"id": "torn", "prompt": "Who is {CANARY}', encoding="utf-8")
    assert erase("--subject", CANARY)["log_lines"] == 1
    assert (hits(home), log.read_text(encoding="utf-8")) == ([], '{"id": "stays"}\n')


async def test_nothing_is_erased_while_somebody_works_on_a_run_that_holds_it(store: MemoryStore, home: Path) -> None:
    store.put(("people",), "carl", {"text": NOTE}, subject="carl")
    config = RunsConfig(folder=home / "runs")
    with closing(RunStore.open(config)) as runs:
        lease = await _begun(runs, "busy", f"Note: {NOTE}")
        error = erase("--subject", "carl")
        assert (error["error"]["type"], store.get(("people",), "carl") is None) == ("RunBusy", False)
        await runs.finish(lease, RunFailure(error="Unavailable", message="no agent"))


async def _begun(runs: RunStore, run: str, prompt: str) -> Any:  # noqa: ANN401 - a lease
    task = Task(messages=(Message.user(prompt),), idempotency_key=run)
    return await runs.begin(KeptTask.of(task, tools=(), agents=()), digest(task))


async def test_runs_that_hold_something_erased_are_found_on_each_database(opened: Opener) -> None:
    store = opened()
    for run, prompt in (("r1", f"about {CANARY}"), ("r2", "about nothing")):
        await store.finish(await _begun(store, run, prompt), '{"text": "done"}')
    damaged = await _begun(store, "r3", "about nothing")
    with store.database.writing() as session:
        session.execute("UPDATE tasks SET content = ? WHERE run = ?", (f'{{"messages": "{CANARY}', damaged.run))
    assert find_runs_holding(store, Erased(frozenset(), Wording.of(CANARY))) == ["r1", "r3"]
    with pytest.raises(RunBusy, match="r3"):
        store.forget_all(["r1", "r3"])
    assert [run.id for run in store.list()] == ["r3", "r2"]


@pytest.mark.parametrize("keeps", [True, False], ids=["with runs", "traces alone"])
async def test_an_erasure_of_the_program_takes_runs_and_traces_with_it(store: MemoryStore, home: Path, keeps: bool) -> None:
    store.put(("people",), "carl", {"text": NOTE}, subject="carl")
    store.put(("people",), "dora", {"text": "The colour of Dora is green."})
    config = RunsConfig(folder=home / "runs")
    near, memory = ScriptedAgent(repeating, name="near"), TaskMemory(store, recall=RecallConfig())
    with closing(open_traces(config)) as traces:
        records = Records(config if keeps else None, traces=traces)
        async with Hybrid(near=near, policy=PRIVATE, memory=memory, records=records) as hybrid:
            await hybrid.run("What is the colour of Dora?", idempotency_key="stays")
            await hybrid.run("What is the number of Carl?", idempotency_key="gone")
            assert traces.ids() == ["gone", "stays"]
            assert len(hits(home)) >= 2
            store.erase(subject="carl")
            assert (traces.ids(), hits(home)) == (["stays"], [])


async def test_an_erasure_right_after_a_run_takes_the_trace_that_is_still_being_written(store: MemoryStore, home: Path) -> None:
    config = RunsConfig(folder=home / "runs")
    near, memory = ScriptedAgent(repeating, name="near"), TaskMemory(store, recall=RecallConfig())
    has_erased = threading.Event()
    store.put(("people",), "carl", {"text": NOTE}, subject="carl")
    with closing(open_traces(config)) as traces, store.erasing.calling(has_erased.set):
        async with Hybrid(near=near, policy=PRIVATE, memory=memory, records=Records(traces=traces)) as hybrid:
            traces.submit(lambda _: has_erased.wait(30))
            assert CANARY in (await hybrid.run("What is the number of Carl?")).text
            store.erase(subject="carl")
            assert (traces.ids(), hits(home)) == ([], [])


async def test_an_erasure_that_nobody_has_heard_of_is_made_up_for_when_tasks_begin(store: MemoryStore, home: Path) -> None:
    store.put(("people",), "carl", {"text": NOTE}, subject="carl")
    await served(store, home, "What is the number of Carl?")
    store.erase(subject="carl")
    assert "runs.db" in hits(home)
    await served(store, home, "Name a colour.", key="run-2")
    assert hits(home) == []


async def test_a_run_that_is_being_worked_on_is_forgotten_by_the_next_to_begin(store: MemoryStore, home: Path) -> None:
    store.put(("people",), "carl", {"text": NOTE}, subject="carl")

    def erasing(request: StepRequest) -> Reply:
        store.erase(subject="carl")
        return repeating(request)

    memory, config = TaskMemory(store, recall=RecallConfig()), RunsConfig(folder=home / "runs")
    async with Hybrid(near=ScriptedAgent(erasing, name="near"), policy=PRIVATE, memory=memory, records=config) as hybrid:
        assert CANARY in (await hybrid.run("What is the number of Carl?", idempotency_key="k")).text
        assert hybrid.runs.show("k").state == "done"
    await served(store, home, "Name a colour.", key="run-2")
    assert [file for file in hits(home) if "memory" not in file] == []


async def test_runs_go_with_the_memory_on_each_database(opened: Opener) -> None:
    runs = opened()
    with MemoryStore.open(embedder=None) as memory:
        memory.put(("people",), "carl", {"text": NOTE}, subject="carl")
        item = memory.get(("people",), "carl")
        assert item is not None
        for run, told in (("gone", [recalled_item(item)]), ("stays", [])):
            lease = await _begun(runs, run, "nothing of it")
            await runs.finish(lease, json.dumps({"recalled": [one.model_dump(mode="json") for one in told]}))
        erased = ErasedRuns(memory, runs, None)
        with memory.erasing.calling(erased.forget):
            memory.erase(subject="carl")
        assert [run.id for run in runs.list()] == ["stays"]
        erased.forget()


async def test_runs_of_another_memory_are_left_alone(store: MemoryStore, home: Path) -> None:
    store.put(("people",), "carl", {"text": NOTE}, subject="carl")
    await served(store, home, "What is the number of Carl?")
    with MemoryStore.open(home / "memory" / "other.db", embedder=None) as other:
        other.put(("people",), "eve", {"text": "Eve"}, subject="eve")
        other.erase(subject="eve")
        await served(other, home, "Name a colour.", key="run-2")
    assert any(name.startswith("runs.db") for name in hits(home))


async def test_a_run_that_recalled_an_erased_item_is_found_by_its_address(opened: Opener) -> None:
    store = opened()
    lease = await _begun(store, "r1", "nothing of it")
    recalled = {"namespace": ["people", "carl"], "key": "number", "version": "1@a", "tier": "user", "source": "user", "trust": 1.0}
    await store.finish(lease, json.dumps({"recalled": [recalled]}))
    for address, found in ((ItemAddress(("people", "carl"), "number"), ["r1"]), (ItemAddress(("people",), "number"), [])):
        assert find_runs_holding(store, Erased(frozenset([address]), Wording())) == found


def test_nothing_is_made_where_no_runs_are_kept(tmp_path: Path) -> None:
    config = RunsConfig(folder=tmp_path / "runs")
    assert find_holding(config, Erased(frozenset(), Wording.of(CANARY))) == Holding()
    forget_holding(config, Holding(("r1",), ("r1",)))
    assert list(tmp_path.iterdir()) == []


def test_rewriting_leaves_nothing_of_deleted_rows_in_the_tables_of_postgres(
    postgres_database: str, postgres_server: PostgresServer
) -> None:
    with closing(PostgresDatabase(postgres_database, what="runs")) as database:
        with database.writing() as session:
            session.execute("CREATE TABLE notes (text text)")
            session.execute("INSERT INTO notes VALUES (?)", (CANARY,))
            session.execute("DELETE FROM notes")
        database.rewrite()
    files = (path for path in postgres_server.data.rglob("*") if path.is_file() and "pg_wal" not in path.parts)
    assert [path.name for path in files if CANARY.encode() in path.read_bytes()] == []


async def test_an_erasure_that_a_reader_kept_from_overwriting_is_never_called_done(
    store: MemoryStore, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearfar.orchestrator.storage.sqlite.LOCK_TIMEOUT", 0.0)
    monkeypatch.setattr("nearfar.orchestrator.storage.sqlite_files.PRAGMAS", (*PRAGMAS, "busy_timeout = 0"))
    await served(store, home, f"Who is {CANARY}?")
    with closing(sqlite3.connect(home / "runs" / "runs.db")) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM runs").fetchall()
        for _ in range(2):
            assert erase("--subject", CANARY)["error"]["type"] == "StoreUnavailable"
        assert hits(home) != []
    assert "error" not in erase("--subject", CANARY)
    assert hits(home) == []


async def test_what_a_program_erases_is_overwritten_as_soon_as_no_reader_is_in_the_way(
    store: MemoryStore, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearfar.orchestrator.storage.sqlite.LOCK_TIMEOUT", 0.0)
    monkeypatch.setattr("nearfar.orchestrator.storage.sqlite_files.PRAGMAS", (*PRAGMAS, "busy_timeout = 0"))
    store.put(("people",), "carl", {"text": NOTE}, subject="carl")
    await served(store, home, "What is the number of Carl?")
    config = RunsConfig(folder=home / "runs")
    with closing(RunStore.open(config)) as runs, closing(open_traces(config)) as traces:
        erased = ErasedRuns(store, runs, traces)
        with closing(sqlite3.connect(home / "runs" / "runs.db")) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM runs").fetchall()
            store.erase(subject="carl")
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="older state"):
                    erased.forget()
        erased.forget()
        assert hits(home / "runs") == []


def test_a_reader_of_an_older_state_keeps_a_rewrite_from_calling_itself_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.orchestrator.storage.sqlite.LOCK_TIMEOUT", 0.0)
    path = tmp_path / "runs.db"
    with closing(SqliteDatabase(path, NAMING)) as database, closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM parts").fetchall()
        with database.writing() as session:
            session.execute("INSERT INTO parts VALUES ('new', 1)")
        with database._connections.outside() as writer:
            writer.execute("PRAGMA busy_timeout = 0")
        with pytest.raises(StoreUnavailable, match="older state"):
            database.rewrite()
