"""The file of the cache: what it keeps, for how long, for whom, and what becomes of what it removes."""

import multiprocessing
import sqlite3
from contextlib import closing, suppress
from decimal import Decimal
from pathlib import Path

import pytest
from stored_answers import SAME_STRENGTH, STRENGTH, World, ask

from nearfar.orchestrator.cache import AnswerCache
from nearfar.orchestrator.cache.thresholds import statistics
from nearfar.orchestrator.cli.doctor import threshold_findings
from nearfar.orchestrator.compose.config import Config
from nearfar.orchestrator.task import TaskScope
from nearfar.orchestrator.task.stores import CacheConfig, CategoryConfig
from nearfar.protocols import AgentCard, Finished, FinishReason, Side, StepReply, StoreCorrupt, StoreUnavailable, Usage

CARD = AgentCard(name="far", side=Side.FAR, model="large")
DAY = 86_400.0


def reply(text: str = "Lift heavy things.") -> StepReply:
    finished = Finished(reason=FinishReason.STOP, usage=Usage(input_tokens=10, output_tokens=5), model="large-2")
    return StepReply(text=text, tool_calls=(), finished=finished)


def keep(cache: AnswerCache, prompt: str, text: str = "Lift heavy things.", *, user: str = "") -> bool:
    lookup = cache.look(ask(prompt), CARD, TaskScope(user=user))
    return cache.keep(lookup, reply(text), seconds=2.0, dollars=Decimal("0.25"))


def found(cache: AnswerCache, prompt: str, *, user: str = "") -> str | None:
    answer = cache.look(ask(prompt), CARD, TaskScope(user=user)).answer
    return None if answer is None else answer.text


def files_with(folder: Path, words: bytes) -> list[str]:
    return [path.name for path in folder.iterdir() if words in path.read_bytes()]


def test_an_answer_is_there_after_a_restart(tmp_path: Path) -> None:
    with World().cache(tmp_path / "answers.db") as cache:
        keep(cache, STRENGTH)
    with World().cache(tmp_path / "answers.db") as cache:
        assert found(cache, STRENGTH) == found(cache, SAME_STRENGTH) == "Lift heavy things."


def test_the_file_can_be_read_by_nobody_else(tmp_path: Path) -> None:
    with World().cache(tmp_path / "deep" / "answers.db") as cache:
        keep(cache, STRENGTH)
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "deep").iterdir()}
    assert set(modes.values()) == {0o600}


def test_what_has_expired_is_served_no_more_and_is_in_no_file(tmp_path: Path) -> None:
    world = World()
    with world.cache(tmp_path / "answers.db", time_to_live=DAY) as cache:
        keep(cache, STRENGTH, "a canary in the answer")
        assert files_with(tmp_path, b"canary")
        world.time += DAY - 1
        assert found(cache, STRENGTH) is not None
        world.time += 2
        assert found(cache, STRENGTH) is None
        assert found(cache, SAME_STRENGTH) is None
        world.time += DAY
        assert found(cache, "another question") is None
        assert not files_with(tmp_path, b"canary")
        assert not files_with(tmp_path, STRENGTH.encode())


def test_clearing_leaves_nothing_in_any_file(tmp_path: Path) -> None:
    with World().cache(tmp_path / "answers.db") as cache:
        keep(cache, STRENGTH, "a canary in the answer")
        assert cache.clear() == 1
        assert found(cache, STRENGTH) is None
        assert not files_with(tmp_path, b"canary")


def test_categories_have_quotas_of_their_own_and_lose_first_what_was_not_used_for_longest(tmp_path: Path) -> None:
    world = World()
    with world.cache(tmp_path / "answers.db", semantic=False, categories={"news": {"entries": 2}}) as cache:
        keep(cache, STRENGTH)
        for number in range(3):
            world.time += 1
            lookup = cache.look(ask(f"Question {number}"), CARD, TaskScope(task_class="news/local"))
            assert lookup.category == "news"
            cache.keep(lookup, reply(str(number)), seconds=1.0, dollars=None)
            world.time += 1
            first = cache.look(ask("Question 0"), CARD, TaskScope(task_class="news/local"))
            assert first.answer is not None
            cache.use(first, first.answer)
        held = [cache.look(ask(f"Question {number}"), CARD, TaskScope(task_class="news/local")).answer for number in range(3)]
        assert [answer is not None for answer in held] == [True, False, True]
        assert found(cache, STRENGTH) is not None


def test_a_category_may_be_uncacheable_or_exact_only(tmp_path: Path) -> None:
    categories = {"billing": {"cacheable": False}, "health": {"semantic": False}}
    with World().cache(tmp_path / "answers.db", categories=categories) as cache:
        for task_class, other in (("billing", False), ("health", False), ("sport", True)):
            scope = TaskScope(task_class=task_class)
            cache.keep(cache.look(ask(STRENGTH), CARD, scope), reply(), seconds=1.0, dollars=None)
            assert (cache.look(ask(SAME_STRENGTH), CARD, scope).answer is not None) is other
            assert (cache.look(ask(STRENGTH), CARD, scope).answer is not None) is (task_class != "billing")


def test_another_user_is_served_nothing(tmp_path: Path) -> None:
    with World().cache(tmp_path / "answers.db", threshold=0.0) as cache:
        keep(cache, STRENGTH, user="ada")
        assert found(cache, STRENGTH, user="bea") is None
        assert found(cache, SAME_STRENGTH, user="bea") is None
        assert found(cache, SAME_STRENGTH, user="ada") is not None


def test_a_newer_answer_stands_in_for_an_older_one(tmp_path: Path) -> None:
    with World().cache(tmp_path / "answers.db") as cache:
        for text in ("first", "second"):
            keep(cache, STRENGTH, text)
            assert found(cache, STRENGTH) == found(cache, SAME_STRENGTH) == text


def test_nothing_is_embedded_where_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    world = World()
    with world.cache(tmp_path / "answers.db") as cache:
        assert found(cache, STRENGTH) is None
        assert world.embedder.embedded == 0
        keep(cache, STRENGTH)
        assert world.embedder.embedded == 1
        assert found(cache, STRENGTH) is not None
        assert world.embedder.embedded == 1


def test_a_long_text_is_found_by_its_own_words_alone(tmp_path: Path) -> None:
    with World().cache(tmp_path / "answers.db", threshold=0.0) as cache:
        keep(cache, f"{STRENGTH} {'word ' * 1000}")
        assert found(cache, f"{STRENGTH} {'word ' * 1000}") is not None
        assert found(cache, f"{SAME_STRENGTH} {'word ' * 1000}") is None


def test_another_process_writes_and_this_one_finds(tmp_path: Path) -> None:
    with World().cache(tmp_path / "answers.db") as here, World().cache(tmp_path / "answers.db") as there:
        keep(here, "How do I bake bread?", "Knead.")
        assert found(here, "How can I bake bread?") == "Knead."
        keep(there, STRENGTH)
        assert found(here, SAME_STRENGTH) == "Lift heavy things."
        there.clear()
        assert found(here, SAME_STRENGTH) is None
        assert found(here, "How can I bake bread?") is None


def write_and_read(path: Path, worker: int, rounds: int) -> None:
    """What each of several processes does to one file."""
    cache = AnswerCache(CacheConfig(path=path, semantic=False))
    for number in range(rounds):
        keep(cache, f"Question {worker} {number}", f"Answer {worker} {number}")
        cache.count("general", "miss")
        assert found(cache, f"Question {worker} {number}") == f"Answer {worker} {number}"
    cache.close()


def test_four_processes_share_one_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=write_and_read, args=(tmp_path / "answers.db", worker, 50)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    with World().cache(tmp_path / "answers.db", semantic=False) as cache:
        held = [found(cache, f"Question {worker} {number}") for worker in range(4) for number in range(50)]
        assert held == [f"Answer {worker} {number}" for worker in range(4) for number in range(50)]
        counted = statistics(cache.database)
    assert sum(each.misses for each in counted) == sum(each.entries for each in counted) == 200


@pytest.mark.parametrize("intact", [72, 100])
def test_a_damaged_file_is_begun_anew_with_a_warning(intact: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with World().cache(tmp_path / "answers.db") as cache:
        keep(cache, STRENGTH)
    whole = (tmp_path / "answers.db").read_bytes()
    (tmp_path / "answers.db").write_bytes(whole[:intact] + b"\xff" * (len(whole) - intact))
    with World().cache(tmp_path / "answers.db") as cache:
        assert found(cache, STRENGTH) is None
        keep(cache, STRENGTH)
        assert found(cache, STRENGTH) is not None
    assert "is damaged" in caplog.text


@pytest.mark.parametrize("suffix", ["toml", "db"])
@pytest.mark.parametrize("theirs", [b"", b"not a database at all, but long enough" * 30, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_no_cache_is_neither_removed_nor_changed(theirs: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"mine.{suffix}"
    path.write_bytes(theirs)
    if not theirs:
        with closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE bookmarks (place)")
        theirs = path.read_bytes()
    with World().cache(path) as cache:
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="is not a cache"):
                keep(cache, STRENGTH)
    assert path.read_bytes() == theirs
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_cache_from_before_caches_were_marked_is_read(tmp_path: Path) -> None:
    with World().cache(tmp_path / "answers.db") as cache:
        keep(cache, STRENGTH)
    with closing(sqlite3.connect(tmp_path / "answers.db")) as unmarked:
        unmarked.execute("PRAGMA application_id = 0")
    with World().cache(tmp_path / "answers.db") as cache:
        assert found(cache, STRENGTH) == "Lift heavy things."


def test_a_cache_that_others_may_read_is_taken_from_them(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    path.touch(mode=0o644)
    with World().cache(path) as cache:
        keep(cache, STRENGTH)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_damaged_while_in_use_is_begun_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "answers.db"
    with World().cache(path, semantic=False) as cache:
        for number in range(200):
            keep(cache, f"Question {number}")
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with World().cache(path, semantic=False) as cache:
        for number in range(200):
            with suppress(StoreCorrupt):  # of whichever call meets the damage first
                keep(cache, f"Question {number}")
        keep(cache, STRENGTH)
        assert found(cache, STRENGTH) is not None
    assert "is damaged" in caplog.text


def test_a_file_that_is_deleted_while_in_use_is_begun_anew(tmp_path: Path) -> None:
    with World().cache(tmp_path / "answers.db") as cache:
        keep(cache, STRENGTH)
        (tmp_path / "answers.db").unlink()
        assert found(cache, STRENGTH) is None
        keep(cache, STRENGTH)
    with World().cache(tmp_path / "answers.db") as cache:
        assert found(cache, STRENGTH) is not None


def test_a_file_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "answers.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with World().cache(tmp_path / "answers.db") as cache, pytest.raises(StoreUnavailable, match="version 99"):
        keep(cache, STRENGTH)


def test_what_was_saved_is_counted_by_category(tmp_path: Path) -> None:
    with World().cache(tmp_path / "answers.db") as cache:
        keep(cache, STRENGTH)
        for prompt in (STRENGTH, SAME_STRENGTH, "Why is the sky blue?"):
            lookup = cache.look(ask(prompt), CARD, TaskScope())
            if lookup.answer is None:
                cache.count(lookup.category, lookup.outcome)
            else:
                cache.use(lookup, lookup.answer)
        (counted,) = statistics(cache.database)
    assert (counted.exact, counted.semantic, counted.misses, counted.entries) == (1, 1, 1, 1)
    assert (counted.saved_tokens, counted.saved_dollars, counted.saved_seconds) == (30, 0.5, 4.0)
    assert counted.hit_rate == pytest.approx(2 / 3)


def test_a_threshold_that_leaves_all_to_the_guards_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = CacheConfig(path=tmp_path / "answers.db", threshold=0.7, categories={"billing": CategoryConfig(threshold=0.84)})
    AnswerCache(settings).close()
    assert [record.getMessage().split(" lets")[0] for record in caplog.records] == [
        "[cache] threshold = 0.7",
        "[cache] categories.billing.threshold = 0.84",
    ]


def test_doctor_calls_a_low_threshold_risky() -> None:
    low = Config.model_validate({"near": {"model": "near"}, "cache": {"threshold": 0.7}})
    (finding,) = threshold_findings(low)
    assert (finding.status, finding.advice) == ("risky", "set 0.85 or more, or leave it out")
    assert list(threshold_findings(Config.model_validate({"near": {"model": "near"}, "cache": {}}))) == []


def test_a_changed_question_is_not_served_even_without_a_threshold(tmp_path: Path) -> None:
    with World().cache(tmp_path / "answers.db", threshold=0.0) as cache:
        keep(cache, "Is Good Friday a holiday?")
        assert found(cache, "Is Friday a holiday?") is None
        assert found(cache, "Hi, is Good Friday a holiday?") is not None
