"""The facts of a search world and the passages that state them."""

import random
import re
import sqlite3
from collections.abc import Mapping
from typing import Final

from ..names import names
from ..world import Split

POPULATION: Final[Mapping[str, int]] = {"person": 60, "company": 24, "city": 24, "country": 8, "thing": 24}
"""Entities of each kind in one world: a small part of the possible names, so that a garbled name is almost never that of another entity."""

RELATIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "person": {
        "employer": "company",
        "sister": "person",
        "brother": "person",
        "mentor": "person",
        "neighbour": "person",
        "birthplace": "city",
        "keepsake": "thing",
    },
    "company": {
        "ceo": "person",
        "founder": "person",
        "accountant": "person",
        "supplier": "company",
        "rival": "company",
        "city": "city",
        "product": "thing",
    },
    "city": {
        "mayor": "person",
        "architect": "person",
        "airline": "company",
        "country": "country",
        "emblem": "thing",
    },
    "country": {
        "president": "person",
        "capital": "city",
        "bank": "company",
        "anthem": "thing",
    },
}
"""For each kind of entity, its attributes and the kind of entity each one names."""

UNKNOWN: Final = "unknown"
"""The right answer where the passages do not say."""

NOTHING_FOUND: Final = "nothing found"
NOT_STATED: Final = "not stated"
"""Result of opening a passage that has no such section."""
_GAP_RATE: Final = 0.06
"""Share of facts that no passage states."""
_MOST_TITLES: Final = 4


class Facts:
    """A table (entity, attribute) -> value drawn from a seed, and one passage for each entity. The same arguments give the same table."""

    def __init__(self, seed: int, split: Split) -> None:
        random_ = random.Random(f"search/{split}/{seed}/facts")
        self.members = {kind: random_.sample(names(kind, split), size) for kind, size in POPULATION.items()}
        self.kind_of = {name: kind for kind, members in self.members.items() for name in members}
        self.values: dict[tuple[str, str], str] = {}
        self.passages: dict[str, dict[str, str]] = {}
        """By title, the sections of each by their headings."""
        for kind, relations in RELATIONS.items():
            for entity in self.members[kind]:
                self._describe(entity, relations, random_)

    def value(self, entity: str, attribute: str) -> str:
        """Return the value that the passage of `entity` states, or `UNKNOWN`."""
        return self.values.get((entity, attribute), UNKNOWN)

    def having(self, attribute: str, value: str) -> list[str]:
        """Return the entities whose attribute has the value."""
        return [entity for (entity, name), known in self.values.items() if name == attribute and known == value]

    def _describe(self, entity: str, relations: Mapping[str, str], random_: random.Random) -> None:
        stated = [attribute for attribute in relations if random_.random() >= _GAP_RATE]
        random_.shuffle(stated)
        for attribute in stated:
            others = [name for name in self.members[relations[attribute]] if name != entity]
            self.values[entity, attribute] = random_.choice(others)
        self.passages[entity] = {attribute: self.values[entity, attribute] for attribute in stated}


class PassageIndex:
    """Full-text search over passages, on SQLite FTS5. A passage is a title and sections, by their headings."""

    def __init__(self, passages: Mapping[str, Mapping[str, str]]) -> None:
        self._passages = {title: dict(sections) for title, sections in passages.items()}
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute("CREATE VIRTUAL TABLE passage USING fts5(title UNINDEXED, text)")
        texts = ((title, f"{title}. {_text(sections)}") for title, sections in self._passages.items())
        self._database.executemany("INSERT INTO passage VALUES (?, ?)", texts)

    def search(self, query: str) -> str:
        """Return titles of the best passages (BM25): those with all words of the query, else those with any."""
        words = re.findall(r"\w+", query)
        for operator in (" AND ", " OR "):
            if found := self._titles(operator.join(f'"{word}"' for word in words)):
                return "; ".join(found)
        return NOTHING_FOUND

    def open(self, title: str, section: str) -> str:
        """Return a section of the passage with this title, or `NOT_STATED`. Raises `LookupError` where there is no such passage."""
        sections = self._passages.get(title.strip())
        if sections is None:
            raise LookupError(f"no passage is titled {title}")
        return sections.get(section.strip(), NOT_STATED)

    def close(self) -> None:
        self._database.close()

    def _titles(self, query: str) -> list[str]:
        if not query:
            return []
        rows = self._database.execute("SELECT title FROM passage WHERE passage MATCH ? ORDER BY rank, rowid LIMIT ?", (query, _MOST_TITLES))
        return [title for (title,) in rows]


def _text(sections: Mapping[str, str]) -> str:
    return " ".join(f"{heading}: {text}." for heading, text in sections.items())
