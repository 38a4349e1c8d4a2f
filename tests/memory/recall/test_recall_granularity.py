"""How keys name the turns that items are about."""

from hypothesis import given
from hypothesis import strategies as st

from nearfar.orchestrator.memory.ranking import Span, span, turn_key

numbers = st.integers(0, 10**7)


@given(st.text(max_size=20), numbers, st.integers(0, 100))
def test_a_key_names_the_turns_that_it_was_made_of(session: str, first: int, more: int) -> None:
    about = Span(session, first, first + more)
    assert span(about.key) == about


@given(st.text(max_size=20), numbers, st.integers(0, 50))
def test_a_piece_names_each_of_its_turns(session: str, first: int, more: int) -> None:
    turns = Span(session, first, first + more).turns
    assert [span(key) for key in turns] == [Span(session, number, number) for number in range(first, first + more + 1)]


@given(st.integers(0, 999_998))
def test_keys_are_in_the_order_of_turns(number: int) -> None:
    assert turn_key("a", number) < turn_key("a", number + 1)


@given(st.text(max_size=20))
def test_keys_of_another_layout_name_no_turns(key: str) -> None:
    assert span(key + ":x") is None


def test_the_archive_of_a_superseded_turn_is_no_turn() -> None:
    assert span(turn_key("a", 1) + "@18f@laptop") is None
