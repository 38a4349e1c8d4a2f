"""`nearfar memory`: what people see and change of the store."""

import json
import stat
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nearfar import MemoryStore, Source, Tier
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.memory.operation import Dot, Operation
from nearfar.orchestrator.memory.sqlite import SqliteEngine
from nearfar.orchestrator.memory.vectors import change_of

pytestmark = pytest.mark.usefixtures("wide_terminal")

NOTES = ("notes", "ana")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration that searches by words alone, so that no test depends on a model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEARFAR_HOME", str(tmp_path / "home"))
    (tmp_path / "nearfar.toml").write_text("[memory]\nembed = false\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def store(home: Path) -> Iterator[MemoryStore]:
    """The store that the commands find, open in another place at the same time; its writes are seconds apart."""
    seconds = count(1_790_000_000)
    with MemoryStore(SqliteEngine(home / "home" / "memory" / "memory.db"), now=lambda: float(next(seconds))) as store:
        yield store


def memory(*arguments: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, ["memory", *arguments], input=typed)


def told(*arguments: str, typed: str | None = None) -> Any:  # noqa: ANN401 - whatever the command prints
    """What a command prints with `--json`."""
    return json.loads(memory(*arguments, "--json", typed=typed).stdout)


def filled(store: MemoryStore) -> None:
    said = store.bound(source=Source.USER)
    said.put(NOTES, "milk", {"text": "Ana drinks oat milk."}, tier=Tier.USER)
    said.put(NOTES, "nuts", {"text": "Ana is allergic to peanuts."}, subject="ana")
    store.bound(source=Source.EXTERNAL_TOOL, agent="web").put(("web",), "1", {"title": "Milk", "n": 3}, tier=Tier.SHARED)


def contended(store: MemoryStore, *values: str) -> None:
    """Let other devices have written an item at the same time, with one field, so that all but one of the values lost."""
    store.put(NOTES, "milk", {"text": values[0]})
    with store.engine.transaction() as transaction:
        (address,) = store.traces(prefix=NOTES)
        heads = list(transaction.heads([address])[address])
        for number, value in enumerate(values[1:], start=1):
            meta = heads[0].meta
            heads.append(Operation(Dot(f"device{number}", 1), heads[0].clock - number, {}, address, {"text": value}, meta))
        transaction.apply([change_of(address, tuple(heads), now=0.0, fields=("text",))])


def test_list_shows_what_is_there_the_last_changed_first(store: MemoryStore) -> None:
    filled(store)
    lines = memory("list").stdout.splitlines()
    assert [line.split()[:3] for line in lines[::2]] == [
        ["web", "1", "shared"],
        ["notes/ana", "nuts", "device"],
        ["notes/ana", "milk", "user"],
    ]
    assert "external tool web" in lines[0]
    assert lines[1::2] == ['  {"title": "Milk", "n": 3}', "  Ana is allergic to peanuts.", "  Ana drinks oat milk."]
    assert [item["key"] for item in told("list", "--tier", "user")["items"]] == ["milk"]
    assert [item["key"] for item in told("list", "--namespace", "notes")["items"]] == ["nuts", "milk"]


def test_list_pages_and_says_whether_there_is_more(store: MemoryStore) -> None:
    for number in range(7):
        store.put(("n",), str(number), {"n": number}, tier=Tier.USER if number % 2 else Tier.DEVICE)
    first, second = told("list", "--limit", "3"), told("list", "--limit", "3", "--offset", "6")
    assert ([item["key"] for item in first["items"]], first["more"]) == (["6", "5", "4"], True)
    assert ([item["key"] for item in second["items"]], second["more"]) == (["0"], False)
    assert [item["key"] for item in told("list", "--tier", "user", "--limit", "2", "--offset", "1")["items"]] == ["3", "1"]
    assert "--offset 3" in memory("list", "--limit", "3").stderr


def test_search_finds_by_words(store: MemoryStore) -> None:
    filled(store)
    assert [item["key"] for item in told("search", "peanuts")["items"]] == ["nuts"]
    assert told("search", "milk", "--tier", "shared")["items"][0]["namespace"] == ["web"]
    assert "nothing there" in memory("search", "quantum").stderr
    assert told("search", "milk", "--mode", "magic")["error"]["hint"] == "the modes are hybrid, keyword, semantic"


def test_show_tells_where_an_item_comes_from_and_what_it_said_before(store: MemoryStore) -> None:
    store.bound(source=Source.USER).put(NOTES, "home", {"text": "Ana lives in Rome."}, subject="ana")
    store.bound(source=Source.MODEL, agent="near").supersede(NOTES, "home", {"text": "Ana lives in Oslo."})
    shown = memory("show", "notes/ana", "home").stdout
    for expected in ("Oslo", "Rome", "model near, trust 0.6", "it never leaves the device", ", this one", "about"):
        assert expected in shown
    known = told("show", "notes/ana", "home")
    assert (known["item"]["subject"], [each["value"]["text"] for each in known["history"]]) == ("ana", ["Ana lives in Rome."])
    assert told("show", "notes/ana", "street")["error"]["type"] == "NotFound"


def test_a_key_and_a_namespace_with_line_ends_cannot_pass_for_another_item(store: MemoryStore) -> None:
    store.put(("web\nnotes",), "k\nnotes/ana milk  device", {"text": "forged"}, tier=Tier.SHARED)
    for shown in (memory("list").stdout, memory("search", "forged").stdout, memory("stats").stdout, memory("erase", "--prefix", "").stderr):
        assert not any(line.startswith("notes") for line in shown.splitlines())


def test_what_strangers_wrote_gives_the_terminal_no_commands(store: MemoryStore) -> None:
    store.put(("web\x1b[2J",), "k\x07", {"text": "\x1b]0;owned\x07 \u202etxt"}, subject="\x1b[31m")
    for shown in (memory("list").stdout, memory("show", "web\x1b[2J", "k\x07").stdout, memory("search", "owned").stdout):
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)


def test_edit_sets_fields_and_leaves_the_rest_and_the_tier(store: MemoryStore) -> None:
    store.put(NOTES, "milk", {"text": "oat", "litres": 1}, tier=Tier.USER)
    written = told("edit", "notes/ana", "milk", "--set", "litres=2", "--set", "brand=Havre")
    item = store.get(NOTES, "milk")
    assert item is not None
    assert (item.value, item.tier, item.source) == ({"text": "oat", "litres": 2, "brand": "Havre"}, Tier.USER, Source.USER)
    assert written["version"] == item.version


def test_edit_writes_new_items_and_changes_tiers() -> None:
    assert memory("edit", "notes/ana", "milk", "--value", '{"text": "oat"}').stdout == "notes/ana milk is written\n"
    assert told("show", "notes/ana", "milk")["item"]["tier"] == "device"
    told("edit", "notes/ana", "milk", "--tier", "shared")
    assert told("show", "notes/ana", "milk")["item"]["tier"] == "shared"
    assert told("edit", "notes/ana", "milk", "--tier", "shared")["outcome"] == "is as it was"
    told("edit", "notes/ana", "milk", "--value", "-", typed='{"text": "soy"}')
    assert told("show", "notes/ana", "milk")["item"]["value"] == {"text": "soy"}


@pytest.fixture
def editor(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the place of the user's editor; tests write what it does."""
    script = home / "editor.py"
    monkeypatch.setenv("EDITOR", f'"{sys.executable}" "{script}"')
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(home))
    return script


def test_edit_opens_the_editor_on_a_file_of_ones_own(store: MemoryStore, editor: Path, home: Path) -> None:
    store.put(NOTES, "milk", {"text": "oat"})
    editor.write_text(
        "import os, pathlib, sys\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "pathlib.Path('mode').write_text(oct(os.stat(path.parent).st_mode & 0o777))\n"
        "path.write_text(path.read_text().replace('oat', 'soy'))\n",
        encoding="utf-8",
    )
    assert memory("edit", "notes/ana", "milk").exit_code == 0
    item = store.get(NOTES, "milk")
    assert item is not None
    assert item.value == {"text": "soy"}
    assert (home / "mode").read_text(encoding="utf-8") == "0o700"
    assert list(home.glob("nearfar-*")) == []


def test_change_that_somebody_else_makes_meanwhile_is_told_and_neither_is_lost(store: MemoryStore, editor: Path, home: Path) -> None:
    store.put(NOTES, "milk", {"text": "oat"})
    editor.write_text(
        "import pathlib, sys\n"
        "from nearfar import MemoryStore\n"
        f"with MemoryStore.open({str(home / 'home' / 'memory' / 'memory.db')!r}, embedder=None) as store:\n"
        "    store.put(('notes', 'ana'), 'milk', {'text': 'cow'})\n"
        'pathlib.Path(sys.argv[1]).write_text(\'{"text": "soy"}\')\n',
        encoding="utf-8",
    )
    error = told("edit", "notes/ana", "milk")["error"]
    item = store.get(NOTES, "milk")
    assert item is not None
    assert (error["type"], item.value) == ("VersionConflict", {"text": "cow"})
    (draft,) = home.glob("nearfar-*.json")
    assert json.loads(draft.read_text(encoding="utf-8")) == {"text": "soy"}
    assert stat.S_IMODE(draft.stat().st_mode) == 0o600
    assert str(draft) in error["hint"]


def test_what_is_no_json_any_more_is_kept(store: MemoryStore, editor: Path, home: Path) -> None:
    store.put(NOTES, "milk", {"text": "oat"})
    editor.write_text("import pathlib, sys\npathlib.Path(sys.argv[1]).write_text('{oops')\n", encoding="utf-8")
    error = told("edit", "notes/ana", "milk")["error"]
    (draft,) = home.glob("nearfar-*.json")
    assert (error["type"], draft.read_text(encoding="utf-8")) == ("InvalidRequest", "{oops")


def test_what_was_written_in_the_editor_is_kept_if_it_cannot_be_stored(store: MemoryStore, editor: Path, home: Path) -> None:
    store.put(NOTES, "milk", {"text": "oat"})
    editor.write_text(
        "import json, pathlib, sys\npathlib.Path(sys.argv[1]).write_text(json.dumps({'text': 'x' * (1 << 20)}))\n", encoding="utf-8"
    )
    error = told("edit", "notes/ana", "milk")["error"]
    (draft,) = home.glob("nearfar-*.json")
    assert (error["type"], len(json.loads(draft.read_text(encoding="utf-8"))["text"])) == ("InvalidRequest", 1 << 20)
    assert str(draft) in error["hint"]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["edit", "notes//ana", "milk", "--set", "a=1"], "InvalidRequest"),
        (["edit", "notes", "milk", "--set", "a"], "InvalidRequest"),
        (["edit", "notes", "milk", "--value", "[1]"], "InvalidRequest"),
        (["edit", "notes", "milk", "--value", "{"], "InvalidRequest"),
        (["edit", "notes", "milk", "--tier", "public"], "InvalidRequest"),
        (["edit", "notes", "milk", "--tier", "user"], "NotFound"),
        (["edit", "langgraph", "milk", "--set", "a=1"], "InvalidNamespace"),
        (["delete", "notes", "milk"], "NotFound"),
        (["list", "--namespace", "[1"], "InvalidRequest"),
        (["conflicts", "notes"], "InvalidRequest"),
        (["conflicts", "notes", "milk"], "NotFound"),
        (["import", "missing.jsonl"], "ConfigError"),
        (["erase"], "InvalidRequest"),
        (["erase", "--subject", "ana", "--prefix", "notes"], "InvalidRequest"),
    ],
)
def test_mistake_is_explained(arguments: list[str], kind: str, store: MemoryStore) -> None:
    error = told(*arguments)["error"]
    assert (error["type"], bool(error["hint"])) == (kind, True)


def test_namespace_with_a_slash_is_written_as_json(store: MemoryStore) -> None:
    told("edit", '["and/or", "x"]', "k", "--set", "a=1")
    assert store.list_namespaces() == [("and/or", "x")]
    assert '["and/or", "x"]' in memory("list").stdout


def test_deleted_item_is_gone(store: MemoryStore) -> None:
    filled(store)
    assert memory("delete", "notes/ana", "milk").stdout == "notes/ana milk is deleted\n"
    assert store.get(NOTES, "milk") is None


def test_without_a_store_the_commands_say_how_to_begin_one(home: Path) -> None:
    for arguments in (["list"], ["search", "x"], ["show", "a", "b"], ["stats"], ["conflicts"], ["erase", "--subject", "x"]):
        error = told(*arguments)["error"]
        assert error["type"] == "NotFound"
        assert "memory add" in error["hint"]
    assert not (home / "home").exists()


def test_store_of_the_option_stands_in_place_of_the_configured_one(home: Path) -> None:
    told("edit", "notes", "k", "--set", "a=1", "--store", "other/own.db")
    assert [item["key"] for item in told("list", "--store", "other/own.db")["items"]] == ["k"]
    assert told("list")["error"]["type"] == "NotFound"


def test_damaged_store_is_told_with_the_way_out(home: Path) -> None:
    path = home / "broken.db"
    path.write_bytes(b"this is no database at all" * 100)
    error = told("list", "--store", str(path))["error"]
    assert error["type"] == "StoreCorrupt"
    assert "recover" in error["hint"]


def test_conflicts_are_shown_side_by_side_and_decided(store: MemoryStore) -> None:
    contended(store, "oat", "soy", "cow")
    assert [one["key"] for one in told("conflicts")["conflicts"]] == ["milk"]
    shown = memory("conflicts", "notes/ana", "milk").stdout
    row = next(line for line in shown.splitlines() if '"oat"' in line)
    assert '"cow"' in row
    assert '"soy"' in row
    lost = told("conflicts", "notes/ana", "milk")["lost"]
    number = next(index for index, one in enumerate(lost, start=1) if one["value"] == {"text": "soy"})
    assert memory("conflicts", "notes/ana", "milk", "--keep", str(number)).stdout == "notes/ana milk is decided\n"
    item = store.get(NOTES, "milk")
    assert item is not None
    assert (item.value, item.conflicts) == ({"text": "soy"}, 0)
    assert "no conflicts" in memory("conflicts").stderr


def test_present_value_can_be_kept_and_no_other_one_is_taken_for_it(store: MemoryStore) -> None:
    contended(store, "oat", "soy")
    assert told("conflicts", "notes/ana", "milk", "--keep", "2")["error"]["hint"] == "present, or 1 to 1"
    told("conflicts", "notes/ana", "milk", "--keep", "present")
    assert told("conflicts") == {"conflicts": []}
    assert told("show", "notes/ana", "milk")["item"]["value"] == {"text": "oat"}


def test_erase_shows_what_would_go_and_asks(store: MemoryStore) -> None:
    filled(store)
    looked = memory("erase", "--subject", "ana", "--dry-run")
    assert "allergic to peanuts" in looked.stderr
    assert "oat milk" in looked.stderr
    assert looked.stdout == "2 items would be erased\n"
    assert told("erase", "--subject", "ana")["error"]["hint"] == "add --yes, or --dry-run to look"
    assert store.get(NOTES, "nuts") is not None


def test_erased_items_leave_no_trace_in_any_file(store: MemoryStore, home: Path) -> None:
    filled(store)
    store.bound(lineage=store.traces(subject="ana")).put(("summary",), "1", {"text": "Beware of peanuts."})
    erased = told("erase", "--subject", "ana", "--yes")["erased"]
    assert [place["key"] for place in erased] == ["milk", "nuts", "1"]
    assert not any(b"eanuts" in path.read_bytes() for path in (home / "home").rglob("*") if path.is_file())
    assert store.get(("web",), "1") is not None
    assert told("erase", "--subject", "ana", "--yes") == {"erased": [], "runs": [], "traces": [], "log_lines": 0}


def test_namespace_is_erased_with_all_below_it(store: MemoryStore) -> None:
    filled(store)
    assert "erased" in memory("erase", "--prefix", "notes", "--yes").stdout
    assert [item["key"] for item in told("list")["items"]] == ["1"]


def test_stats_count_by_tier_source_and_namespace(store: MemoryStore) -> None:
    filled(store)
    known = told("stats")
    assert (known["items"], known["tiers"], known["device"]) == (3, {"shared": 1, "device": 1, "user": 1}, store.engine.device)
    assert known["sources"] == {"external_tool": 1, "user": 2}
    assert known["namespaces"] == [{"namespace": ["notes", "ana"], "items": 2}, {"namespace": ["web"], "items": 1}]
    assert "1 device, 1 user, 1 shared" in memory("stats").stdout


def test_export_is_a_file_of_ones_own_and_overwrites_nothing(store: MemoryStore, home: Path) -> None:
    filled(store)
    assert memory("export", "all.jsonl").stdout == "3 items in all.jsonl\n"
    assert stat.S_IMODE((home / "all.jsonl").stat().st_mode) == 0o600
    before = (home / "all.jsonl").read_bytes()
    assert told("export", "all.jsonl")["error"]["type"] == "ConfigError"
    assert (home / "all.jsonl").read_bytes() == before
    lines = [json.loads(line) for line in memory("export", "-", "--tier", "user").stdout.splitlines()]
    assert [(line["key"], line["source"]) for line in lines] == [("milk", "user")]
    assert told("export", "notes.jsonl", "--namespace", "notes")["items"] == 2


def test_import_brings_items_in_once_and_tells_what_stays(store: MemoryStore, home: Path) -> None:
    filled(store)
    memory("export", "all.jsonl")
    told("edit", "notes/ana", "milk", "--set", "text=soy", "--store", "other.db")
    would = told("import", "all.jsonl", "--store", "other.db", "--dry-run")
    assert (would["added"], would["dry_run"], [place["key"] for place in would["kept"]]) == (2, True, ["milk"])
    assert [item["key"] for item in told("list", "--store", "other.db")["items"]] == ["milk"]
    assert told("import", "all.jsonl", "--store", "other.db")["added"] == 2
    again = memory("import", "all.jsonl", "--store", "other.db")
    assert again.stdout == "0 items added, 2 there already\n"
    assert "notes/ana milk" in again.stderr
    assert told("import", "all.jsonl", "--store", "other.db", "--overwrite")["replaced"] == 1
    imported = told("show", "notes/ana", "nuts", "--store", "other.db")["item"]
    assert (imported["source"], imported["tier"], imported["subject"]) == ("user", "device", "ana")


def test_import_of_what_has_no_end_is_given_up(store: MemoryStore) -> None:
    result = memory("import", "/dev/zero")
    assert result.exit_code == 2
    assert "too long" in result.stderr
    assert told("list")["items"] == []


def test_import_of_a_damaged_file_takes_in_nothing(store: MemoryStore, home: Path) -> None:
    filled(store)
    memory("export", "all.jsonl")
    with (home / "all.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"namespace": ["a"]}\n')
    error = told("import", "all.jsonl", "--store", "other.db")["error"]
    assert error["message"].startswith("line 4")
    assert told("list", "--store", "other.db")["items"] == []


def test_recovered_store_has_what_could_be_read_and_the_damaged_one_stays_beside_it(home: Path) -> None:
    for number in range(20):
        told("edit", "notes", str(number), "--set", f"text={'word ' * 200}", "--store", "own.db")
    with (home / "own.db").open("r+b") as file:
        file.seek(40 * 4096)
        file.write(b"\xff" * 8192)
    recovery = told("recover", "--store", "own.db", "--yes")
    assert 0 < recovery["items"] <= 20
    assert len(told("list", "--store", "own.db", "--limit", "50")["items"]) <= recovery["items"]
    assert Path(recovery["damaged"]).exists()


@pytest.mark.parametrize(
    "address", ["postgres://ana:hunter2@h/db", "postgresql://h/db?user=a&password=hunter2", "postgres://a:hunter2@[h/db"]
)
def test_a_password_on_the_command_line_is_refused_and_not_repeated(address: str) -> None:
    error = told("list", "--store", address)["error"]
    assert error["type"] == "ConfigError"
    assert "PGPASSWORD" in error["hint"]
    assert "hunter2" not in str(error)


def test_recover_asks_first_and_is_for_files(home: Path) -> None:
    told("edit", "notes", "k", "--set", "a=1", "--store", "own.db")
    assert "--yes" in told("recover", "--store", "own.db")["error"]["hint"]
    assert told("recover", "--store", "postgres://localhost/x", "--yes")["error"]["type"] == "ConfigError"
    assert told("recover", "--store", "none.db", "--yes")["error"]["type"] == "NotFound"
