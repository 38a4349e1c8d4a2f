"""What counts as a fact, and what a source does not say."""

import pytest

from nearfar.orchestrator.compression.selection import facts, find_unsupported

SOURCE = "Anna Berg moved to Berlin on 2024-05-20 and paid $1,250.50 with credit_card_9879898. Her flight is HAT136."


@pytest.mark.parametrize(
    "claim",
    [
        "Anna Berg moved to Berlin.",
        "She paid 1250.5 with credit_card_9879898.",
        "Flight HAT136, on 2024-05-20.",
        "The payment was $1,250.50.",
        "Booked the flight HAT136 for anna.",
        "BERLIN is where she lives.",
    ],
)
def test_what_a_source_says_is_supported(claim: str) -> None:
    assert find_unsupported(claim, [SOURCE]) == []


@pytest.mark.parametrize(
    ("claim", "invented"),
    [
        ("Anna Berg moved to Paris.", ["paris"]),
        ("Paris is where she lives.", ["paris"]),
        ("She paid 1,251.", ["1251"]),
        ("Flight HAT137.", ["hat137"]),
        ("Paid with gift_card_1.", ["gift_card_1"]),
        ("She flies on 2024-05-21.", ["2024-05-21"]),
        ("Write to anna@example.org.", ["anna@example.org"]),
        ("Tomas Berg's flight.", ["tomas"]),
    ],
)
def test_what_a_source_does_not_say_is_found(claim: str, invented: list[str]) -> None:
    assert find_unsupported(claim, [SOURCE]) == invented


def test_a_capital_that_only_opens_a_sentence_is_no_name() -> None:
    assert facts("Discussed the weather. Nothing came of it.\nThen lunch.") == []
