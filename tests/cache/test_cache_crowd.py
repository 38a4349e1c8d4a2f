"""Four processes with many tasks each share one file: nobody is served what is another's, the counts add up, a full disk costs no step."""

import json
import multiprocessing
import resource
import sqlite3
from pathlib import Path
from typing import Final

import pytest
from cache_crowd import work
from hypothesis import given
from hypothesis import strategies as st
from stored_answers import World, ask

from nearfar.orchestrator.cache import AnswerCache
from nearfar.orchestrator.cache.admission import exact_key, partition_key
from nearfar.orchestrator.cache.thresholds import statistics
from nearfar.orchestrator.task import TaskScope
from nearfar.orchestrator.task.stores import CacheConfig
from nearfar.protocols import AgentCard, Message, Side, StepRequest, StoreUnavailable

PROCESSES: Final = 4


def crowd(path: Path, tasks: int, **options: object) -> tuple[int, int]:
    """Let all processes ask; returns how many answers there were and how many of them came from the cache."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(path, number, tasks), kwargs=options) for number in range(PROCESSES)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * PROCESSES
    told = [json.loads(path.with_name(f"told-{number}.json").read_text(encoding="utf-8")) for number in range(PROCESSES)]
    return sum(one["asked"] for one in told), sum(one["saved"] for one in told)


@pytest.mark.timeout(180)
def test_nothing_wrong_is_served_and_every_lookup_is_counted_once(tmp_path: Path) -> None:
    asked, saved = crowd(tmp_path / "answers.db", 150, semantic=True, largest_file=None)
    with World().cache(tmp_path / "answers.db") as cache:
        counted = statistics(cache.database)
    assert sum(each.lookups for each in counted) == asked
    assert sum(each.exact + each.semantic + each.shared for each in counted) == saved > 0
    assert sum(each.semantic for each in counted) > 0
    assert sum(each.entries for each in counted) <= sum(each.misses for each in counted)


@pytest.mark.timeout(180)
def test_a_full_disk_costs_no_step_and_spoils_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    asked, saved = crowd(path, 150, semantic=False, largest_file=60_000)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    with World().cache(path, semantic=False) as cache:
        counted = statistics(cache.database)
    assert sum(each.lookups for each in counted) < asked  # it did fill up
    assert sum(each.exact + each.shared for each in counted) <= saved
    assert crowd(path, 20, semantic=False, largest_file=None)[1] > 0  # and works again when there is room


def test_a_cache_that_no_longer_fits_on_its_disk_closes_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = AnswerCache(CacheConfig(path=tmp_path / "answers.db", semantic=False))
    for number in range(100):
        cache.count(f"{'long ' * 50} {number}", "miss")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        cache.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "could not be emptied" in caplog.text
    with World().cache(tmp_path / "answers.db", semantic=False) as again:
        assert sum(each.misses for each in statistics(again.database)) == 100


REQUESTS = st.builds(
    lambda system, question, sensitivity, tokens: ask(
        "", messages=(Message.system(system), Message.user(question)), sensitivity=sensitivity, max_output_tokens=tokens
    ),
    st.sampled_from(["a", "a\nb", "b"]),
    st.sampled_from(["x", "y"]),
    st.sampled_from(["public", "private"]),
    st.sampled_from([None, 1, 11]),
)
SCOPES = st.builds(TaskScope, st.sampled_from(["", "a", "ab"]), st.sampled_from(["", "b", "bc"]), st.sampled_from(["", "c"]))
CARDS = st.builds(AgentCard, name=st.sampled_from(["a", "b"]), side=st.sampled_from(Side), model=st.sampled_from(["a", "c"]))


def parts(request: StepRequest, card: AgentCard, scope: TaskScope) -> tuple[object, ...]:
    """All that has to be the same but the wording of the question."""
    fields = request.model_dump(exclude={"messages", "idempotency_key", "timeout"})
    return repr(fields), request.messages[:-1], (card.name, card.side, card.model), (scope.user, scope.policy, scope.task_class)


@given(st.tuples(REQUESTS, CARDS, SCOPES), st.tuples(REQUESTS, CARDS, SCOPES))
def test_keys_are_the_same_exactly_where_all_is_that_has_to_be(
    one: tuple[StepRequest, AgentCard, TaskScope], other: tuple[StepRequest, AgentCard, TaskScope]
) -> None:
    is_same = parts(*one) == parts(*other)
    assert (partition_key(*one, embedder="e") == partition_key(*other, embedder="e")) is is_same
    assert partition_key(*one, embedder="e") != partition_key(*one, embedder="another")
    assert (exact_key(*one) == exact_key(*other)) is (is_same and one[0].messages == other[0].messages)


def test_a_cache_on_a_full_disk_says_so_and_closes(tmp_path: Path) -> None:
    cache = AnswerCache(CacheConfig(path=tmp_path / "answers.db", semantic=False))
    cache.count("general", "miss")
    with cache.database.reading() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")

    def fill() -> None:
        for number in range(1000):
            cache.count(f"category {number}", "miss")

    with pytest.raises(StoreUnavailable, match="full"):
        fill()
    cache.close()
