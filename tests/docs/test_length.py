"""The documentation stays short and in plain words: pages, words, terms of the glossary, and words that no page uses."""

import re
from pathlib import Path

import pytest
from pages import ROOT, pages

from scripts.configuration_tables import TABLE

DOCS = ROOT / "docs"
MOST_PAGES, MOST_WORDS, MOST_TERMS = 28, 34_000, 60
"""Lower the first two when pages become fewer or shorter; never raise them."""
GENERATED = {"api.md", "benchmarks.md", "cli.md"}
_PICTURE = re.compile(r"^```mermaid\n.*?^```$", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\|.*$", re.MULTILINE)
_ODD = re.compile(r"\b(nobody|somebody|whoever|anew|beside|strangers?)\b", re.IGNORECASE)


def words(page: Path) -> int:
    """Return the number of words that people wrote: without graphs and tables of keys, which are made of the code, and without the tables
    of the study."""
    text = TABLE.sub("", _PICTURE.sub("", page.read_text(encoding="utf-8")))
    own, study, figures = text.partition("## The hybrid study")
    text = own + study + _ROW.sub("", figures)
    return sum(1 for word in text.split() if re.search(r"\w", word))


def test_there_are_few_pages() -> None:
    assert len(list(DOCS.glob("**/*.md"))) <= MOST_PAGES


def test_the_pages_are_short() -> None:
    lengths = {page.name: words(page) for page in DOCS.glob("*.md") if page.name not in GENERATED}
    assert sum(lengths.values()) <= MOST_WORDS, lengths


def test_the_glossary_is_short() -> None:
    terms = re.findall(r"^\| (?!term|-)", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert 0 < len(terms) <= MOST_TERMS


@pytest.mark.parametrize("page", [page for page in pages() if page.name != "api.md"], ids=lambda page: page.name)
def test_plain_words_are_used(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", page.read_text(encoding="utf-8"))
    assert not _ODD.findall(text)
