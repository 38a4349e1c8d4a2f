"""How namespaces are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.protocols import InvalidRequest
from nearfar.protocols.items import namespace_text, parse_namespace

LABELS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=5).map(tuple)


@given(LABELS)
def test_every_namespace_is_read_as_it_is_written(namespace: tuple[str, ...]) -> None:
    assert parse_namespace(namespace_text(namespace)) == namespace


def test_labels_stand_between_slashes() -> None:
    assert parse_namespace("notes/ana") == ("notes", "ana") == parse_namespace("notes/ana/")
    assert parse_namespace("") == ()
    assert namespace_text(("and/or", "x")) == '["and/or", "x"]'


@pytest.mark.parametrize("text", ["a//b", "/", "[1]", '["a"', '["a", ""]'])
def test_what_is_no_namespace_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_namespace(text)
