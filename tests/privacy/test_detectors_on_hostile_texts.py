"""No text makes the detectors slow or confuses them about places, and disguises that are cheap to undo are undone."""

import base64
import math
import re
from collections.abc import Iterable, Iterator
from re import _constants, _parser  # type: ignore[attr-defined]  # the parse tree of a pattern is nowhere else to be had
from types import ModuleType
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.orchestrator.safety.detection import Detectors, PrivateFinding, contacts, id_numbers, keys, resolve, standard
from nearfar.orchestrator.safety.detection.contacts import PhoneDetector
from nearfar.orchestrator.safety.detection.standard import standard_detectors

EMAIL, CARD, SSN = "jane.doe@example.com", "4111111111111111", "460-89-9847"
_WAYS = 15_000
"""In which a pattern may try the same place of a text: a constant, so that time stays in proportion to the text."""


def _patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    modules: tuple[ModuleType, ...] = (contacts, id_numbers, keys, standard)
    for module in modules:
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                yield f"{module.__name__.rpartition('.')[2]}.{name}", value
    yield from ((f"standard.codes.{number}", code.pattern) for number, code in enumerate(standard._ENCODINGS))


PATTERNS = dict(_patterns())


def _ways(node: Iterable[tuple[object, Any]]) -> float:
    """In how many ways a part of a pattern may be tried at one place, at most; infinite where that grows with the text."""
    ways = 1.0
    for operation, argument in node:
        if operation in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            least, most, inner = argument
            ways *= math.inf if most == _constants.MAXREPEAT else (most - least + 1) * _ways(inner)
        elif operation is _constants.BRANCH:
            ways *= sum(_ways(branch) for branch in argument[1])
        elif operation is _constants.SUBPATTERN:
            ways *= _ways(argument[-1])
        elif operation is _constants.POSSESSIVE_REPEAT and _ways(argument[-1]) == math.inf:
            ways = math.inf
    return ways


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_try_no_place_of_a_text_in_more_ways_than_a_constant(name: str) -> None:
    pattern = PATTERNS[name]
    assert _ways(_parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)) <= _WAYS


def test_patterns_that_repeat_without_limit_are_told_from_those_that_do_not() -> None:
    assert _ways(_parser.parse(r"(a+)+b")) == math.inf
    assert _ways(_parser.parse(r"(?:a{1,100}){1,100}b")) == 10_000
    assert _ways(_parser.parse(r"a++b")) == 1


HOSTILE = [
    *(
        "a",
        "a.",
        "a@",
        "@a.aa ",
        "a@a.",
        " at ",
        " at a dot ",
        "[at]",
        "1",
        "1 ",
        "12 ",
        "1-",
        "1.",
        "1.1.1.",
        "+1 ",
        "12.12.",
        "phone 1 ",
        "call ",
    ),
    *(
        "DE89",
        "AT12 ",
        "http://a.",
        "://a:",
        "www.a",
        "https://a.b/c)).",
        ")",
        "eyJaaaaaaaa.",
        "-eyJaaaaaaaa.eyJ",
        "sk-",
        "password: ",
        "token is ",
    ),
    *(
        "-----BEGIN RSA PRIVATE KEY-----",
        "BSN ",
        "BSN 1 1 1 1 1 1 ",
        "born ",
        "1 jan ",
        "::",
        "a:",
        "%41",
        "\\u0041",
        "&#65;",
        "\u200b",
        "\uff11",
        "\ufdfa",
        "a b ",
        "41 ",
        "QUJD",
    ),
    *("020 7946 0958 ", "123 456 7890, ", "(415) 555-2671\n", "-", "\x00", "\n", "\u0301", "\U000e0041"),
]


@pytest.mark.parametrize("part", HOSTILE)
def test_long_texts_of_one_part_are_looked_through_to_their_end(part: str) -> None:
    """With anything that grows with the square of a text's length, this would run into the limit on a test's time."""
    text = part * (20_000 // len(part)) + f" {EMAIL}"
    assert resolve(standard_detectors().find(text))[-1].end == len(text)


def test_only_so_many_numbers_of_a_text_are_held_against_numbering_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []

    def none_has(number: str) -> bool:
        looked_up.append(number)
        return False

    monkeypatch.setattr(contacts, "_is_in_a_plan", none_has)
    numbers = "\n".join(f"020 {number:04} 0958" for number in range(2_000))
    found = PhoneDetector(numbering_plans=True).find(numbers)
    assert len(looked_up) == 500
    assert len(found) == 1_500  # of the others the form is enough: they count


@given(st.text(max_size=400))
def test_readings_are_in_proportion_to_the_text_and_know_where_they_come_from(text: str) -> None:
    made = list(standard.undisguise(text))
    assert sum(len(reading.text) for reading in made) <= 24 * len(text)
    for reading in made:
        assert len(reading.text) == len(reading.starts) == len(reading.ends)
        assert all(0 <= start < end <= len(text) for start, end in zip(reading.starts, reading.ends, strict=True))


@given(st.text(max_size=60), st.text(max_size=60))
def test_findings_are_where_they_say_in_any_text(before: str, after: str) -> None:
    text = f"{before} {SSN} {after}"
    findings = Detectors([standard_detectors()]).find(text)
    assert all(text[finding.start : finding.end] == finding.text for finding in findings)
    assert all(one.end <= other.start for one, other in zip(findings, findings[1:], strict=False))
    assert findings == Detectors([standard_detectors()]).find(text)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10), st.sampled_from(["card", "phone", "url"])), max_size=12))
def test_what_is_found_stays_covered_when_findings_are_joined(spans: list[tuple[int, int, str]]) -> None:
    text = "".join(chr(97 + place % 26) for place in range(40))
    findings = [PrivateFinding(start, start + length, type, text[start : start + length]) for start, length, type in spans]
    joined = resolve(findings)
    covered = {place for finding in findings for place in range(finding.start, finding.end)}
    assert covered == {place for finding in joined for place in range(finding.start, finding.end)}
    assert all(text[finding.start : finding.end] == finding.text for finding in joined)
    assert sum(finding.end - finding.start for finding in joined) == len(covered)


def test_of_overlapping_findings_the_longest_and_then_most_specific_names_the_type() -> None:
    assert resolve([PrivateFinding(0, 4, "phone", "abcd"), PrivateFinding(0, 4, "card", "abcd")]) == [PrivateFinding(0, 4, "card", "abcd")]
    assert resolve([PrivateFinding(2, 6, "card", "cdef"), PrivateFinding(0, 5, "url", "abcde")]) == [PrivateFinding(0, 6, "url", "abcdef")]


def test_what_is_not_looked_for_hides_nothing() -> None:
    text = f"https://example.org/{EMAIL}/x"
    assert [finding.type for finding in Detectors([standard_detectors()], {"email"}).find(text)] == ["email"]
    assert [finding.type for finding in Detectors([standard_detectors()], {"email", "url"}).find(text)] == ["url"]


def _full_width(text: str) -> str:
    return "".join(chr(ord(character) + 0xFEE0) if "!" <= character <= "~" else character for character in text)


DISGUISED = {
    "spaced": " ".join(EMAIL),
    "over lines": "\n".join(EMAIL),
    "invisible characters": "\u200b".join(EMAIL),
    "full width": _full_width(EMAIL),
    "tags": "".join(chr(0xE0000 + ord(character)) for character in EMAIL),
    "percent": quote(EMAIL, safe=""),
    "every character in percent": "".join(f"%{ord(character):02X}" for character in EMAIL),
    "JSON": "".join(f"\\u{ord(character):04x}" for character in EMAIL),
    "HTML": "".join(f"&#{ord(character)};" for character in EMAIL),
    "base64": base64.b64encode(EMAIL.encode()).decode(),
    "base64 within": base64.b64encode(f"??{EMAIL}>>".encode()).decode(),
    "base64 of base64": base64.b64encode(base64.b64encode(EMAIL.encode())).decode(),
    "base64 in lines": "\n".join(re.findall(".{1,76}", base64.b64encode(f"{'a word ' * 9}{EMAIL}{' a word' * 9}".encode()).decode())),
    "hex": EMAIL.encode().hex(),
    "spaced hex": EMAIL.encode().hex(" ").upper(),
}


@pytest.mark.parametrize("form", DISGUISED)
def test_disguised_addresses_are_found_and_covered(form: str) -> None:
    text = f"Über {DISGUISED[form]} und mehr"
    (finding,) = Detectors([standard_detectors()], {"email"}).find(text)
    assert text[finding.start : finding.end] == finding.text
    uncovered = text.replace(finding.text, "")
    assert resolve(standard_detectors().find(uncovered)) == []


@pytest.mark.parametrize(
    "number", ["4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1", _full_width(CARD), "4111\u00a01111\u00a01111\u00a01111", "٤١١١١١١١١١١١١١١١"]
)
def test_disguised_numbers_are_found(number: str) -> None:
    assert [finding.type for finding in Detectors([standard_detectors()], {"card"}).find(f"It is {number}.")] == ["card"]


def test_number_with_other_dashes_is_found() -> None:
    assert [
        finding.text for finding in Detectors([standard_detectors()]).find("It is 460\u20138989\u20139847, no: 460\u201389\u20139847")
    ] == ["460\u201389\u20139847"]


@pytest.mark.parametrize(("numbering_plans", "found"), [(True, ["020 7946 0958"]), (False, [])])
def test_national_numbers_of_the_world_take_numbering_plans(numbering_plans: bool, found: list[str]) -> None:
    if numbering_plans:
        pytest.importorskip("phonenumbers", reason="the extra privacy is not installed")
    findings = PhoneDetector(numbering_plans=numbering_plans).find("It says 020 7946 0958 there")
    assert [finding.text for finding in findings] == found
