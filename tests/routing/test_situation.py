"""What is known of a task before it is served."""

import pytest

from nearfar.orchestrator.task import tokens_by_length
from nearfar.orchestrator.task.modes import language_of

pytest.importorskip("py3langid", reason="rules about the language need the extra 'router'")


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Wie komme ich von hier am schnellsten zum Bahnhof?", "de"),
        ("Could you please tell me how to get to the station from here?", "en"),
        ("\u00bfC\u00f3mo llego desde aqu\u00ed a la estaci\u00f3n de tren?", "es"),
    ],
)
def test_the_language_of_a_sentence_is_recognised(text: str, language: str) -> None:
    assert language_of(text) == language


@pytest.mark.parametrize("text", ["", "42 + 17 = ?", "ok"])
def test_a_text_without_a_clear_language_has_none(text: str) -> None:
    assert language_of(text) is None


def test_tokens_are_estimated_from_the_length() -> None:
    assert [tokens_by_length(text) for text in ("", "a", "four", "five!")] == [0, 1, 1, 2]
