"""Items can be taken out and brought in again, with all that was stamped on them and without a gain in trust."""

import json
from typing import Any

import pytest
from memory_bench import DAY, Clock, MakeStore

from nearfar import ItemAddress, MemoryStore, Source, Tier
from nearfar.orchestrator.memory.engine import Engine
from nearfar.protocols import InvalidRequest

NOTES = ("notes",)
WRONG: list[dict[str, Any]] = [
    {"namespace": []},
    {"namespace": ["a.b"]},
    {"namespace": ["langgraph"]},
    {"key": ""},
    {"value": [1]},
    {"value": {"a": "\0"}},
    {"tier": "public"},
    {"source": "god"},
    {"trust": 1.1},
    {"trust": "1"},
    {"trust": True},
    {"created_at": 7},
    {"created_at": "yesterday"},
    {"ttl": -1},
    {"index": "text"},
    {"lineage": [["a", "b"]]},
    {"user": None},
    {"key": None},
    {"key": ["a"]},
    {"ttl": 1e15},
    {"created_at": "0001-01-01T00:00:00+14:00"},
    {"valid_from": "9999-12-31T23:59:59-23:59"},
    {"agent": "a\0b"},
    {"subject": "x" * 5000},
    {"subject": "", "others": ["bob"]},
    {"lineage": [[["a"], "b\0"]]},
]


@pytest.fixture
def filled(store: MemoryStore, clock: Clock) -> MemoryStore:
    store.bound(agent="near", source=Source.EXTERNAL_TOOL).put(NOTES, "web", {"text": "a"}, tier=Tier.SHARED, subject="bob", ttl=900.5)
    said = store.bound(source=Source.USER, lineage=[ItemAddress(NOTES, "web")])
    said.put(NOTES, "said", {"text": "é\n", "n": [1, 2.5, None]}, index=["text"])
    clock.advance(DAY / 3)
    store.supersede(NOTES, "said", {"text": "b"}, index=False)
    store.put(("other",), "gone", {})
    store.delete(("other",), "gone")
    store.put(("other",), "plain", {"text": "c"}, tier=Tier.USER)
    return store


def exported(store: MemoryStore, **options: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - options of several types
    return [json.loads(line) for line in store.export(**options)]


def key_of(record: dict[str, Any]) -> str:
    return str(record["key"])


def test_what_was_exported_can_be_imported_elsewhere(make_store: MakeStore, filled: MemoryStore, engine: Engine, clock: Clock) -> None:
    lines = list(filled.export())
    filled.erase(prefix=())
    assert filled.search((), include_superseded=True) == []
    imported = make_store().bound(source=Source.USER).import_lines(lines)
    assert (imported.added, imported.unchanged, imported.replaced, imported.kept) == (4, 0, 0, ())
    assert sorted(filled.export()) == sorted(lines)
    assert [item.value["text"] for item in filled.history(NOTES, "said")] == ["b", "é\n"]


def test_a_line_by_hand_is_a_write_of_whoever_imports_it(store: MemoryStore) -> None:
    line = json.dumps({"namespace": ["notes"], "key": "tea", "value": {"text": "Ana likes tea."}})
    ours = store.bound(source=Source.USER)
    assert ours.import_lines([line]).added == 1
    item = ours.get(NOTES, "tea")
    assert item is not None
    assert (item.value, item.source, item.trust, item.tier) == ({"text": "Ana likes tea."}, Source.USER, 1.0, Tier.DEVICE)
    assert ours.import_lines([line]).unchanged == 1
    other = line.replace("tea.", "milk.")
    assert ours.import_lines([other]).kept == (item.address,)
    assert ours.import_lines([other], overwrite=True).replaced == 1


@pytest.mark.parametrize("missing", ["value", "key", "namespace", "trust", "tier"])
def test_what_a_line_lacks_is_named(filled: MemoryStore, missing: str) -> None:
    record = exported(filled)[0]
    del record[missing]
    with pytest.raises(InvalidRequest, match=f"line 1 has no '{missing}'"):
        filled.import_lines([json.dumps(record)])


def test_a_second_import_changes_nothing(filled: MemoryStore, engine: Engine) -> None:
    lines = list(filled.export())
    position = engine.position()
    imported = filled.bound(source=Source.USER).import_lines(lines)
    assert (imported.added, imported.unchanged, imported.replaced, imported.kept) == (0, 4, 0, ())
    assert engine.position() == position


def test_an_export_can_be_narrowed_down(filled: MemoryStore) -> None:
    assert sorted(map(key_of, exported(filled, prefix=("other",)))) == ["plain"]
    assert sorted(map(key_of, exported(filled, tier=Tier.SHARED))) == ["web"]
    assert len(exported(filled)) == 4


def test_an_export_holds_nothing_that_is_over(filled: MemoryStore, clock: Clock) -> None:
    clock.advance(DAY)
    assert "web" not in map(key_of, exported(filled))


def test_what_the_store_has_otherwise_is_kept_unless_it_is_to_be_overwritten(filled: MemoryStore) -> None:
    (line,) = filled.export(prefix=("other",))
    filled.put(("other",), "plain", {"text": "changed"}, tier=Tier.USER)
    plain = ItemAddress(("other",), "plain")
    assert filled.import_lines([line]).kept == (plain,)
    assert filled.import_lines([line], overwrite=True, dry_run=True).replaced == 1
    item = filled.get(*plain)
    assert item is not None
    assert item.value == {"text": "changed"}
    assert filled.import_lines([line], overwrite=True).replaced == 1
    item = filled.get(*plain)
    assert item is not None
    assert item.value == {"text": "c"}


def test_an_import_is_believed_no_more_than_whoever_imports(filled: MemoryStore) -> None:
    (line,) = filled.export(prefix=("other",))
    record = {**json.loads(line), "trust": 1.0, "source": "user", "user": "eve", "tier": "shared"}
    for name, source in (("tool", Source.EXTERNAL_TOOL), ("user", Source.USER)):
        filled.bound(source=source).import_lines([json.dumps({**record, "key": name})])
    tool, user = filled.get(("other",), "tool"), filled.get(("other",), "user")
    assert tool is not None
    assert user is not None
    assert (tool.trust, user.trust) == (0.2, 1.0)
    assert (user.user, user.tier, user.source) == ("ann", Tier.SHARED, Source.USER)


def test_a_line_that_is_no_item_imports_nothing(filled: MemoryStore, engine: Engine) -> None:
    lines = list(filled.export())
    position = engine.position()
    for change in WRONG:
        bad = json.dumps({**json.loads(lines[0]), **change})
        with pytest.raises(InvalidRequest, match="line 3"):
            filled.import_lines([lines[0].replace('"web"', '"new"'), "", bad])
    for line in ("{", "[]", "7", "{}", "null", '"a"'):
        with pytest.raises(InvalidRequest, match="line 1"):
            filled.import_lines([line])
    assert engine.position() == position


def test_many_items_are_exported_and_imported(store: MemoryStore) -> None:
    from langgraph.store.base import PutOp

    store.batch([PutOp(NOTES, f"{number:04}", {"n": number}, index=False) for number in range(1200)])
    lines = list(store.export())
    assert len(set(lines)) == 1200
    store.erase(prefix=())
    assert store.import_lines(lines).added == 1200
    assert sorted(store.export()) == sorted(lines)
