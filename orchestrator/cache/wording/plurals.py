"""Questions about a kind of thing, asked of one or of all: `why is a cat lazy` and `why are cats lazy`."""

import re
from typing import Final

from .actions import plain_of
from .lists import listed

_ONE: Final = re.compile(r"^(what |why |how )(is|does) an? (?=[a-z])")
_ALL: Final = re.compile(r"^(what |why |how )(are|do) (?=[a-z])")
_ANY: Final = re.compile(r"^what is (?=([a-z]+(?: [a-z]+){1,3})$)")
_BEST: Final = re.compile(r"^(what|who) (?:is|are) the best (?=[a-z])")
_PURPOSE: Final = re.compile(r"^((?:[a-z]+ ){1,3})for ([a-z]+ing)\b")
_AGREES: Final = re.compile(r"^((?:what |why |how |when |where |who )?)(is|are|does|do)\b")
_OWN_MEANING: Final = listed(
    "glasses customs securities goods arms means savings damages scales minutes papers looks manners spirits news works waters physics"
    " mathematics politics economics statistics ethics athletics gymnastics premises proceeds contents clothes thanks pants trousers"
    " shorts jeans scissors stairs ashes brains guts airs colors colours letters forces grounds quarters remains terms times effects"
    " irons lights drugs numbers bonds stocks shares futures options odds belongings surroundings headquarters series species people"
    " blues greens woods irons holidays odds wages arts sports races regards respects compasses draughts checkers dominoes things"
)
"""Plurals that mean something else than several of their singular."""
_MEASURES: Final = listed(
    "seconds minutes hours days weeks months years decades centuries miles kilometers kilometres meters metres feet inches pounds"
    " kilos grams ounces liters litres gallons dollars euros cents rupees degrees calories points percent"
)
_IN_IE: Final = listed("movies cookies calories zombies selfies rookies hoodies smoothies brownies genies pixies prairies ties pies lies")
_STOP: Final = listed(
    "the a an this these that those my your his her its our their i you he she it we they there some any all most no each every both"
    " not is are was were do does did has have had and or of in on at to for by with from always sometimes perhaps as us else"
)
_FARTHEST: Final = 3
"""Words after the auxiliary among which the noun is looked for."""
_LEAST: Final = 4
"""Letters of a plural."""


def of_a_kind(text: str) -> str:
    """Return a question about a kind of thing in one form, for one of them or all."""
    return _AGREES.sub(lambda found: found[1] + _NUMBERLESS[found[2]], _of_a_kind(text))


def _of_a_kind(text: str) -> str:
    best = _BEST.search(text)
    if best is not None:
        rest = text[best.end() :]
        return f"{best[1]} is the best ~ {_for_purpose(_of_one(rest) or rest)}"
    bare = _ANY.search(text)
    if bare is not None and not _STOP.intersection(bare[1].split()):
        return text.replace("what is ", "what be ~ ", 1)
    one = _ONE.search(text)
    if one is not None:
        return f"{one[1]}{_NUMBERLESS[one[2]]} ~ {text[one.end() :]}"
    several = _ALL.search(text)
    single = None if several is None else _of_one(text[several.end() :])
    return text if several is None or single is None else f"{several[1]}{_NUMBERLESS[several[2]]} ~ {single}"


_NUMBERLESS: Final = {"is": "be", "are": "be", "does": "do", "do": "do"}


def _for_purpose(text: str) -> str:
    """Return `app to learn` for `app for learning`."""
    found = _PURPOSE.search(text)
    verb = None if found is None else plain_of(found[2])
    return text if found is None or verb is None else f"{found[1]}to {verb}{text[found.end() :]}"


def _of_one(rest: str) -> str | None:
    """Return a text whose first plural is made a singular; None where there is none that is the same thing."""
    words = rest.split()
    for place, word in enumerate(words[:_FARTHEST]):
        if word in _STOP or not word.isalpha() or not word.islower():
            return None
        if word in _OWN_MEANING or word in _MEASURES:
            return None
        if len(word) >= _LEAST and word.endswith("s") and not word.endswith(("ss", "us", "is", "as", "ics")):
            return " ".join([*words[:place], _singular(word), *words[place + 1 :]])
    return None


def _singular(word: str) -> str:
    if word in _IN_IE:
        return word[:-1]
    if word.endswith("ies") and len(word) > _LEAST + 1:
        return f"{word[:-3]}y"
    if word.endswith(("sses", "shes", "ches", "xes", "zes", "oes")):
        return word[:-2]
    return word[:-1]
