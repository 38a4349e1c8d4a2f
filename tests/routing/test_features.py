"""What a prompt shows at a glance."""

from math import isfinite

from hypothesis import given
from hypothesis import strategies as some

from nearfar.orchestrator.routing.head import BUCKETS, SURFACE, WINDOW, hashed, surface, windowed

ANY_TEXT = some.text(some.characters(exclude_categories=()))


def measured(text: str) -> dict[str, float]:
    return dict(zip(SURFACE, surface(text), strict=True))


def grams(text: str) -> list[int]:
    return sorted(hashed(text).tolist())


def test_a_word_counts_once_however_often_it_is_said() -> None:
    assert len(grams("cat cat")) == 2  # the word and the pair
    assert grams("cat cat") == grams("cat cat cat")


def test_case_makes_no_difference_to_words() -> None:
    assert grams("Find THE Cat") == grams("find the cat")


def test_the_order_of_words_makes_a_difference() -> None:
    assert grams("dog bites man") != grams("man bites dog")


def test_words_of_other_alphabets_are_told_apart() -> None:
    assert grams("где кот") != grams("где пёс")


def test_of_a_long_prompt_its_head_and_tail_are_read() -> None:
    head, tail = "a " * WINDOW, " z" * WINDOW
    long = head + "middle " * 10_000 + tail
    assert grams(long) == grams(head + "other " * 20_000 + tail)
    assert grams(long) != grams("b " * WINDOW + "middle " * 10_000 + tail)
    assert grams(long) != grams(head + "middle " * 10_000 + " y" * WINDOW)


def test_a_short_prompt_is_read_as_a_whole() -> None:
    assert windowed("x" * 2 * WINDOW) == "x" * 2 * WINDOW


@given(ANY_TEXT)
def test_any_text_has_finite_features(text: str) -> None:
    assert all(0 <= bucket < BUCKETS for bucket in hashed(text))
    assert len(surface(text)) == len(SURFACE)
    assert all(isfinite(figure) and figure >= 0 for figure in surface(text))


@given(ANY_TEXT)
def test_shares_of_characters_are_between_none_and_all(text: str) -> None:
    found = measured(text)
    assert all(0 <= found[name] <= 1 for name in ("digits", "capitals", "signs", "distinct words"))


def test_the_surface_tells_code_formulas_and_questions_apart() -> None:
    prose, code = measured("Tell me who rules the town"), measured("for (int i = 0; i < n; ++i) { sum += values[i]; }")
    formula, question = measured("Solve x^2 + 3 = 2*5"), measured("Who rules the town?")
    assert code["code"] > prose["code"] == 0
    assert formula["formulas"] > prose["formulas"] == 0
    assert question["questions"] > prose["questions"] == 0


def test_the_surface_counts_shares_of_characters() -> None:
    found = measured("AB12,.cd")
    assert (found["digits"], found["capitals"], found["signs"]) == (0.25, 0.25, 0.25)


def test_the_length_is_that_of_the_whole_text() -> None:
    assert measured("a" * 10_000_000)["characters"] > measured("a" * 5_000_000)["characters"]
