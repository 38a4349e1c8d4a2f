"""A generated multi-hop search world: questions that take one to four lookups to answer.

A world is a table ``(entity, attribute) -> value`` drawn from a seed, so an answer can be found only
by looking it up and never by remembering it. Every name is two words. The words are shared by both
splits, the combinations are not: a hash of the name decides which split may use it, so a model
trained on the "train" split meets only unseen names in the "test" split.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

Split = Literal["train", "test"]

DEMO_WEIGHTS: Final[Mapping[int, float]] = {1: 0.25, 2: 0.25, 3: 0.25, 4: 0.25}
"""Share of questions by number of hops in the demo mix."""

MOST_HOPS: Final = 4
NOTHING_FOUND: Final = "nothing found for"
"""How the text of a lookup without a result begins."""

_SPLITS: Final[tuple[Split, ...]] = ("train", "test")
_TEST_SHARE: Final = 0.2

_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "person": (
        (
            "Mira Tomas Elin Jonas Ruth Pavel Ines Oskar Lena Hugo Vera Marek Anya Felix Nora Ivan Clara "
            "Emil Dora Stefan Greta Anton Irma Lukas Tess Viktor Alma Boris Edith Conrad Maya Otto Sonja "
            "Albert Livia Bruno Hanna Leo Petra Samuel"
        ),
        (
            "Falk Berg Novak Lind Weiss Orlov Silva Holm Kramer Duarte Voss Nemec Aalto Brandt Costa Dahl "
            "Engel Farkas Gruber Hansen Ivanov Jansen Keller Larsen Moreau Nilsen Olsen Petrov Quinn Rossi "
            "Stark Tanaka Urban Vogel Winter Young Zeman Marsh Pike Thorn"
        ),
    ),
    "company": (
        (
            "Orbix Lumen Vertex Halcyon Quanta Nimbus Cobalt Zephyr Aurora Beacon Crestline Delta Ember "
            "Fathom Granite Horizon Ionic Juniper Kestrel Lattice Meridian Northwind Onyx Pinnacle Quartz "
            "Redwood Summit Tidal Umbra Vantage"
        ),
        "Labs Works Group Systems Foods Mills Press Motors Freight Optics",
    ),
    "city": (
        "Port New East West Upper Lower Saint Fort Lake Mount",
        (
            "Alder Bram Corvin Dunmore Elster Farrow Galen Hollis Istria Jarrow Kelso Lorne Merrow Norden "
            "Oslen Parma Querin Ravel Selby Torren Ulmar Verin Wexley Yarrow Zadar Ashby Birk Calder Doran "
            "Esker"
        ),
    ),
    "country": (
        ("Velden Sorra Kaltia Morvan Tavira Ostrava Belmar Carinth Drusia Estova Ferrin Galdor Helvar Istmar Jutria Korvia"),
        "Republic Kingdom Union Isles League Federation",
    ),
    "thing": (
        ("Amber Silent Crimson Hollow Golden Paper Velvet Frozen Copper Gentle Broken Silver Wooden Distant Painted Marble"),
        ("Kettle Lantern Compass Anchor Violin Mirror Falcon Garden Bridge Ladder Candle Feather Hammer Engine Basket Window"),
    ),
}

_POPULATION: Final[Mapping[str, int]] = {
    "person": 60,
    "company": 24,
    "city": 24,
    "country": 8,
    "thing": 24,
}
"""Entities of each kind in one world: a small part of the possible names, so that a garbled name is
almost never somebody else's name, and looking it up finds nothing."""

_RELATIONS: Final[Mapping[str, Mapping[str, str]]] = {
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

_PHRASINGS: Final = (
    "What is {chain}?",
    "Find {chain}.",
    "Tell me {chain}.",
    "I need {chain}.",
    "Look up {chain}.",
)
"""Ways to ask. A chain is written with "of", with possessives, or with both: "the city of Mira Falk's
employer". Possessives are read from left to right and "of" from right to left, which is what makes the
longer questions hard for a small model."""


@dataclass(frozen=True, slots=True)
class SearchTask:
    """One question with its only right answer; ``hops`` is the number of lookups it takes."""

    identifier: str
    question: str
    answer: str
    hops: int


@dataclass(frozen=True, slots=True)
class Trail:
    """The lookups that lead from the entity a question names to its answer, in order."""

    start: str
    attributes: tuple[str, ...]
    values: tuple[str, ...]

    def lookups(self) -> Iterator[tuple[str, str, str]]:
        """Yield (entity, attribute, value) for each lookup."""
        yield from zip((self.start, *self.values), self.attributes, self.values, strict=False)


class SearchWorld:
    """A table of facts about generated people, companies, cities and countries.

    The same seed and split always give the same table and the same tasks.
    """

    def __init__(self, seed: int, split: Split) -> None:
        self.seed = seed
        self.split: Split = split
        random_ = random.Random(f"search/{split}/{seed}")
        self._members = {kind: random_.sample(_names(kind, split), size) for kind, size in _POPULATION.items()}
        self._facts = {
            (entity, attribute): random_.choice(self._members[target])
            for kind, relations in _RELATIONS.items()
            for entity in self._members[kind]
            for attribute, target in relations.items()
        }

    @property
    def entities(self) -> frozenset[str]:
        """Every name that occurs in this world."""
        return frozenset(name for members in self._members.values() for name in members)

    def tasks(self, count: int, weights: Mapping[int, float] = DEMO_WEIGHTS) -> list[SearchTask]:
        """Draw ``count`` tasks; ``weights`` gives the share of each number of hops."""
        return [task for task, _ in self.worked_tasks(count, weights)]

    def worked_tasks(self, count: int, weights: Mapping[int, float] = DEMO_WEIGHTS) -> list[tuple[SearchTask, Trail]]:
        """Like ``tasks``, each task with the lookups that solve it."""
        random_ = random.Random(f"search/{self.split}/{self.seed}/tasks")
        lengths = random_.choices(list(weights), list(weights.values()), k=count)
        return [self._task(random_, number, hops) for number, hops in enumerate(lengths)]

    def lookup(self, entity: str, attribute: str) -> str:
        """Return the value of one attribute of one entity, or a text that says nothing was found."""
        value = self._facts.get((entity.strip(), attribute.strip()))
        return value if value is not None else f"{NOTHING_FOUND} {attribute} of {entity}"

    def _task(self, random_: random.Random, number: int, hops: int) -> tuple[SearchTask, Trail]:
        trail = self._trail(random_, hops)
        chain = _chain(trail.start, trail.attributes, possessives=random_.randint(0, hops))
        question = random_.choice(_PHRASINGS).format(chain=chain)
        identifier = f"search-{self.split}-{self.seed}-{number}"
        return SearchTask(identifier, question, trail.values[-1], hops), trail

    def _trail(self, random_: random.Random, hops: int) -> Trail:
        if not 1 <= hops <= MOST_HOPS:
            raise ValueError(f"hops must be between 1 and {MOST_HOPS}, got {hops}")
        while True:
            trail = self._walk(random_, hops)
            # A walk that meets a name twice would let an intermediate value pass for the answer.
            if len({trail.start, *trail.values}) == hops + 1:
                return trail

    def _walk(self, random_: random.Random, hops: int) -> Trail:
        kind = random_.choice(list(_RELATIONS))
        start = entity = random_.choice(self._members[kind])
        attributes: list[str] = []
        values: list[str] = []
        for left in reversed(range(hops)):
            attribute = random_.choice(_choices(kind, attributes, last=left == 0))
            entity = self._facts[entity, attribute]
            kind = _RELATIONS[kind][attribute]
            attributes.append(attribute)
            values.append(entity)
        return Trail(start, tuple(attributes), tuple(values))


def score(answer: str, task: SearchTask) -> int:
    """Return 1 for the right answer, ignoring case, spacing and a final full stop; otherwise 0."""
    return int(_normalised(answer) == _normalised(task.answer))


def understands(question: str) -> bool:
    """Tell whether a question is phrased in the language of this world.

    Models trained on this world answer only such questions; anything else gets nonsense from them.
    """
    asked = question.strip()
    for phrasing in _PHRASINGS:
        before, after = phrasing.split("{chain}")
        if asked.startswith(before) and asked.endswith(after):
            return _is_chain(asked.removeprefix(before).removesuffix(after))
    return False


def split_of(name: str) -> Split:
    """Return the only split in which a name may occur."""
    digest = hashlib.sha256(name.encode()).digest()
    return "test" if digest[0] < 256 * _TEST_SHARE else "train"


@lru_cache(maxsize=16)
def _names(kind: str, split: Split) -> list[str]:
    firsts, seconds = (words.split() for words in _WORDS[kind])
    names = (f"{first} {second}" for first in firsts for second in seconds)
    return [name for name in names if split_of(name) == split]


def _choices(kind: str, used: Sequence[str], *, last: bool) -> list[str]:
    # Things have no attributes, so a walk may only end at one.
    return [attribute for attribute, target in _RELATIONS[kind].items() if attribute not in used and (last or target in _RELATIONS)]


def _chain(start: str, attributes: Sequence[str], possessives: int) -> str:
    nested = "".join(f"the {attribute} of " for attribute in reversed(attributes[possessives:]))
    return nested + "'s ".join((start, *attributes[:possessives]))


def _is_chain(chain: str) -> bool:
    attribute = "(?:" + "|".join(sorted({name for relations in _RELATIONS.values() for name in relations})) + ")"
    match = re.fullmatch(rf"((?:the {attribute} of )*)(\w+ \w+)((?:'s {attribute})*)", chain)
    if match is None or not 1 <= match[1].count("the ") + match[3].count("'s ") <= MOST_HOPS:
        return False
    return any(match[2] in _names(kind, split) for kind in _RELATIONS for split in _SPLITS)


def _normalised(answer: str) -> str:
    return " ".join(answer.split()).removesuffix(".").casefold()
