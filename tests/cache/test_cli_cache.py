"""`nearfar cache`: what it prints, for people and for scripts."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
from stored_answers import STRENGTH, ask
from typer.testing import CliRunner, Result

from nearfar import MemoryStore
from nearfar.orchestrator.cache import AnswerCache
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.memory.sqlite import SqliteEngine
from nearfar.orchestrator.task import TaskScope
from nearfar.orchestrator.task.stores import LEAST_THRESHOLD, CacheConfig
from nearfar.protocols import AgentCard, Finished, FinishReason, Side, StepReply, Usage

pytestmark = pytest.mark.usefixtures("wide_terminal")

CARD = AgentCard(name="far", side=Side.FAR, model="large")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "nearfar.toml"
    path.write_text('[cache]\npath = "answers.db"\nsemantic = false\n', encoding="utf-8")
    return path


@pytest.fixture
def used(config: Path) -> Path:
    """A configuration whose cache has an answer, a hit and two judgements."""
    cache = AnswerCache(CacheConfig(path=config.parent / "answers.db", semantic=False))
    finished = Finished(reason=FinishReason.STOP, usage=Usage(input_tokens=10, output_tokens=5), model="large")
    lookup = cache.look(ask(STRENGTH), CARD, TaskScope())
    cache.count(lookup.category, lookup.outcome)
    cache.keep(lookup, StepReply(text="Lift.", tool_calls=(), finished=finished), seconds=2.0, dollars=Decimal("0.25"))
    hit = cache.look(ask(STRENGTH), CARD, TaskScope())
    assert hit.answer is not None
    cache.use(hit, hit.answer)
    for is_same in (True, False):
        cache.thresholds.add("general", 0.95, was_served=True, is_same=is_same)
    cache.close()
    return config


def nearfar(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["cache", *arguments])


def test_statistics_say_what_was_saved_and_what_was_wrong(used: Path) -> None:
    result = nearfar("stats", "--config", str(used), "--json")
    (general,) = json.loads(result.stdout)["categories"]
    assert result.exit_code == 0
    assert (general["lookups"], general["hit_rate"], general["exact"], general["misses"]) == (2, 0.5, 1, 1)
    assert (general["saved_tokens"], general["saved_dollars"], general["saved_seconds"]) == (15, 0.25, 2.0)
    assert general["false_hit_rate"] == 0.5
    assert general["false_hit_rate_low"] < 0.02
    assert general["false_hit_rate_high"] > 0.98


def test_statistics_are_a_table_for_people(used: Path) -> None:
    result = nearfar("stats", "--config", str(used))
    assert result.exit_code == 0
    assert "general" in result.stdout
    assert "50.0% (1.3% to 98.7%)" in result.stdout


def test_clearing_says_how_much_there_was(used: Path) -> None:
    assert json.loads(nearfar("clear", "--config", str(used), "--json").stdout) == {"removed": 1}
    assert nearfar("clear", "--config", str(used)).stdout == "removed 0 answers and plans\n"


@pytest.mark.parametrize("command", ["stats", "clear"])
def test_where_there_is_no_cache_that_is_said(command: str, config: Path) -> None:
    result = nearfar(command, "--config", str(config))
    assert result.exit_code == 2
    assert "there is no cache" in result.stderr
    assert not (config.parent / "answers.db").exists()


def test_calibrating_finds_the_threshold_and_learns_it(config: Path) -> None:
    subjects = ["rice", "bread", "soup", "beans", "fish", "kale", "leeks", "corn"]
    same = [{"asked": f"How do I cook {subject}?", "stored": f"How can I cook {subject}?", "is_same": True} for subject in subjects]
    other = [{"asked": f"How do I cook {subject}?", "stored": f"How do I not cook {subject}?", "is_same": False} for subject in subjects]
    pairs = config.parent / "pairs.jsonl"
    pairs.write_text("\n".join(map(json.dumps, [*same, *other])), encoding="utf-8")
    options = ("--config", str(config), "--budget", "0.4", "--learn", "general", "--json")
    found = json.loads(nearfar("calibrate", str(pairs), *options).stdout)
    assert (found["pairs"], found["stopped"], found["stopped_same"], found["served"]) == (16, 8, 0, 8)
    assert LEAST_THRESHOLD <= found["threshold"] <= 0.99
    assert found["false_hit_rate"] == 0.0
    assert "threshold 0." in nearfar("calibrate", str(pairs), "--config", str(config), "--budget", "0.4").stdout
    cache = AnswerCache(CacheConfig(path=config.parent / "answers.db", false_hit_budget=0.4))
    assert cache.thresholds.of("general") == found["threshold"]
    cache.close()


def test_too_few_pairs_prove_nothing_and_a_bad_line_is_named(config: Path) -> None:
    pairs = config.parent / "pairs.jsonl"
    pairs.write_text('{"asked": "How do I swim?", "stored": "How can I swim?", "is_same": true}\n\n', encoding="utf-8")
    assert "149 pairs or more" in nearfar("calibrate", str(pairs), "--config", str(config)).stdout
    pairs.write_text('{"asked": "a"}\n', encoding="utf-8")
    result = nearfar("calibrate", str(pairs), "--config", str(config))
    assert result.exit_code == 2
    assert "line 1: stored: Field required" in result.stderr


def test_erasing_a_memory_empties_the_cache_since_answers_may_repeat_it(
    used: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARFAR_HOME", str(tmp_path / "home"))
    used.write_text(used.read_text(encoding="utf-8") + "[memory]\nembed = false\n", encoding="utf-8")
    with MemoryStore(SqliteEngine(tmp_path / "home" / "memory" / "memory.db")) as store:
        store.put(("notes",), "1", {"text": "Ana lifts."}, subject="ana")
    erased = CliRunner().invoke(app, ["memory", "erase", "--subject", "ana", "--yes", "--config", str(used)])
    assert erased.exit_code == 0
    (general,) = json.loads(nearfar("stats", "--config", str(used), "--json").stdout)["categories"]
    assert general["entries"] == 0
    assert b"Lift." not in (tmp_path / "answers.db").read_bytes()
