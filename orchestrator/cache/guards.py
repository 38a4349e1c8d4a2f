"""Guards: reasons why the answer to one question must not be given to another, however close the two are in meaning.

An embedding barely notices a `not`, a number, or two names that changed places, so closeness alone serves wrong answers. The guards
compare words instead, and fail closed: they pass two questions only where a short list of harmless changes (`wording`) explains every
difference between them. A change that is not listed is an objection.
"""

import re
from collections import Counter
from typing import Final

from .wording.canonical import Canonical

_WORDS: Final[dict[str, frozenset[str]]] = {
    kind: frozenset(words.split())
    for kind, words in {
        "question": "what which who whom whose when where why how how-to whether",
        "negation": "not no never none nothing nobody nowhere neither nor without cannot hardly barely scarcely rarely seldom"
        " except unless but",
        "person": "i me my mine myself you your yours yourself he him his himself she her hers herself it its itself we us our ours"
        " ourselves they them their theirs themselves one people",
        "tense": "was were did had been will use used going",
        "modal": "can could may might must shall should will would ought need able allowed supposed required",
        "auxiliary": "am is are was were be been being do does did done has have had having get got",
        "scope": "only also even just still already yet too again almost ever really quite rather so exactly mainly merely instead",
        "degree": "<best> <good> <some> more most less least better best worse worst very good great enough as than bigger biggest",
        "quantity": "all some any each every both either many much few little several half another other most",
        "determiner": "a an the this that these those",
        "time": "today tomorrow yesterday now then before after since until by during while ago later when daily weekly monthly yearly"
        " always sometimes often once twice first last next",
        "condition": "if even unless whether",
        "coordination": "and or & vs versus",
        "preposition": "in on at for of to about from with into onto over under by off up down out through against between near behind"
        " above below across along around inside outside like",
    }.items()
}
_NUMBER: Final = re.compile(r"\d|%|[$\u20ac\u00a3\u00a5]|-$")


def kind_of(asked: str, stored: str) -> str:
    """Return the kind of change between two different canonical forms, and the words in which they differ."""
    mine, theirs = Counter(asked.split()), Counter(stored.split())
    only_mine, only_theirs = mine - theirs, theirs - mine
    differing = {*only_mine, *only_theirs}
    if not differing:
        return "order: the same words stand in another order"
    return f"{_kind(differing)}: {_listed(only_mine)} against {_listed(only_theirs)}"


def _kind(words: set[str]) -> str:
    if len({word.lower() for word in words}) < len(words):
        return "case"
    if "~" in words:
        words = words - {"~"} or {"a"}
    for kind in ("question", "negation", "tense"):
        if _WORDS[kind] & words:
            return kind
    if any(_NUMBER.search(word) for word in words):
        return "number"
    if any(word[0].isupper() for word in words):
        return "name"
    named = (kind for kind, known in _WORDS.items() if words <= known)
    partly = (kind for kind, known in _WORDS.items() if words & known and len(words) > 1)
    return next(named, None) or next(partly, None) or "word"


def _listed(words: Counter[str]) -> str:
    return " ".join(sorted(words)) or "nothing"


def objection(asked: str, stored: str) -> str | None:
    """Return why the answer to the stored question does not answer the asked one; None where no guard objects. Symmetric."""
    mine, theirs = Canonical.of(asked), Canonical.of(stored)
    if mine.asks_the_same_as(theirs):
        return None
    if not (mine.is_english and theirs.is_english):
        return "language: the words differ, and the guards know only plain English"
    return kind_of(mine.text, theirs.text)
