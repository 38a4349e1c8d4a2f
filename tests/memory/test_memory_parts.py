"""The parts of the store that need no database, on generated input."""

import math
from itertools import islice
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar import Ranking
from nearfar.orchestrator.memory import validation
from nearfar.orchestrator.memory.engine import Hit
from nearfar.orchestrator.memory.operation import Meta
from nearfar.orchestrator.memory.provenance import Origin, combined, stamp
from nearfar.orchestrator.memory.ranking import WINDOW, depth, fuse
from nearfar.orchestrator.memory.vectors import passages, texts_of
from nearfar.protocols import InvalidRequest
from nearfar.protocols.items import TIERS, TRUST, ItemAddress, Source, Tier

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(texts, json_values, max_size=4))
def test_every_json_value_is_accepted_and_copied(value: dict[str, Any]) -> None:
    copy = validation.value(value)
    assert repr(copy) == repr(value)
    assert orjson.loads(orjson.dumps(copy)) == copy


@given(st.dictionaries(texts, json_values | st.just(math.nan) | st.binary(max_size=2) | st.sets(st.integers(), max_size=2), max_size=4))
def test_a_value_is_either_refused_or_json(value: dict[str, Any]) -> None:
    try:
        copy = validation.value(value, 200)
    except InvalidRequest:
        return
    assert len(orjson.dumps(copy)) <= 200


@given(st.text(max_size=3000) | st.builds(lambda word, count: word * count, st.text(min_size=1, max_size=8), st.integers(1, 2000)))
def test_passages_say_all_that_the_text_says(text: str) -> None:
    parts = passages(text)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert len(parts) <= 32
    assert all(part.strip() == part and part for part in parts)


def test_a_short_text_is_one_passage() -> None:
    assert passages(" Ann likes tea. ") == ["Ann likes tea."]
    assert passages("x" * 400) == ["x" * 400]
    assert passages(" \n") == []


def test_all_that_a_value_says_is_named_where_that_says_more() -> None:
    assert texts_of({"text": "Ann likes tea."}, ["$"]) == ("Ann likes tea.",)
    value = {"name": "Ann", "likes": ["tea", {"and": True}], "nothing": None, "age": 30}
    assert texts_of(value, ["$"]) == ("name: Ann\nlikes: tea\nlikes and: true\nage: 30",)
    assert texts_of({}, ["$"]) == ()


rankings = st.lists(st.integers(0, 400), unique=True, max_size=350).map(
    lambda rows: [Hit(row, 1.0 / (rank + 1)) for rank, row in enumerate(rows)]
)


@given(rankings, rankings, st.integers(0, 300), st.integers(1, 60))
def test_the_beginning_of_a_fused_ranking_does_not_depend_on_how_much_is_asked_for(
    keyword: list[Hit], nearest: list[Hit], offset: int, limit: int
) -> None:
    ranking = Ranking()
    whole = list(fuse(keyword, nearest, ranking))
    assert {hit.row for hit in whole} == {hit.row for hit in (*keyword, *nearest)}
    assert len({hit.row for hit in whole}) == len(whole)
    assert all(one.score >= other.score for one, other in zip(whole, whole[1:], strict=False))
    needed = depth(offset + limit)
    assert needed % WINDOW == 0
    page = islice(fuse(keyword[:needed], nearest[:needed], ranking), offset, offset + limit)
    assert list(page) == whole[offset : offset + limit]


def test_an_item_that_both_rankings_have_comes_before_those_that_one_has() -> None:
    hits = list(fuse([Hit(1, 9.0), Hit(2, 8.0)], [Hit(3, 0.9), Hit(2, 0.8), Hit(4, 0.5)], Ranking()))
    assert [hit.row for hit in hits] == [2, 3, 1, 4]
    assert [hit.score for hit in hits] == pytest.approx([8 / 9 + 4 * 0.8, 4 * 0.9, 1 + 4 * 0.5, 4 * 0.5])


metas = st.builds(lambda **given: Meta(**given), trust=st.floats(0, 1), tier=st.sampled_from(Tier))


@given(st.lists(metas | st.none(), max_size=3), st.lists(metas, max_size=3), st.sampled_from(Source), st.sampled_from(Tier))
def test_nothing_is_trusted_more_or_goes_further_than_what_it_was_made_of(
    sources: list[Meta | None], kept: list[Meta], source: Source, tier: Tier
) -> None:
    meta = combined(stamp(Origin(source=source), sources, tier=tier), kept, raises=False)
    made_of = [*(one for one in sources if one is not None), *kept]
    assert meta.trust <= min([TRUST[source], *(one.trust for one in made_of)])
    assert TIERS.index(meta.tier) <= min([TIERS.index(tier), *(TIERS.index(one.tier) for one in made_of)])
    if None in sources:
        assert (meta.trust <= 0.2, meta.tier) == (True, Tier.DEVICE)


@given(st.lists(texts, min_size=1, max_size=3), texts)
def test_a_namespace_is_either_refused_or_taken_as_it_is(labels: list[str], key: str) -> None:
    try:
        address = validation.address(tuple(labels), key)
    except InvalidRequest:
        assert not key or any(not label or "." in label for label in labels) or labels[0] == "langgraph"
        return
    assert address == ItemAddress(tuple(labels), key)
