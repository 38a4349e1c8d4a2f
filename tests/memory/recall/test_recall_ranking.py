"""Which turns come first, whatever it was that found them."""

import math
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.orchestrator.memory.ranking import (
    MEANING,
    Granularity,
    Said,
    Span,
    TurnMatches,
    certainty,
    keywords,
    rank_turns,
    relevance,
    turn_key,
)

scores = st.dictionaries(st.sampled_from([turn_key("a", number) for number in range(30)]), st.floats(0.001, 30))
TEXT = "Something was told here that is as long as anything else."


def test_what_both_searches_found_is_ahead_of_what_one_of_them_found() -> None:
    found = relevance({"both": 4.0, "words": 4.0}, {"both": 0.6, "meaning": 0.6, "last": 0.1})
    assert max(found, key=lambda key: found[key]) == "both"
    assert found["words"] == pytest.approx(1 + MEANING * 0.1)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=200))
def test_certainty_has_bounds(values: list[float]) -> None:
    assert math.exp(-1) - 1e-9 <= certainty(values) <= 1.0


def test_a_granularity_of_which_one_item_stands_out_is_the_more_certain_one() -> None:
    assert certainty([3.0, 1.0, 1.0, 1.0]) > certainty([1.2, 1.1, 1.0, 1.0]) > certainty([1.0, 1.0, 1.0, 1.0])


@given(scores, scores)
def test_each_candidate_is_ranked_once(keyword: dict[str, float], semantic: dict[str, float]) -> None:
    turns = {key: Said("Ann", TEXT) for key in (*keyword, *semantic)}
    order = rank_turns("who?", {Granularity.TURN: TurnMatches(keyword, semantic)}, turns)
    assert sorted(key for key, _ in order) == sorted(turns)
    assert [score for _, score in order] == sorted((score for _, score in order), reverse=True)


def test_a_turn_gains_by_the_segment_that_it_is_part_of() -> None:
    one, other = turn_key("a", 3), turn_key("b", 3)
    alike = TurnMatches({one: 2.0, other: 2.0}, {})
    segments = TurnMatches({Span("b", 2, 5).key: 5.0, Span("a", 0, 9).key: 0.5}, {})
    order = rank_turns("?", {Granularity.TURN: alike, Granularity.SEGMENT: segments}, {key: Said("Ann", TEXT) for key in (one, other)})
    assert [key for key, _ in order] == [other, one]


def test_a_turn_that_only_its_summary_found_is_ranked() -> None:
    found, of_summary = turn_key("a", 0), turn_key("a", 7)
    matches = {Granularity.TURN: TurnMatches({found: 1.0}, {}), Granularity.SUMMARY: TurnMatches({Span("a", 6, 8).key: 9.0}, {})}
    order = rank_turns("?", matches, {key: Said("Ann", TEXT) for key in (found, of_summary)})
    assert {key for key, _ in order} == {found, of_summary}


def test_a_turn_gains_by_a_session_that_answers_much() -> None:
    rich, poor, beside = [turn_key("rich", number) for number in range(3)], turn_key("poor", 0), turn_key("poor", 1)
    matches = TurnMatches({**dict.fromkeys([*rich, poor], 2.0), beside: 0.1}, {})
    order = rank_turns("?", {Granularity.TURN: matches}, dict.fromkeys(matches.keyword, Said("Ann", TEXT)))
    assert [key for key, _ in order] == [*rich, poor, beside]


def test_who_is_asked_about_comes_first_and_who_asks_comes_last() -> None:
    ann, bob, asking = (turn_key("a", number) for number in range(3))
    turns = {ann: Said("Ann", TEXT), bob: Said("Bob", TEXT), asking: Said("Bob", TEXT[:-1] + "?")}
    order = rank_turns("What did Ann buy?", {Granularity.TURN: TurnMatches(dict.fromkeys(turns, 1.0), {})}, turns)
    assert [key for key, _ in order] == [ann, bob, asking]


@pytest.mark.parametrize(
    ("question", "expected"),
    [("What did Ann buy in Rome?", "Ann buy Rome"), ("Who is it?", "Who is it?"), ("", ""), ("¿Qué compró?", "Qué compró")],
)
def test_common_words_of_a_question_are_not_looked_for(question: str, expected: str) -> None:
    assert keywords(question) == expected


def test_a_turn_gains_by_the_date_that_the_question_names() -> None:
    days = [date(2023, 6, 3), date(2023, 6, 9), date(2023, 7, 3), date(2022, 6, 3)]
    turns = {turn_key(str(number), 0): Said("Ann", TEXT, day) for number, day in enumerate(days)}
    alike = {Granularity.TURN: TurnMatches(dict.fromkeys(turns, 1.0), {})}
    order = [turns[key].at for key, _ in rank_turns("What was lost on 3 June, 2023?", alike, turns)]
    assert order[:2] == days[:2]
    assert rank_turns("What was lost?", alike, turns)[0][1] == rank_turns("What was lost?", alike, turns)[-1][1]
