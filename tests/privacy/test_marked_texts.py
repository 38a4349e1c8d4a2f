"""The texts on which the detectors are measured are as many, as marked and as well-formed as they claim."""

from pathlib import Path

import pytest

from benchmarks.fault_figures import marked_texts
from benchmarks.fault_figures.marked_texts import FOLDER, MarkedText, harmless_texts


def _of(subject: str) -> list[str]:
    return [one.value for one in marked_texts.marked_texts("second_private") if one.subject == subject]


def _plain(value: str) -> str:
    return "".join(character for character in value.upper() if character.isascii() and character.isalnum())


@pytest.mark.parametrize(("name", "count"), [("second_private", 150), ("second_keys", 120)])
def test_every_marked_text_holds_a_value_of_its_own(name: str, count: int) -> None:
    texts = marked_texts.marked_texts(name)
    assert len(texts) == count == len({one.value for one in texts})
    assert all(one.subject and one.value.strip() == one.value for one in texts)


def test_harmless_texts_differ_and_keep_double_brackets() -> None:
    texts = harmless_texts("second_harmless")
    assert len(texts) == 150 == len({one.text for one in texts})
    assert any("[[1, 0, 0]" in one.text and one.value == "" for one in texts)


def test_keys_are_of_sixty_vendors_and_no_line_spells_one_in_full() -> None:
    texts = marked_texts.marked_texts("second_keys")
    written = (FOLDER / "second_keys.txt").read_text(encoding="utf-8")
    assert len({one.subject for one in texts}) >= 60
    assert not [one.subject for one in texts if one.value.replace("\n", "\\n") in written]


def test_cards_pass_the_check_of_iso_7812() -> None:
    for card in map(_plain, _of("card")):
        doubled = [int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(card))]
        assert sum(sum(divmod(number, 10)) for number in doubled) % 10 == 0, card


def test_ibans_pass_the_check_of_iso_13616() -> None:
    for iban in map(_plain, _of("iban")):
        assert int("".join(str(int(character, 36)) for character in iban[4:] + iban[:4])) % 97 == 1, iban


def test_escapes_and_marks_are_taken_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marked_texts, "FOLDER", tmp_path)
    (tmp_path / "one.txt").write_text("# card\na\\tb [[12\\n3\\u00a04]] c\n", encoding="utf-8")
    assert marked_texts.marked_texts("one") == [MarkedText("card", "a\tb 12\n3\u00a04 c", 4, 10)]
    assert marked_texts.marked_texts("one")[0].value == "12\n3\u00a04"


@pytest.mark.parametrize(("line", "count"), [("[[1]] and [[2]]", 2), ("none", 0)])
def test_a_text_with_any_other_number_of_marks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, count: int) -> None:
    (tmp_path / "two.txt").write_text(f"# id\n{line}\n", encoding="utf-8")
    monkeypatch.setattr(marked_texts, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=f"marks {count} values"):
        marked_texts.marked_texts("two")
