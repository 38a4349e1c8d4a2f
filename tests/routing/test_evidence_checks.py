"""The checks on a draft that cost no model call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.orchestrator.routing.looks import is_grounded, objection
from nearfar.protocols import Message, ToolResult


def conversation(*results: str, question: str = "Where does Mira Falk work?") -> list[Message]:
    return [
        Message.user(question),
        *(Message.tool(ToolResult(call_id=str(n), name="lookup", content=text)) for n, text in enumerate(results)),
    ]


@pytest.mark.parametrize(
    "answer",
    ["Orbix Labs", "orbix labs.", "Mira Falk works for Orbix Labs in Lisbon.", "She works at Orbix Labs.", "42", "It has 42 offices."],
)
def test_an_answer_found_in_a_tool_result_is_grounded(answer: str) -> None:
    assert is_grounded(answer, conversation("Orbix Labs, Lisbon", "42 offices"))


@pytest.mark.parametrize(
    "answer", ["Orbix Lab", "Lisb", "Mira Falk works for Halcyon Works in Lisbon.", "It has 43 offices.", "unknown", "Mira Falk", "4"]
)
def test_an_answer_found_in_no_tool_result_is_not(answer: str) -> None:
    assert not is_grounded(answer, conversation("Orbix Labs, Lisbon", "42 offices"))


def test_an_error_result_grounds_nothing() -> None:
    failed = Message.tool(ToolResult(call_id="1", name="lookup", content="nothing found for Orbix Labs", is_error=True))
    assert not is_grounded("Orbix Labs", [Message.user("Who?"), failed])


@given(st.text(alphabet="abcdefgh 123", min_size=1).filter(str.strip), st.text(alphabet="xyz ."))
def test_every_result_grounds_itself_whatever_stands_around_it(result: str, around: str) -> None:
    words = result.split()[:8]
    assert is_grounded(" ".join(words), conversation(f"{around} {result} {around}"))


def test_an_empty_draft_is_distrusted() -> None:
    assert objection("  ", confidence=1.0, minimum_confidence=0.5) == "the draft is empty"


def test_a_confidence_below_the_minimum_is_distrusted() -> None:
    reason = objection("yes", confidence=0.4, minimum_confidence=0.5)
    assert reason is not None
    assert "0.40" in reason


def test_an_unknown_confidence_is_not_held_against_a_draft() -> None:
    assert objection("yes", confidence=None, minimum_confidence=0.5) is None


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ("The population is 1,234,567.", '{"population":1234567}'),
        ("1234567", "population: 1,234,567"),
        ("200", "[100,200,300]"),
        ("It costs $3.50.", "price: 3.5"),
        ("Orbix Labs", "Mira Falk,Orbix Labs,Lisbon"),
        ("Zu\u0308rich", "Z\u00fcrich"),
        ("東京", "首都は東京です"),
        (
            "กรุงเทพ",
            "เมืองหลวงคือกรุงเทพ",
        ),
        (
            "Мира Фальк",
            "имя: Мира Фальк",
        ),
        ('From what I found, these are the offices:\n\n1. Orbix Labs\n2. The "Halcyon Works"', "Orbix Labs; Halcyon Works"),
    ],
)
def test_form_makes_no_difference_to_what_is_grounded(answer: str, result: str) -> None:
    assert is_grounded(answer, conversation(result))


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ("1,234,568", "1234567"),
        ("234", "1,234,567"),
        ("3.1", "version 3.10"),
        ("100200300", "[100,200,300]"),
        ("大阪", "首都は東京です"),
        ("The offices of the company that I could find are these:\n1. Orbix Labs\n2. Orbix Berlin", "Orbix Labs; Halcyon Works"),
    ],
)
def test_another_number_or_name_is_not_grounded(answer: str, result: str) -> None:
    assert not is_grounded(answer, conversation(result))
