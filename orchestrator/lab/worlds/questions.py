"""The facts of a search world, and questions about them, each with the program that answers it."""

import random
import re
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import finalize

from . import Argument, FinalAnswer, Program, Split, Step, names

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
_ORDINALS: Final = ("first result", "second result", "third result", "fourth result")
_BRANCHES: Final[Mapping[str, tuple[str, ...]]] = {
    "person": ("sister", "brother", "mentor", "neighbour"),
    "company": ("ceo", "founder", "accountant"),
    "city": ("mayor", "architect"),
}
"""Attributes that all name a person, so that one thing can be asked about each of them."""
_PHRASINGS: Final = ("What is {chain}?", "Find {chain}.", "Tell me {chain}.", "I need {chain}.", "Look up {chain}.")
_TRIES: Final = 200


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
        finalize(self, self._database.close)  # an index that tasks share is dropped, not closed
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


@dataclass(frozen=True, slots=True)
class Target:
    """An entity that something is asked about, reached from a start by following attributes."""

    start: str
    """A name, or a description that a search resolves."""
    entities: tuple[str, ...]
    """The entities on the way, the target last."""
    attributes: tuple[str, ...]
    """From each entity to the next."""
    reads: tuple[int, ...]
    """The step that reads each attribute."""
    search: int | None
    """The step that resolves the start."""

    def text(self, done: Collection[int] = ()) -> str:
        """Return how to refer to the target in terms of what the done steps revealed."""
        known = 0 if self.search is None or self.search in done else -1
        for position, step in enumerate(self.reads, start=1):
            known = position if step in done else known
        start = self.entities[known] if known >= 0 else self.start
        return chain_text(self.attributes[max(known, 0) :], start)

    @property
    def source(self) -> int | None:
        """The step that reveals the target's name; None where the question does."""
        return self.reads[-1] if self.reads else self.search


@dataclass(frozen=True, slots=True)
class SearchQuestion:
    """A question with the program that answers it."""

    kind: str
    text: str
    program: Program
    targets: tuple[Target, ...]
    attribute: str
    """Attribute that the question asks of each target."""

    @property
    def answer(self) -> str:
        return self.program.ending.answer

    @property
    def difficulty(self) -> int:
        """Sections to read."""
        return sum(step.tool == "open" for step in self.program.steps)

    def advice(self, done: Collection[int]) -> str:
        """Return in words what is left to find out."""
        parts = zip(self.targets, self.program.ending.parts, strict=True)
        left = [target.text(done) for target, part in parts if not part.is_known(done)]
        if not left:
            return self.program.ending.text(done) + "."
        end = "" if len(self.targets) == 1 else ", then compare" if self.program.ending.is_comparison else ", then list all"
        return f"find the {self.attribute} of {' and of '.join(left)}{end}."


class Author:
    """Draws questions about one table of facts."""

    def __init__(self, facts: Facts, index: PassageIndex, random_: random.Random) -> None:
        self.facts = facts
        self.index = index
        self.random = random_

    def question(self, kind: str) -> SearchQuestion:
        """Draw a question of a kind: `1 hop` ... `4 hops`, `comparison`, `fan-out`, `list`, `unanswerable`."""
        for _ in range(_TRIES):
            question = self._draw(kind)
            if question is not None:
                return question
        raise RuntimeError(f"no question of kind {kind!r} fits these facts")

    def _draw(self, kind: str) -> SearchQuestion | None:
        if kind == "comparison":
            return self._comparison()
        if kind == "fan-out":
            return self._fan_out()
        if kind == "list":
            return self._list()
        if kind == "unanswerable":
            return self._chain(self.random.randint(1, 3), is_answerable=False)
        return self._chain(int(kind[0]), is_answerable=True)

    def _chain(self, hops: int, *, is_answerable: bool) -> SearchQuestion | None:
        steps = _Steps(self.facts)
        attributes = self._walk(hops)
        if attributes is None:
            return None
        kind, path, last = attributes
        start = self.random.choice(self.facts.members[kind])
        described = self._describe(start, kind) if self.random.random() < 0.35 else None
        target = steps.follow(start, path, described)
        if target is None:
            return None
        if not is_answerable:
            last = self._gap(target.entities[-1])
        if not last or ((target.entities[-1], last) in self.facts.values) is not is_answerable:
            return None
        ending = FinalAnswer((steps.part(target, last),))
        if ending.answer in (*target.entities, *(described or ())):
            return None
        possessives = self.random.randint(0, hops) if described is None else 0
        text = self.random.choice(_PHRASINGS).format(chain=_possessive_chain(target.start, (*path, last), possessives))
        label = f"{hops} hop{'s' if hops > 1 else ''}" if is_answerable else "unanswerable"
        return SearchQuestion(label, text, steps.program(ending), (target,), last)

    def _walk(self, hops: int) -> tuple[str, tuple[str, ...], str] | None:
        kind = start = self.random.choice(list(RELATIONS))
        path: list[str] = []
        for left in reversed(range(hops)):
            choices = [name for name, to in RELATIONS[kind].items() if name not in path and (left == 0 or to in RELATIONS)]
            if not choices:
                return None
            path.append(self.random.choice(choices))
            kind = RELATIONS[kind][path[-1]]
        return start, tuple(path[:-1]), path[-1]

    def _gap(self, entity: str) -> str:
        """Return an attribute that the entity's passage does not state; empty where it states all."""
        missing = [name for name in RELATIONS[self.facts.kind_of[entity]] if (entity, name) not in self.facts.values]
        return self.random.choice(missing) if missing else ""

    def _describe(self, entity: str, kind: str) -> tuple[str, str] | None:
        """Return an attribute and value that only this entity has, and that a search finds first."""
        stated = [name for name in RELATIONS[kind] if (entity, name) in self.facts.values]
        attribute = self.random.choice(stated) if stated else ""
        value = self.facts.values.get((entity, attribute), "")
        found = self.index.search(f"{attribute} {value}").split("; ")
        is_unique = self.facts.having(attribute, value) == [entity] and found[0] == entity
        return (attribute, value) if value and is_unique else None

    def _comparison(self) -> SearchQuestion | None:
        steps = _Steps(self.facts)
        walk = self._walk(self.random.choice((1, 1, 2)))
        if walk is None:
            return None
        kind, path, last = walk
        wants_same = self.random.random() < 0.5
        for _ in range(_TRIES):
            starts = self.random.sample(self.facts.members[kind], 2)
            ends = [self.facts.value(self._end(start, path), last) for start in starts]
            if UNKNOWN not in ends and (ends[0] == ends[1]) is wants_same:
                break
        else:
            return None
        pairs = []
        for start in starts:
            target = steps.follow(start, path, None)
            if target is None:
                return None
            pairs.append((target, steps.part(target, last)))
        both = (pairs[0][0], pairs[1][0])
        if set(both[0].entities) & set(both[1].entities):
            return None
        ending = FinalAnswer((pairs[0][1], pairs[1][1]), is_comparison=True)
        text = f"Do {both[0].text()} and {both[1].text()} have the same {last}?"
        return SearchQuestion("comparison", text, steps.program(ending), both, last)

    def _end(self, start: str, path: Sequence[str]) -> str:
        for attribute in path:
            start = self.facts.value(start, attribute)
        return start

    def _fan_out(self) -> SearchQuestion | None:
        steps = _Steps(self.facts)
        kind = self.random.choices(list(_BRANCHES), (3, 2, 1))[0]
        start = self.random.choice(self.facts.members[kind])
        branches = self.random.sample(_BRANCHES[kind], self.random.randint(2, len(_BRANCHES[kind])))
        last = self.random.choice(list(RELATIONS["person"]))
        targets: list[Target] = []
        parts: list[Argument] = []
        for branch in branches:
            target = steps.follow(start, (branch,), None)
            if target is None:
                return None
            targets.append(target)
            parts.append(steps.part(target, last))
        text = f"List the {last} of {_join_items([f'the {branch}' for branch in branches])} of {start}."
        return self._collect("fan-out", text, steps, targets, tuple(parts), last)

    def _list(self) -> SearchQuestion | None:
        steps = _Steps(self.facts)
        attribute = self.random.choice(("employer", "birthplace", "keepsake"))
        value = self.random.choice(self.facts.members[RELATIONS["person"][attribute]])
        last = self.random.choice([name for name in RELATIONS["person"] if name != attribute])
        found = self.index.search(f"{attribute} {value}").split("; ")
        if not 2 <= len(found) <= 3 or set(found) != set(self.facts.having(attribute, value)):
            return None
        results = [steps.result(attribute, value, position, found) for position in range(len(found))]
        parts = tuple(steps.ask(title, last) for _, title in results)
        text = f"List the {last} of all whose {attribute} is {value}."
        return self._collect("list", text, steps, [target for target, _ in results], parts, last)

    def _collect(
        self, kind: str, text: str, steps: "_Steps", targets: Sequence[Target], parts: tuple[Argument, ...], last: str
    ) -> SearchQuestion | None:
        ends = [target.entities[-1] for target in targets]
        if len(set(ends)) < len(ends) or any(part.value == UNKNOWN for part in parts):
            return None
        return SearchQuestion(kind, text, steps.program(FinalAnswer(parts)), tuple(targets), last)


class _Steps:
    """Collects the steps of one program; a section is read once."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._steps: list[Step] = []
        self._read: dict[tuple[str, str], int] = {}

    def program(self, ending: FinalAnswer) -> Program:
        return Program(tuple(self._steps), ending)

    def part(self, target: Target, attribute: str) -> Argument:
        """Read what is asked of the target."""
        source = target.source
        name = target.attributes[-1] if target.attributes else _ORDINALS[0] if target.search is not None else ""
        return self.ask(Argument(target.entities[-1], name, source), attribute)

    def ask(self, title: Argument, attribute: str) -> Argument:
        """Read an attribute of an entity."""
        return Argument(self._facts.value(str(title.value), attribute), attribute, self._open(title, attribute))

    def follow(self, start: str, path: Sequence[str], described: tuple[str, str] | None) -> Target | None:
        """Read one attribute after the other; None where a fact is missing or an entity comes twice."""
        search = None if described is None else self._search(*described)
        title = Argument(start) if search is None else Argument(start, _ORDINALS[0], search)
        entities, reads = [start], list[int]()
        for attribute in path:
            value = self._facts.values.get((entities[-1], attribute))
            if value is None or value in entities:
                return None
            reads.append(self._open(title, attribute))
            title = Argument(value, attribute, reads[-1])
            entities.append(value)
        text = start if described is None else f"the one whose {described[0]} is {described[1]}"
        return Target(text, tuple(entities), tuple(path), tuple(reads), search)

    def result(self, attribute: str, value: str, position: int, found: Sequence[str]) -> tuple[Target, Argument]:
        """Return one of several search results, and its title as an argument."""
        search = self._search(attribute, value)
        target = Target(f"the {_ORDINALS[position]} for {attribute} {value}", (found[position],), (), (), search)
        return target, Argument(found[position], _ORDINALS[position], search)

    def _search(self, attribute: str, value: str) -> int:
        query = f"{attribute} {value}"
        known = [index for index, step in enumerate(self._steps) if step.tool == "search" and step.arguments[0][1].value == query]
        if known:
            return known[0]
        return self._add(Step("search", (("query", Argument(query)),)))

    def _open(self, title: Argument, section: str) -> int:
        read = (str(title.value), section)
        if read not in self._read:
            self._read[read] = self._add(Step("open", (("title", title), ("section", Argument(section)))))
        return self._read[read]

    def _add(self, step: Step) -> int:
        self._steps.append(step)
        return len(self._steps) - 1


def chain_text(attributes: Sequence[str], start: str) -> str:
    """Return a chain of attributes in words: `the city of the employer of Mira Falk`."""
    return "".join(f"the {attribute} of " for attribute in reversed(attributes)) + start


def _possessive_chain(start: str, attributes: Sequence[str], possessives: int) -> str:
    """Return a chain of attributes with the first ones as possessives, which are read from left to right, and the others with `of`."""
    return chain_text(attributes[possessives:], "'s ".join((start, *attributes[:possessives])))


def _join_items(items: Sequence[str]) -> str:
    return f"{', '.join(items[:-1])} and {items[-1]}"
