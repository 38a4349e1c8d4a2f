"""Questions whose meaning was changed by a small edit, made from questions of people: what a semantic cache must not answer from its store.

The edits know nothing of the guards that they test: their word lists are their own, and wider than what the guards name.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

Edit = Callable[[str, random.Random, Sequence[str]], str | None]
"""Takes a question, a source of chance and names to choose from; None where it finds nothing to change."""

_OPPOSITES: Final = """
best/worst good/bad better/worse more/less most/least increase/decrease gain/lose high/low higher/lower fast/slow faster/slower
buy/sell before/after start/stop begin/end open/close love/hate like/dislike safe/dangerous legal/illegal easy/hard easiest/hardest
cheap/expensive cheapest/dearest first/last old/new young/old big/small biggest/smallest largest/smallest long/short longest/shortest
tall/short taller/shorter rich/poor strong/weak hot/cold warm/cool import/export upload/download install/uninstall enable/disable
lock/unlock follow/unfollow block/unblock win/lose won/lost male/female man/woman men/women boy/girl boys/girls husband/wife father/mother
always/never with/without advantages/disadvantages pros/cons positive/negative success/failure true/false right/wrong remove/add
raise/lower maximum/minimum ascending/descending up/down inside/outside above/below early/late public/private black/white day/night
north/south east/west morning/evening accept/reject allow/forbid possible/impossible happy/sad healthy/unhealthy send/receive
past/future create/delete major/minor upper/lower richest/poorest summer/winter winter/summer
"""
_UNITS: Final = """
kg/pounds kgs/lbs km/miles kilometers/miles meters/feet cm/inches feet/metres inches/centimeters hours/minutes minutes/seconds days/weeks
weeks/months months/years years/months year/month month/week week/day dollars/rupees rupees/dollars euros/pounds usd/inr inr/usd
lakh/crore lakhs/crores million/billion billion/trillion gb/mb mb/gb tb/gb celsius/fahrenheit mph/kmh volts/amps watts/volts litres/gallons
percent/dollars k/m grams/ounces calories/grams second/minute hour/minute
"""
_QUESTIONS: Final = "how/why why/how when/where where/when who/why"
_PERSONS: Final = "he/she she/he his/her him/her my/his your/her they/we"
_ADDITIONS: Final = (
    "in Japan", "for children", "without sugar", "on Linux", "in 1950", "for a beginner", "after midnight", "under water", "for free",
    "at home", "in Python", "while pregnant",
)  # fmt: skip
_PREPOSITIONS: Final = "to/about about/to for/from from/for in/from with/without by/for on/under at/after of/without into/from"
_MODALS: Final = "must/should should/must can/should could/must will/should would/must may/must"
_AUXILIARIES: Final = "is/has has/is are/have have/are does/did do/did was/is were/are did/do had/is"
_QUANTITIES: Final = "all/some some/all any/all every/some many/few few/many most/some both/neither each/no"
_DETERMINERS: Final = "a/the the/this this/the that/this these/those an/the"
_SCOPES: Final = ("only", "also", "even", "still", "already", "almost", "never")
_COMMON_WORDS: Final = """
window windows apple apples word words book books bank banks house houses web internet state government president church army world
sun moon earth market express post times friends office force union congress stone bill mark may march
"""
_SHORTEST_EXCHANGED: Final = 4
"""Letters; shorter words are mostly such that the question has no meaning once they have moved."""
_AUXILIARY: Final = re.compile(r"\b(is|are|was|were|do|does|did|can|could|should|would|will|has|have)\b", re.IGNORECASE)
_NAME: Final = re.compile(r"(?<=[a-z,] )[A-Z][a-zA-Z]+(?: [A-Z][a-zA-Z]+)*")
_DIRECTED: Final = re.compile(r"\b(\w+) (to|than|into|from|over|without|by|against|before|after|under) (?:a |an |the )?(\w+)\b")


@dataclass(frozen=True, slots=True)
class Swap:
    """A question, and what an edit made of it."""

    kind: str
    original: str
    changed: str


def swaps(questions: Sequence[str], *, seed: int = 0) -> Iterator[Swap]:
    """For each question, what each edit makes of it that finds something to change."""
    names = sorted({name for question in questions for name in _NAME.findall(question)})
    for question in questions:
        for kind, edit in EDITS.items():
            changed = edit(question, random.Random(f"{seed} {kind} {question}"), names)
            if changed is not None and (changed.casefold() != question.casefold() or kind == "case"):
                yield Swap(kind, question, changed)


def _negated(question: str, chance: random.Random, names: Sequence[str]) -> str | None:
    """`not` taken out where there is one, else put behind the first auxiliary, or behind the word that follows it."""
    bare = re.sub(r"n't\b| not\b", "", question)
    if bare != question:
        return bare
    found = _AUXILIARY.search(question)
    if found is None:
        return None
    place = found.end()
    if chance.random() < 0.5 and (word := re.compile(r" \w+").match(question, place)):
        place = word.end()
    return f"{question[:place]} not{question[place:]}"


def _renumbered(question: str, chance: random.Random, names: Sequence[str]) -> str | None:
    found = list(re.finditer(r"\d+", question))
    if not found:
        return None
    spot = chance.choice(found)
    other = str(int(spot[0]) + chance.choice((1, 2, 5, 10, 100)))
    return question[: spot.start()] + other + question[spot.end() :]


def _renamed(question: str, chance: random.Random, names: Sequence[str]) -> str | None:
    found = list(_NAME.finditer(question))
    if not found or len(names) < 2:
        return None
    spot = chance.choice(found)
    other = chance.choice([name for name in chance.sample(names, min(8, len(names))) if name != spot[0]])
    return question[: spot.start()] + other + question[spot.end() :]


def _exchanged(question: str, chance: random.Random, names: Sequence[str]) -> str | None:
    """Two names change places, or the two sides of a word that has a direction. Those that `and` or `or` joins mean the same either way."""
    found = list(_NAME.finditer(question))
    if len(found) >= 2 and not re.search(r"\b(?:and|or|vs|versus|between)\b|[&,/]", question):
        first, second = found[0], found[1]
        middle = question[first.end() : second.start()]
        return question[: first.start()] + second[0] + middle + first[0] + question[second.end() :]
    spot = _DIRECTED.search(question)
    if spot is None or min(len(spot[1]), len(spot[3])) < _SHORTEST_EXCHANGED:
        return None
    return question[: spot.start(1)] + spot[3] + question[spot.end(1) : spot.start(3)] + spot[1] + question[spot.end(3) :]


def _replaced(pairs: str) -> Edit:
    """An edit that puts one word for another."""
    table = {left: right for left, _, right in (pair.partition("/") for pair in pairs.split())}
    table = {**{right: left for left, right in table.items()}, **table}

    def edit(question: str, chance: random.Random, names: Sequence[str]) -> str | None:
        found = [spot for spot in re.finditer(r"\w+", question) if spot[0].casefold() in table]
        if not found:
            return None
        spot = chance.choice(found)
        return question[: spot.start()] + table[spot[0].casefold()] + question[spot.end() :]

    return edit


def _narrowed(question: str, chance: random.Random, names: Sequence[str]) -> str | None:
    body = question.rstrip("? .")
    return f"{body} {chance.choice(_ADDITIONS)}?" if body and chance.random() < 0.2 else None


def _scoped(question: str, chance: random.Random, names: Sequence[str]) -> str | None:
    """A scope word behind the first auxiliary's subject or the question's second word."""
    words = question.split()
    if len(words) < 4 or chance.random() < 0.5:
        return None
    return " ".join([*words[:3], chance.choice(_SCOPES), *words[3:]])


def _shortened(question: str, chance: random.Random, names: Sequence[str]) -> str | None:
    """A name of several words loses one."""
    found = [name for name in _NAME.finditer(question) if " " in name[0]]
    if not found:
        return None
    spot = chance.choice(found)
    words = spot[0].split()
    words.pop(chance.randrange(len(words)))
    return question[: spot.start()] + " ".join(words) + question[spot.end() :]


def _superlative(question: str, chance: random.Random, names: Sequence[str]) -> str | None:
    """`a` becomes `the best`, `the best` becomes `a`."""
    if re.search(r"\bthe best\b", question):
        return re.sub(r"\bthe best\b", "a", question, count=1)
    found = re.search(r"\ban? (?=\w)", question)
    return None if found is None else f"{question[: found.start()]}the best {question[found.end() :]}"


def _recapitalised(question: str, chance: random.Random, names: Sequence[str]) -> str | None:
    """An everyday word becomes a name."""
    found = [word for word in re.finditer(r"(?<=\w )[a-z]+", question) if word[0] in _COMMON_WORDS.split()]
    if not found:
        return None
    spot = chance.choice(found)
    return question[: spot.start()] + spot[0].capitalize() + question[spot.end() :]


EDITS: Final[dict[str, Edit]] = {
    "negation": _negated,
    "number": _renumbered,
    "entity": _renamed,
    "order": _exchanged,
    "unit": _replaced(_UNITS),
    "opposite": _replaced(_OPPOSITES),
    "question": _replaced(_QUESTIONS),
    "person": _replaced(_PERSONS),
    "constraint": _narrowed,
    "preposition": _replaced(_PREPOSITIONS),
    "modal": _replaced(_MODALS),
    "auxiliary": _replaced(_AUXILIARIES),
    "quantity": _replaced(_QUANTITIES),
    "determiner": _replaced(_DETERMINERS),
    "superlative": _superlative,
    "scope": _scoped,
    "name_part": _shortened,
    "case": _recapitalised,
}
"""Every edit, by the kind of change that it makes."""
