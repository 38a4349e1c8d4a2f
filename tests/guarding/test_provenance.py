"""Whether a value comes from a text: in other notations of the same, and never as a part of something else."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from nearfar.orchestrator.safety.provenance import MatchStrength, TrustedTexts, free_values
from nearfar.orchestrator.safety.text_values import Times, find_times
from nearfar.protocols import JsonSchema

STRONG, WEAK, NONE = MatchStrength.STRONG, MatchStrength.WEAK, MatchStrength.NONE


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Send it to Amy.Watson@gmail.com.", "amy.watson@gmail.com"),
        ("Are there reviews of Dr. Elizabeth  Green, the dentist?", "Dr. elizabeth green"),
        ("What is Elizabeth Green's number?", "Elizabeth Green"),
        ("Read 'octocat/Hello-World', please", "octocat/Hello-World"),
        ("ask ann about it", "Ann"),
        ("write to o'brien and Mary-ann", "O'Brien and Mary-Ann"),
        ("open HTTPS://Bit.LY/AbCdE1", "https://bit.ly/AbCdE1"),
        ("Pay 1.500 euros", 1500),
        ("Pay €1.500 now", 1500),
        ("Pay 1.500,50 € now", 1500.5),
        ("Pay 1 500 EUR", 1500),
        ("Pay CHF 1'500.", 1500),
        ("Pay 12,50 to him", 12.5),
        ("1.500.000 people", 1500000),
        ("version 1.500", 1.5),
        ("It is 2022-01-03. Pay on February 22", "2022-02-22"),
        ("In 2024: book Feb 22", "2024-02-22"),
        ("order W4923227", "#W4923227"),
        ("look at www.codedculinary.com.", "https://www.codedculinary.com"),
        ("Transfer $3,000 to him", 3000),
        ("Transfer 3000.50 to him", "3,000.50"),
        ("Transfer 3000 to him", 3000.0),
        ("Call +1 415 555-2911 now", "+14155552911"),
        ("Pay on February 22, 2022", "2022-02-22"),
        ("Is she free on the 28th of February 2022 from 2 PM to 3 PM?", "2022-02-28T14:00"),
        ("Is she free on 28.2.2022 at 14:30?", "2022-02-28 14:30:00"),
        ("invite ann@x.org and bob@x.org", "ann@x.org, bob@x.org"),
        ('{"accounts":[4411,4412],"owner":"M\\u00fcller"}', 4412),
        ('{"accounts":[4411,4412],"owner":"M\\u00fcller"}', "Müller"),
        ("open ~/notes/today.md", "~/notes/today.md"),
    ],
)
def test_a_value_that_a_text_says_is_found_in_it(text: str, value: str | float) -> None:
    assert TrustedTexts([text]).strength(value) is STRONG


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("write to amy@gmail.com", "gmail.com"),
        ("write to amy@gmail.com", "amy"),
        ("write to amy@gmail.com", "y@gmail.com"),
        ("see https://shop.example.com/cart", "example.com"),
        ("move ~/notes/today.md", "~/notes"),
        ("move ~/notes/today.md", "/notes/today.md"),
        ("move /home/ann/tmp", "tmp"),
        ("delete the bookings", "booking"),
        ("account 123-1234-1234", 123),
        ("account 123-1234-1234", "1234"),
        ("account 123-1234-1234", "1234-1234"),
        ("pay 3,000", "000"),
        ("pay 3,000", 3),
        ("pay 3000", 300),
        ("pay 3000", 30000),
        ("pay 3000", -3000),
        ("the agent 7", "007"),
        ("at 22:30", 22),
        ("on 2022-02-22", "2022-02-23"),
        ("on 2022-02-22", "2023-02-22"),
        ("on May 20 at 10:00", "2024-05-20T11:00"),
        ("delete it", "*"),
        ("delete it", "/"),
        ("ann@x.org", "ann@x.org, eve@x.org"),
        ("write to bob@example.com", "bob\u200b@example.com"),
        ("write to support@example.com", "\u017fupport@example.com"),
        ("write to kay@example.com", "\u212aay@example.com"),
        ("run echo and rm", "echo\nrm"),
        ("", "anything"),
        ("100", "1e2"),
        ("100", "１００"),
        ("pay 12 people 500 each", "12,500"),
        ("open bit.ly/AbCdE1", "bit.ly/abcde1"),
        ("open https://bit.ly/AbCdE1", "https://bit.ly/ABCDE1"),
        ("the password is hunterTwo", "hunterTWO"),
        ("use key xY7z", "xy7Z"),
        ("write to aB3@example.com", "ab3@example.com"),
        ("read Notes/today.md", "notes/today.md"),
        ("Pay 1.500 euros", 1.5),
        ("Pay 1 500 euros", 500),
        ("Pay 1'500 now", 500),
        ("book Feb 22", "1999-02-22"),
        ("book Feb 22", "2099-02-22"),
        ("write to o'brien@example.com", "brien@example.com"),
        ("the cafe\u0301 account", "cafe"),
        ("run echo rm", "echo\rrm"),
        ("run echo rm", "echo\u2028rm"),
        pytest.param("100", 10**5000, id="longer than Python writes a number"),
    ],
)
def test_a_value_that_is_only_a_part_or_looks_alike_is_not_found(text: str, value: str | float) -> None:
    assert TrustedTexts([text]).strength(value) is NONE


@pytest.mark.parametrize(
    ("text", "value"), [("show all 5 mails", 5), ("show all 5 mails", "all"), ("I am at it", "it"), ("whatever", ""), ("a b", "a b")]
)
def test_a_short_or_common_value_counts_for_little(text: str, value: str | float) -> None:
    assert TrustedTexts([text]).strength(value) is WEAK


def test_a_value_does_not_reach_from_one_text_into_the_next() -> None:
    assert TrustedTexts(["pay Ann", "Smith called"]).strength("Ann Smith") is NONE
    assert TrustedTexts(["pay Ann", "Smith called"]).strength("Ann\0Smith") is NONE


def test_each_text_of_a_long_run_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run asks about each of its calls, behind all that it was told by then."""
    read: list[str] = []

    def noted(text: str) -> Times:
        read.append(text)
        return find_times(text)

    monkeypatch.setattr("nearfar.orchestrator.safety.provenance.find_times", noted)
    trusted, told = TrustedTexts(["pay Ann"]), [f"row {number}" for number in range(20)]
    for count in range(20):
        assert trusted.plus(told[:count]).strength("somebody else") is NONE
    assert len(read) == 20


@given(st.text(alphabet="ab1.-@/ ", min_size=1), st.text(alphabet="ab1.-@/ ", max_size=20), st.text(alphabet="xyz", min_size=1))
def test_a_value_with_a_letter_that_no_text_has_is_never_found(before: str, text: str, letter: str) -> None:
    assert TrustedTexts([text, before]).strength(before + letter) is NONE


@given(st.text(alphabet="abc12@.-_/ ", min_size=3).filter(lambda text: any(map(str.isalnum, text))))
def test_a_whole_text_is_found_in_itself(text: str) -> None:
    assert TrustedTexts([text]).strength(text) is not NONE


SCHEMA: JsonSchema = {
    "type": "object",
    "$defs": {
        "Level": {"enum": ["low", "high"]},
        "Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}},
        "Loop": {"$ref": "#/$defs/Loop"},
    },
    "properties": {
        "level": {"$ref": "#/$defs/Level"},
        "limit": {"type": "integer", "default": 10},
        "to": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "either": {"anyOf": [{"type": "boolean"}, {"type": "string"}]},
        "options": {"type": "object", "additionalProperties": {"enum": [1, 2]}},
        "node": {"$ref": "#/$defs/Node"},
        "loop": {"$ref": "#/$defs/Loop"},
    },
}


@pytest.mark.parametrize(
    ("name", "value", "free"),
    [
        ("level", "high", []),
        ("level", "other", ["other"]),
        ("limit", 10, []),
        ("limit", 11, [11]),
        ("limit", True, [1]),
        ("to", None, []),
        ("to", "ann", ["ann"]),
        ("either", True, []),
        ("either", "x", ["x"]),
        ("options", {"eve@x.org": 1}, ["eve@x.org"]),
        ("options", {"a": 3}, ["a", 3]),
        ("node", {"next": {"next": {"hidden": "x"}}}, ["hidden", "x"]),
        ("loop", "x", ["x"]),
        ("unknown", [["x"], {"k": 1.5}], ["x", "k", 1.5]),
    ],
)
def test_what_a_schema_does_not_say_itself_was_chosen_by_somebody(name: str, value: JsonValue, free: list[object]) -> None:
    assert free_values({name: value}, SCHEMA, SCHEMA) == ([] if name in SCHEMA["properties"] else [name]) + free


@pytest.mark.parametrize(
    ("value", "is_found"), [("2026-02-22", True), ("2027-02-22", True), ("2025-02-22", False), ("2028-02-22", False), ("2026-02-23", False)]
)
def test_a_day_without_a_year_is_the_next_or_the_last_one(value: str, is_found: bool) -> None:
    assert find_times("book feb 22").has(value, today=date(2026, 11, 23)) is is_found


def test_a_day_without_a_year_before_today_and_after_it() -> None:
    assert find_times("on dec 24").has("2025-12-24", today=date(2026, 11, 23))
    assert find_times("on dec 24").has("2026-12-24", today=date(2026, 11, 23))
    assert not find_times("on dec 24").has("2027-12-24", today=date(2026, 11, 23))
